//! Addresses with a prefix, MAC addresses, transport protocols, and address arithmetic. Pure functions without I/O.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};

/// The least MTU of IPv6. If the MTU of a link falls below it, the kernel removes all IPv6 addresses and routes of the
/// link.
pub const IPV6_MIN_MTU: u32 = 1280;

/// An address and its prefix length, such as `10.1.0.2/24`. Host bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr(IpNetwork);

/// The reason why a text is not a valid [`Cidr`], [`MacAddr`] or address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Cidr {
    /// Returns `0.0.0.0/0` or `::/0`, in the family of `like`.
    pub fn default_route(like: IpAddr) -> Cidr {
        let any = match like {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Cidr::new(any, 0).unwrap_or_else(|| Cidr::host(any))
    }

    /// Creates a network; `None` if the prefix is longer than the address.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Cidr> {
        IpNetwork::new(ip, prefix).ok().map(Cidr)
    }

    /// Returns the network with only this address: `/32` or `/128`.
    pub fn host(ip: IpAddr) -> Cidr {
        Cidr(IpNetwork::from(ip))
    }

    /// Returns the address.
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.0.prefix()
    }

    /// Returns the network address with the same prefix: all host bits are zero.
    pub fn network(&self) -> Cidr {
        Cidr(IpNetwork::new(self.0.network(), self.0.prefix()).unwrap_or(self.0))
    }

    /// Returns whether both networks have an address in common.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other.ip()) || other.contains(self.ip())
    }

    /// Returns the last address of the network: all host bits are one.
    pub fn last(&self) -> IpAddr {
        self.0.broadcast()
    }

    /// Returns whether `ip` is in the network and of the same family.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(ip)
    }

    /// Returns whether this is `0.0.0.0/0` or `::/0`.
    pub fn is_default(&self) -> bool {
        self.prefix() == 0 && self.ip().is_unspecified()
    }

    /// Returns what the address is if no interface can have it: a noun.
    pub fn not_of_an_interface(&self) -> Option<&'static str> {
        let ip = self.ip();
        // Subnets of two addresses and of one have only addresses of interfaces.
        let is_large = self.prefix() + 2 <= if ip.is_ipv4() { 32 } else { 128 };
        match ip {
            _ if ip.to_canonical() != ip => Some("IPv4 written as IPv6"),
            _ if ip.is_multicast() => Some("a multicast address"),
            _ if ip.is_unspecified() => Some("the unspecified address"),
            _ if is_large && self.network().ip() == ip => Some("the address of its network"),
            IpAddr::V4(_) if is_large && self.last() == ip => Some("the broadcast address of its network"),
            _ => None,
        }
    }

    /// Converts an IPv4-mapped IPv6 address to the IPv4 address, as the reference prints it.
    #[must_use]
    pub fn canonical(self) -> Cidr {
        match (self.ip().to_canonical(), self.ip()) {
            (v4 @ IpAddr::V4(_), IpAddr::V6(_)) => {
                self.prefix().checked_sub(96).and_then(|prefix| Cidr::new(v4, prefix)).unwrap_or(self)
            }
            _ => self,
        }
    }
}

impl FromStr for Cidr {
    type Err = Invalid;

