//! A way between the host and the containers on one of its links: the kernel does not deliver frames between a link and
//! the macvlan links on top of it, so the host gets a macvlan link of its own there, with addresses, and a route to
//! each container.
//!
//! The metric of a route is derived from the attachment. So DEL and GC find the routes of an attachment without its
//! addresses, and routes to the same address of several attachments are distinct. The link is removed with the last
//! route.

use std::collections::HashSet;
use std::net::IpAddr;

use cni::json::invalid;
use cni::{AttachmentKey, Code, Context, Error, ErrorCollector, IpConfig, Keep, Result};
use linux::ip::{Cidr, parse_ip};
use linux::log::debug;
use linux::netlink::{
    Change, DuplicateDetection, KernelRoute, Link, LinkChange, LinkKind, MacvlanMode, Netlink, NewLink, Route, Upper,
};
use linux::sha2::sha512;
use linux::sysctl::{self, Setting, set_best_effort};

use crate::attach::Add;
use crate::check::same;
use crate::container::no_ipv6;
use crate::lock::HostLock;
use crate::name;

/// The first word of the alias of the host's link; the name of the network follows.
const ALIAS_WORD: &str = "cni-host-access";
/// The longest alias (IFALIASZ less the final NUL).
const ALIAS: usize = 255;
/// The kind of the host's link.
const KIND: LinkKind<'_> = LinkKind::Upper(Upper::Macvlan { mode: MacvlanMode::Bridge, broadcast_queue: 0 });
/// The least metric of a route to a container. Administrators use smaller ones, so that their routes take precedence.
const METRIC: u32 = 1 << 31;

/// The addresses at which containers reach the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAccess {
    addresses: Vec<IpAddr>,
}

impl HostAccess {
    /// Validates the key `hostAccess`; `None` if the list is empty.
    pub fn parse(texts: &[String]) -> Result<Option<HostAccess>> {
        let mut addresses = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let key = format!("hostAccess[{index}]");
            let Ok(ip) = parse_ip(text) else {
                let what = format_args!("invalid address {text:?}");
                return Err(invalid(&key, what, "write an address without a prefix, such as \"192.168.1.250\""));
            };
            let is_link_local = match ip {
                IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
                IpAddr::V6(ip) => ip.is_unicast_link_local(),
            };
            if is_link_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
                let what = format_args!("{ip} cannot be an address of the host");
                return Err(invalid(&key, what, "use an address of the network"));
            }
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
        Ok((!addresses.is_empty()).then_some(HostAccess { addresses }))
    }

    /// ADD: creates the link unless the host has it, and adds the routes to the container with these addresses.
    pub fn add(&self, add: &mut Add<'_>, master: &Link, ips: &[IpConfig]) -> Result<()> {
        let key = add.key;
        let routes = self.routes(key, ips)?;
        add.undo
            .push("remove the routes to the container", move |namespaces| remove(&mut namespaces.host.netlink, key));
        let host = &mut add.undo.context().host.netlink;
        let _lock = HostLock::acquire()?;
        self.refuse_used(host, key.network)?;
        let link = match find(host, key.network, master)? {
            Some(link) => link,
            None => create(host, key.network, master)?,
        };
        self.configure(host, &link, &routes).context(|| format!("configure the host's link {:?}", link.name))
    }

    /// CHECK: compares the link and the routes to the container with those of ADD.
    pub fn check(&self, host: &mut Netlink, key: AttachmentKey<'_>, master: &Link, ips: &[IpConfig]) -> Result<()> {
        let lacks = |what| Err(Error::new(Code::INTERNAL, what).details("attach the container again"));
        let Some(link) = find(host, key.network, master)? else {
            return lacks(format!("the host has no link on {:?} to reach its containers", master.name));
        };
        same(&link.name, "up", true, link.up)?;
        let have = host.addresses(link.index)?;
        for ip in &self.addresses {
            if !have.iter().any(|have| have.cidr.ip() == *ip) {
                return lacks(format!("the host's link {:?} lacks the address {ip}", link.name));
            }
        }
        let have = host.routes(link.index)?;
        for route in self.routes(key, ips)? {
            let is_it = |have: &Route| (have.dst, have.priority, have.src) == (route.dst, route.priority, route.src);
            if !have.iter().any(|have| is_it(&have.route)) {
                return lacks(format!("the host has no route to {} by {:?}", route.dst.ip(), link.name));
            }
        }
        Ok(())
    }

    /// Returns the routes of the host to a container: to each address that has an address of the host in its network.
    fn routes(&self, key: AttachmentKey<'_>, ips: &[IpConfig]) -> Result<Vec<Route>> {
        let mut routes = Vec::new();
        for IpConfig { address, .. } in ips {
            if self.addresses.contains(&address.ip()) {
                let what = format_args!("the container has the address {}", address.ip());
                return Err(invalid("hostAccess", what, "exclude the address of the host from those that IPAM leases"));
            }
            let src = self.addresses.iter().copied().find(|ip| address.contains(*ip));
            if src.is_some() {
                routes.push(Route {
                    priority: metric(key),
                    scope: Some(libc::RT_SCOPE_LINK),
                    src,
                    ..Route::new(Cidr::host(address.ip()), None)
                });
            }
        }
        if routes.is_empty() {
            let networks: Vec<_> = ips.iter().map(|ip| ip.address.network().to_string()).collect();
            let what = format_args!("no address is in a network of the container: [{}]", networks.join(" "));
            return Err(invalid("hostAccess", what, "use free addresses of the networks of the container"));
        }
        Ok(routes)
    }

    /// Returns an error if another link of the host has one of the addresses.
    pub fn refuse_used(&self, host: &mut Netlink, network: &str) -> Result<()> {
        let own: HashSet<_> = links(host, network)?.iter().map(|link| link.index).collect();
        let all = host.all_addresses()?;
        let is_used = |ip: IpAddr| all.iter().find(|(link, address)| address.cidr.ip() == ip && !own.contains(link));
        for ip in &self.addresses {
            if let Some((link, _)) = is_used(*ip) {
                let name = host.link_name(*link)?.unwrap_or_default();
                let what = format_args!("link {name:?} of the host has the address {ip}");
                return Err(invalid("hostAccess", what, "use an address that is free"));
            }
        }
        Ok(())
    }

    /// Adds what is missing of the addresses, and the routes. An address that another configuration of the network had
    /// stays: containers may use it.
    fn configure(&self, host: &mut Netlink, link: &Link, routes: &[Route]) -> Result<()> {
        if self.addresses.iter().any(IpAddr::is_ipv6) {
            let disable = ["net", "ipv6", "conf", &link.name, "disable_ipv6"];
            if sysctl::set(&disable, "0")? == Setting::Missing {
                return Err(no_ipv6());
            }
        }
        let have = host.addresses(link.index)?;
        let mut changes = Vec::new();
        for ip in &self.addresses {
            if !have.iter().any(|have| have.cidr.ip() == *ip) {
                changes.push(Change::add_address(link.index, Cidr::host(*ip), DuplicateDetection::Off));
            }
        }
        if !link.up {
            changes.push(Change::set_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() }));
        }
        let have = host.routes(link.index)?;
        for route in routes {
            // A killed call of the same attachment can have left one.
            if !have.iter().any(|have| have.route.dst == route.dst && have.route.priority == route.priority) {
                changes.push(Change::add_route(link.index, route));
            }
        }
        Ok(host.apply(&changes)?)
    }
}

