//! A published port: what the configuration requests, and what it means for an address of the container.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use cni::{AddResult, Attachment};
use linux::ip::{Cidr, Protocol};
use linux::netlink::nft::Family;

/// Returns whether packets of a client without a connection can continue a flow that was translated differently.
pub(crate) fn outlives_its_mapping(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Udp | Protocol::Sctp)
}

/// The addresses of this host at which a port is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAddress {
    /// All addresses.
    Any,
    /// All addresses of the family of this one, which is the unspecified address.
    AnyOf(IpAddr),
    /// One address.
    One(IpAddr),
}

impl HostAddress {
    /// Returns whether it includes addresses of the family of `ip`.
    fn includes_family_of(self, ip: IpAddr) -> bool {
        match self {
            HostAddress::Any => true,
            HostAddress::AnyOf(host) | HostAddress::One(host) => host.is_ipv4() == ip.is_ipv4(),
        }
    }
}

/// A port to publish, independent of the container's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) protocol: Protocol,
    pub(crate) host: HostAddress,
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
}

/// The part of a mapping that packets select it by. Of two mappings with the same key, only one can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The address of this host; `None` for all of the family.
    pub(crate) host_ip: Option<IpAddr>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

impl Key {
    /// Returns whether a packet can match both.
    pub(crate) fn overlaps(&self, other: &Key) -> bool {
        (self.protocol, self.port) == (other.protocol, other.port)
            && (self.host_ip == other.host_ip || self.host_ip.is_none() || other.host_ip.is_none())
    }
}

impl fmt::Display for Key {
    /// Formats the key as `tcp 10.0.0.1:80`, or `tcp port 80` for all addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(ip) => write!(f, "{} {}", self.protocol, SocketAddr::new(ip, self.port)),
            None => write!(f, "{} port {}", self.protocol, self.port),
        }
    }
}

/// A published port of one container address. Both addresses have the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) key: Key,
    /// The container's address and port.
    pub(crate) target: SocketAddr,
}

impl Mapping {
    /// Returns whether connections from this host's loopback addresses are translated.
    pub(crate) fn is_reachable_from_loopback(&self) -> bool {
        self.target.is_ipv4() && self.key.host_ip.is_none_or(|ip| ip.is_loopback())
    }
}

/// Returns the mappings of `ports` for one address of the container, in the order of the list.
pub(crate) fn mappings(ports: &[Port], container: IpAddr) -> Vec<Mapping> {
    let wanted = ports.iter().filter(|port| port.host.includes_family_of(container));
    wanted
        .map(|port| {
            let host_ip = match port.host {
                HostAddress::One(ip) => Some(ip),
                HostAddress::Any | HostAddress::AnyOf(_) => None,
            };
            Mapping {
                key: Key { host_ip, protocol: port.protocol, port: port.host_port },
                target: SocketAddr::new(container, port.container_port),
            }
        })
        .collect()
}

/// Returns the container's addresses that ports are mapped to: the first of each family, IPv4 first.
///
/// An address counts if it names no interface of the result, or the interface of this attachment.
pub(crate) fn container_addresses(result: &AddResult, at: &Attachment) -> Vec<Cidr> {
    let is_ours = |index: Option<u32>| {
        let interface = index.and_then(|index| result.interfaces.get(usize::try_from(index).ok()?));
        interface.is_none_or(|found| found.name == at.ifname.as_str() && !found.sandbox.is_empty())
    };
    let candidates = || result.ips.iter().filter(|ip| is_ours(ip.interface)).map(|ip| ip.address);
    let first = |family| candidates().find(|address| Family::of(address.ip()) == family);
    [first(Family::Ipv4), first(Family::Ipv6)].into_iter().flatten().collect()
}