    /// Stricter than ipnetwork, and as strict as the reference: the prefix is required and must be a plain number.
    fn from_str(text: &str) -> Result<Cidr, Invalid> {
        let invalid = || Invalid(format!("invalid CIDR address: {text:?}"));
        let (ip, prefix) = text.split_once('/').ok_or_else(|| match text.parse() {
            Ok(IpAddr::V4(_)) => Invalid(format!("{}: append the length of the prefix, such as /24", invalid())),
            Ok(IpAddr::V6(_)) => Invalid(format!("{}: append the length of the prefix, such as /64", invalid())),
            Err(_) => invalid(),
        })?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        let (ip, prefix) = (ip.parse().map_err(|_| invalid())?, prefix.parse().map_err(|_| invalid())?);
        Cidr::new(ip, prefix).ok_or_else(invalid)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip(), self.prefix())
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cidr, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Parses an address. Rejects zones and leading zeros; converts IPv4-mapped addresses to IPv4.
pub fn parse_ip(text: &str) -> Result<IpAddr, Invalid> {
    let ip: IpAddr = text.parse().map_err(|_| Invalid(format!("invalid IP address: {text:?}")))?;
    Ok(ip.to_canonical())
}

/// For serde's `deserialize_with`: reads an address; empty text means `None`.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(deserializer)? {
        Some(text) if !text.is_empty() => parse_ip(&text).map(Some).map_err(D::Error::custom),
        _ => Ok(None),
    }
}

/// Returns the bytes of an address: 4 or 16.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Moves IPv4 before IPv6, and keeps the order within each family.
pub(crate) fn ipv4_first<T>(items: Vec<T>, ip: impl Fn(&T) -> IpAddr) -> Vec<T> {
    let (mut ipv4, ipv6): (Vec<T>, Vec<T>) = items.into_iter().partition(|item| ip(item).is_ipv4());
    ipv4.extend(ipv6);
    ipv4
}

/// Returns the address after `ip` in its family; `None` after the last.
pub fn next(ip: IpAddr) -> Option<IpAddr> {
    step(ip, |n| n.checked_add(1), |n| n.checked_add(1))
}

/// Returns the address before `ip` in its family; `None` before the first.
pub fn previous(ip: IpAddr) -> Option<IpAddr> {
    step(ip, |n| n.checked_sub(1), |n| n.checked_sub(1))
}

fn step(ip: IpAddr, v4: impl Fn(u32) -> Option<u32>, v6: impl Fn(u128) -> Option<u128>) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => v4(ip.to_bits()).map(|n| Ipv4Addr::from_bits(n).into()),
        IpAddr::V6(ip) => v6(ip.to_bits()).map(|n| Ipv6Addr::from_bits(n).into()),
    }
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The address of a link that has none.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// Returns the IPv6 link-local address that the kernel derives from this MAC address (RFC 4291, EUI-64).
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0.map(u16::from);
        Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = Invalid;

    /// Accepts `0a:58:0a:f4:00:02`, `0a-58-0a-f4-00-02` and `0a58.0af4.0002`, six bytes.
    fn from_str(text: &str) -> Result<MacAddr, Invalid> {
        let invalid = || Invalid(format!("invalid MAC address: {text:?}"));
        let separator = text.chars().find(|c| !c.is_ascii_hexdigit()).ok_or_else(invalid)?;
        let width = match separator {
            ':' | '-' => 2,
            '.' => 4,
            _ => return Err(invalid()),
        };
        let mut digits = String::with_capacity(12);
        for group in text.split(separator) {
            if group.len() != width || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(invalid());
            }
            digits.push_str(group);
        }
        if digits.len() != 12 {
            return Err(invalid());
        }
        let bits = u64::from_str_radix(&digits, 16).map_err(|_| invalid())?;
        let [_, _, mac @ ..] = bits.to_be_bytes();
        Ok(MacAddr(mac))
    }
}

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Datagram Congestion Control Protocol.
    Dccp,
    /// Stream Control Transmission Protocol.
    Sctp,
    /// Transmission Control Protocol.
    Tcp,
    /// User Datagram Protocol.
    Udp,
}

impl Protocol {
    /// All protocols, in alphabetical order.
    pub const ALL: [Protocol; 4] = [Protocol::Dccp, Protocol::Sctp, Protocol::Tcp, Protocol::Udp];

