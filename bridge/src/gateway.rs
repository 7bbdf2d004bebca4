//! Derives gateways, default routes and bridge addresses from the result of an IPAM plugin. Pure functions, without
//! I/O.

use std::net::IpAddr;

use cni::{AddResult, Code, Dns, Error, IpConfig, Result, Route};
use linux::ip::{self, Cidr};
use linux::netlink::Address;

use crate::config::Config;
use crate::mtu;

/// Index of the container veth in the result's list of interfaces.
pub(crate) const CONTAINER: u32 = 2;

/// The addresses, routes and DNS settings of a container, and the addresses that the bridge needs for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The container's addresses.
    pub(crate) ips: Vec<IpConfig>,
    /// The container's routes as the result of ADD lists them.
    pub(crate) routes: Vec<Route>,
    /// The bridge's addresses.
    pub(crate) gateways: Vec<Cidr>,
    /// The DNS settings of the IPAM plugin.
    pub(crate) dns: Dns,
}

impl Plan {
    /// Derives the plan from the result of the IPAM plugin.
    pub(crate) fn new(ipam_result: AddResult, config: &Config) -> Result<Plan> {
        let AddResult { mut ips, mut routes, dns, .. } = ipam_result;
        if ips.is_empty() {
            let ipam = config.ipam.as_deref().unwrap_or_default();
            let what = format!("IPAM plugin {ipam:?} returned no address");
            return Err(Error::new(Code::INTERNAL, what).details("remove \"ipam\" for a layer-2 network"));
        }
        if let Some(mtu) = config.mtu.filter(|mtu| *mtu < ip::IPV6_MIN_MTU)
            && let Some(ip) = ips.iter().find(|ip| ip.address.ip().is_ipv6())
        {
            return Err(mtu::too_small(mtu, ip.address, "or only IPv4 addresses"));
        }
        let mut gateways = Vec::new();
        for ip in &mut ips {
            ip.interface = Some(CONTAINER);
            if config.gateway {
                let gateway = gateway(ip)?;
                gateways.extend(Cidr::new(gateway, ip.address.prefix()).filter(|gateway| !gateways.contains(gateway)));
            }
            if config.default_gateway
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
        Ok(Plan { ips, routes, gateways, dns })
    }

    /// Returns the routes as the kernel needs them: a route without a next hop gets the first gateway of its family.
    pub(crate) fn kernel_routes(&self) -> Vec<Route> {
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
        if gateway.is_ipv4() != ip.address.ip().is_ipv4() {
            let what = format!("address {} has the gateway {gateway}: one is IPv4, the other IPv6", ip.address);
            return Err(Error::new(Code::INTERNAL, what).details("correct the IPAM configuration"));
        }
        return Ok(gateway);
    }
    let first = ip::next(ip.address.network().ip()).ok_or_else(|| {
        let what = format!("address {} leaves no room for a gateway", ip.address);
        Error::new(Code::INTERNAL, what).details("set a gateway in the IPAM configuration")
    })?;
    ip.gateway = Some(first);
    Ok(first)
}

/// Adds a default route via `gateway` unless one of its family exists. Unlike the reference, a default route without a next
/// hop counts: it gets `gateway` as its next hop, because the kernel would reject a second default route.
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

/// The changes after which a link has all gateway addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addressing {
    /// Addresses to add.
    pub(crate) missing: Vec<Cidr>,
    /// Addresses to remove.
    pub(crate) conflicting: Vec<Cidr>,
}

