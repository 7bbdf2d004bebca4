//! Checks live containers: their addresses and routes, inside their namespaces, and their leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni::inspect::{Command, CommandLine, Finding, Id, Subject, shell_word};
use cni::{AddResult, Result, Route};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::{KernelRoute, LinkIndex, Neighbour, Netlink};

use super::report::first_few;
use super::routes::{self, Rejected, Rejections};
use super::{Report, Selection};
use crate::node::{Attachment, Network, Node, Place, State, place};
use crate::table;

/// The check of most findings.
pub(super) const CHECK: &str = "container";
/// The main routing table.
const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// A live attachment, with what its namespace has.
pub(super) struct Live<'a> {
    pub(super) network: &'a Network,
    pub(super) at: Attachment,
    /// The result of its ADD, if the runtime has recorded it.
    result: Option<AddResult>,
    interface: Interface,
}

/// The interface of an attachment in the container namespace.
enum Interface {
    Found(Inside),
    /// It has this name now.
    Renamed(String),
    /// The namespace is not at its path any more.
    NoNamespace,
    /// The runtime has not recorded the ADD, the namespace cannot be entered, or the interface was just deleted.
    Unknown,
}

/// What the interface has.
pub(super) struct Inside {
    index: LinkIndex,
    /// The host's end of its veth pair.
    pub(super) port: Option<LinkIndex>,
    /// The host's link on top of which it is.
    pub(super) master: Option<LinkIndex>,
    is_up: bool,
    pub(super) addresses: Vec<Cidr>,
    /// All routes of the namespace.
    routes: Vec<KernelRoute>,
    /// The neighbours whose MAC addresses were set by hand.
    pub(super) static_neighbours: Vec<Neighbour>,
    /// What the namespace does not let pass of the packets to the addresses that it was asked for.
    pub(super) rejected: Vec<Rejected>,
}

impl Interface {
    /// Inspects the interface of an attachment.
    fn read(node: &Node, at: &Attachment, targets: &[IpAddr], home: &Netns) -> Interface {
        let (Some(ifname), Some(path)) = (at.ifname.as_deref(), at.netns.as_deref()) else { return Interface::Unknown };
        let netns = match (place(path), Netns::open_if_exists(path)) {
            (Place::Absent, _) => return Interface::NoNamespace,
            (Place::Exists, Ok(Some(netns))) => netns,
            _ => return Interface::Unknown,
        };
        match netns.run(home, || Inside::read(ifname, targets)) {
            Ok(Some(inside)) => Interface::Found(inside),
            Ok(None) => {
                let now = at.port.and_then(|port| node.guest(port)).map(|guest| guest.name.clone());
                now.filter(|now| now != ifname).map_or(Interface::Unknown, Interface::Renamed)
            }
            Err(_) => Interface::Unknown,
        }
    }
}

impl Inside {
    /// Inspects the interface of this name in the current namespace, and the routes from there to `targets`.
    fn read(ifname: &str, targets: &[IpAddr]) -> linux::Result<Option<Inside>> {
        let mut netlink = Netlink::open()?;
        let Some(link) = netlink.link(ifname)? else { return Ok(None) };
        let addresses = netlink.addresses(link.index)?.into_iter().map(|address| address.cidr).collect();
        let listed = netlink.listed_routes()?;
        let rejections = Rejections::new(&listed, &netlink.rules()?);
        let rejected = rejections.of_own_packets(&mut netlink, targets)?;
        let routes = listed.into_iter().filter_map(|listed| listed.unicast).collect();
        let mut static_neighbours = netlink.neighbours(link.index)?;
        static_neighbours.retain(|neighbour| neighbour.permanent);
        let (port, master) = match link.kind.as_str() {
            "veth" => (link.lower, None),
            _ => (None, link.lower.filter(|_| link.lower_netns.is_some())),
        };
        let (index, is_up) = (link.index, link.up);
        Ok(Some(Inside { index, port, master, is_up, addresses, routes, static_neighbours, rejected }))
    }
}

