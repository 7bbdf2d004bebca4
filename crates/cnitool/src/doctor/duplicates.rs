//! Finds addresses that several interfaces on one bridge or master have: packets reach only one of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::inspect::{Command, CommandLine, Finding, Id, Subject};
use linux::netlink::{Link, LinkIndex};

use super::containers::{CHECK, Live};
use super::report::first_few;
use super::{Report, Selection};
use crate::node::Node;
use crate::table;

/// An interface with an address.
struct Holder<'a> {
    subject: Subject,
    /// `None` for a container that no network knows, and for a link of the host.
    live: Option<&'a Live<'a>>,
}

/// The interfaces that can reach each other through a link of the host, by their addresses. With VLANs, networks on one
/// bridge can use the same addresses.
type Holders<'a> = BTreeMap<(IpAddr, Option<&'a str>), Vec<Holder<'a>>>;

/// Reports addresses that two interfaces on the same bridge or master have.
pub(super) fn check(scope: &Selection, live: &[Live<'_>], report: &mut Report) {
    let node = &scope.node;
    for link in &node.links {
        let holders = if link.kind == "bridge" { on_bridge(node, link, live) } else { on_master(node, link, live) };
        for ((ip, _), mut holders) in holders {
            if node.addresses(link.index).iter().any(|own| own.ip() == ip) {
                holders.push(Holder { subject: Subject::link(&link.name), live: None });
            }
            if holders.len() < 2 {
                continue;
            }
            let finding = duplicate(link, ip, &holders);
            let mut networks = holders.iter().filter_map(|holder| Some(holder.live?.network.name.as_str())).peekable();
            match (networks.peek().is_none(), networks.find(|name| scope.includes(name))) {
                (_, Some(network)) => report.network(network, finding),
                (true, None) => report.host(finding),
                (false, None) => {}
            }
        }
    }
}

/// Returns the addresses behind the ports of a bridge.
fn on_bridge<'a>(node: &'a Node, bridge: &Link, live: &'a [Live<'a>]) -> Holders<'a> {
    let by_port: BTreeMap<LinkIndex, &Live<'_>> =
        live.iter().filter_map(|live| Some((live.at.port.or_else(|| live.inside()?.port)?, live))).collect();
    let mut holders = Holders::new();
    for port in node.ports(bridge) {
        let Some(guest) = node.guest(port.index) else { continue };
        let live = by_port.get(&port.index).copied();
        let subject = live.map_or_else(|| Subject::link(&port.name), |live| live.at.subject());
        let part = live.map(|live| live.network.name.as_str()).filter(|_| bridge.vlan_filtering == Some(true));
        for cidr in &guest.addresses {
            holders.entry((cidr.ip(), part)).or_default().push(Holder { subject: subject.clone(), live });
        }
    }
    holders
}

/// Returns the addresses of containers on top of a link, and of the host's own links there.
fn on_master<'a>(node: &'a Node, master: &Link, live: &'a [Live<'a>]) -> Holders<'a> {
    let mut holders = Holders::new();
    for live in live {
        let Some(inside) = live.inside().filter(|inside| inside.master == Some(master.index)) else { continue };
        for cidr in &inside.addresses {
            let holder = Holder { subject: live.at.subject(), live: Some(live) };
            holders.entry((cidr.ip(), None)).or_default().push(holder);
        }
    }
    let is_on = |link: &&Link| link.lower == Some(master.index) && link.lower_netns.is_none() && link.kind != "veth";
    for link in node.links.iter().filter(is_on) {
        for cidr in node.addresses(link.index) {
            if let Some(holders) = holders.get_mut(&(cidr.ip(), None)) {
                holders.push(Holder { subject: Subject::link(&link.name), live: None });
            }
        }
    }
    holders
}

/// Returns the finding about an address that several `holders` on a bridge or master have.
fn duplicate(link: &Link, ip: IpAddr, holders: &[Holder<'_>]) -> Finding {
    let names: Vec<String> = holders.iter().map(|holder| table::shorten(&holder.subject.to_string(), 40)).collect();
    let place = if link.kind == "bridge" { "of bridge" } else { "on top of" };
    let what = format!("{ip} is on {} interfaces {place} {}: {}", holders.len(), link.name, first_few(&names));
    let is_leased = |live: &Live<'_>| live.at.leases.iter().any(|lease| lease.ip == ip);
    // The address belongs to a container by its lease, or to the bridge.
    let is_owner = |holder: &Holder<'_>| holder.live.map_or(holder.subject.kind == "link", is_leased);
    let has_owner = holders.iter().filter(|holder| is_owner(holder)).count() == 1;
    // A container that has another address by its own lease does not need this one.
    let command = |holder: &Holder<'_>| {
        let live = holder.live.filter(|live| live.at.leases.iter().any(|lease| live.has(lease.ip)))?;
        let cidr = live.inside()?.addresses.iter().find(|cidr| cidr.ip() == ip)?;
        Some(Command::DeleteGuestAddress.line(&[&live.netns(), &cidr.to_string(), live.ifname()]))
    };
    let others = holders.iter().filter(|holder| has_owner && !is_owner(holder));
    let commands: Vec<CommandLine> = others.map(command).collect::<Option<_>>().unwrap_or_default();
    let subjects = holders.iter().map(|holder| holder.subject.clone()).chain([Subject::address(ip)]);
    let finding = Finding::fail(CHECK, Id("address-duplicate"), format!("{what}: packets reach only one of them"))
        .about(subjects);
    match commands.is_empty() {
        true => finding.remedy("decide which one needs it, and remove it from the other, or attach that one again"),
        false => finding.run(commands),
    }
}
