//! Addresses of links.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifa, IfaF, RtAddrFamily, RtScope, Rtm};
use neli::rtnl::IfaddrmsgBuilder;

use super::link::{LinkIndex, NetnsId};
use super::wire::{self, CREATE, attr, list, message};
use super::{Change, Netlink};
use crate::error::{Context, Error, Result};
use crate::ip::Cidr;

/// struct ifaddrmsg
const HEADER: usize = 8;

/// An address as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address and its prefix.
    pub cidr: Cidr,
    /// It is not usable yet: duplicate detection is under way.
    pub tentative: bool,
    /// Duplicate detection found another owner.
    pub duplicate: bool,
    /// Is it valid beyond the link? Link-local addresses are not.
    pub global: bool,
}

/// Should an IPv6 address be looked for on the link before it is used? IPv4 has no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// As the interface's settings say.
    Default,
    /// No: the address is ours, and usable at once.
    Off,
}

impl Address {
    /// The address, if it belongs to `link`.
    pub(super) fn read(payload: &[u8], link: LinkIndex) -> Result<Option<Address>> {
        let (owner, address) = Address::read_any(payload)?;
        Ok((owner == link).then_some(address))
    }

    /// The address, and the link that it belongs to.
    fn read_any(payload: &[u8]) -> Result<(LinkIndex, Address)> {
        let (prefix, scope, index) = (wire::byte(payload, 1)?, wire::byte(payload, 3)?, wire::number(payload, 4)?);
        let mut flags = u32::from(wire::byte(payload, 2)?);
        let (mut local, mut address) = (None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::IFA_LOCAL, value) => local = Some(wire::ip(value)?),
                (libc::IFA_ADDRESS, value) => address = Some(wire::ip(value)?),
                (libc::IFA_FLAGS, value) => flags = wire::number(value, 0)?,
                _ => {}
            }
        }
        // With both, the other one is that of the far end.
        let ip = local.or(address).ok_or_else(|| wire::malformed("an address without an address"))?;
        let address = Address {
            cidr: wire::cidr(ip, prefix)?,
            tentative: flags & libc::IFA_F_TENTATIVE != 0,
            duplicate: flags & libc::IFA_F_DADFAILED != 0,
            global: scope < libc::RT_SCOPE_LINK,
        };
        Ok((LinkIndex::read(index)?, address))
    }
}

impl Change {
    /// Gives a link an address.
    pub fn add_address(link: LinkIndex, address: Cidr, detection: DuplicateDetection) -> Change {
        let encode = || {
            let mut attrs =
                vec![attr(Ifa::Local, wire::octets(address.ip()))?, attr(Ifa::Address, wire::octets(address.ip()))?];
            let mut flags = IfaF::empty();
            match address.ip() {
                // A network of one or two has no broadcast address.
                IpAddr::V4(_) if address.prefix() < 31 => {
                    attrs.push(attr(Ifa::Broadcast, wire::octets(address.last()))?);
                }
                IpAddr::V4(_) => {}
                IpAddr::V6(_) => flags.set(IfaF::NODAD, detection == DuplicateDetection::Off),
            }
            let body = header(link, address).ifa_flags(flags).rtattrs(list(attrs)).build().map_err(Error::bug)?;
            message(Rtm::Newaddr, CREATE, body)
        };
        Change::new(format!("add address {address} to link {link}"), encode())
    }

    /// Takes an address from a link.
    pub fn delete_address(link: LinkIndex, address: Cidr) -> Change {
        let encode = || {
            let attrs =
                vec![attr(Ifa::Local, wire::octets(address.ip()))?, attr(Ifa::Address, wire::octets(address.ip()))?];
            message(
                Rtm::Deladdr,
                NlmF::empty(),
                header(link, address).rtattrs(list(attrs)).build().map_err(Error::bug)?,
            )
        };
        Change::new(format!("delete address {address} from link {link}"), encode())
    }
}

impl Netlink {
    /// The addresses of a link, IPv4 before IPv6.
    pub fn addresses(&mut self, link: LinkIndex) -> Result<Vec<Address>> {
        let request = list_addresses(link)?;
        let mut found = self
            .socket
            .list(&request, libc::RTM_NEWADDR, |payload| Address::read(payload, link))
            .trying(|| format!("list the addresses of link {link}"))?;
        found.sort_by_key(|address| address.cidr.ip().is_ipv6());
        Ok(found)
    }

    /// The addresses of all links.
    pub fn all_addresses(&mut self) -> Result<Vec<(LinkIndex, Address)>> {
        let request = list_all_addresses(None)?;
        let read = |payload: &[u8]| Address::read_any(payload).map(Some);
        self.socket.list(&request, libc::RTM_NEWADDR, read).trying(|| "list the addresses of all links")
    }

    /// The addresses of all links of another namespace, which is not entered for it (Linux 4.20). That takes the right
    /// to administer it.
    pub fn addresses_elsewhere(&mut self, netns: NetnsId) -> Result<Vec<(LinkIndex, Address)>> {
        let request = list_all_addresses(Some(netns))?;
        let read = |payload: &[u8]| {
            wire::is_from(netns, payload, HEADER, wire::IFA_TARGET_NETNSID)?;
            Address::read_any(payload).map(Some)
        };
        self.socket.list(&request, libc::RTM_NEWADDR, read).trying(|| "list the addresses of another namespace")
    }
}

pub(super) fn list_all_addresses(netns: Option<NetnsId>) -> Result<Vec<u8>> {
    let mut attrs = Vec::new();
    if let Some(netns) = netns {
        attrs.push(attr(Ifa::from(wire::IFA_TARGET_NETNSID), netns.unsigned())?);
    }
    let body = IfaddrmsgBuilder::default()
        .ifa_family(RtAddrFamily::Unspecified)
        .ifa_prefixlen(0)
        .ifa_scope(RtScope::Universe)
        .ifa_index(0)
        .rtattrs(list(attrs));
    message(Rtm::Getaddr, NlmF::empty(), body.build().map_err(Error::bug)?)
}

pub(super) fn list_addresses(link: LinkIndex) -> Result<Vec<u8>> {
    let body = IfaddrmsgBuilder::default()
        .ifa_family(RtAddrFamily::Unspecified)
        .ifa_prefixlen(0)
        .ifa_scope(RtScope::Universe)
        .ifa_index(link.unsigned());
    message(Rtm::Getaddr, NlmF::empty(), body.build().map_err(Error::bug)?)
}

fn header(link: LinkIndex, address: Cidr) -> IfaddrmsgBuilder {
    IfaddrmsgBuilder::default()
        .ifa_family(wire::family(address.ip()))
        .ifa_prefixlen(address.prefix())
        .ifa_scope(RtScope::Universe)
        .ifa_index(link.unsigned())
}