impl Live<'_> {
    /// Returns what the interface has, if it was found.
    pub(super) fn inside(&self) -> Option<&Inside> {
        match &self.interface {
            Interface::Found(inside) => Some(inside),
            _ => None,
        }
    }

    /// Returns whether the interface has this address.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.inside().is_some_and(|inside| inside.addresses.iter().any(|cidr| cidr.ip() == ip))
    }

    /// Returns the attachment if plugins find its interface where the ADD put it, as far as that is known.
    pub(super) fn in_place(&self) -> Option<(&Network, &Attachment)> {
        let is_displaced = matches!(self.interface, Interface::Renamed(_) | Interface::NoNamespace);
        (!is_displaced).then_some((self.network, &self.at))
    }

    /// Returns the addresses that the ADD assigned. Without a record of it, they are those of the interface.
    pub(super) fn addresses(&self, node: &Node) -> Vec<IpAddr> {
        match (&self.result, self.at.port.and_then(|port| node.guest(port))) {
            (Some(result), _) => result.ips.iter().map(|ip| ip.address.ip()).collect(),
            (None, Some(guest)) => guest.addresses.iter().map(Cidr::ip).collect(),
            (None, None) => Vec::new(),
        }
    }

    pub(super) fn netns(&self) -> String {
        self.at.netns.as_deref().unwrap_or_else(|| Path::new("")).to_string_lossy().into_owned()
    }

    pub(super) fn ifname(&self) -> &str {
        self.at.ifname.as_deref().unwrap_or_default()
    }

    /// Returns the addresses of the result that the interface lacks.
    fn lost_addresses(&self) -> Vec<Cidr> {
        let (Some(result), Some(inside)) = (&self.result, self.inside()) else { return Vec::new() };
        let of_interface = result.ips.iter().filter(|ip| ip.interface.is_none_or(|index| self.is_own(result, index)));
        of_interface.map(|ip| ip.address).filter(|ip| !inside.addresses.contains(ip)).collect()
    }

    /// Returns whether an interface of the result is that of the attachment.
    fn is_own(&self, result: &AddResult, index: u32) -> bool {
        let interface = usize::try_from(index).ok().and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|own| is_of(own, &self.at))
    }

    /// Returns the routes of the result that the container lacks.
    fn lost_routes(&self) -> Vec<&Route> {
        let (Some(result), Some(inside)) = (&self.result, self.inside()) else { return Vec::new() };
        let has =
            |route: &Route| inside.routes.iter().any(|have| have.link == Some(inside.index) && is_same(route, have));
        result.routes.iter().filter(|route| !has(route)).collect()
    }

    /// Returns the commands that restore addresses; `None` if one of them is in use elsewhere.
    fn restore_addresses(&self, node: &Node, lost: &[Cidr]) -> Option<Vec<CommandLine>> {
        let restore = |cidr: &Cidr| {
            let command = if cidr.ip().is_ipv6() { Command::AddGuestAddressIpv6 } else { Command::AddGuestAddress };
            let is_free = !node.is_used(cidr.ip()) || self.has(cidr.ip());
            is_free.then(|| command.line(&[&self.netns(), &cidr.to_string(), self.ifname()]))
        };
        lost.iter().map(restore).collect()
    }

    /// Returns the commands that restore routes; `None` if the container has another route in place of one of them,
    /// which its own programs may need.
    fn restore_routes(&self, lost: &[&Route]) -> Option<Vec<CommandLine>> {
        let is_replaced = |route: &Route| {
            let table = route.table.filter(|table| *table != 0).unwrap_or(MAIN);
            let has = |have: &KernelRoute| have.leads_to(route.dst) && have.route.table == Some(table);
            self.inside().is_some_and(|inside| inside.routes.iter().any(has))
        };
        let restore = |route: &&Route| {
            let command = Command::AddGuestRoute.line(&[&self.netns(), &arguments(route, self.ifname())]);
            (!is_replaced(route)).then_some(command)
        };
        lost.iter().map(restore).collect()
    }
}

/// Returns whether an interface in a result is that of an attachment.
fn is_of(interface: &cni::Interface, at: &Attachment) -> bool {
    Some(&interface.name) == at.ifname.as_ref() && !interface.sandbox.is_empty()
}

