//! The administrator's list of the sysctls that networks may set.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni::{Code, Context, Error, Result};

use crate::pattern::Pattern;
use crate::sysctl::Sysctl;

/// The file. If it does not exist, all sysctls below `net` are allowed.
pub(crate) const ALLOW_LIST: &str = "/etc/cni/tuning/allowlist.conf";
/// The greatest size of the file in bytes.
const MAX_SIZE: u64 = 64 << 10;
/// What the list can have.
const SYNTAX_HINT: &str = "write one regular expression of Go per line, with literals, classes, groups, alternatives and \
                           repetitions";

/// The patterns of the list.
#[derive(Debug)]
struct AllowList(Vec<Pattern>);

/// Returns an error unless the list allows all `sysctls`. Without any, the list is not read, as in the reference.
/// `ifname` is `None` if it is not known.
pub(crate) fn require(sysctls: &[Sysctl], ifname: Option<&str>) -> Result<()> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let Some(list) = AllowList::read().context(|| format!("read the list of allowed sysctls {ALLOW_LIST:?}"))? else {
        return Ok(());
    };
    match sysctls.iter().find(|sysctl| !list.allows(&sysctl.key.spellings(ifname))) {
        None => Ok(()),
        Some(sysctl) => {
            let what = format!("key \"sysctl\": {:?} is not allowed", sysctl.key.to_string());
            Err(Error::new(Code::CONFIG, what).details(format!("the administrator can add it to {ALLOW_LIST}")))
        }
    }
}

impl AllowList {
    /// Reads the file; `None` if it does not exist.
    fn read() -> Result<Option<AllowList>> {
        // Opening a named pipe must not wait for a writer.
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(ALLOW_LIST) {
            Err(error) if error.kind() == ErrorKind::NotFound => return refuse_dangling_link().map(|()| None),
            file => file?,
        };
        let mut content = Vec::new();
        file.take(MAX_SIZE + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_SIZE {
            let what = format!("the file has more than {} KiB", MAX_SIZE >> 10);
            return Err(Error::new(Code::CONFIG, what).details("use fewer, more general patterns"));
        }
        AllowList::parse(&content).map(Some)
    }

    /// Parses one pattern per line. Blank lines are skipped.
    fn parse(content: &[u8]) -> Result<AllowList> {
        let mut patterns = Vec::new();
        for (number, line) in (1..).zip(content.split(|byte| *byte == b'\n')) {
            let refuse =
                |mistake: &str| Error::new(Code::CONFIG, format!("line {number}: {mistake}")).details(SYNTAX_HINT);
            let line = std::str::from_utf8(line).map_err(|_| refuse("not UTF-8"))?.trim();
            if !line.is_empty() {
                patterns.push(Pattern::parse(line).map_err(|mistake| refuse(&mistake))?);
            }
        }
        Ok(AllowList(patterns))
    }

    /// Returns whether a pattern matches one of the spellings of a sysctl.
    fn allows(&self, spellings: &[String]) -> bool {
        self.0.iter().any(|pattern| spellings.iter().any(|spelling| pattern.matches(spelling)))
    }
}

/// Returns an error if the path of the file leads through a symbolic link to nothing, such as a file system that is not
/// mounted. Then there is a list, and what it allows is not known.
fn refuse_dangling_link() -> Result<()> {
    let entry = Path::new(ALLOW_LIST).ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    match entry.filter(|entry| fs::metadata(entry).is_err()) {
        None => Ok(()),
        Some(link) => {
            let error = Error::new(Code::CONFIG, format!("{link:?} is a symbolic link to a file that does not exist"));
            Err(error.details("restore that file; only without the link are all sysctls below \"net\" allowed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &str, key: &str) -> bool {
        let sysctl = Sysctl::parse(key, String::new(), None).unwrap();
        AllowList::parse(list.as_bytes()).unwrap().allows(&sysctl.key.spellings(Some("eth0")))
    }

    #[test]
    fn a_line_may_match_any_part_of_any_spelling() {
        let list = "\n  ^net.ipv4.conf.IFNAME.accept_redirects$ \r\n\n^net/core/somaxconn$\nmartians";
        assert!(allows(list, "net.ipv4.conf.IFNAME.accept_redirects"));
        assert!(allows(list, "net/ipv4/conf/eth0/accept_redirects"));
        assert!(!allows(list, "net.ipv4.conf.all.accept_redirects"));
        assert!(allows(list, "net.core.somaxconn"));
        assert!(allows(list, "net.ipv4.conf.all.log_martians"));
        assert!(!allows(list, "net.ipv4.ip_forward"));
    }

    #[test]
    fn an_empty_list_forbids_everything() {
        for list in ["", "\n", "  \n\n"] {
            assert!(!allows(list, "net.core.somaxconn"), "{list:?}");
        }
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        for (list, line) in [("a\n\n[b", "line 3: "), ("*", "line 1: "), ("a\n\\pL\n", "line 2: ")] {
            let error = AllowList::parse(list.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG);
            assert!(error.to_string().starts_with(line), "{error}");
        }
        assert!(AllowList::parse(b"a\n\xff").unwrap_err().to_string().contains("line 2"));
    }
}
