//! What a server grants, whatever the family, and the parts that both have. Pure functions.

use std::fmt;
use std::net::IpAddr;

use cni::{Dns, IpConfig, Route};
use linux::ip::Cidr;
use serde::{Deserialize, Serialize};

/// The least time of a lease, in seconds. A server that grants less would make the client renew without a pause.
const LEAST_TIME: u32 = 8;
/// The value of a time that does not end.
const INFINITE: u32 = u32::MAX;
/// The most steps in the names of the search list, which can refer to each other.
const MAX_LABELS: usize = 256;

/// What a server grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
    /// The server that granted it.
    pub(crate) server: Server,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
    /// The MTU of the network, if the interface gets it.
    pub(crate) mtu: Option<u32>,
    /// The times of the lease; `None` if it does not end.
    pub(crate) times: Option<Times>,
}

impl Terms {
    /// Returns the address with its prefix.
    pub(crate) fn cidr(&self) -> Cidr {
        Cidr::new(self.address, self.prefix).unwrap_or_else(|| Cidr::host(self.address))
    }

    /// Returns the address for a result.
    pub(crate) fn ip(&self) -> IpConfig {
        IpConfig { address: self.cidr(), gateway: self.gateway, interface: None }
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    /// Its address. That of a DHCPv6 server is where its messages come from: the server, or a relay before it.
    pub(crate) address: IpAddr,
    /// IPv4: the MAC address from which its messages come. IPv6: by what clients recognise it (DUID).
    pub(crate) id: Vec<u8>,
}

impl Server {
    /// Returns whether both are the same server, by what it says of itself.
    pub(crate) fn is(&self, other: &Server) -> bool {
        match self.address {
            IpAddr::V4(_) => self.address == other.address,
            IpAddr::V6(_) => self.id == other.id,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// After how many seconds something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The client asks its server for more time (T1).
    pub(crate) renew: u32,
    /// The client asks any server (T2).
    pub(crate) rebind: u32,
    /// The lease ends.
    pub(crate) end: u32,
}

impl Times {
    /// Returns the times of a lease that ends after `end`; `None` if it does not end. The others are seven eighths and
    /// a half of that, unless the server says times in the right order.
    pub(crate) fn new(end: u32, renew: u32, rebind: u32) -> Option<Times> {
        if end == INFINITE {
            return None;
        }
        let end = end.max(LEAST_TIME);
        let rebind = Some(rebind).filter(|rebind| (2..end).contains(rebind));
        let rebind = rebind.unwrap_or(end - end / 8);
        let renew = Some(renew).filter(|renew| (1..rebind).contains(renew));
        Some(Times { renew: renew.unwrap_or_else(|| (end / 2).min(rebind - 1)), rebind, end })
    }
}

/// Reads names as DNS writes them (RFC 1035, RFC 3397). A name can end with a part of an earlier one.
pub(crate) fn domains(value: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut at, mut steps) = (0, 0);
    while at < value.len() {
        let Some((name, next)) = domain_at(value, at, &mut steps) else { break };
        if is_domain(&name) && !found.contains(&name) {
            found.push(name);
        }
        at = next;
    }
    found
}

/// Returns the name at a place, and the place after it.
fn domain_at(value: &[u8], mut at: usize, steps: &mut usize) -> Option<(String, usize)> {
    let mut labels: Vec<&str> = Vec::new();
    let mut next = None;
    loop {
        *steps += 1;
        if *steps > MAX_LABELS {
            return None;
        }
        let length = *value.get(at)?;
        match length {
            0 => return Some((labels.join("."), next.unwrap_or(at + 1))),
            1..64 => {
                let label = value.get(at + 1..at + 1 + usize::from(length))?;
                labels.push(std::str::from_utf8(label).ok()?);
                at += 1 + usize::from(length);
            }
            192.. => {
                let place = usize::from(u16::from_be_bytes([length & 63, *value.get(at + 1)?]));
                next.get_or_insert(at + 2);
                at = place;
            }
            _ => return None,
        }
    }
}

/// Returns whether the text is a domain. Runtimes write it to a file that programs parse.
pub(crate) fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..64).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    (1..254).contains(&text.len()) && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}
