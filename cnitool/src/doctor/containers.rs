//! Checks live containers: their addresses and routes, inside their namespaces, and their leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::inspect::{Finding, Subject, shell_word};
use cni::{AddResult, Result, Route};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::{KernelRoute, Link, LinkIndex, Netlink};

use super::report::first_few;
use super::{Report, Scope};
use crate::node::{Attachment, Network, Node, State, in_netns};
use crate::table;

/// The check of most findings.
const CHECK: &str = "container";
/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// A live attachment, with what its namespace has.
struct Live<'a> {
    network: &'a Network,
    at: Attachment,
    /// The result of its ADD, if the runtime has recorded it.
    result: Option<AddResult>,
    inside: Option<Inside>,
}

/// The interface of an attachment in the container namespace.
struct Inside {
    /// The host's end of its veth pair.
    port: Option<LinkIndex>,
    is_up: bool,
    addresses: Vec<Cidr>,
    routes: Vec<KernelRoute>,
}

impl Inside {
    /// Inspects the interface. Returns `None` if it does not exist, or if its namespace cannot be entered or is gone.
    fn read(at: &Attachment, home: &Netns) -> Option<Inside> {
        let ifname = at.ifname.as_deref()?;
        let netns = Netns::open_if_exists(at.netns.as_deref()?).ok()??;
        let read = || -> linux::Result<Option<Inside>> {
            let mut netlink = Netlink::open()?;
            let Some(link) = netlink.link(ifname)? else { return Ok(None) };
            let addresses = netlink.addresses(link.index)?.into_iter().map(|address| address.cidr).collect();
            let routes = netlink.routes(link.index)?;
            Ok(Some(Inside { port: link.peer, is_up: link.up, addresses, routes }))
        };
        netns.run(home, read).ok()?
    }
}

impl Live<'_> {
    /// Returns the addresses that the ADD assigned. Without a record of it, they are those of the interface.
    fn addresses(&self, node: &Node) -> Vec<IpAddr> {
        match (&self.result, self.at.port.and_then(|port| node.guest(port))) {
            (Some(result), _) => result.ips.iter().map(|ip| ip.address.ip()).collect(),
            (None, Some(guest)) => guest.addresses.iter().map(Cidr::ip).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Returns a command of a shell that runs `command` in the container namespace.
    fn command(&self, command: &str) -> Option<String> {
        self.at.netns.as_deref().map(|path| in_netns(path, command))
    }

    /// Returns the addresses of the result that the interface lacks.
    fn lost_addresses(&self) -> Vec<Cidr> {
        let (Some(result), Some(inside)) = (&self.result, &self.inside) else { return Vec::new() };
        let of_interface = result.ips.iter().filter(|ip| ip.interface.is_none_or(|index| self.is_own(result, index)));
        of_interface.map(|ip| ip.address).filter(|ip| !inside.addresses.contains(ip)).collect()
    }

    /// Returns whether an interface of the result is that of the attachment.
    fn is_own(&self, result: &AddResult, index: u32) -> bool {
        let interface = usize::try_from(index).ok().and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|own| Some(&own.name) == self.at.ifname.as_ref() && !own.sandbox.is_empty())
    }

    /// Returns the routes of the result that the container lacks.
    fn lost_routes(&self) -> Vec<&Route> {
        let (Some(result), Some(inside)) = (&self.result, &self.inside) else { return Vec::new() };
        result.routes.iter().filter(|route| !inside.routes.iter().any(|have| is_same(route, have))).collect()
    }
}

/// Returns whether a route of the kernel is the route `want`. What `want` leaves out is not compared.
fn is_same(want: &Route, have: &KernelRoute) -> bool {
    let gw = want.gw.filter(|gw| !gw.is_unspecified());
    let table = want.table.filter(|table| *table != 0).unwrap_or(MAIN);
    have.leads_to(want.dst) && gw.is_none_or(|gw| have.route.gw == Some(gw)) && have.route.table == Some(table)
}

