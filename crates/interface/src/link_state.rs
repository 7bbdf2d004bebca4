//! What a link loses when it moves to another namespace, and what a container can change of it.

use cni::Result;
use linux::ip::Cidr;
use linux::netlink::{Change, DuplicateDetection, Link, LinkChange, LinkIndex, Netlink, Route};
use serde::{Deserialize, Serialize};

/// The state of a link on the host. It can be kept in a file until the link comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkState {
    mtu: u32,
    mac: String,
    up: bool,
    /// The index of the bridge of which the link is a port, or 0.
    bridge: u32,
    addresses: Vec<Cidr>,
    routes: Vec<Route>,
    /// Whether a default route of the host leads through the link.
    #[serde(skip)]
    pub has_default_route: bool,
}

impl LinkState {
    /// Reads the state of a link, without what the kernel, a router or a DHCP server gave to it: they will do so again.
    pub fn read(netlink: &mut Netlink, link: &Link) -> Result<LinkState> {
        let addresses = netlink.addresses(link.index)?.into_iter();
        let mut routes = netlink.routes(link.index)?;
        let has_default_route = routes.iter().any(|route| route.route.dst.is_default());
        routes.retain(|route| !route.is_automatic && !route.is_advertised);
        // The next hop of a route must be reachable by one that exists already.
        routes.sort_by_key(|route| route.route.gw.is_some());
        Ok(LinkState {
            mtu: link.mtu,
            mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            up: link.up,
            bridge: link.port.and(link.master).map_or(0, LinkIndex::number),
            addresses: addresses.filter(|have| have.permanent && have.global).map(|have| have.cidr).collect(),
            routes: routes.into_iter().map(|route| route.route).collect(),
            has_default_route,
        })
    }

    /// Restores the state of a link that has come back. The kernel tries each change, even if another one fails: an
    /// address may be in use by now, or a bridge may be gone. The first error is returned.
    pub fn restore(&self, netlink: &mut Netlink, link: &Link) -> Result<()> {
        let LinkState { mtu, mac, up, bridge, addresses, routes, .. } = self;
        let index = link.index;
        let none = LinkChange::default();
        let mut changes = Vec::new();
        if *mtu != link.mtu {
            changes.push(Change::set_link(index, &LinkChange { mtu: Some(*mtu), ..none }));
        }
        if let Some(mac) = mac.parse().ok().filter(|mac| Some(*mac) != link.mac) {
            changes.push(Change::set_link(index, &LinkChange { mac: Some(mac), ..none }));
        }
        if let Some(bridge) = LinkIndex::optional(*bridge).filter(|bridge| link.master != Some(*bridge)) {
            changes.push(Change::set_link(index, &LinkChange { bridge: Some(bridge), ..none }));
        }
        if *up != link.up {
            changes.push(Change::set_link(index, &LinkChange { up: Some(*up), ..none }));
        }
        let have = netlink.addresses(index)?;
        for address in addresses.iter().filter(|address| !have.iter().any(|have| have.cidr == **address)) {
            changes.push(Change::add_address(index, *address, DuplicateDetection::Default));
        }
        let have = netlink.routes(index)?;
        for route in routes.iter().filter(|route| !have.iter().any(|have| have.route == **route)) {
            changes.push(Change::add_route(index, route));
        }
        if changes.is_empty() {
            return Ok(());
        }
        Ok(netlink.apply(&changes)?)
    }
}
