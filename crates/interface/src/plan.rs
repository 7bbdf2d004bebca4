//! Derives addresses, routes and gateways from the result of an IPAM plugin. Pure functions, without I/O.

use std::net::IpAddr;

use cni::{AddResult, Code, Dns, Error, IpConfig, Result, Route};
use linux::ip::{self, Cidr};

use crate::{config, ipam};

/// What the configuration says about layer 3.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of the IPAM plugin.
    pub ipam: &'a str,
    /// Index of the container's interface in the result's list of interfaces.
    pub interface: u32,
    /// Whether the host gets the gateway addresses.
    pub gateway: bool,
    /// Whether the container gets a default route to the gateway.
    pub default_gateway: bool,
    /// The MTU, if the configuration has one.
    pub mtu: Option<u32>,
    /// Whether the plugin can attach a container without addresses.
    pub has_layer2: bool,
}

/// The addresses, routes and DNS settings of a container, and the gateway addresses that the host needs for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddressPlan {
    /// The container's addresses.
    pub ips: Vec<IpConfig>,
    /// The container's routes as the result of ADD lists them.
    pub routes: Vec<Route>,
    /// The gateway addresses, with the prefixes of the container's addresses.
    pub gateways: Vec<Cidr>,
    /// The DNS settings of the IPAM plugin.
    pub dns: Dns,
    /// Whether the kernel follows router advertisements for the IPv6 addresses, of which the interface may have some
    /// already.
    pub is_advertised: bool,
}

impl AddressPlan {
    /// Derives the plan from the result of the IPAM plugin.
    pub fn new(ipam_result: AddResult, wanted: &Wanted<'_>) -> Result<AddressPlan> {
        let AddResult { mut ips, mut routes, dns, .. } = ipam_result;
        if ips.is_empty() {
            let error = Error::new(Code::INTERNAL, format!("IPAM plugin {:?} returned no address", wanted.ipam));
            return Err(error.details(match wanted.has_layer2 {
                true => "remove \"ipam\" for a layer-2 network",
                false => "correct the configuration of the IPAM plugin",
            }));
        }
        if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu < ip::IPV6_MIN_MTU)
            && let Some(ip) = ips.iter().find(|ip| ip.address.ip().is_ipv6())
        {
            return Err(config::mtu_too_small(mtu, ip.address, "or only IPv4 addresses"));
        }
        let mut gateways = Vec::new();
        let is_advertised = wanted.ipam == ipam::DHCP;
        for ip in &mut ips {
            ip.interface = Some(wanted.interface);
            if let Some(gateway) = ip.gateway.filter(|gateway| gateway.is_ipv4() != ip.address.ip().is_ipv4()) {
                let what = format!("address {} has the gateway {gateway}: one is IPv4, the other IPv6", ip.address);
                return Err(Error::new(Code::INTERNAL, what).details("correct the IPAM configuration"));
            }
            // The router is another host, and the kernel adds the routes to it.
            if is_advertised && ip.address.ip().is_ipv6() {
                continue;
            }
            if wanted.gateway {
                let gateway = gateway(ip)?;
                gateways.extend(Cidr::new(gateway, ip.address.prefix()).filter(|gateway| !gateways.contains(gateway)));
            }
            if wanted.default_gateway
                && let Some(gateway) = ip.gateway
            {
                ensure_default_route(&mut routes, gateway);
            }
        }
        for route in &routes {
            if let Some(gw) = route.gw
                && gw.is_ipv4() != route.dst.ip().is_ipv4()
            {
                let what = format!("route to {} via {gw}: one is IPv4, the other IPv6", route.dst);
                return Err(Error::new(Code::INTERNAL, what).details("correct \"routes\" of the IPAM configuration"));
            }
        }
        Ok(AddressPlan { ips, routes, gateways, dns, is_advertised })
    }

    /// Returns the container's addresses.
    pub fn addresses(&self) -> Vec<Cidr> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// Returns the routes as the kernel needs them: a route without a next hop gets the first gateway of its family.
    pub fn kernel_routes(&self) -> Vec<Route> {
        let gateway = |like: IpAddr| {
            let mut gateways = self.ips.iter().filter_map(|ip| ip.gateway);
            gateways.find(|gateway| gateway.is_ipv4() == like.is_ipv4())
        };
        // Unlike the reference: a route with scope link has no next hop.
        let on_link = |route: &Route| route.scope.is_some_and(|scope| scope >= libc::RT_SCOPE_LINK);
        let fill = |route: &Route| {
            let family = || gateway(route.dst.ip()).filter(|_| !on_link(route));
            Route { gw: route.gw.or_else(family), ..route.clone() }
        };
        self.routes.iter().map(fill).collect()
    }
}

/// Returns the gateway of an address. If IPAM returned none, sets it to the first address of the network.
fn gateway(ip: &mut IpConfig) -> Result<IpAddr> {
    if let Some(gateway) = ip.gateway {
        return Ok(gateway);
    }
    let first = ip::next(ip.address.network().ip()).ok_or_else(|| {
        let what = format!("address {} leaves no room for a gateway", ip.address);
        Error::new(Code::INTERNAL, what).details("set a gateway in the IPAM configuration")
    })?;
    ip.gateway = Some(first);
    Ok(first)
}

