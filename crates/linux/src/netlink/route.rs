//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Rta, Rtm, Rtprot};
use serde::{Deserialize, Serialize};

use super::link::LinkIndex;
use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};
use crate::ip::{self, Cidr};

/// The default routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// struct rtmsg
const HEADER: usize = 12;

// linux/rtnetlink.h
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const ONLINK: u8 = 4;

/// The properties of a route, apart from its outgoing link. They can be kept in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    pub dst: Cidr,
    /// The next hop; `None` means that the destination is on the link itself.
    pub gw: Option<IpAddr>,
    /// The MTU of the route, or 0.
    pub mtu: u32,
    /// The maximum segment size to advertise, or 0.
    pub advmss: u32,
    /// The metric, or 0.
    pub priority: u32,
    /// The routing table; `None` means the main table.
    pub table: Option<u32>,
    /// The scope; `None` means universe.
    pub scope: Option<u8>,
    /// The preferred source address of packets.
    pub src: Option<IpAddr>,
}

impl Route {
    /// Creates a route with default attributes.
    pub fn new(dst: Cidr, gw: Option<IpAddr>) -> Route {
        Route { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None, src: None }
    }
}

/// A unicast route of the kernel. `table` and `scope` of the route are always set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The route.
    pub route: Route,
    /// The outgoing link.
    pub link: Option<LinkIndex>,
    /// Whether the route comes from a router advertisement (IPv6).
    pub is_advertised: bool,
    /// Whether the kernel added the route itself, for an address of the link.
    pub is_automatic: bool,
}

impl KernelRoute {
    /// Returns whether the route has the destination `wanted`, ignoring host bits.
    pub fn leads_to(&self, wanted: Cidr) -> bool {
        self.route.dst.network() == wanted.network()
    }

    /// Parses a route; `None` for other entries: local and broadcast routes, cached routes, other families.
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
        let (mut dst, mut gw, mut src, mut link, mut priority, mut mtu, mut advmss) = (None, None, None, None, 0, 0, 0);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::RTA_DST, value) => dst = Some(wire::ip(value)?),
                (libc::RTA_GATEWAY, value) => gw = Some(wire::ip(value)?),
                (libc::RTA_PREFSRC, value) => src = Some(wire::ip(value)?),
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
        let route = Route { dst, gw, mtu, advmss, priority, table: Some(table), scope: Some(scope), src };
        let protocol = wire::byte(payload, 5)?;
        // linux/rtnetlink.h: RTPROT_RA
        let (is_advertised, is_automatic) = (protocol == 9, protocol == libc::RTPROT_KERNEL);
        Ok(Some(KernelRoute { route, link, is_advertised, is_automatic }))
    }
}

/// An entry of the routing tables as the kernel lists it. It can be deleted, added again, and copied to another table
/// with all its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRoute {
    /// The table.
    pub table: u32,
    /// The program that added the entry, as a number (linux/rtnetlink.h: `RTPROT_*`).
    pub protocol: u8,
    /// The route, if the entry is one to a single next hop.
    pub unicast: Option<KernelRoute>,
    /// What happens to packets to a destination if the entry lets none pass.
    pub rejection: Option<Rejection>,
    message: Vec<u8>,
}

/// What a route or a rule does to packets that it lets not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `blackhole`, `unreachable` or `prohibit`, as `ip` calls it.
    pub kind: &'static str,
    /// The network of the source; `None` for any.
    pub source: Option<Cidr>,
    /// The network of the destination; `None` for any.
    pub destination: Option<Cidr>,
}

impl Rejection {
    /// Returns whether packets between these addresses are meant.
    pub fn includes(&self, from: Option<IpAddr>, to: IpAddr) -> bool {
        self.destination.is_none_or(|net| net.contains(to))
            && self.source.is_none_or(|net| from.is_some_and(|from| net.contains(from)))
    }
}

