//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{RtAddrFamily, RtScope, RtTable, Rta, Rtm, Rtn, Rtprot};
use neli::rtnl::RtmsgBuilder;

use super::link::LinkIndex;
use super::wire::{self, attr, list, message, nest};
use super::{Change, Netlink};
use crate::error::{Context, Error, Result};
use crate::ip::Cidr;
use crate::result::Route;

/// The table that is meant where none is named.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// struct rtmsg
const HEADER: usize = 12;

/// A unicast route as the kernel has it. The route's `table` and `scope` are always given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// What it says.
    pub route: Route,
    /// The link that it leaves by.
    pub link: Option<LinkIndex>,
    /// Did a router tell it (IPv6)?
    pub is_advertised: bool,
}

impl KernelRoute {
    /// Does it go where `wanted` goes? Host bits do not count.
    pub fn leads_to(&self, wanted: Cidr) -> bool {
        self.route.dst.network() == wanted.network()
    }

    /// `None` for what is no plain route: local and broadcast entries, cached ones, other families.
    pub(super) fn read(payload: &[u8]) -> Result<Option<KernelRoute>> {
        let family = i32::from(wire::byte(payload, 0)?);
        let prefix = wire::byte(payload, 1)?;
        let mut table = u32::from(wire::byte(payload, 4)?);
        let (scope, kind, flags) = (wire::byte(payload, 6)?, wire::byte(payload, 7)?, wire::number(payload, 8)?);
        let any = match family {
            libc::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => return Ok(None),
        };
        if kind != libc::RTN_UNICAST || flags & libc::RTM_F_CLONED != 0 {
            return Ok(None);
        }
        let (mut dst, mut gw, mut link, mut priority, mut mtu, mut advmss) = (None, None, None, 0, 0, 0);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::RTA_DST, value) => dst = Some(wire::ip(value)?),
                (libc::RTA_GATEWAY, value) => gw = Some(wire::ip(value)?),
                (libc::RTA_OIF, value) => link = LinkIndex::optional(wire::number(value, 0)?),
                (libc::RTA_PRIORITY, value) => priority = wire::number(value, 0)?,
                (libc::RTA_TABLE, value) => table = wire::number(value, 0)?,
                (libc::RTA_METRICS, metrics) => {
                    for metric in wire::attributes(metrics, 0) {
                        match metric? {
                            (wire::RTAX_MTU, value) => mtu = wire::number(value, 0)?,
                            (wire::RTAX_ADVMSS, value) => advmss = wire::number(value, 0)?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let dst = wire::cidr(dst.unwrap_or(any), prefix)?;
        let route = Route { dst, gw, mtu, advmss, priority, table: Some(table), scope: Some(scope) };
        // linux/rtnetlink.h: RTPROT_RA
        let is_advertised = wire::byte(payload, 5)? == 9;
        Ok(Some(KernelRoute { route, link, is_advertised }))
    }
}

impl Change {
    /// Adds a route that leaves by `link`. A second one to the same destination by another way is put before the
    /// first; the very same one is refused with EEXIST.
    pub fn add_route(link: LinkIndex, route: &Route) -> Change {
        let encode = || {
            let table = route.table.unwrap_or(MAIN);
            let mut attrs = Vec::new();
            if route.dst.prefix() > 0 {
                attrs.push(attr(Rta::Dst, wire::octets(route.dst.network().ip()))?);
            }
            if let Some(gw) = route.gw {
                attrs.push(attr(Rta::Gateway, wire::octets(gw))?);
            }
            if route.priority > 0 {
                attrs.push(attr(Rta::Priority, route.priority)?);
            }
            // The header has one byte for it.
            if table > 255 {
                attrs.push(attr(Rta::Table, table)?);
            }
            attrs.push(attr(Rta::Oif, link.unsigned())?);
            let mut metrics = Vec::new();
            for (kind, value) in [(wire::RTAX_MTU, route.mtu), (wire::RTAX_ADVMSS, route.advmss)] {
                if value > 0 {
                    metrics.push(attr(kind, value)?);
                }
            }
            if !metrics.is_empty() {
                attrs.push(nest(Rta::Metrics, metrics)?);
            }
            let body = RtmsgBuilder::default()
                .rtm_family(wire::family(route.dst.ip()))
                .rtm_dst_len(route.dst.prefix())
                .rtm_src_len(0)
                .rtm_tos(0)
                .rtm_table(u8::try_from(table).map_or(RtTable::Unspec, RtTable::from))
                .rtm_protocol(Rtprot::Boot)
                .rtm_scope(route.scope.map_or(RtScope::Universe, RtScope::from))
                .rtm_type(Rtn::Unicast)
                .rtattrs(list(attrs));
            message(Rtm::Newroute, NlmF::CREATE, body.build().map_err(Error::bug)?)
        };
        let via = route.gw.map_or_else(String::new, |gw| format!(" via {gw}"));
        Change::new(format!("add route to {}{via} by link {link}", route.dst), encode())
    }
}

impl Netlink {
    /// All unicast routes that leave by `link`, of all tables, IPv4 before IPv6.
    pub fn routes(&mut self, link: LinkIndex) -> Result<Vec<KernelRoute>> {
        let request = list_routes(Some(link))?;
        let wanted = |route: Option<KernelRoute>| route.filter(|route| route.link == Some(link));
        let mut found = self
            .socket
            .list(&request, libc::RTM_NEWROUTE, |payload| KernelRoute::read(payload).map(wanted))
            .trying(|| format!("list the routes of link {link}"))?;
        found.sort_by_key(|route| route.route.dst.ip().is_ipv6());
        Ok(found)
    }

    /// The routes of the main table that lead everywhere, the preferred one of each family first.
    pub fn default_routes(&mut self) -> Result<Vec<KernelRoute>> {
        let wanted = |route: Option<KernelRoute>| {
            route.filter(|route| route.route.dst.is_default() && route.route.table == Some(MAIN))
        };
        let mut found = self
            .socket
            .list(&list_routes(None)?, libc::RTM_NEWROUTE, |payload| KernelRoute::read(payload).map(wanted))
            .trying(|| "list the default routes")?;
        found.sort_by_key(|route| (route.route.dst.ip().is_ipv6(), route.route.priority));
        Ok(found)
    }
}

pub(super) fn list_routes(link: Option<LinkIndex>) -> Result<Vec<u8>> {
    let mut attrs = Vec::new();
    if let Some(link) = link {
        attrs.push(attr(Rta::Oif, link.unsigned())?);
    }
    let body = RtmsgBuilder::default()
        .rtm_family(RtAddrFamily::Unspecified)
        .rtm_dst_len(0)
        .rtm_src_len(0)
        .rtm_tos(0)
        .rtm_table(RtTable::Unspec)
        .rtm_protocol(Rtprot::Unspec)
        .rtm_scope(RtScope::Universe)
        .rtm_type(Rtn::Unspec)
        .rtattrs(list(attrs));
    message(Rtm::Getroute, NlmF::empty(), body.build().map_err(Error::bug)?)
}