/// DEL: removes the routes to the container, and the link with the last one.
pub fn remove(host: &mut Netlink, key: AttachmentKey<'_>) -> Result<()> {
    let metric = metric(key);
    remove_routes(host, key.network, |found| found == metric)
}

/// GC: removes the routes to containers that are not attached any more.
pub fn collect(host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let is_stale = keep.stale_by(metric);
    remove_routes(host, keep.network, |found| found >= METRIC && is_stale(&found))
}

/// For tools: returns the links of a network by which the host reaches no container. `is_used` returns whether any has
/// an address.
pub fn find_unused(host: &mut Netlink, network: &str, is_used: &dyn Fn(IpAddr) -> bool) -> Result<Vec<Link>> {
    let mut unused = Vec::new();
    for link in links(host, network)? {
        if !added_routes(host, &link)?.iter().any(|found| is_used(found.route.dst.ip())) {
            unused.push(link);
        }
    }
    Ok(unused)
}

/// Removes the routes whose metric is that of a container that is gone, and each link without routes.
fn remove_routes(host: &mut Netlink, network: &str, is_gone: impl Fn(u32) -> bool) -> Result<()> {
    if links(host, network)?.is_empty() {
        return Ok(());
    }
    let mut failures = ErrorCollector::default();
    let _lock = HostLock::acquire()?;
    for link in links(host, network)? {
        let name = &link.name;
        failures.record(remove_from(host, &link, &is_gone).context(|| format!("clean up the host's link {name:?}")));
    }
    failures.into_result()
}

/// Removes the routes by one link, or the link if none is left.
fn remove_from(host: &mut Netlink, link: &Link, is_gone: &dyn Fn(u32) -> bool) -> Result<()> {
    let routes = added_routes(host, link)?.into_iter();
    let (gone, kept): (Vec<_>, Vec<_>) = routes.partition(|found| is_gone(found.route.priority));
    if kept.is_empty() {
        debug!("no container is left at {:?}", link.name);
        return Ok(host.delete_link(link.index)?);
    }
    gone.iter().try_for_each(|found| Ok(host.delete_route(link.index, &found.route)?))
}

/// Returns the routes by a link, without those that the kernel adds itself.
fn added_routes(host: &mut Netlink, link: &Link) -> Result<Vec<KernelRoute>> {
    let own = host.addresses(link.index)?;
    let mut routes = host.routes(link.index)?;
    routes.retain(|found| {
        let is_kernels = match found.route.dst.ip() {
            IpAddr::V4(dst) => dst.is_multicast(),
            IpAddr::V6(dst) => dst.is_unicast_link_local() || dst.is_multicast(),
        };
        !is_kernels && !own.iter().any(|own| own.cidr == found.route.dst)
    });
    Ok(routes)
}