impl ListedRoute {
    /// Parses an entry; `None` for cached ones and other families.
    pub(super) fn read(payload: &[u8]) -> Result<Option<ListedRoute>> {
        let family = i32::from(wire::byte(payload, 0)?);
        let is_cached = wire::number(payload, 8)? & libc::RTM_F_CLONED != 0;
        if is_cached || ![libc::AF_INET, libc::AF_INET6].contains(&family) {
            return Ok(None);
        }
        let mut table = u32::from(wire::byte(payload, 4)?);
        let (mut has_several_hops, mut dst) = (false, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (libc::RTA_TABLE, value) => table = wire::number(value, 0)?,
                (libc::RTA_MULTIPATH, _) => has_several_hops = true,
                (libc::RTA_DST, value) => dst = Some(wire::ip(value)?),
                _ => {}
            }
        }
        let unicast = if has_several_hops { None } else { KernelRoute::read(payload)? };
        let kind = match wire::byte(payload, 7)? {
            libc::RTN_BLACKHOLE => Some("blackhole"),
            libc::RTN_UNREACHABLE => Some("unreachable"),
            libc::RTN_PROHIBIT => Some("prohibit"),
            _ => None,
        };
        let any = if family == libc::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let destination = Some(wire::cidr(dst.unwrap_or(any), wire::byte(payload, 1)?)?);
        let rejection = kind.map(|kind| Rejection { kind, source: None, destination });
        let protocol = wire::byte(payload, 5)?;
        Ok(Some(ListedRoute { table, protocol, unicast, rejection, message: payload.to_vec() }))
    }

    /// Returns a message about the entry itself.
    fn message(&self, kind: Rtm, how: NlmF) -> Request {
        let objects: &[u16] = match self.is_by_object() {
            true => &[libc::RTA_OIF, libc::RTA_GATEWAY, RTA_VIA, libc::RTA_MULTIPATH],
            false => &[],
        };
        self.message_without(objects, kind, how, self.table, self.protocol)
    }

    /// Returns a message about a copy, in another table and of another program. It has the next hops of a nexthop
    /// object, but not the object.
    fn copy_message(&self, kind: Rtm, how: NlmF, table: u32, protocol: u8) -> Request {
        self.message_without(&[RTA_NH_ID], kind, how, table, protocol)
    }

    fn is_by_object(&self) -> bool {
        wire::attributes(&self.message, HEADER).any(|attribute| matches!(attribute, Ok((RTA_NH_ID, _))))
    }

    /// Returns a message about the entry with other attributes. The kernel lists the next hops of a nexthop object
    /// beside the object, and does not accept both.
    fn message_without(&self, without: &[u16], kind: Rtm, how: NlmF, table: u32, protocol: u8) -> Request {
        let mut request = Request::new(kind, how);
        let byte = |place: usize| self.message.get(place).copied().unwrap_or_default();
        // struct rtmsg: family, prefix lengths, type of service, table, protocol, scope, type, flags
        request.raw(&[byte(0), byte(1), byte(2), byte(3)]);
        request.raw(&[u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC), protocol, byte(6), byte(7)]);
        // The other flags are the state of the link.
        request.raw(&[byte(8) & ONLINK, 0, 0, 0]);
        for (kind, value) in wire::attributes(&self.message, HEADER).map_while(Result::ok) {
            // The table follows.
            if ![libc::RTA_TABLE, libc::RTA_CACHEINFO].contains(&kind) && !without.contains(&kind) {
                request.attr(kind, value);
            }
        }
        if table > 255 {
            request.number(Rta::Table, table);
        }
        request
    }

    /// Returns the destination, also of an entry that is not a route to a next hop.
    pub fn destination(&self) -> Result<Cidr> {
        let mut dst = match i32::from(wire::byte(&self.message, 0)?) {
            libc::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            _ => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        for attribute in wire::attributes(&self.message, HEADER) {
            if let (libc::RTA_DST, value) = attribute? {
                dst = wire::ip(value)?;
            }
        }
        wire::cidr(dst, wire::byte(&self.message, 1)?)
    }

    /// Returns whether both are the same route, perhaps in different tables or by different programs.
    pub fn is_copy_of(&self, other: &ListedRoute) -> bool {
        let bytes = |listed: &ListedRoute| listed.copy_message(Rtm::Newroute, NlmF::empty(), 0, 0).finish();
        bytes(self) == bytes(other)
    }

    fn describe(&self) -> String {
        let route = self.unicast.as_ref().map(|found| found.route);
        let gw = route.and_then(|route| route.gw).map_or_else(String::new, |gw| format!(" via {gw}"));
        route.map_or_else(|| "a route".to_owned(), |route| format!("route to {}{gw}", route.dst))
    }
}

