//! The owner of a lease, and the format of lease files. Pure logic without I/O.

use std::fmt;
use std::net::IpAddr;

use cni::Attachment;

use crate::digest::digest;

/// The attachment that a lease belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LeaseOwner {
    pub(crate) container: String,
    /// `None` in records of old versions of the reference, which name only the container.
    pub(crate) ifname: Option<String>,
}

impl LeaseOwner {
    pub(crate) fn new(container: &str, ifname: &str) -> LeaseOwner {
        LeaseOwner { container: container.to_owned(), ifname: Some(ifname.to_owned()) }
    }

    pub(crate) fn of(at: &Attachment) -> LeaseOwner {
        LeaseOwner::new(at.container.as_str(), at.ifname.as_str())
    }

    /// Returns the owner as a record of an old version of the reference names it.
    pub(crate) fn without_ifname(&self) -> LeaseOwner {
        LeaseOwner { container: self.container.clone(), ifname: None }
    }

    /// Parses the content of a lease file. Returns `None` if it is empty or garbled, as after a crash during writing.
    pub(crate) fn parse(content: &[u8]) -> Option<LeaseOwner> {
        let mut lines = std::str::from_utf8(content).ok()?.trim().split('\n').map(|line| {
            // The reference ends the first line with CR LF; other implementations write LF.
            let line = line.strip_suffix('\r').unwrap_or(line);
            let bad = |c: char| c.is_control() || c.is_whitespace();
            Some(line).filter(|line| !line.is_empty() && !line.contains(bad)).map(str::to_owned)
        });
        let owner = LeaseOwner { container: lines.next()??, ifname: lines.next().map_or(Some(None), |l| l.map(Some))? };
        lines.next().is_none().then_some(owner)
    }

    /// Returns the content of the lease file, byte for byte as the reference writes it.
    pub(crate) fn record(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}\r\n{ifname}", self.container),
            None => self.container.clone(),
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        digest(self.record().as_bytes())
    }

    /// Returns the digest of [`LeaseOwner::without_ifname`].
    pub(crate) fn container_digest(&self) -> u64 {
        digest(self.container.as_bytes())
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {:?}", self.container)?;
        self.ifname.as_ref().map_or(Ok(()), |ifname| write!(f, " interface {ifname:?}"))
    }
}

/// Parses the name of a lease file: an address in its canonical form. A file with any other name is not a lease.
pub(crate) fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_implementations_are_parsed() {
        let whole = Some(LeaseOwner::new("c1", "eth0"));
        for text in ["c1\r\neth0", "c1\neth0", "c1\r\neth0\n", " c1\r\neth0\r\n"] {
            assert_eq!(LeaseOwner::parse(text.as_bytes()), whole, "{text:?}");
        }
        for text in ["c1", "c1\n", "\tc1\r\n"] {
            assert_eq!(LeaseOwner::parse(text.as_bytes()), whole.as_ref().map(LeaseOwner::without_ifname), "{text:?}");
        }
        assert_eq!(whole.map(|owner| owner.record()).as_deref(), Some("c1\r\neth0"));
    }

    #[test]
    fn a_garbled_record_has_no_owner() {
        for bytes in
            [&b""[..], b" \r\n", b"\0\0\0\0", b"c1\r\n\r\neth0", b"c1\r\neth0\r\nx", b"\xff\xfe", b"a b", b"c\x001"]
        {
            assert_eq!(LeaseOwner::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn only_canonical_addresses_are_names_of_leases() {
        for name in ["10.1.0.2", "fd00::a", "::100:2"] {
            assert_eq!(address(name).map(|ip| ip.to_string()).as_deref(), Some(name));
        }
        for name in ["lock", "last_reserved_ip.0", "010.1.0.2", "10.1.0", "FD00::A", "10.1.0.2~", "", "fe80::1%1"] {
            assert_eq!(address(name), None, "{name}");
        }
    }
}
