//! Names of sysctls, as a configuration writes them, and their values.

use std::fmt;

/// What stands for the name of the interface.
const PLACEHOLDER: &str = "IFNAME";
/// The greatest length of a name.
const MAX_LENGTH: usize = 1000;
/// How to write a name.
const NAME_HINT: &str = "write it as net.core.somaxconn or net/core/somaxconn";

/// A sysctl with the value that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sysctl {
    pub(crate) key: Key,
    /// The parts of its path, with the name of the interface if that is known.
    pub(crate) path: Vec<String>,
    pub(crate) value: String,
}

/// The name of a sysctl below `net`, as the parts of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(Vec<String>);

impl Sysctl {
    /// Validates the name. An error has the reason and the remedy. `ifname` is `None` if it is not known.
    pub(crate) fn parse(
        key: &str,
        value: String,
        ifname: Option<&str>,
    ) -> Result<Sysctl, (&'static str, &'static str)> {
        let key = Key::parse(key)?;
        Ok(Sysctl { path: key.path(ifname.unwrap_or(PLACEHOLDER)), key, value })
    }
}

impl Key {
    /// Validates a name as sysctl(8) reads it: the first separator decides. After a dot, all dots are separators, and a
    /// slash stands for a dot. After a slash, all slashes are separators, and dots are literal: names of interfaces may
    /// have some.
    ///
    /// Unlike the reference, for which every dot is a separator.
    fn parse(text: &str) -> Result<Key, (&'static str, &'static str)> {
        let separator =
            if text.find('/') < text.find('.').or(Some(usize::MAX)) && text.contains('/') { '/' } else { '.' };
        let parts: Vec<String> = text
            .split(separator)
            .map(|part| if separator == '.' { part.replace('/', ".") } else { part.to_owned() })
            .collect();
        if text.len() > MAX_LENGTH || text.contains(char::is_control) {
            return Err(("is not the name of a sysctl", NAME_HINT));
        }
        // The check is for the parts, so that nothing like `net/../kernel` leads out of `net`.
        if parts.iter().any(|part| matches!(part.as_str(), "" | "." | "..")) {
            return Err(("has an empty part", NAME_HINT));
        }
        if parts.len() < 2 || parts.first().is_none_or(|first| first != "net") {
            return Err((
                "is not a sysctl below net",
                "only sysctls whose names begin with net. can be set for a container",
            ));
        }
        Ok(Key(parts))
    }

    /// Returns the parts of the path, with the name of the interface.
    fn path(&self, ifname: &str) -> Vec<String> {
        let mut parts = self.0.clone();
        if let Some(part) = parts.iter_mut().find(|part| part.contains(PLACEHOLDER)) {
            *part = part.replacen(PLACEHOLDER, ifname, 1);
        }
        parts
    }

    /// Returns all names of the sysctl, as an allow-list may spell them: with dots and with slashes, with the name of
    /// the interface and with the word that stands for it. `ifname` is `None` if it is not known.
    pub(crate) fn spellings(&self, ifname: Option<&str>) -> Vec<String> {
        let mut paths = vec![self.0.clone()];
        if let Some(ifname) = ifname {
            paths.push(self.path(ifname));
            let is_name = |part: &String| part == ifname;
            let placed = |part: &String| if is_name(part) { PLACEHOLDER.to_owned() } else { part.clone() };
            paths.push(self.path(ifname).iter().map(placed).collect());
        }
        paths.iter().flat_map(|path| [dotted(path), path.join("/")]).collect()
    }

    /// Returns the path if it does not depend on the container: it names no interface of a container.
    pub(crate) fn common_path(&self) -> Option<&[String]> {
        let of_interface = |parts: &[String]| match parts {
            [_, _, table, name, _, ..] => {
                ["conf", "neigh"].contains(&table.as_str()) && !["all", "default"].contains(&name.as_str())
            }
            _ => false,
        };
        let depends = of_interface(&self.0) || self.0.iter().any(|part| part.contains(PLACEHOLDER));
        (!depends).then_some(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&dotted(&self.0))
    }
}

/// Returns a path with dots between its parts, and slashes for the dots in them.
fn dotted(parts: &[String]) -> String {
    parts.iter().map(|part| part.replace('.', "/")).collect::<Vec<_>>().join(".")
}

/// Returns whether the kernel shows `now` if `wanted` was written: numbers count by value, and white space only
/// separates. The kernel ignores further numbers after those that the sysctl has.
pub(crate) fn same_value(now: &str, wanted: &str) -> bool {
    let (mut now, mut wanted) = (now.split_ascii_whitespace(), wanted.split_ascii_whitespace());
    let mut ends_with_number = false;
    loop {
        ends_with_number = match (now.next(), wanted.next()) {
            (None, None) => return true,
            (None, Some(further)) => return ends_with_number && number(further).is_some(),
            (Some(a), Some(b)) if number(a).is_some_and(|a| Some(a) == number(b)) => true,
            (Some(a), Some(b)) if a == b => false,
            _ => return false,
        }
    }
}