/// Returns the arguments with which `ip route add` adds a route.
fn arguments(route: &Route, ifname: &str) -> String {
    let mut text = match route.dst.prefix() {
        0 => "default".to_owned(),
        _ => route.dst.network().to_string(),
    };
    let numbers = [("metric", route.priority), ("mtu", route.mtu), ("advmss", route.advmss)];
    text += &route.gw.filter(|gw| !gw.is_unspecified()).map_or_else(String::new, |gw| format!(" via {gw}"));
    text += &format!(" dev {}", shell_word(ifname));
    text += &numbers.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!(" {name} {n}")).collect::<String>();
    text += &route.table.filter(|table| *table != 0).map_or_else(String::new, |table| format!(" table {table}"));
    text += &route.scope.map_or_else(String::new, |scope| format!(" scope {scope}"));
    text
}

/// Compares the interfaces of live attachments with their leases and results, and reports addresses that several have.
pub(super) fn check(scope: &Scope, report: &mut Report) -> Result<()> {
    let live = live(&scope.node)?;
    for network in scope.networks() {
        let of_network: Vec<&Live<'_>> = live.iter().filter(|live| live.network.name == network.name).collect();
        let findings = [
            links_down(&of_network),
            lost_addresses(&of_network),
            lost_routes(&of_network),
            without_lease(&scope.node, network, &of_network),
            outside_ranges(network, &of_network),
        ];
        findings.into_iter().flatten().for_each(|finding| report.network(&network.name, finding));
    }
    for (networks, finding) in duplicates(&scope.node, &live) {
        match networks.iter().find(|name| scope.includes(name)) {
            Some(network) => report.network(network, finding),
            None if networks.is_empty() => report.host(finding),
            None => {}
        }
    }
    Ok(())
}

/// Inspects the live attachments of all networks.
fn live(node: &Node) -> Result<Vec<Live<'_>>> {
    let home = Netns::current()?;
    let mut all = Vec::new();
    for network in &node.networks {
        for at in node.attachments(network).into_iter().filter(|at| at.state == State::Alive) {
            let (result, inside) = (node.result(network, &at), Inside::read(&at, &home));
            all.push(Live { network, at, result, inside });
        }
    }
    Ok(all)
}