/// Returns whether a route of the kernel is the route `want`. What `want` leaves out is not compared: a chained plugin,
/// such as `sbr`, may have moved the route to another table.
fn is_same(want: &Route, have: &KernelRoute) -> bool {
    let gw = want.gw.filter(|gw| !gw.is_unspecified());
    let table = want.table.filter(|table| *table != 0);
    have.leads_to(want.dst)
        && gw.is_none_or(|gw| have.route.gw == Some(gw))
        && table.is_none_or(|table| have.route.table == Some(table))
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

/// Compares the interfaces of live attachments with their leases and results.
pub(super) fn check(scope: &Selection, live: &[Live<'_>], report: &mut Report) {
    let node = &scope.node;
    for network in scope.networks() {
        let of_network: Vec<&Live<'_>> = live.iter().filter(|live| live.network.name == network.name).collect();
        let findings = [
            renamed(&of_network),
            without_namespace(node, &of_network),
            links_down(node, &of_network),
            without_lease(node, network, &of_network),
            surplus_leases(node, &of_network),
            outside_ranges(network, &of_network),
        ];
        let findings = findings.into_iter().flatten();
        let lost = lost_addresses(node, &of_network).into_iter().chain(lost_routes(&of_network));
        findings.chain(lost).for_each(|finding| report.network(&network.name, finding));
    }
}

/// Inspects the live attachments of all networks.
pub(super) fn live(node: &Node) -> Result<Vec<Live<'_>>> {
    let home = Netns::current()?;
    let mut all = Vec::new();
    for network in &node.networks {
        let mut attachments = node.attachments(network);
        attachments.retain(|at| at.state == State::Alive);
        let targets = routes::targets(network, &attachments);
        for at in attachments {
            let result = node.result(network, &at);
            let interface = Interface::read(node, &at, &targets, &home);
            all.push(Live { network, at, result, interface });
        }
    }
    Ok(all)
}

/// Reports containers whose interface has another name than that of the ADD.
fn renamed(live: &[&Live<'_>]) -> Option<Finding> {
    let new_name = |live: &Live<'_>| match &live.interface {
        Interface::Renamed(now) => Some(now.clone()),
        _ => None,
    };
    let affected: Vec<(&Live<'_>, String)> = live.iter().filter_map(|live| Some((*live, new_name(live)?))).collect();
    let (first, now) = affected.first()?;
    let number = table::count(affected.len(), "container");
    let what = format!("the interface of {number} does not have the name of its add: {} is {now} now", first.ifname());
    let remedy = "rename it in the container, or detach the container and attach it again";
    Some(
        Finding::fail(CHECK, Id("interface-renamed"), what)
            .about(affected.iter().map(|(live, _)| live.at.subject()))
            .remedy(remedy),
    )
}

/// Reports containers whose namespace is not where the ADD found it, although a process still uses it. Otherwise the
/// container is just ending.
fn without_namespace(node: &Node, live: &[&Live<'_>]) -> Option<Finding> {
    let is_used = |live: &Live<'_>| live.at.port.and_then(|port| node.guest(port)?.netns.as_ref()).is_some();
    let is_lost = |live: &&&Live<'_>| matches!(live.interface, Interface::NoNamespace) && is_used(live);
    let affected: Vec<&&Live<'_>> = live.iter().filter(is_lost).collect();
    let first = affected.first()?.netns();
    let number = table::count(affected.len(), "container");
    let what = format!("the namespace of {number} is not at its path any more ({first}), although a process uses it");
    let remedy = "detach the container, which does not need the path, and attach it again";
    Some(
        Finding::warn(CHECK, Id("namespace-moved"), what)
            .about(affected.iter().map(|live| live.at.subject()))
            .remedy(remedy),
    )
}

/// Something that a container has lost: the first of its kind, and the commands that restore all, if they can.
type Lost<'a> = (&'a Live<'a>, String, Option<Vec<CommandLine>>);

/// Returns findings about containers that have lost addresses or routes: those that commands restore, and others.
fn lost(id: Id, noun: &str, verb: &str, remedy: &str, found: Vec<Lost<'_>>) -> Vec<Finding> {
    let (restored, others): (Vec<Lost<'_>>, Vec<Lost<'_>>) =
        found.into_iter().partition(|(_, _, commands)| commands.is_some());
    let finding = |found: Vec<Lost<'_>>| {
        let (_, first, _) = found.first()?;
        let what = match found.len() {
            1 => format!("1 container has lost its {noun} {first}: {verb} it"),
            number => format!("{number} containers have lost their {noun}, such as {first}: {verb} them"),
        };
        let finding = Finding::fail(CHECK, id, what).about(found.iter().map(|(live, _, _)| live.at.subject()));
        let commands: Vec<CommandLine> = found.into_iter().filter_map(|(_, _, commands)| commands).flatten().collect();
        Some(if commands.is_empty() { finding.remedy(remedy) } else { finding.run(commands) })
    };
    [finding(restored), finding(others)].into_iter().flatten().collect()
}

/// Reports interfaces that are down. The kernel removes the routes and the IPv6 addresses of such an interface.
fn links_down(node: &Node, live: &[&Live<'_>]) -> Option<Finding> {
    let is_down = |live: &&&Live<'_>| live.result.is_some() && live.inside().is_some_and(|inside| !inside.is_up);
    let down: Vec<&&Live<'_>> = live.iter().filter(is_down).collect();
    if down.is_empty() {
        return None;
    }
    let what = format!("the interface is down in {}: no packet arrives", table::count(down.len(), "container"));
    let restore = |live: &&&Live<'_>| -> Option<Vec<CommandLine>> {
        let up = Command::SetGuestUp.line(&[&live.netns(), live.ifname()]);
        let addresses = live.restore_addresses(node, &live.lost_addresses())?;
        let routes = live.restore_routes(&live.lost_routes())?;
        Some([up].into_iter().chain(addresses).chain(routes).collect())
    };
    let commands: Option<Vec<Vec<CommandLine>>> = down.iter().map(restore).collect();
    let finding = Finding::warn(CHECK, Id("interface-down"), what).about(down.iter().map(|live| live.at.subject()));
    let remedy = "the container may have set it down itself; otherwise detach it and attach it again";
    Some(finding.remedy(remedy).run(commands.into_iter().flatten().flatten()))
}

fn lost_addresses(node: &Node, live: &[&Live<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for live in live.iter().filter(|live| live.inside().is_some_and(|inside| inside.is_up)) {
        let lost = live.lost_addresses();
        let Some(first) = lost.first() else { continue };
        found.push((*live, first.to_string(), live.restore_addresses(node, &lost)));
    }
    let remedy = "another container has the address now: detach the container and attach it again";
    lost(Id("address-lost"), "address", "packets do not reach", remedy, found)
}

fn lost_routes(live: &[&Live<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for live in live.iter().filter(|live| live.inside().is_some_and(|inside| inside.is_up)) {
        let lost = live.lost_routes();
        let Some(first) = lost.first() else { continue };
        found.push((*live, arguments(first, live.ifname()), live.restore_routes(&lost)));
    }
    let remedy = "the container has another route in its place: decide which one it needs";
    lost(Id("route-lost"), "route", "other networks cannot be reached from", remedy, found)
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
    let finding = Finding::fail(
        "leases",
        Id("lease-missing"),
        format!("{what}: the next add may give {them} to another container"),
    );
    Some(finding.about(subjects).run(commands))
}

/// Reports leases of live containers for addresses that they do not have, such as a copy of a lease file.
fn surplus_leases(node: &Node, live: &[&Live<'_>]) -> Option<Finding> {
    let (mut subjects, mut ips) = (Vec::new(), Vec::new());
    for live in live.iter().filter(|live| live.result.is_some() && live.inside().is_some()) {
        let own = live.addresses(node);
        let leased = live.at.leases.iter().map(|lease| lease.ip);
        let surplus: Vec<IpAddr> = leased.filter(|ip| !own.contains(ip) && !node.is_used(*ip)).collect();
        if !surplus.is_empty() {
            subjects.push(live.at.subject());
            ips.extend(surplus.iter().map(ToString::to_string));
            subjects.extend(surplus.into_iter().map(Subject::address));
        }
    }
    let what = match ips.as_slice() {
        [] => return None,
        [only] => format!("address {only} is leased to a live container that does not have it"),
        _ => format!("{} are leased to live containers that do not have them: {}", ips.len(), first_few(&ips)),
    };
    let remedy =
        "a lease ends with its container; if the address is needed before, find out whose it is, and remove the file";
    Some(Finding::warn("leases", Id("lease-without-address"), what).about(subjects).remedy(remedy))
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
    Some(Finding::warn("ranges", Id("address-outside-ranges"), what).about(subjects).remedy(remedy))
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