/// Compares the addresses of `link` with the gateway addresses that it should have.
///
/// With `force`, every other global address of the gateways' families is conflicting: the subnet may have changed.
/// Unlike the reference, this includes IPv6 addresses.
///
/// Without `force`, an address that overlaps with a missing gateway is an error. Addresses of other networks are
/// allowed for both families, because a bridge can be the gateway of several networks. Upstream allows them only for
/// IPv6.
pub(crate) fn compare(link: &str, have: &[Address], gateways: &[Cidr], force: bool) -> Result<Addressing> {
    let missing = |gateway: &&Cidr| !have.iter().any(|address| address.cidr == **gateway);
    let missing: Vec<Cidr> = gateways.iter().filter(missing).copied().collect();
    let others = || have.iter().filter(|address| !gateways.contains(&address.cidr));
    if force {
        let same_family = |ip: IpAddr| gateways.iter().any(|gateway| gateway.ip().is_ipv4() == ip.is_ipv4());
        let conflicting = others().filter(|other| other.global && same_family(other.cidr.ip()));
        return Ok(Addressing { missing, conflicting: conflicting.map(|other| other.cidr).collect() });
    }
    for gateway in &missing {
        if let Some(Address { cidr: other, .. }) = others().find(|other| other.cidr.overlaps(gateway)) {
            let what = format!("{link:?} already has an IP address different from {gateway}: {other}");
            return Err(Error::new(Code::INTERNAL, what).details(format!(
                "their networks overlap; remove the old one with `ip address del {other} dev {link}`, \
                 or set \"forceAddress\": true"
            )));
        }
    }
    Ok(Addressing { missing, conflicting: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ips: &[(&str, &str)], routes: &[(&str, &str)], default_gateway: bool) -> Result<Plan> {
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
        Plan::new(ipam_result, &Config { default_gateway, ..Config::example() })
    }

    fn routes(plan: &Plan) -> Vec<String> {
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
        assert!(plan.ips.iter().all(|ip| ip.interface == Some(CONTAINER)));
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
    fn routes_without_a_next_hop_get_the_first_gateway_of_their_family() {
        let ips = [("10.1.0.9/16", ""), ("10.2.0.9/16", "")];
        let plan = plan(&ips, &[("10.9.0.0/16", ""), ("fd09::/64", "")], false).unwrap();
        let hops: Vec<_> = plan.kernel_routes().iter().map(|route| route.gw).collect();
        assert_eq!(hops, ["10.1.0.1".parse().ok(), None]);
        let link = Route { scope: Some(253), ..Route::new("10.9.0.0/16".parse().unwrap(), None) };
        let plan = Plan { routes: vec![link], ..plan };
        assert_eq!(plan.kernel_routes()[0].gw, None);
    }

    #[test]
    fn impossible_plans_are_rejected() {
        assert!(plan(&[], &[], false).is_err());
        assert!(plan(&[("255.255.255.255/32", "")], &[], false).is_err());
        assert!(plan(&[("10.1.0.9/16", "fd01::1")], &[], false).is_err());
        assert!(plan(&[("10.1.0.9/16", "")], &[("10.9.0.0/16", "fd01::1")], false).is_err());
    }

    fn addresses(texts: &[&str]) -> Vec<Address> {
        let address = |text: &&str| Address {
            cidr: text.parse().unwrap(),
            tentative: false,
            duplicate: false,
            global: !text.starts_with("fe80"),
            mark: None,
            created: 0,
        };
        texts.iter().map(address).collect()
    }

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_overlapping_address_is_rejected() {
        for (have, gateways, missing) in [
            (&[][..], &["10.1.0.1/24"][..], Some(&["10.1.0.1/24"][..])),
            (&["10.1.0.1/24"], &["10.1.0.1/24"], Some(&[])),
            (&["10.2.0.1/24", "fe80::1/64"], &["10.1.0.1/24", "fd01::1/64"], Some(&["10.1.0.1/24", "fd01::1/64"])),
            (&["10.1.0.1/16"], &["10.1.0.1/24"], None),
            (&["10.1.9.9/8"], &["10.1.0.1/24"], None),
            (&["fd01::9/48"], &["fd01::1/64"], None),
            // The gateways of one container never conflict with each other.
            (&["10.1.0.1/16"], &["10.1.0.1/16", "10.1.5.1/24"], Some(&["10.1.5.1/24"])),
        ] {
            let want = missing.map(|missing| Addressing { missing: cidrs(missing), conflicting: Vec::new() });
            assert_eq!(compare("br0", &addresses(have), &cidrs(gateways), false).ok(), want, "{have:?}");
        }
    }

    #[test]
    fn force_replaces_every_other_global_address_of_the_family() {
        for (have, gateways, missing, conflicting) in [
            (&[][..], &["10.1.0.1/24"][..], &["10.1.0.1/24"][..], &[][..]),
            (&["10.1.0.1/24"], &["10.1.0.1/24"], &[], &[]),
            (&["10.1.0.1/16"], &["10.1.0.1/24"], &["10.1.0.1/24"], &["10.1.0.1/16"]),
            (&["10.2.0.1/24"], &["10.1.0.1/24"], &["10.1.0.1/24"], &["10.2.0.1/24"]),
            (&["10.2.0.1/24", "10.1.0.1/24"], &["10.1.0.1/24"], &[], &["10.2.0.1/24"]),
            (&["fd02::1/64", "fe80::1/64"], &["fd01::1/64"], &["fd01::1/64"], &["fd02::1/64"]),
            // Addresses of other families stay.
            (&["10.2.0.1/24", "fd02::1/64"], &["fd01::1/64"], &["fd01::1/64"], &["fd02::1/64"]),
            (&["10.1.0.1/16"], &["10.1.0.1/16", "10.1.5.1/24"], &["10.1.5.1/24"], &[]),
        ] {
            let want = Addressing { missing: cidrs(missing), conflicting: cidrs(conflicting) };
            assert_eq!(compare("br0", &addresses(have), &cidrs(gateways), true).unwrap(), want, "{have:?}");
        }
    }
}
