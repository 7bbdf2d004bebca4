//! Looks up the routes between this host, live containers and other networks, in both directions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::Result;
use cni::inspect::{Finding, Id, Subject};
use linux::netlink::{Link, LinkIndex, ListedRoute, Netlink, Rejection, Rule};

use super::containers::Live;
use super::report::first_few;
use super::{Report, Selection};
use crate::node::{Attachment, Network};
use crate::table;

/// The check of all findings about routes.
const CHECK: &str = "gateway";
/// Two addresses on the Internet for each family: those of root servers of DNS, A and K. Packets are lost only if none
/// passes: a firewall may reject one network. No packet is sent there.
const OUTSIDE: [[IpAddr; 2]; 2] = [
    [IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)), IpAddr::V4(Ipv4Addr::new(193, 0, 14, 129))],
    [
        IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0x7fd, 0, 0, 0, 0, 0, 1)),
    ],
];

/// Packets that no route lets pass.
#[derive(Clone, Debug)]
pub(super) struct Rejected {
    /// Where they go.
    to: IpAddr,
    /// What rejects them, such as `prohibit route to 10.1.0.2`.
    by: String,
}

/// What rejects packets in a namespace. The kernel's own entries do not count: it has them where a route is missing.
pub(super) struct Rejections(Vec<(Rejection, String)>);

impl Rejections {
    pub(super) fn new(routes: &[ListedRoute], rules: &[Rule]) -> Rejections {
        let routes = routes.iter().filter(|listed| listed.protocol != libc::RTPROT_KERNEL).filter_map(|listed| {
            let net = listed.rejection?.destination?.network();
            let to = if net.is_default() { "default".to_owned() } else { net.to_string() };
            Some((listed.rejection?, format!("{} route to {to} of table {}", listed.rejection?.kind, listed.table)))
        });
        let rules = rules.iter().filter_map(|rule| {
            let Rejection { kind, source, destination } = rule.rejection?;
            let net = |word, net: Option<_>| net.map_or_else(String::new, |net| format!(" {word} {net}"));
            let what = format!("routing rule{}{} {kind}", net("from", source), net("to", destination));
            Some((rule.rejection?, what))
        });
        let mut all: Vec<(Rejection, String)> = routes.chain(rules).collect();
        // The most specific route counts.
        all.sort_by_key(|(rejection, _)| std::cmp::Reverse(rejection.destination.map(|net| net.prefix())));
        Rejections(all)
    }

    /// Returns what rejects packets, for which the kernel has found no route.
    fn culprit(&self, from: Option<IpAddr>, to: IpAddr) -> Option<Rejected> {
        let (_, by) = self.0.iter().find(|(rejection, _)| rejection.includes(from, to))?;
        Some(Rejected { to, by: by.clone() })
    }

    /// Returns those of the packets of this namespace to these addresses that are rejected.
    pub(super) fn of_own_packets(&self, netlink: &mut Netlink, to: &[IpAddr]) -> linux::Result<Vec<Rejected>> {
        let mut rejected = Vec::new();
        for ip in to.iter().filter(|_| !self.0.is_empty()) {
            if let Some(found) = self.culprit(None, *ip)
                && netlink.route_to(*ip)?.is_none()
            {
                rejected.push(found);
            }
        }
        Ok(without_single(rejected))
    }

    /// Returns what rejects packets that arrive on a link.
    fn of_forwarded(&self, host: &mut Netlink, from: IpAddr, on: LinkIndex, to: IpAddr) -> Result<Option<Rejected>> {
        let found = self.culprit(Some(from), to);
        Ok(if found.is_some() && host.forwarding_route(from, on, to)?.is_none() { found } else { None })
    }
}

/// Removes an address on the Internet if the other one of its family is not rejected.
fn without_single(mut rejected: Vec<Rejected>) -> Vec<Rejected> {
    for family in OUTSIDE {
        let is_outside = |rejected: &Rejected| family.contains(&rejected.to);
        if rejected.iter().filter(|found| is_outside(found)).count() == 1 {
            rejected.retain(|found| !is_outside(found));
        }
    }
    rejected
}

/// Returns the addresses to which containers of a network must be able to send: the gateways, each other, and the
/// Internet. Without a gateway, a network has no way out.
pub(super) fn targets(network: &Network, attachments: &[Attachment]) -> Vec<IpAddr> {
    let leased = attachments.iter().flat_map(|at| &at.leases).map(|lease| lease.ip);
    let mut targets: Vec<IpAddr> = leased.collect();
    if network.bridge.as_ref().is_some_and(|bridge| bridge.gateway.is_some()) {
        let gateways: Vec<IpAddr> = network.ranges.iter().flatten().map(|range| range.gateway).collect();
        let outside = OUTSIDE.into_iter().flatten();
        targets.extend(outside.filter(|ip| gateways.iter().any(|gateway| gateway.is_ipv4() == ip.is_ipv4())));
        targets.extend(gateways);
    }
    targets
}