/// Returns the links of the host for a network.
fn links(host: &mut Netlink, network: &str) -> Result<Vec<Link>> {
    let alias = alias(network);
    let mut found = Vec::new();
    for link in host.links_of_kind("macvlan")? {
        if link.alias == alias || is_unmarked(host, network, &link)? {
            found.push(link);
        }
    }
    Ok(found)
}

/// Returns whether ADD created the link, and was killed before it could mark the link.
fn is_unmarked(host: &Netlink, network: &str, link: &Link) -> Result<bool> {
    let (Some(master), "", None) = (link.lower, link.alias.as_str(), link.lower_netns) else { return Ok(false) };
    let master = host.link_name(master)?;
    Ok(master.is_some_and(|master| link.index == name::index_of(&["host", network, &master])))
}

/// Returns the link of the host for a network on the master.
fn find(host: &mut Netlink, network: &str, master: &Link) -> Result<Option<Link>> {
    let is_on = |link: &Link| link.lower == Some(master.index) && link.lower_netns.is_none();
    Ok(links(host, network)?.into_iter().find(is_on))
}

/// Creates the link, down.
fn create(host: &mut Netlink, network: &str, master: &Link) -> Result<Link> {
    let name = format!("mv{}", sha512(12, &format!("{network} {}", master.name)));
    let new = NewLink {
        name: Some(&name),
        // Not derived from the names: other hosts on the wire can have the same.
        mac: Some(name::random_mac()?),
        lower: Some(master.index),
        index: Some(name::index_of(&["host", network, &master.name])),
        ..NewLink::of(KIND)
    };
    let link = host.create(&[Change::create_link(&new)])?;
    let mark = LinkChange { alias: Some(&alias(network)), ..LinkChange::default() };
    host.apply(&[Change::set_link(link.index, &mark)])?;
    // The link must not answer for other addresses of the host, nor announce them on the wire.
    set_best_effort(&["net", "ipv4", "conf", &name, "arp_ignore"], "1");
    set_best_effort(&["net", "ipv4", "conf", &name, "arp_announce"], "2");
    // The host must not configure itself on the wire a second time.
    sysctl::ignore_router_advertisements(&name);
    Ok(link)
}

/// Returns the alias of the host's link for a network.
fn alias(network: &str) -> String {
    let alias = format!("{ALIAS_WORD} {network}");
    // No network has a name with a colon.
    if alias.len() <= ALIAS { alias } else { format!("{ALIAS_WORD} sha512:{}", sha512(32, network)) }
}

/// Returns the metric of the host's routes to the container of an attachment.
fn metric(key: AttachmentKey<'_>) -> u32 {
    u32::from_str_radix(&sha512(8, &format!("{} {}", key.container, key.ifname)), 16).unwrap_or_default() | METRIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_validated() {
        let parse =
            |texts: &[&str]| HostAccess::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap(), None);
        let both = parse(&["192.168.1.250", "fd01::250", "192.168.1.250"]).unwrap().unwrap();
        assert_eq!(both.addresses, ["192.168.1.250".parse::<IpAddr>().unwrap(), "fd01::250".parse().unwrap()]);
        for bad in ["", "x", "192.168.1.250/24", "0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "fe80::1"]
        {
            let error = parse(&["192.168.1.250", bad]).unwrap_err();
            assert!(error.to_string().contains("hostAccess[1]"), "{error}");
        }
    }

    #[test]
    fn routes_lead_to_the_addresses_in_networks_of_the_host() {
        let access = HostAccess { addresses: vec![[10, 1, 0, 250].into(), "fd01::250".parse().unwrap()] };
        let key = AttachmentKey { network: "net1", container: "a", ifname: "eth0" };
        let routes = |ips: &[&str]| {
            let ip = |ip: &&str| IpConfig { address: ip.parse().unwrap(), gateway: None, interface: None };
            let routes = access.routes(key, &ips.iter().map(ip).collect::<Vec<_>>())?;
            Ok::<_, Error>(routes.iter().map(|route| format!("{}", route.dst)).collect::<Vec<_>>())
        };
        assert_eq!(routes(&["10.1.0.2/24", "fd01::2/64", "10.2.0.2/24"]).unwrap(), ["10.1.0.2/32", "fd01::2/128"]);
        assert!(routes(&["10.2.0.2/24"]).is_err() && routes(&["10.1.0.250/24"]).is_err() && routes(&[]).is_err());
    }

    #[test]
    fn marks_are_distinct_and_fit() {
        let metric = |container, ifname| metric(AttachmentKey { network: "net1", container, ifname });
        assert!(metric("a", "eth0") >= METRIC && metric("a", "eth0") != metric("a", "eth1"));
        let long = "n".repeat(300);
        assert!(alias(&long).len() <= ALIAS && alias(&long) != alias(&long[1..]));
    }
}