impl<'a> Change<'a> {
    /// Adds an entry to another table, for another program, after those to the same destination with the same metric.
    /// The kernel rejects an identical one with EEXIST.
    pub fn copy_route(listed: &'a ListedRoute, table: u32, protocol: u8) -> Change<'a> {
        let request = listed.copy_message(Rtm::Newroute, NlmF::CREATE.union(NlmF::APPEND), table, protocol);
        Change::new(request, move || format!("copy {} to table {table}", listed.describe()))
    }

    /// Deletes a copy of an entry.
    pub fn delete_copied_route(listed: &'a ListedRoute, table: u32, protocol: u8) -> Change<'a> {
        let request = listed.copy_message(Rtm::Delroute, NlmF::empty(), table, protocol);
        Change::new(request, move || format!("delete {} from table {table}", listed.describe()))
    }

    /// Deletes an entry.
    pub fn delete_listed_route(listed: &'a ListedRoute) -> Change<'a> {
        let request = listed.message(Rtm::Delroute, NlmF::empty());
        Change::new(request, move || format!("delete {} from table {}", listed.describe(), listed.table))
    }

    /// Adds an entry again that was deleted, without its preferred source: an address of a member of a VRF cannot be
    /// one in other tables than that of the VRF.
    pub fn restore_route_without_source(listed: &'a ListedRoute) -> Change<'a> {
        let (how, without) = (NlmF::CREATE.union(NlmF::APPEND), [RTA_NH_ID, libc::RTA_PREFSRC]);
        let request = listed.message_without(&without, Rtm::Newroute, how, listed.table, listed.protocol);
        Change::new(request, move || format!("restore {}", listed.describe()))
    }

    /// Adds an entry again that was deleted.
    pub fn restore_route(listed: &'a ListedRoute) -> Change<'a> {
        let request = listed.message(Rtm::Newroute, NlmF::CREATE.union(NlmF::APPEND));
        Change::new(request, move || format!("restore {}", listed.describe()))
    }
}

impl Change<'_> {
    /// Adds a route with `link` as the outgoing link. A second route to the same destination by another next hop is
    /// inserted before the first; the kernel rejects an identical route with EEXIST.
    pub fn add_route(link: LinkIndex, route: &Route) -> Self {
        Change::new_route(link, route, NlmF::CREATE, Rtprot::Boot.into())
    }

    /// As [`add_route`](Self::add_route), for a program that recognises its routes by this number.
    pub fn add_route_of(protocol: u8, link: LinkIndex, route: &Route) -> Self {
        Change::new_route(link, route, NlmF::CREATE, protocol)
    }

    /// As [`add_route`](Self::add_route), but the kernel rejects any second route to the same destination with the same
    /// metric.
    pub fn add_only_route(link: LinkIndex, route: &Route) -> Self {
        Change::new_route(link, route, wire::CREATE, Rtprot::Boot.into())
    }

    fn new_route(link: LinkIndex, route: &Route, how: NlmF, protocol: u8) -> Self {
        let Route { dst, gw, mtu, advmss, priority, table, scope, src } = *route;
        let table = table.unwrap_or(MAIN);
        let mut request = Request::new(Rtm::Newroute, how);
        // struct rtmsg: family, prefix length of the destination, of the source, type of service
        request.raw(&[wire::family(dst.ip()), dst.prefix(), 0, 0]);
        // … table, protocol, scope, type, flags
        let short = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        request.raw(&[short, protocol, scope.unwrap_or(libc::RT_SCOPE_UNIVERSE), libc::RTN_UNICAST]);
        request.raw(&[0; 4]);
        if dst.prefix() > 0 {
            request.ip(Rta::Dst, dst.network().ip());
        }
        if let Some(gw) = gw {
            request.ip(Rta::Gateway, gw);
        }
        if let Some(src) = src {
            request.ip(Rta::Prefsrc, src);
        }
        if priority > 0 {
            request.number(Rta::Priority, priority);
        }
        // The field in the header has one byte.
        if table > 255 {
            request.number(Rta::Table, table);
        }
        request.number(Rta::Oif, link.number());
        if mtu > 0 || advmss > 0 {
            request.nest(Rta::Metrics, |metrics| {
                for (kind, value) in [(wire::RTAX_MTU, mtu), (wire::RTAX_ADVMSS, advmss)] {
                    if value > 0 {
                        metrics.number(kind, value);
                    }
                }
            });
        }
        Change::new(request, move || {
            let via = gw.map_or_else(String::new, |gw| format!(" via {gw}"));
            format!("add route to {dst}{via} by link {link}")
        })
    }

    /// Deletes a route to the same destination, with the same table, metric and outgoing link, and the same next hop if
    /// `route` has one.
    pub fn delete_route(link: LinkIndex, route: &Route) -> Self {
        let Route { dst, gw, priority, table, .. } = *route;
        let table = table.unwrap_or(MAIN);
        let mut request = Request::new(Rtm::Delroute, NlmF::empty());
        request.raw(&[wire::family(dst.ip()), dst.prefix(), 0, 0]);
        // Of any protocol, scope and type. IPv6 routes have no scope.
        let scope = if dst.ip().is_ipv4() { libc::RT_SCOPE_NOWHERE } else { libc::RT_SCOPE_UNIVERSE };
        let short = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        request.raw(&[short, 0, scope, 0, 0, 0, 0, 0]);
        if dst.prefix() > 0 {
            request.ip(Rta::Dst, dst.network().ip());
        }
        if let Some(gw) = gw {
            request.ip(Rta::Gateway, gw);
        }
        if priority > 0 {
            request.number(Rta::Priority, priority);
        }
        if table > 255 {
            request.number(Rta::Table, table);
        }
        request.number(Rta::Oif, link.number());
        Change::new(request, move || format!("delete route to {dst} by link {link}"))
    }
}

impl Netlink {
    /// Deletes a route as [`Change::delete_route`] does. Succeeds if there is none.
    pub fn delete_route(&mut self, link: LinkIndex, route: &Route) -> Result<()> {
        match self.apply(&[Change::delete_route(link, route)]) {
            Err(error) if matches!(error.errno(), Some(libc::ESRCH | libc::ENODEV)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns all unicast routes with `link` as the outgoing link, from all tables, IPv4 before IPv6.
    pub fn routes(&mut self, link: LinkIndex) -> Result<Vec<KernelRoute>> {
        let request = list_routes(Some(link));
        let wanted = |route: Option<KernelRoute>| route.filter(|route| route.link == Some(link));
        let found = self
            .socket
            .list(&request, libc::RTM_NEWROUTE, |payload| KernelRoute::read(payload).map(wanted))
            .context(|| format!("list the routes of link {link}"))?;
        Ok(ip::ipv4_first(found, |route| route.route.dst.ip()))
    }

    /// Returns the link by which packets to `ip` leave; `None` if there is no route, or one that rejects or drops them.
    /// The link of an address of this host is `lo`.
    pub fn route_to(&mut self, ip: IpAddr) -> Result<Option<LinkIndex>> {
        // For routes of these kinds the kernel returns the error that a sender gets: none or unreachable, prohibit,
        // blackhole.
        let rejected = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
        let found = self.socket.get(&get_route(ip), libc::RTM_NEWROUTE, &rejected, read_outgoing_link);
        Ok(found.context(|| format!("look for the route to {ip}"))?.flatten())
    }

    /// Returns the link by which packets from another host, or from a container, leave that arrive on the link `on`;
    /// `None` as for [`route_to`](Self::route_to), and if the kernel does not forward them.
    pub fn forwarding_route(&mut self, from: IpAddr, on: LinkIndex, to: IpAddr) -> Result<Option<LinkIndex>> {
        let rejected = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::EXDEV];
        let request = get_forwarding_route(from, on, to);
        let found = self.socket.get(&request, libc::RTM_NEWROUTE, &rejected, read_outgoing_link);
        Ok(found.context(|| format!("look for the route from {from} to {to}"))?.flatten())
    }

    /// Returns all unicast routes, from all tables.
    pub fn all_routes(&mut self) -> Result<Vec<KernelRoute>> {
        let listed = self.socket.list(&list_routes(None), libc::RTM_NEWROUTE, KernelRoute::read);
        listed.context(|| "list all routes")
    }

    /// Returns all entries of all tables, also those that are not routes to a next hop.
    pub fn listed_routes(&mut self) -> Result<Vec<ListedRoute>> {
        let listed = self.socket.list(&list_routes(None), libc::RTM_NEWROUTE, ListedRoute::read);
        listed.context(|| "list all routes")
    }

    /// Returns the default routes of the main table, the preferred one of each family first.
    pub fn default_routes(&mut self) -> Result<Vec<KernelRoute>> {
        let mut found = self.all_routes()?;
        found.retain(|route| route.route.dst.is_default() && route.route.table == Some(MAIN));
        found.sort_by_key(|route| (route.route.dst.ip().is_ipv6(), route.route.priority));
        Ok(found)
    }
}

/// Parses the outgoing link of a route; `None` if the route rejects or drops packets.
pub(super) fn read_outgoing_link(payload: &[u8]) -> Result<Option<LinkIndex>> {
    // The kernel returns such routes of IPv6, with `lo` as their link.
    if matches!(wire::byte(payload, 7)?, libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT | libc::RTN_BLACKHOLE) {
        return Ok(None);
    }
    for attribute in wire::attributes(payload, HEADER) {
        if let (libc::RTA_OIF, value) = attribute? {
            return Ok(LinkIndex::optional(wire::number(value, 0)?));
        }
    }
    Ok(None)
}

pub(super) fn get_route(ip: IpAddr) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getroute, NlmF::empty());
    // struct rtmsg: family, prefix length of the destination, nothing else
    request.raw(&[wire::family(ip), if ip.is_ipv4() { 32 } else { 128 }]);
    request.raw(&[0; HEADER - 2]);
    request.ip(Rta::Dst, ip);
    request.finish()
}

pub(super) fn get_forwarding_route(from: IpAddr, on: LinkIndex, to: IpAddr) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getroute, NlmF::empty());
    let bits = Cidr::host(to).prefix();
    // struct rtmsg: family, prefix lengths of the destination and of the source, nothing else
    request.raw(&[wire::family(to), bits, bits]);
    request.raw(&[0; HEADER - 3]);
    request.ip(Rta::Dst, to);
    request.ip(Rta::Src, from);
    request.number(Rta::Iif, on.number());
    request.finish()
}

pub(super) fn list_routes(link: Option<LinkIndex>) -> Vec<u8> {
    let mut request = Request::new(Rtm::Getroute, NlmF::empty());
    request.raw(&[0; HEADER]);
    if let Some(link) = link {
        request.number(Rta::Oif, link.number());
    }
    request.finish()
}