/// Reports live containers that packets do not reach, or whose packets get nowhere, because of routes.
pub(super) fn check(scope: &Selection, live: &[Live<'_>], report: &mut Report) -> Result<()> {
    let mut host = Netlink::open()?;
    let rejections = Rejections::new(&host.listed_routes()?, &host.rules()?);
    let uplinks: Vec<LinkIndex> = host.default_routes()?.iter().filter_map(|route| route.link).collect();
    for network in scope.networks() {
        let of_network: Vec<&Live<'_>> = live.iter().filter(|live| live.network.name == network.name).collect();
        let gateway = network.bridge.as_ref().and_then(|bridge| scope.node.link(bridge.gateway.as_deref()?));
        // A gateway in a VRF has routes of its own.
        let gateway = gateway.filter(|link| link.up && link.master.is_none());
        let mut findings: Vec<Finding> = inside(&of_network).into_iter().collect();
        if let Some(gateway) = gateway {
            // Another link with the gateway's address or subnet has been reported.
            if !report.has_failed(&network.name, CHECK) {
                findings.extend(detour(scope, gateway, &of_network, &mut host)?);
            }
            findings.extend(forwarded(&rejections, gateway, &uplinks, &of_network, &mut host)?);
        }
        findings.extend(to_containers(scope, &rejections, &of_network, &mut host)?);
        findings.into_iter().for_each(|finding| report.network(&network.name, finding));
    }
    Ok(())
}

/// Packets that are rejected, each with the attachment that they are to or from.
type Found<'a> = Vec<(&'a Live<'a>, Rejected)>;

/// Returns a finding about rejected packets; `what` describes them.
fn finding(found: &Found<'_>, what: &str, remedy: &str) -> Option<Finding> {
    let mut culprits: Vec<String> = Vec::new();
    let mut subjects: Vec<Subject> = Vec::new();
    for (live, rejected) in found {
        if !culprits.contains(&rejected.by) {
            culprits.push(rejected.by.clone());
        }
        if !subjects.contains(&live.at.subject()) {
            subjects.push(live.at.subject());
        }
    }
    let (first, number) = (culprits.first()?, table::count(subjects.len(), "container"));
    let verb = if culprits.len() == 1 { "rejects" } else { "reject" };
    let text = format!("{} {verb} {what} {number}", first_few(&culprits));
    let culprits = culprits.iter().map(|by| Subject::new("route", by));
    Some(
        Finding::fail(CHECK, Id("route-rejects"), text)
            .about(subjects)
            .about(culprits)
            .remedy(format!("{remedy} ({first})")),
    )
}

/// Reports containers whose own routes reject their packets.
fn inside(live: &[&Live<'_>]) -> Option<Finding> {
    let mut found = Found::new();
    for live in live {
        let own = live.inside().into_iter().flat_map(|inside| &inside.rejected);
        found.extend(own.filter(|rejected| !live.has(rejected.to)).map(|rejected| (*live, rejected.clone())));
    }
    finding(&found, "in their namespaces packets of", "decide whether the container needs it; if not, remove it there")
}

/// Reports containers to which this host cannot send because of a route that rejects packets.
fn to_containers(
    scope: &Selection,
    rejections: &Rejections,
    live: &[&Live<'_>],
    host: &mut Netlink,
) -> Result<Option<Finding>> {
    let mut found = Found::new();
    for live in live {
        for ip in live.addresses(&scope.node) {
            if let Some(rejected) = rejections.culprit(None, ip)
                && host.route_to(ip)?.is_none()
            {
                found.push((live, rejected));
            }
        }
    }
    Ok(finding(&found, "packets of this host to", "decide whether it is needed; if not, remove it"))
}

/// Reports containers whose packets to other networks are rejected, or the answers.
fn forwarded(
    rejections: &Rejections,
    gateway: &Link,
    uplinks: &[LinkIndex],
    live: &[&Live<'_>],
    host: &mut Netlink,
) -> Result<Option<Finding>> {
    let mut found = Found::new();
    for live in live {
        for ip in live.at.leases.iter().map(|lease| lease.ip) {
            let mut rejected = Vec::new();
            // A route that rejects packets of this host too is reported by itself.
            let is_reached = rejections.culprit(None, ip).is_none() || host.route_to(ip)?.is_some();
            for outside in OUTSIDE.into_iter().flatten().filter(|outside| outside.is_ipv4() == ip.is_ipv4()) {
                rejected.extend(rejections.of_forwarded(host, ip, gateway.index, outside)?);
                for uplink in uplinks.iter().filter(|_| is_reached) {
                    let answer = rejections.of_forwarded(host, outside, *uplink, ip)?;
                    rejected.extend(answer.map(|answer| Rejected { to: outside, ..answer }));
                }
            }
            found.extend(without_single(rejected).into_iter().map(|rejected| (*live, rejected)));
        }
    }
    Ok(finding(&found, "packets between other networks and", "decide whether it is needed; if not, remove it"))
}

/// Reports live containers to which packets of this host leave by another link than that of the gateway.
fn detour(scope: &Selection, gateway: &Link, live: &[&Live<'_>], host: &mut Netlink) -> Result<Option<Finding>> {
    let subnets = scope.node.addresses(gateway.index);
    let (mut subjects, mut first) = (Vec::new(), None);
    for live in live {
        let leased = live.at.leases.iter().map(|lease| lease.ip);
        for ip in leased.filter(|ip| subnets.iter().any(|subnet| subnet.contains(*ip))) {
            let Some(index) = host.route_to(ip)?.filter(|index| *index != gateway.index) else { continue };
            let other = scope.node.links.iter().find(|link| link.index == index);
            let other = other.map_or("another link", |link| &link.name);
            subjects.extend([live.at.subject(), Subject::address(ip), Subject::link(other)]);
            first.get_or_insert((ip, other));
        }
    }
    let Some((ip, other)) = first else { return Ok(None) };
    let what = format!("packets of this host to {ip} leave by {other}, not by {}: they do not reach it", gateway.name);
    let remedy = format!("decide whether the route to {ip} by {other} is needed; if not, remove it");
    Ok(Some(Finding::fail(CHECK, Id("route-detour"), what).about(subjects).remedy(remedy)))
}
