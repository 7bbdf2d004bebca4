//! The next hops of a container, and the addresses and routes of both ends that lead there and back. Pure functions,
//! without I/O.
//!
//! A next hop is a gateway address that the host veth has, or a link-local address that no interface has: the container
//! knows its MAC address, that of the host veth. Everything leaves by the next hop, packets to neighbours in the
//! subnet, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::{IpConfig, Route};
use interface::plan::AddressPlan;
use linux::ip::{Cidr, MacAddr};
use linux::netlink::{self, Change, DuplicateDetection, LinkChange, LinkIndex};

/// The next hops without a gateway address.
const LINK_LOCAL_4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const LINK_LOCAL_6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Returns the link-local next hop of the family of `like`.
fn link_local(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { LINK_LOCAL_4.into() } else { LINK_LOCAL_6.into() }
}

/// Gives each address a next hop: an address without a gateway gets the link-local one. With `always`, all addresses
/// get it, and are host addresses, with a route to their network.
pub(crate) fn choose(plan: &mut AddressPlan, always: bool) {
    for ip in &mut plan.ips {
        let hop = link_local(ip.address.ip());
        if !always {
            ip.gateway.get_or_insert(hop);
            continue;
        }
        let gateway = ip.gateway.replace(hop);
        for route in plan.routes.iter_mut().filter(|route| route.gw.is_some() && route.gw == gateway) {
            route.gw = Some(hop);
        }
        let (network, address) = (ip.address.network(), Cidr::host(ip.address.ip()));
        if network != address && !plan.routes.iter().any(|route| route.dst.network() == network) {
            plan.routes.push(Route::new(network, Some(hop)));
        }
        ip.address = address;
    }
}

/// Returns the addresses with the prefixes of their networks, outside of which packets are masqueraded. The network of
/// a host address with a link-local next hop is the smallest one with a route that contains it.
pub(crate) fn masqueraded(ips: &[IpConfig], routes: &[Route]) -> Vec<Cidr> {
    let network_of = |ip: &IpConfig| {
        let address = ip.address.ip();
        let is_host = ip.address == Cidr::host(address) && ip.gateway == Some(link_local(address));
        let around = routes.iter().filter(|route| is_host && route.gw == ip.gateway && route.dst.contains(address));
        let prefix = around.map(|route| route.dst.prefix()).filter(|prefix| *prefix > 0).max();
        prefix.and_then(|prefix| Cidr::new(address, prefix)).unwrap_or(ip.address)
    };
    ips.iter().map(network_of).collect()
}

/// Returns the addresses that the host veth needs: the gateways, and with IPv6 the link-local address, from which the
/// host looks for the container. The kernel's own one would be tentative for a second.
pub(crate) fn host_addresses(ips: &[IpConfig], mac: MacAddr) -> Vec<Cidr> {
    let mut addresses: Vec<Cidr> = Vec::new();
    for gateway in gateways(ips).map(Cidr::host) {
        if !addresses.contains(&gateway) {
            addresses.push(gateway);
        }
    }
    let has_ipv6 = ips.iter().any(|ip| ip.address.ip().is_ipv6());
    addresses.extend(Cidr::new(mac.link_local().into(), 64).filter(|_| has_ipv6));
    addresses
}

/// Returns the gateway addresses, which the host veth has.
pub(crate) fn gateways(ips: &[IpConfig]) -> impl Iterator<Item = IpAddr> {
    ips.iter().filter_map(|ip| ip.gateway).filter(|gateway| *gateway != link_local(*gateway))
}

/// Returns the link-local next hops, for which the container needs a permanent neighbour.
pub(crate) fn neighbours(ips: &[IpConfig]) -> impl Iterator<Item = IpAddr> {
    [LINK_LOCAL_4.into(), LINK_LOCAL_6.into()].into_iter().filter(|hop| ips.iter().any(|ip| ip.gateway == Some(*hop)))
}

/// Returns a route to a single address on the link.
pub(crate) fn on_link(ip: IpAddr) -> netlink::Route {
    // Routes of IPv6 have no scope.
    let scope = ip.is_ipv4().then_some(libc::RT_SCOPE_LINK);
    netlink::Route { scope, ..netlink::Route::new(Cidr::host(ip), None) }
}

/// Returns the changes that configure the host veth. A second container with the address would be unreachable, or the
/// first.
pub(crate) fn on_host(plan: &AddressPlan, port: LinkIndex, mac: MacAddr) -> Vec<Change<'static>> {
    let addresses = host_addresses(&plan.ips, mac).into_iter();
    let addresses = addresses.map(|address| Change::add_address(port, address, DuplicateDetection::Off));
    let routes = plan.ips.iter().map(|ip| Change::add_only_route(port, &on_link(ip.address.ip())));
    addresses.chain(routes).collect()
}

/// Returns the changes that configure the container veth, and set it up. `mac` is the MAC address of the host veth.
pub(crate) fn in_container(plan: &AddressPlan, link: LinkIndex, mac: MacAddr) -> Vec<Change<'static>> {
    let mut changes: Vec<_> = plan.ips.iter().map(|ip| Change::add_address_without_route(link, ip.address)).collect();
    changes.push(Change::set_link(link, &LinkChange { up: Some(true), ..LinkChange::default() }));
    changes.extend(neighbours(&plan.ips).map(|hop| Change::set_permanent_neighbour(link, hop, mac)));
    let mut routes: Vec<netlink::Route> = Vec::new();
    let mut add = |route: netlink::Route| {
        if !routes.iter().any(|other| other.dst == route.dst && other.gw == route.gw) {
            routes.push(route);
        }
    };
    for ip in &plan.ips {
        let (src, network) = (Some(ip.address.ip()), ip.address.network());
        if let Some(hop) = ip.gateway {
            // The kernel accepts any link-local next hop of IPv6.
            if hop != IpAddr::from(LINK_LOCAL_6) {
                add(netlink::Route { src, ..on_link(hop) });
            }
            if network != Cidr::host(ip.address.ip()) {
                add(netlink::Route { src, ..netlink::Route::new(network, Some(hop)) });
            }
        }
    }
    plan.kernel_routes().iter().for_each(|route| add(route.into()));
    changes.extend(routes.iter().map(|route| Change::add_route(link, route)));
    changes
}
