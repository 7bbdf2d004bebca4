//! Parser for resolver configuration files, which become `dns` in the result.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni::{Code, Context, Dns, Error, Result};

/// The number of bytes that are read at most.
const LIMIT: u64 = 1 << 20;

/// Reads and parses `path`, which must be a regular file: a device or a pipe might never end.
pub(crate) fn read(path: &Path) -> Result<Dns> {
    let what = || format!("read \"resolvConf\" {path:?}");
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.context(what).map_err(|error| error.details("\"resolvConf\" must name a readable file"))?;
    if !file.metadata().context(what)?.is_file() {
        let error = Error::new(Code::CONFIG, format!("\"resolvConf\" {path:?} is not a regular file"));
        return Err(error.details("write a path such as \"/etc/resolv.conf\""));
    }
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text).context(what)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Parses the text of a resolver configuration file, ignoring unknown keywords.
pub(crate) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(key) = words.next() else { continue };
        match key.as_str() {
            "nameserver" => dns.nameservers.extend(words.next()),
            "domain" => dns.domain = words.next().unwrap_or(dns.domain),
            "search" => dns.search.extend(words),
            "options" => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_accumulate_and_the_last_domain_wins() {
        let text = "# a comment\n; another\n\n  nameserver 10.0.0.1 ignored\nnameserver\tfd00::1\nnameserver\n\
                    domain a.example\ndomain b.example\ndomain\nsearch x y\nsearch z\noptions ndots:5 rotate\n\
                    sortlist 10.0.0.0\nnameserverx 1\nsearch\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain, "b.example");
        assert_eq!(dns.search, ["x", "y", "z"]);
        assert_eq!(dns.options, ["ndots:5", "rotate"]);
        assert!(parse("").is_empty());
    }
}