/// Returns a finding about containers that have lost addresses or routes: each with the first that it has lost, and with
/// the commands that restore all.
fn lost(noun: &str, verb: &str, found: Vec<(&Live<'_>, String, Vec<String>)>) -> Option<Finding> {
    let (_, first, _) = found.first()?;
    let what = match found.len() {
        1 => format!("1 container has lost its {noun} {first}: {verb} it"),
        number => format!("{number} containers have lost their {noun}, such as {first}: {verb} them"),
    };
    let (subjects, commands): (Vec<Subject>, Vec<Vec<String>>) =
        found.into_iter().map(|(live, _, commands)| (live.at.subject(), commands)).unzip();
    Some(Finding::fail(CHECK, what).about(subjects).run(commands.into_iter().flatten()))
}

fn links_down(live: &[&Live<'_>]) -> Option<Finding> {
    let down: Vec<&&Live<'_>> =
        live.iter().filter(|live| live.result.is_some() && live.inside.as_ref().is_some_and(|i| !i.is_up)).collect();
    if down.is_empty() {
        return None;
    }
    let what = format!("the interface is down in {}: no packet arrives", table::count(down.len(), "container"));
    let command = |live: &&&Live<'_>| {
        live.command(&format!("ip link set {} up", shell_word(live.at.ifname.as_deref().unwrap_or_default())))
    };
    let finding = Finding::warn(CHECK, what).about(down.iter().map(|live| live.at.subject()));
    Some(finding.remedy("the container may have done so itself").run(down.iter().filter_map(command)))
}

fn lost_addresses(live: &[&Live<'_>]) -> Option<Finding> {
    let mut found = Vec::new();
    for live in live {
        let lost = live.lost_addresses();
        let Some(first) = lost.first() else { continue };
        let ifname = shell_word(live.at.ifname.as_deref().unwrap_or_default());
        let command = |ip: &Cidr| live.command(&format!("ip address add {ip} dev {ifname}"));
        found.push((*live, first.to_string(), lost.iter().filter_map(command).collect()));
    }
    lost("address", "packets do not reach", found)
}

fn lost_routes(live: &[&Live<'_>]) -> Option<Finding> {
    let mut found = Vec::new();
    for live in live {
        // Without its addresses or with its interface down, a container cannot have its routes.
        let is_up = live.inside.as_ref().is_some_and(|inside| inside.is_up);
        let lost = live.lost_routes();
        let Some(first) = lost.first().filter(|_| is_up) else { continue };
        let ifname = live.at.ifname.as_deref().unwrap_or_default();
        let command = |route: &&Route| live.command(&format!("ip route add {}", arguments(route, ifname)));
        found.push((*live, arguments(first, ifname), lost.iter().filter_map(command).collect()));
    }
    lost("route", "other networks cannot be reached from", found)
}

/// Reports live containers whose address is not leased. Unknown if the leases cannot be read.
fn without_lease(node: &Node, network: &Network, live: &[&Live<'_>]) -> Option<Finding> {
    let (store, directory) = network.store.as_ref().filter(|_| !network.leases_unseen)?;
    let leased: BTreeSet<IpAddr> = network.leases.iter().map(|lease| lease.ip).collect();
    let (mut subjects, mut ips, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for live in live {
        // An IPAM plugin of another kind may have assigned an address that is in no range.
        let in_range = |ip: &IpAddr| network.ranges.iter().flatten().any(|range| range.subnet.contains(*ip));
        let missing = live.addresses(node).into_iter().filter(in_range).filter(|ip| !leased.contains(ip));
        let missing: Vec<IpAddr> = missing.collect();
        if missing.is_empty() {
            continue;
        }
        subjects.push(live.at.subject());
        let ifname = live.at.ifname.as_deref().unwrap_or_default();
        for ip in missing {
            ips.push(ip.to_string());
            subjects.push(Subject::address(ip));
            commands.push(store.restore_command(directory, ip, &live.at.container, ifname));
        }
    }
    let what = match ips.as_slice() {
        [] => return None,
        [only] => format!("address {only} of a live container is not leased"),
        _ => format!("{} of live containers are not leased: {}", table::count(ips.len(), "address"), first_few(&ips)),
    };
    let them = if ips.len() == 1 { "it" } else { "them" };
    let finding = Finding::fail("leases", format!("{what}: the next add may give {them} to another container"));
    Some(finding.about(subjects).run(commands))
}

/// Reports live containers whose addresses are in no subnet of the configuration, as after a change of the subnet.
fn outside_ranges(network: &Network, live: &[&Live<'_>]) -> Option<Finding> {
    let subnets: BTreeSet<String> =
        network.ranges.iter().flatten().map(|range| range.subnet.network().to_string()).collect();
    let is_outside = |ip: &IpAddr| !network.ranges.iter().flatten().any(|range| range.subnet.contains(*ip));
    let (mut subjects, mut ips) = (Vec::new(), Vec::new());
    for live in live.iter().filter(|_| !subnets.is_empty()) {
        let leased = live.at.leases.iter().map(|lease| lease.ip);
        let outside: Vec<IpAddr> = leased.filter(is_outside).collect();
        if !outside.is_empty() {
            subjects.push(live.at.subject());
            ips.extend(outside.iter().map(ToString::to_string));
            subjects.extend(outside.into_iter().map(Subject::address));
        }
    }
    if ips.is_empty() {
        return None;
    }
    let what = format!(
        "{} of live containers outside of the network's subnet {}: {}; it has changed since their add",
        table::count(ips.len(), "address"),
        subnets.into_iter().collect::<Vec<_>>().join(", "),
        first_few(&ips)
    );
    let remedy =
        "put the old subnet back, as a second range if need be, or detach the containers and attach them again";
    Some(Finding::warn("ranges", what).about(subjects).remedy(remedy))
}

/// An interface with an address.
struct Holder<'a> {
    subject: Subject,
    /// `None` for a container that no network knows, and for the bridge.
    live: Option<&'a Live<'a>>,
}

/// Reports addresses that two interfaces on the same bridge have. Returns each with the names of its networks.
fn duplicates<'a>(node: &'a Node, live: &'a [Live<'a>]) -> Vec<(Vec<&'a str>, Finding)> {
    let by_port: BTreeMap<LinkIndex, &Live<'_>> =
        live.iter().filter_map(|live| Some((live.at.port.or_else(|| live.inside.as_ref()?.port)?, live))).collect();
    let mut found = Vec::new();
    for bridge in node.links.iter().filter(|link| link.kind == "bridge") {
        let mut holders: BTreeMap<(IpAddr, Option<&str>), Vec<Holder<'_>>> = BTreeMap::new();
        for port in node.ports(bridge) {
            let Some(guest) = node.guest(port.index) else { continue };
            let live = by_port.get(&port.index).copied();
            let subject = live.map_or_else(|| Subject::link(&port.name), |live| live.at.subject());
            // With VLANs, networks on one bridge can use the same addresses.
            let part = live.map(|live| live.network.name.as_str()).filter(|_| bridge.vlan_filtering == Some(true));
            for cidr in &guest.addresses {
                holders.entry((cidr.ip(), part)).or_default().push(Holder { subject: subject.clone(), live });
            }
        }
        for ((ip, _), holders) in &mut holders {
            if node.addresses(bridge.index).iter().any(|own| own.ip() == *ip) {
                holders.push(Holder { subject: Subject::link(&bridge.name), live: None });
            }
            if holders.len() > 1 {
                found.push(duplicate(bridge, *ip, holders));
            }
        }
    }
    found
}

/// Returns the finding about an address that several `holders` on a bridge have, and the networks of these holders.
fn duplicate<'a>(bridge: &Link, ip: IpAddr, holders: &[Holder<'a>]) -> (Vec<&'a str>, Finding) {
    let names: Vec<String> = holders.iter().map(|holder| table::shorten(&holder.subject.to_string(), 40)).collect();
    let what = format!("{ip} is on {} interfaces of bridge {}: {}", holders.len(), bridge.name, first_few(&names));
    let is_leased = |live: &Live<'_>| live.at.leases.iter().any(|lease| lease.ip == ip);
    // A container that has another address by its own lease does not need this one.
    let needless = holders
        .iter()
        .filter_map(|holder| holder.live)
        .filter(|live| !is_leased(live) && live.at.leases.iter().any(|lease| live.has(lease.ip)));
    let command = |live: &Live<'_>| {
        let cidr = live.inside.as_ref()?.addresses.iter().find(|cidr| cidr.ip() == ip)?;
        live.command(&format!("ip address del {cidr} dev {}", shell_word(live.at.ifname.as_deref()?)))
    };
    let commands: Vec<String> = needless.filter_map(command).collect();
    let subjects = holders.iter().map(|holder| holder.subject.clone()).chain([Subject::address(ip)]);
    let finding = Finding::fail(CHECK, format!("{what}: packets reach only one of them")).about(subjects);
    let finding = match commands.is_empty() {
        true => finding.remedy("remove one of the containers and attach it again, so that it gets another address"),
        false => finding.run(commands),
    };
    let mut networks: Vec<&str> =
        holders.iter().filter_map(|holder| Some(holder.live?.network.name.as_str())).collect();
    networks.dedup();
    (networks, finding)
}

impl Live<'_> {
    /// Returns whether the interface has this address.
    fn has(&self, ip: IpAddr) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.addresses.iter().any(|cidr| cidr.ip() == ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_written_as_ip_reads_them() {
        let route = |dst: &str, gw: Option<&str>| Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()));
        assert_eq!(arguments(&route("0.0.0.0/0", Some("10.1.0.1")), "eth0"), "default via 10.1.0.1 dev eth0");
        assert_eq!(arguments(&route("::/0", Some("fd00::1")), "eth0"), "default via fd00::1 dev eth0");
        let rich = Route { priority: 7, mtu: 1400, table: Some(100), scope: Some(253), ..route("10.2.0.0/16", None) };
        assert_eq!(arguments(&rich, "eth0"), "10.2.0.0/16 dev eth0 metric 7 mtu 1400 table 100 scope 253");
    }
}