/// Reads a number as the kernel does: decimal, hexadecimal after `0x`, octal after `0`.
fn number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    };
    number.map(|number| sign * i128::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap_or_else(|(why, _)| panic!("{text:?} {why}"))
    }

    #[test]
    fn the_first_separator_decides() {
        let path = |text: &str| key(text).path("eth0.5").join("|");
        assert_eq!(path("net.core.somaxconn"), "net|core|somaxconn");
        assert_eq!(path("net/core/somaxconn"), "net|core|somaxconn");
        assert_eq!(path("net/ipv4/conf/eth0.100/rp_filter"), "net|ipv4|conf|eth0.100|rp_filter");
        assert_eq!(path("net.ipv4.conf.eth0/100.rp_filter"), "net|ipv4|conf|eth0.100|rp_filter");
        assert_eq!(path("net.ipv4.conf.IFNAME.rp_filter"), "net|ipv4|conf|eth0.5|rp_filter");
        assert_eq!(path("net/ipv4/conf/IFNAME/rp_filter"), "net|ipv4|conf|eth0.5|rp_filter");
        assert_eq!(path("net.IFNAME.IFNAME"), "net|eth0.5|IFNAME", "only the first, as in the reference");
        assert_eq!(key("net/ipv4/conf/eth0.100/rp_filter"), key("net.ipv4.conf.eth0/100.rp_filter"));
    }

    #[test]
    fn nothing_outside_of_net_is_accepted() {
        for bad in [
            "",
            "net",
            "net.",
            ".net.core.x",
            "/net/core/x",
            "net..core",
            "net/../kernel/hostname",
            "net/./core/x",
            "net/core/..",
            "net.//.x",
            "kernel.domainname",
            "kernel/domainname",
            "netx.core",
            "/proc/sys/net/core/x",
            "net.core.x\n",
            "net.core.x\0",
            "../net/x",
            "Net.core.x",
        ] {
            assert!(Key::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Key::parse(&format!("net.{}", "x".repeat(1000))).is_err());
        // A part of dots that are literal is a name, and not a step up.
        assert_eq!(key("net.a/b.c").path("x").join("|"), "net|a.b|c");
        assert!(Key::parse("net.//.c").is_err(), "two dots");
    }

    #[test]
    fn an_allow_list_may_spell_a_name_in_every_way() {
        let spellings = key("net.ipv4.conf.IFNAME.rp_filter").spellings(Some("eth0.5"));
        for wanted in [
            "net.ipv4.conf.IFNAME.rp_filter",
            "net/ipv4/conf/IFNAME/rp_filter",
            "net.ipv4.conf.eth0/5.rp_filter",
            "net/ipv4/conf/eth0.5/rp_filter",
        ] {
            assert!(spellings.iter().any(|found| found == wanted), "{wanted}: {spellings:?}");
        }
        let spellings = key("net/ipv4/conf/eth0/rp_filter").spellings(Some("eth0"));
        assert!(spellings.contains(&"net.ipv4.conf.IFNAME.rp_filter".to_owned()), "{spellings:?}");
        assert!(!key("net.ipv4.conf.all.x").spellings(Some("eth0")).iter().any(|found| found.contains("IFNAME")));
    }

    #[test]
    fn names_without_an_interface_are_the_same_everywhere() {
        for common in ["net.core.somaxconn", "net.ipv4.conf.all.rp_filter", "net.ipv6.neigh.default.gc_thresh1"] {
            assert!(key(common).common_path().is_some(), "{common}");
        }
        for other in ["net.ipv4.conf.eth0.rp_filter", "net.ipv4.neigh.eth0.x", "net.ipv4.conf.IFNAME.x", "net.IFNAME"] {
            assert!(key(other).common_path().is_none(), "{other}");
        }
    }

    #[test]
    fn values_are_compared_as_the_kernel_reads_them() {
        for (one, other) in [
            ("1", "1"),
            ("1", "01"),
            ("16", "0x10"),
            ("8", "010"),
            ("0", "-0"),
            ("1 ", "\t1\n"),
            ("32768 60999", "32768\t60999"),
            ("cubic", "cubic"),
            ("80,443", "80,443"),
            ("", " "),
            ("7", "7\n8"),
        ] {
            assert!(same_value(one, other), "{one:?} {other:?}");
        }
        for (one, other) in [
            ("1", "2"),
            ("1 2", "1"),
            ("1", ""),
            ("", "1"),
            ("10", "010"),
            ("cubic", "reno"),
            ("cubic", "cubic reno"),
            ("1", "-1"),
            ("0x", "0"),
        ] {
            assert!(!same_value(one, other), "{one:?} {other:?}");
        }
    }
}
