//! Addresses of links.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifa, RtAddrFamily, Rtm};

use super::link::{LinkIndex, NetnsId};
use super::wire::{self, CREATE, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};
use crate::ip::{self, Cidr};

/// struct ifaddrmsg
const HEADER: usize = 8;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address and its prefix.
    pub cidr: Cidr,
    /// Not usable yet: duplicate address detection is running.
    pub tentative: bool,
    /// Whether the address stays until it is deleted. Others have a lifetime, as a DHCP server or a router set it.
    pub permanent: bool,
    /// Duplicate address detection found another owner.
    pub duplicate: bool,
    /// Whether the address is valid beyond the link. Link-local addresses are not.
    pub global: bool,
    /// The number with which the address was marked when it was added (IFA_PROTO, Linux 5.18).
    pub mark: Option<u8>,
    /// When the address was added, in hundredths of a second. The counter overflows after 497 days.
    pub created: u32,
}

/// Whether the kernel runs duplicate address detection before an IPv6 address becomes usable. IPv4 has no such feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// According to the interface's settings.
    Default,
    /// Off: the address is usable at once.
    Off,
}

impl Address {
    /// Returns whether the address was added after another one, in less than 248 days. Within a tick of the kernel, of
    /// at most 10 ms, neither of two addresses is newer.
    pub fn is_newer_than(&self, other: &Address) -> bool {
        (1..1 << 31).contains(&self.created.wrapping_sub(other.created))
    }

    /// Parses an address; `None` if it belongs to another link than `link`.
    pub(super) fn read(payload: &[u8], link: LinkIndex) -> Result<Option<Address>> {
        let (owner, address) = Address::read_any(payload)?;
        Ok((owner == link).then_some(address))
    }

    /// Parses an address and the link that it belongs to.
    fn read_any(payload: &[u8]) -> Result<(LinkIndex, Address)> {
        let (prefix, scope, index) = (wire::byte(payload, 1)?, wire::byte(payload, 3)?, wire::number(payload, 4)?);
        let mut flags = u32::from(wire::byte(payload, 2)?);
        let (mut local, mut address, mut mark, mut created) = (None, None, None, 0);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::IFA_LOCAL, value) => local = Some(wire::ip(value)?),
                (libc::IFA_ADDRESS, value) => address = Some(wire::ip(value)?),
                (libc::IFA_FLAGS, value) => flags = wire::number(value, 0)?,
                // struct ifa_cacheinfo, with the time of creation after two lifetimes
                (libc::IFA_CACHEINFO, value) => created = wire::number(value, 8)?,
                (wire::IFA_PROTO, value) => mark = Some(wire::byte(value, 0)?),
                _ => {}
            }
        }
        // If both are present, IFA_ADDRESS is the address of the peer.
        let ip = local.or(address).ok_or_else(|| wire::malformed("an address without an address"))?;
        let address = Address {
            cidr: wire::cidr(ip, prefix)?,
            tentative: flags & libc::IFA_F_TENTATIVE != 0,
            permanent: flags & libc::IFA_F_PERMANENT != 0,
            duplicate: flags & libc::IFA_F_DADFAILED != 0,
            global: scope < libc::RT_SCOPE_LINK,
            mark,
            created,
        };
        Ok((LinkIndex::read(index)?, address))
    }
}

impl Change<'_> {
    /// Adds an address to a link.
    pub fn add_address(link: LinkIndex, address: Cidr, detection: DuplicateDetection) -> Self {
        Change::new_address(link, address, detection, None)
    }

    /// Adds an address that is marked with a number, by which it is recognised later. Kernels before 5.18 ignore the
    /// mark.
    pub fn add_marked_address(link: LinkIndex, address: Cidr, detection: DuplicateDetection, mark: u8) -> Self {
        Change::new_address(link, address, detection, Some(mark))
    }

    /// Adds an address that is usable at once, without the route to its network.
    pub fn add_address_without_route(link: LinkIndex, address: Cidr) -> Self {
        let no_detection = if address.ip().is_ipv6() { libc::IFA_F_NODAD } else { 0 };
        let mut request = about(Rtm::Newaddr, CREATE, link, address, libc::IFA_F_NOPREFIXROUTE | no_detection);
        add_broadcast(&mut request, address);
        Change::new(request, move || format!("add address {address} to link {link}, without a route"))
    }

    fn new_address(link: LinkIndex, address: Cidr, detection: DuplicateDetection, mark: Option<u8>) -> Self {
        let flags = match address.ip() {
            IpAddr::V6(_) if detection == DuplicateDetection::Off => libc::IFA_F_NODAD,
            _ => 0,
        };
        let mut request = about(Rtm::Newaddr, CREATE, link, address, flags);
        add_broadcast(&mut request, address);
        if let Some(mark) = mark {
            request.attr(wire::IFA_PROTO, &[mark]);
        }
        Change::new(request, move || format!("add address {address} to link {link}"))
    }

    /// Deletes an address from a link.
    pub fn delete_address(link: LinkIndex, address: Cidr) -> Self {
        let request = about(Rtm::Deladdr, NlmF::empty(), link, address, 0);
        Change::new(request, move || format!("delete address {address} from link {link}"))
    }
}

