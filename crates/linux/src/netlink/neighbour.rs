//! Neighbours: the MAC address of an IP address on a link.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Nud, Rtm};

use super::link::LinkIndex;
use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};
use crate::ip::MacAddr;

/// struct ndmsg
const HEADER: usize = 12;
// linux/neighbour.h: the link itself has the address, and not the bridge of which it is a port.
const NTF_SELF: u8 = 2;

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The IP address.
    pub ip: IpAddr,
    /// The MAC address, if known.
    pub mac: Option<MacAddr>,
    /// Whether the entry is static: the kernel neither verifies nor removes it.
    pub permanent: bool,
}

impl Neighbour {
    pub(super) fn read(payload: &[u8], link: LinkIndex) -> Result<Option<Neighbour>> {
        let (index, state) = (wire::number(payload, 4)?, wire::number16(payload, 8)?);
        let (mut ip, mut mac) = (None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::NDA_DST, value) => ip = Some(wire::ip(value)?),
                (libc::NDA_LLADDR, value) => mac = wire::mac(value),
                _ => {}
            }
        }
        Ok(ip.filter(|_| index == link.number()).map(|ip| Neighbour {
            ip,
            mac,
            permanent: state & Nud::PERMANENT.bits() != 0,
        }))
    }
}

impl Change<'_> {
    /// Sets a neighbour's MAC address. The kernel trusts it until it fails, as if learned from traffic.
    pub fn set_neighbour(link: LinkIndex, ip: IpAddr, mac: MacAddr) -> Self {
        let mut request = about(Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, link, ip, Nud::REACHABLE);
        request.attr(Nda::Lladdr, &mac.0);
        Change::new(request, move || format!("set neighbour {ip} on link {link} to {mac}"))
    }

    /// Sets a neighbour's MAC address for good: the kernel never looks for the neighbour.
    pub fn set_permanent_neighbour(link: LinkIndex, ip: IpAddr, mac: MacAddr) -> Self {
        let mut request = about(Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, link, ip, Nud::PERMANENT);
        request.attr(Nda::Lladdr, &mac.0);
        Change::new(request, move || format!("set neighbour {ip} on link {link} to {mac} permanently"))
    }

    /// Deletes a neighbour in any state; ENOENT if there is none.
    pub fn delete_neighbour(link: LinkIndex, ip: IpAddr) -> Self {
        let request = about(Rtm::Delneigh, NlmF::empty(), link, ip, Nud::PERMANENT);
        Change::new(request, move || format!("delete neighbour {ip} from link {link}"))
    }
}

impl Netlink {
    /// Returns the neighbours on a link.
    pub fn neighbours(&mut self, link: LinkIndex) -> Result<Vec<Neighbour>> {
        let request = list_neighbours(link);
        self.socket
            .list(&request, libc::RTM_NEWNEIGH, |payload| Neighbour::read(payload, link))
            .context(|| format!("list the neighbours on link {link}"))
    }

    /// Returns the unicast MAC addresses, besides its own, to which a link receives frames: those of the macvlan links
    /// on top of it that are up, in any namespace.
    pub fn received_addresses(&mut self, link: LinkIndex) -> Result<Vec<MacAddr>> {
        self.socket
            .list(&list_forwarding(link), libc::RTM_NEWNEIGH, |payload| read_received(payload, link))
            .context(|| format!("list the addresses to which link {link} receives frames"))
    }
}

pub(super) fn list_forwarding(link: LinkIndex) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getneigh, NlmF::empty());
    request.raw(&[u8::try_from(libc::AF_BRIDGE).unwrap_or_default(), 0, 0, 0]);
    request.raw(&link.number().to_ne_bytes());
    request.raw(&[0; 4]);
    request.finish()
}

/// Reads an entry of the forwarding table of a link.
pub(super) fn read_received(payload: &[u8], link: LinkIndex) -> Result<Option<MacAddr>> {
    let (index, flags) = (wire::number(payload, 4)?, wire::byte(payload, 10)?);
    let mut mac = None;
    for attribute in wire::attributes(payload, HEADER) {
        if let (libc::NDA_LLADDR, value) = attribute? {
            mac = wire::mac(value);
        }
    }
    Ok(mac.filter(|mac| index == link.number() && flags & NTF_SELF != 0 && mac.0[0] & 1 == 0))
}

pub(super) fn list_neighbours(link: LinkIndex) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getneigh, NlmF::empty());
    request.raw(&[0; HEADER]);
    request.number(Nda::Ifindex, link.number());
    request.finish()
}

/// Starts a message about a neighbour.
fn about(kind: Rtm, flags: NlmF, link: LinkIndex, ip: IpAddr, state: Nud) -> Request {
    let mut request = Request::new(kind, flags);
    // struct ndmsg: family, link, state, flags and type
    request.raw(&[wire::family(ip), 0, 0, 0]);
    request.raw(&link.number().to_ne_bytes());
    request.raw(&state.bits().to_ne_bytes());
    request.raw(&[0; 2]);
    request.ip(Nda::Dst, ip);
    request
}
