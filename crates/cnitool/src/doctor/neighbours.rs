//! Checks how containers and the host find each other's MAC addresses: ARP, and neighbours that were set by hand.

use cni::Result;
use cni::inspect::{Finding, Id, Subject};
use linux::ip::MacAddr;
use linux::netlink::{Link, Netlink};

use super::containers::Live;
use super::{Report, Selection};
use crate::node::{Network, Node};
use crate::table;

/// The check of all findings.
const CHECK: &str = "neighbour";

/// Reports links of live containers without ARP, and neighbours with the wrong MAC address.
pub(super) fn check(scope: &Selection, live: &[Live<'_>], report: &mut Report) -> Result<()> {
    let mut host = Netlink::open()?;
    for network in scope.networks() {
        let of_network: Vec<&Live<'_>> = live.iter().filter(|live| live.network.name == network.name).collect();
        let findings = [
            without_arp(&scope.node, network, &of_network),
            wrong_on_host(&scope.node, network, &of_network, &mut host)?,
            wrong_inside(&scope.node, network, &of_network),
        ];
        findings.into_iter().flatten().for_each(|finding| report.network(&network.name, finding));
    }
    Ok(())
}

/// Returns the link of the host by which its packets to the container leave: that of the gateway, or the host veth.
fn outgoing_link<'a>(node: &'a Node, network: &Network, live: &Live<'_>) -> Option<&'a Link> {
    let port = node.links.iter().find(|link| Some(link.index) == live.at.port)?;
    match port.master {
        None => Some(port),
        Some(_) => node.link(network.bridge.as_ref()?.gateway.as_deref()?),
    }
}

/// Reports links on which nothing asks for MAC addresses, and nothing answers.
fn without_arp(node: &Node, network: &Network, live: &[&Live<'_>]) -> Option<Finding> {
    let mut links: Vec<&str> = Vec::new();
    let mut subjects = Vec::new();
    for live in live {
        let link = outgoing_link(node, network, live).filter(|link| !link.arp);
        if let Some(link) = link.filter(|link| !links.contains(&link.name.as_str())) {
            links.push(&link.name);
            subjects.push(Subject::link(&link.name));
        }
        if live.at.port.and_then(|port| node.guest(port)).is_some_and(|guest| !guest.arp) {
            subjects.push(live.at.subject());
        }
    }
    let names: Vec<String> = match links.as_slice() {
        [] if subjects.is_empty() => return None,
        [] => vec![format!("the interface of {}", table::count(subjects.len(), "container"))],
        _ => links.iter().map(|link| format!("link {link}")).collect(),
    };
    let what = format!("{} has no ARP, so that MAC addresses are not found: no packet arrives", names.join(", "));
    let remedy = "turn it on with `ip link set LINK arp on`, in the container for its interface";
    Some(Finding::fail(CHECK, Id("arp-off"), what).about(subjects).remedy(remedy))
}

/// A neighbour with the wrong MAC address.
struct Wrong {
    text: String,
    subject: Subject,
}

fn finding(wrong: Vec<Wrong>, remedy: &str) -> Option<Finding> {
    let (first, number) = (wrong.first()?.text.clone(), wrong.len());
    let more = if number > 1 { format!(", and {} more", number - 1) } else { String::new() };
    let what = format!("a neighbour was set by hand to the wrong MAC address: {first}{more}; packets do not arrive");
    Some(
        Finding::fail(CHECK, Id("neighbour-wrong"), what)
            .about(wrong.into_iter().map(|wrong| wrong.subject))
            .remedy(remedy),
    )
}

/// Reports containers that the host has as neighbours with another MAC address than theirs.
fn wrong_on_host(node: &Node, network: &Network, live: &[&Live<'_>], host: &mut Netlink) -> Result<Option<Finding>> {
    let mut links: Vec<&Link> = live.iter().filter_map(|live| outgoing_link(node, network, live)).collect();
    links.dedup_by_key(|link| link.index);
    let mut wrong = Vec::new();
    for link in links {
        for neighbour in host.neighbours(link.index)?.into_iter().filter(|neighbour| neighbour.permanent) {
            let is_on = |live: &&&Live<'_>| {
                outgoing_link(node, network, live).is_some_and(|own| own.index == link.index) && live.has(neighbour.ip)
            };
            let Some(live) = live.iter().find(is_on) else { continue };
            let mac = live.at.port.and_then(|port| node.guest(port)?.mac);
            if let Some((set, own)) = different(neighbour.mac, mac) {
                let text = format!("{} on {} is {set}, and the container has {own}", neighbour.ip, link.name);
                wrong.push(Wrong { text, subject: live.at.subject() });
            }
        }
    }
    Ok(finding(wrong, "remove it with `ip neighbour del ADDRESS dev LINK`, unless a program needs it"))
}

/// Reports containers that have the gateway or each other as neighbours with another MAC address than theirs.
fn wrong_inside(node: &Node, network: &Network, live: &[&Live<'_>]) -> Option<Finding> {
    let mut wrong = Vec::new();
    for own in live {
        for neighbour in own.inside().into_iter().flat_map(|inside| &inside.static_neighbours) {
            let gateway = outgoing_link(node, network, own);
            let gateway = gateway.filter(|link| node.addresses(link.index).iter().any(|own| own.ip() == neighbour.ip));
            let other = || live.iter().find(|other| other.has(neighbour.ip) && is_on_same_bridge(node, own, other));
            let mac = match gateway {
                Some(link) => link.mac,
                None => other().and_then(|other| node.guest(other.at.port?)?.mac),
            };
            if let Some((set, real)) = different(neighbour.mac, mac) {
                let text = format!("in a container, {} is {set} instead of {real}", neighbour.ip);
                wrong.push(Wrong { text, subject: own.at.subject() });
            }
        }
    }
    finding(
        wrong,
        "remove it in the container with `ip neighbour del ADDRESS dev INTERFACE`, unless a program needs it",
    )
}

fn is_on_same_bridge(node: &Node, one: &Live<'_>, other: &Live<'_>) -> bool {
    let bridge = |live: &Live<'_>| node.links.iter().find(|link| Some(link.index) == live.at.port)?.master;
    bridge(one).is_some() && bridge(one) == bridge(other)
}

/// Returns both MAC addresses if they are known and differ.
fn different(set: Option<MacAddr>, own: Option<MacAddr>) -> Option<(MacAddr, MacAddr)> {
    set.zip(own).filter(|(set, own)| set != own)
}
