//! Neighbours: which hardware address an IP address has on a link.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Nud, RtAddrFamily, Rtm, Rtn};
use neli::rtnl::NdmsgBuilder;

use super::link::LinkIndex;
use super::wire::{self, attr, list, message};
use super::{Change, Netlink};
use crate::error::{Context, Error, Result};
use crate::ip::MacAddr;

/// struct ndmsg
const HEADER: usize = 12;

/// What the kernel knows about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// Its hardware address, if that is known.
    pub mac: Option<MacAddr>,
}

impl Neighbour {
    pub(super) fn read(payload: &[u8], link: LinkIndex) -> Result<Option<Neighbour>> {
        let index = wire::number(payload, 4)?;
        let (mut ip, mut mac) = (None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::NDA_DST, value) => ip = Some(wire::ip(value)?),
                (libc::NDA_LLADDR, value) => mac = wire::mac(value),
                _ => {}
            }
        }
        Ok(ip.filter(|_| index == link.unsigned()).map(|ip| Neighbour { ip, mac }))
    }
}

impl Change {
    /// Tells the kernel a neighbour's hardware address; it is trusted until it fails, as if learned by traffic.
    pub fn set_neighbour(link: LinkIndex, ip: IpAddr, mac: MacAddr) -> Change {
        let encode = || {
            let attrs = vec![attr(Nda::Dst, wire::octets(ip))?, attr(Nda::Lladdr, mac.0)?];
            let body = header(link, wire::family(ip), Nud::REACHABLE).rtattrs(list(attrs));
            message(Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, body.build().map_err(Error::bug)?)
        };
        Change::new(format!("set neighbour {ip} on link {link} to {mac}"), encode())
    }

    /// Makes the kernel forget a neighbour, whatever its state; ENOENT if it knows none.
    pub fn delete_neighbour(link: LinkIndex, ip: IpAddr) -> Change {
        let encode = || {
            let attrs = vec![attr(Nda::Dst, wire::octets(ip))?];
            let body = header(link, wire::family(ip), Nud::PERMANENT).rtattrs(list(attrs));
            message(Rtm::Delneigh, NlmF::empty(), body.build().map_err(Error::bug)?)
        };
        Change::new(format!("delete neighbour {ip} from link {link}"), encode())
    }
}

impl Netlink {
    /// The neighbours on a link.
    pub fn neighbours(&mut self, link: LinkIndex) -> Result<Vec<Neighbour>> {
        let request = list_neighbours(link)?;
        self.socket
            .list(&request, libc::RTM_NEWNEIGH, |payload| Neighbour::read(payload, link))
            .trying(|| format!("list the neighbours on link {link}"))
    }
}

pub(super) fn list_neighbours(link: LinkIndex) -> Result<Vec<u8>> {
    let body = NdmsgBuilder::default()
        .ndm_family(RtAddrFamily::Unspecified)
        .ndm_index(0)
        .ndm_state(Nud::empty())
        .ndm_type(Rtn::Unspec)
        .rtattrs(list(vec![attr(Nda::Ifindex, link.unsigned())?]));
    message(Rtm::Getneigh, NlmF::empty(), body.build().map_err(Error::bug)?)
}

fn header(link: LinkIndex, family: RtAddrFamily, state: Nud) -> NdmsgBuilder {
    NdmsgBuilder::default().ndm_family(family).ndm_index(link.signed()).ndm_state(state).ndm_type(Rtn::Unspec)
}
