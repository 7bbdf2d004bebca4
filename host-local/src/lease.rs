//! A lease: whom an address belongs to, and how that is written. No input, no output.

use std::fmt;
use std::net::IpAddr;

use cni::Attachment;

use crate::digest::digest;

/// Whom a lease belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) container: String,
    /// Old records tell the container only.
    pub(crate) ifname: Option<String>,
}

impl Owner {
    pub(crate) fn new(container: &str, ifname: &str) -> Owner {
        Owner { container: container.to_owned(), ifname: Some(ifname.to_owned()) }
    }

    pub(crate) fn of(at: &Attachment) -> Owner {
        Owner::new(at.container.as_str(), at.ifname.as_str())
    }

    /// The owner as an old record tells it.
    pub(crate) fn bare(&self) -> Owner {
        Owner { container: self.container.clone(), ifname: None }
    }

    /// Reads what is in a lease's file; `None` if it is empty or garbled, as after a crash in the middle of writing.
    pub(crate) fn parse(content: &[u8]) -> Option<Owner> {
        let mut lines = std::str::from_utf8(content).ok()?.trim().split('\n').map(|line| {
            // The reference ends the first line with CR LF; others wrote LF.
            let line = line.strip_suffix('\r').unwrap_or(line);
            let bad = |c: char| c.is_control() || c.is_whitespace();
            Some(line).filter(|line| !line.is_empty() && !line.contains(bad)).map(str::to_owned)
        });
        let owner = Owner { container: lines.next()??, ifname: lines.next().map_or(Some(None), |l| l.map(Some))? };
        lines.next().is_none().then_some(owner)
    }

    /// What stands in a lease's file, to the byte.
    pub(crate) fn record(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}\r\n{ifname}", self.container),
            None => self.container.clone(),
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        digest(self.record().as_bytes())
    }

    /// The digest of [`Owner::bare`].
    pub(crate) fn bare_digest(&self) -> u64 {
        digest(self.container.as_bytes())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {:?}", self.container)?;
        self.ifname.as_ref().map_or(Ok(()), |ifname| write!(f, " interface {ifname:?}"))
    }
}

/// Reads the name of a lease's file: an address as it is printed. Anything else is no lease.
pub(crate) fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_all_implementations_write_them() {
        let whole = Some(Owner::new("c1", "eth0"));
        for text in ["c1\r\neth0", "c1\neth0", "c1\r\neth0\n", " c1\r\neth0\r\n"] {
            assert_eq!(Owner::parse(text.as_bytes()), whole, "{text:?}");
        }
        for text in ["c1", "c1\n", "\tc1\r\n"] {
            assert_eq!(Owner::parse(text.as_bytes()), whole.as_ref().map(Owner::bare), "{text:?}");
        }
        assert_eq!(whole.map(|owner| owner.record()).as_deref(), Some("c1\r\neth0"));
    }

    #[test]
    fn what_a_crash_leaves_belongs_to_nobody() {
        for bytes in
            [&b""[..], b" \r\n", b"\0\0\0\0", b"c1\r\n\r\neth0", b"c1\r\neth0\r\nx", b"\xff\xfe", b"a b", b"c\x001"]
        {
            assert_eq!(Owner::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn only_printed_addresses_are_names_of_leases() {
        for name in ["10.1.0.2", "fd00::a", "::100:2"] {
            assert_eq!(address(name).map(|ip| ip.to_string()).as_deref(), Some(name));
        }
        for name in ["lock", "last_reserved_ip.0", "010.1.0.2", "10.1.0", "FD00::A", "10.1.0.2~", "", "fe80::1%1"] {
            assert_eq!(address(name), None, "{name}");
        }
    }
}