/// Adds a default route via `gateway` unless one of its family exists. Unlike the reference, a default route without a
/// next hop counts: it gets `gateway` as its next hop, because the kernel would reject a second default route.
fn ensure_default_route(routes: &mut Vec<Route>, gateway: IpAddr) {
    let dst = Cidr::default_route(gateway);
    let existing = routes.iter_mut().find(|route| route.dst.is_default() && route.dst == dst && route.table.is_none());
    match existing {
        Some(route) => {
            route.gw.get_or_insert(gateway);
        }
        None => routes.push(Route::new(dst, Some(gateway))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted<'_> =
        Wanted { ipam: "host-local", interface: 2, gateway: true, default_gateway: false, mtu: None, has_layer2: true };

    fn plan(ips: &[(&str, &str)], routes: &[(&str, &str)], default_gateway: bool) -> Result<AddressPlan> {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let ipam_result = AddResult {
            ips: ips
                .iter()
                .map(|(address, gateway)| IpConfig {
                    address: address.parse().unwrap(),
                    gateway: ip(gateway),
                    interface: None,
                })
                .collect(),
            routes: routes.iter().map(|(dst, gw)| Route::new(dst.parse().unwrap(), ip(gw))).collect(),
            ..AddResult::default()
        };
        AddressPlan::new(ipam_result, &Wanted { default_gateway, ..WANTED })
    }

    fn routes(plan: &AddressPlan) -> Vec<String> {
        let show = |route: &Route| {
            let gw = route.gw.map_or_else(|| "-".to_owned(), |gw| gw.to_string());
            format!("{} {gw}", route.dst)
        };
        plan.routes.iter().map(show).collect()
    }

    #[test]
    fn a_missing_gateway_is_the_first_address() {
        let plan = plan(&[("10.1.0.9/16", ""), ("fd01::9/64", "fd01::5")], &[], false).unwrap();
        assert_eq!(plan.gateways.iter().map(Cidr::to_string).collect::<Vec<_>>(), ["10.1.0.1/16", "fd01::5/64"]);
        assert!(plan.ips.iter().all(|ip| ip.interface == Some(WANTED.interface)));
        assert!(plan.routes.is_empty());
    }

    #[test]
    fn each_family_gets_one_default_route() {
        let ips = [("10.1.0.9/16", ""), ("10.2.0.9/16", ""), ("fd01::9/64", "")];
        assert_eq!(routes(&plan(&ips, &[], true).unwrap()), ["0.0.0.0/0 10.1.0.1", "::/0 fd01::1"]);
        let given = [("0.0.0.0/0", "10.1.0.7"), ("::/0", ""), ("10.9.0.0/16", "")];
        assert_eq!(routes(&plan(&ips, &given, true).unwrap()), ["0.0.0.0/0 10.1.0.7", "::/0 fd01::1", "10.9.0.0/16 -"]);
    }

    #[test]
    fn what_a_router_advertises_needs_neither_gateway_nor_route() {
        let ip = |address: &str, gateway: &str| IpConfig {
            address: address.parse().unwrap(),
            gateway: gateway.parse().ok(),
            interface: None,
        };
        let ips = vec![ip("10.1.0.9/16", "10.1.0.1"), ip("fd01::9/64", "fe80::1")];
        let wanted = Wanted { ipam: "dhcp", default_gateway: true, ..WANTED };
        let plan = AddressPlan::new(AddResult { ips, ..AddResult::default() }, &wanted).unwrap();
        assert_eq!(plan.gateways.iter().map(Cidr::to_string).collect::<Vec<_>>(), ["10.1.0.1/16"]);
        assert_eq!(routes(&plan), ["0.0.0.0/0 10.1.0.1"]);
        assert!(plan.is_advertised && plan.ips.len() == 2);
    }

    #[test]
    fn routes_without_a_next_hop_get_the_first_gateway_of_their_family() {
        let ips = [("10.1.0.9/16", ""), ("10.2.0.9/16", "")];
        let plan = plan(&ips, &[("10.9.0.0/16", ""), ("fd09::/64", "")], false).unwrap();
        let hops: Vec<_> = plan.kernel_routes().iter().map(|route| route.gw).collect();
        assert_eq!(hops, ["10.1.0.1".parse().ok(), None]);
        let link = Route { scope: Some(253), ..Route::new("10.9.0.0/16".parse().unwrap(), None) };
        let plan = AddressPlan { routes: vec![link], ..plan };
        assert_eq!(plan.kernel_routes()[0].gw, None);
    }

    #[test]
    fn impossible_plans_are_rejected() {
        assert!(plan(&[], &[], false).is_err());
        assert!(plan(&[("255.255.255.255/32", "")], &[], false).is_err());
        assert!(plan(&[("10.1.0.9/16", "fd01::1")], &[], false).is_err());
        assert!(plan(&[("10.1.0.9/16", "")], &[("10.9.0.0/16", "fd01::1")], false).is_err());
    }
}