    /// Returns the name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Dccp => "dccp",
            Protocol::Sctp => "sctp",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }

    /// Returns the number in IP packets (`IPPROTO_*`).
    pub fn number(self) -> u8 {
        match self {
            Protocol::Dccp => 33,
            Protocol::Sctp => 132,
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }

    /// Returns the protocol with this name, in any letter case.
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    /// Returns the protocol with this number.
    pub fn numbered(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_is_as_strict_as_the_reference() {
        for good in ["10.1.2.3/24", "0.0.0.0/0", "10.0.0.0/32", "fd00::1/64", "::/0", "::1/128", "10.0.0.0/08"] {
            assert!(good.parse::<Cidr>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "/",
            "10.1.2.3",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/255.255.255.0",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "010.0.0.1/8",
            " 10.0.0.0/8",
            "10.0.0.0/8 ",
            "10.0.0.0/8/8",
            "10.0.0/8",
            "fe80::1%eth0/64",
            "10.0.0.0/0x8",
            "10.0.0.0/0008",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn cidr_keeps_host_bits_and_returns_its_network() {
        let cidr: Cidr = "10.1.2.3/24".parse().unwrap();
        assert_eq!(cidr.to_string(), "10.1.2.3/24");
        assert_eq!(cidr.network().to_string(), "10.1.2.0/24");
        assert_eq!(cidr.last().to_string(), "10.1.2.255");
        assert!(cidr.contains("10.1.2.200".parse().unwrap()) && !cidr.contains("10.1.3.0".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Cidr>().unwrap().is_default() && !cidr.is_default());
        assert_eq!(Cidr::default_route("fd00::1".parse().unwrap()).to_string(), "::/0");
        assert_eq!(Cidr::default_route("10.0.0.1".parse().unwrap()).to_string(), "0.0.0.0/0");
    }

    #[test]
    fn canonical_converts_mapped_addresses_to_ipv4() {
        let cidr: Cidr = "::ffff:10.0.0.1/120".parse().unwrap();
        assert!(cidr.ip().is_ipv6());
        assert_eq!(cidr.canonical().to_string(), "10.0.0.1/24");
        assert_eq!("::ffff:10.0.0.1/64".parse::<Cidr>().unwrap().canonical().prefix(), 64);
        assert_eq!(parse_ip("::ffff:10.0.0.1").unwrap().to_string(), "10.0.0.1");
    }

    #[test]
    fn next_and_previous_stay_in_their_family() {
        let step = |text: &str| next(text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(step("10.0.0.255").as_deref(), Some("10.0.1.0"));
        assert_eq!(step("255.255.255.255"), None);
        assert_eq!(step("::ff:ffff").as_deref(), Some("::100:0"));
        assert_eq!(step("::ffff:ffff").as_deref(), Some("::1:0:0"));
        assert_eq!(step("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), None);
        assert_eq!(previous("10.0.1.0".parse().unwrap()), Some("10.0.0.255".parse().unwrap()));
        assert_eq!(previous("::".parse().unwrap()), None);
    }

    #[test]
    fn mac_addresses() {
        for text in ["0a:58:0a:f4:00:02", "0A-58-0A-F4-00-02", "0a58.0af4.0002"] {
            assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), "0a:58:0a:f4:00:02");
        }
        for bad in [
            "",
            "0a",
            "0a:58:0a:f4:00",
            "0a:58:0a:f4:00:02:03",
            "0a:58-0a:f4:00:02",
            "0a58:0af4:0002",
            "0a58.0af4",
            "zz:58:0a:f4:00:02",
            "0a580af40002",
            "0:58:0a:f4:00:02",
            "02:00:5e:10:00:00:00:01",
            "+a:58:0a:f4:00:02",
        ] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn link_local_addresses_derive_from_mac_addresses() {
        let address = |mac: &str| mac.parse::<MacAddr>().unwrap().link_local().to_string();
        assert_eq!(address("0a:58:0a:f4:00:02"), "fe80::858:aff:fef4:2");
        assert_eq!(address("02:11:22:33:44:55"), "fe80::11:22ff:fe33:4455");
    }
}