impl Netlink {
    /// Returns the addresses of a link, IPv4 before IPv6.
    pub fn addresses(&mut self, link: LinkIndex) -> Result<Vec<Address>> {
        let found = self.addresses_of(RtAddrFamily::Unspecified, link)?;
        Ok(ip::ipv4_first(found, |address| address.cidr.ip()))
    }

    /// Returns the IPv4 addresses of a link.
    pub(super) fn ipv4_addresses(&mut self, link: LinkIndex) -> Result<Vec<Address>> {
        self.addresses_of(RtAddrFamily::Inet, link)
    }

    /// Returns the IPv6 addresses of a link.
    pub fn ipv6_addresses(&mut self, link: LinkIndex) -> Result<Vec<Address>> {
        self.addresses_of(RtAddrFamily::Inet6, link)
    }

    fn addresses_of(&mut self, family: RtAddrFamily, link: LinkIndex) -> Result<Vec<Address>> {
        let request = list_addresses(family, link);
        self.socket
            .list(&request, libc::RTM_NEWADDR, |payload| Address::read(payload, link))
            .context(|| format!("list the addresses of link {link}"))
    }

    /// Returns the addresses of all links.
    pub fn all_addresses(&mut self) -> Result<Vec<(LinkIndex, Address)>> {
        let request = list_all_addresses(None);
        let read = |payload: &[u8]| Address::read_any(payload).map(Some);
        self.socket.list(&request, libc::RTM_NEWADDR, read).context(|| "list the addresses of all links")
    }

    /// Returns the addresses of all links of another namespace without entering it (Linux 4.20). Needs CAP_NET_ADMIN in
    /// that namespace.
    pub fn addresses_in_netns(&mut self, netns: NetnsId) -> Result<Vec<(LinkIndex, Address)>> {
        let request = list_all_addresses(Some(netns));
        let read = |payload: &[u8]| {
            wire::is_from(netns.number(), payload, HEADER, wire::IFA_TARGET_NETNSID)?;
            Address::read_any(payload).map(Some)
        };
        self.socket.list(&request, libc::RTM_NEWADDR, read).context(|| "list the addresses of another namespace")
    }
}

pub(super) fn list_all_addresses(netns: Option<NetnsId>) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getaddr, NlmF::empty());
    request.raw(&[0; HEADER]);
    if let Some(netns) = netns {
        request.number(wire::IFA_TARGET_NETNSID, netns.number());
    }
    request.finish()
}

/// Encodes a request for the addresses of a link. For a single family, recent kernels (6.10) need no global lock.
pub(super) fn list_addresses(family: RtAddrFamily, link: LinkIndex) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getaddr, NlmF::empty());
    request.raw(&[family.into(), 0, 0, 0]);
    request.raw(&link.number().to_ne_bytes());
    request.finish()
}

/// Adds the broadcast address of an IPv4 network. Those of one or two addresses have none.
fn add_broadcast(request: &mut Request, address: Cidr) {
    if address.ip().is_ipv4() && address.prefix() < 31 {
        request.ip(Ifa::Broadcast, address.last());
    }
}

/// Starts a message about an address of a link.
fn about(kind: Rtm, how: NlmF, link: LinkIndex, address: Cidr, flags: u32) -> Request {
    let mut request = Request::new(kind, how);
    // struct ifaddrmsg: family, prefix, flags, scope, link
    let short = u8::try_from(flags).unwrap_or_default();
    request.raw(&[wire::family(address.ip()), address.prefix(), short, libc::RT_SCOPE_UNIVERSE]);
    request.raw(&link.number().to_ne_bytes());
    request.ip(Ifa::Local, address.ip());
    // The field in the header has one byte.
    if flags > 255 {
        request.number(Ifa::Flags, flags);
    }
    request.ip(Ifa::Address, address.ip());
    request
}
