//! Checks bridges: their ports, their addresses and their MTU.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Result;
use cni::inspect::{Finding, Level, Subject, shell_word};
use linux::ip::Cidr;
use linux::netlink::{Link, Netlink};

use super::report::first_few;
use super::{Report, Scope};
use crate::node::{Attachment, Network, Node, State};
use crate::table;

/// The checks.
const BRIDGE: &str = "bridge";
const GATEWAY: &str = "gateway";
const MTU: &str = "mtu";
/// The kernel's limit (net/bridge/br_private.h: BR_MAX_PORTS minus the unused number 0).
const MAX_PORTS: usize = 1023;
const MANY_PORTS: usize = 950;
/// The kernel's default MTU.
const DEFAULT_MTU: u32 = 1500;

pub(super) fn check(scope: &Scope, report: &mut Report) -> Result<()> {
    for network in scope.networks() {
        let Some(bridge) = &network.bridge else { continue };
        let affected = containers(&scope.node, network);
        let (finding, is_bridge) = check_bridge(&scope.node, &bridge.name, &affected);
        report.network(&network.name, finding);
        if is_bridge {
            ports(&scope.node, network, &bridge.name, report);
            gateways(&scope.node, network, &affected, report);
        }
    }
    overlaps(scope, report);
    mtu(scope, report)
}

/// Returns the live attachments of a network.
fn containers(node: &Node, network: &Network) -> Vec<Subject> {
    let attachments = node.attachments(network);
    attachments.iter().filter(|at| at.state == State::Alive).map(Attachment::subject).collect()
}

/// Returns the container of a port, or the port if its container is unknown.
fn subject_of(node: &Node, port: &Link, attachments: &[Attachment]) -> Subject {
    node.attachment_of(port, attachments).map_or_else(|| Subject::link(&port.name), Attachment::subject)
}

/// Checks the bridge itself. Returns false with the finding if another link has its name.
fn check_bridge(node: &Node, name: &str, affected: &[Subject]) -> (Finding, bool) {
    let Some(link) = node.link(name) else {
        return (Finding::ok(BRIDGE, format!("{name} does not exist yet: the first add creates it")), true);
    };
    let finding = match node.ports(link).count() {
        _ if link.kind != "bridge" => {
            let kind = if link.kind.is_empty() { "link of another kind" } else { &link.kind };
            let finding = Finding::fail(BRIDGE, format!("{name} is a {kind}, not a bridge"));
            let remedy = "set \"bridge\" to another name, or remove that link";
            return (finding.about([Subject::link(name)]).remedy(remedy), false);
        }
        1.. if !link.up => {
            let what = format!("{name} is down: its containers have no connection");
            let finding = Finding::fail(BRIDGE, what).about([Subject::link(name)]).about(affected.iter().cloned());
            finding.run([format!("ip link set {} up", shell_word(name))])
        }
        ports => {
            let level = match ports {
                MAX_PORTS.. => Level::Fail,
                MANY_PORTS.. => Level::Warn,
                _ => Level::Ok,
            };
            let what = format!("{name} is up with {ports} of at most {MAX_PORTS} ports");
            let finding = Finding::new(level, BRIDGE, what).about([Subject::link(name)]);
            match level {
                Level::Ok => finding,
                _ => finding.remedy("distribute containers over networks with other bridges"),
            }
        }
    };
    (finding, true)
}

/// Checks that the host veths are up and on the bridge.
fn ports(node: &Node, network: &Network, name: &str, report: &mut Report) {
    let bridge = node.link(name);
    let ports = node.ports_of(network);
    let attachments = node.attachments(network);
    let subject = |port: &Link| subject_of(node, port, &attachments);
    let affected = |is_affected: &dyn Fn(&Link) -> bool| -> Vec<&Link> {
        ports.iter().copied().filter(|port| is_affected(port)).collect()
    };
    let found = |level, affected: &[&Link], how: &str| {
        let names: Vec<String> = affected.iter().map(|port| port.name.clone()).collect();
        let what = match names.as_slice() {
            [] => return None,
            [only] => format!("port {only} is {how}"),
            _ => format!("{} are {how}: {}", table::count(names.len(), "port"), first_few(&names)),
        };
        Some(Finding::new(level, BRIDGE, what).about(affected.iter().map(|port| subject(port))))
    };
    let each = |affected: &[&Link], end: String| -> Vec<String> {
        affected.iter().map(|port| format!("ip link set {} {end}", shell_word(&port.name))).collect()
    };
    let reattach = "detach the container and attach it again";
    let detached = affected(&|port| port.master.is_none());
    let finding = found(Level::Fail, &detached, "on no bridge").map(|finding| match bridge {
        // A port that is added by hand to a bridge with VLAN filtering lacks its VLANs.
        Some(bridge) if bridge.vlan_filtering != Some(true) => {
            let mut commands = each(&detached, format!("master {}", shell_word(&bridge.name)));
            // A port loses its settings when it leaves the bridge.
            let wanted = network.bridge.as_ref().map_or([false; 2], |wanted| [wanted.hairpin, wanted.isolated]);
            let settings = [" hairpin on", " isolated on"].into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
            let settings: String = settings.map(|(setting, _)| setting).collect();
            if !settings.is_empty() {
                commands.extend(each(&detached, format!("type bridge_slave{settings}")));
            }
            finding.run(commands)
        }
        _ => finding.remedy(reattach),
    });
    finding.into_iter().for_each(|finding| report.network(&network.name, finding));
    // A port that an ADD in progress had not yet set up is up by now, so it is read again.
    let down = affected(&|port| {
        let now = || Netlink::open().and_then(|mut host| host.link(port.index));
        !port.up && now().is_ok_and(|link| link.is_some_and(|link| !link.up))
    });
    let finding = found(Level::Fail, &down, "down").map(|finding| finding.run(each(&down, "up".to_owned())));
    finding.into_iter().for_each(|finding| report.network(&network.name, finding));
    let moved = affected(&|port| port.master.is_some() && port.master != bridge.map(|bridge| bridge.index));
    let finding = found(Level::Warn, &moved, &format!("on another bridge than {name}"));
    let finding = finding.map(|finding| finding.remedy(format!("{reattach}, or correct \"bridge\"")));
    finding.into_iter().for_each(|finding| report.network(&network.name, finding));
}

/// Checks that no other link has the gateway's address or subnet, and that the bridge has no conflicting address.
fn gateways(node: &Node, network: &Network, affected: &[Subject], report: &mut Report) {
    let Some(name) = network.bridge.as_ref().and_then(|bridge| bridge.gateway.as_ref()) else { return };
    let wanted: Vec<Cidr> =
        network.ranges.iter().flatten().filter_map(|range| Cidr::new(range.gateway, range.subnet.prefix())).collect();
    let mut findings = Vec::new();
    for gateway in &wanted {
        for (other, cidr) in conflicts(node, name, gateway) {
            let what = match cidr.ip() == gateway.ip() {
                true => format!("{other} has the gateway's address too ({cidr}): packets may take the wrong link"),
                false => {
                    format!(
                        "{other} has the subnet {} too ({cidr}): packets may take the wrong link",
                        gateway.network()
                    )
                }
            };
            let finding = Finding::fail(GATEWAY, what).about([Subject::link(other), Subject::address(cidr.ip())]);
            findings.push(match gateway_of(node, network, other, cidr.ip()) {
                Some(second) => finding.remedy(other_subnet(network, second)),
                // Another program needs the address, or had it first.
                None => finding.remedy(format!("set another \"subnet\", or change the address of {other}")),
            });
        }
    }
    if let Some(link) = node.link(name) {
        let have = node.raw_addresses(link.index);
        match network.check_gateway_conflict(&have, &wanted) {
            Ok(()) => findings.extend(lost_gateways(node, network, link, affected)),
            Err(error) => {
                let is_conflicting = |ip: &IpAddr| wanted.iter().any(|gateway| gateway.contains(*ip));
                let mut conflicting = have.iter().map(|address| address.cidr.ip()).filter(is_conflicting);
                let subjects = [Subject::link(name)].into_iter().chain(affected.iter().cloned());
                let finding = Finding::error(GATEWAY, &error).about(subjects);
                findings.push(match conflicting.find_map(|ip| gateway_of(node, network, name, ip)) {
                    Some(second) => finding.remedy(other_subnet(network, second)),
                    None => finding,
                });
            }
        }
    }
    if findings.is_empty() && !wanted.is_empty() {
        let ips: Vec<String> = wanted.iter().map(|gateway| gateway.ip().to_string()).collect();
        findings.push(Finding::ok(GATEWAY, format!("{} of {name}: on no other link", ips.join(", "))));
    }
    findings.into_iter().for_each(|finding| report.network(&network.name, finding));
}

/// Returns the other network whose gateway has this address on this link, and whose containers need the address.
fn gateway_of<'a>(node: &'a Node, network: &Network, link: &str, ip: IpAddr) -> Option<&'a Network> {
    let others = node.networks.iter().filter(|other| other.name != network.name);
    let mut on_link = others.filter(|other| other.bridge.as_ref().is_some_and(|b| b.gateway.as_deref() == Some(link)));
    on_link.find(|other| other.ranges.iter().flatten().any(|range| range.gateway == ip))
}

fn other_subnet(network: &Network, second: &Network) -> String {
    format!("set another \"subnet\" in one of the networks {} and {}", network.name, second.name)
}

/// Reports gateway addresses that the link has lost although live containers send to them. A range without leases does
/// not need its gateway address yet: the first add from it sets the address.
fn lost_gateways(node: &Node, network: &Network, link: &Link, affected: &[Subject]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let have = node.raw_addresses(link.index);
    let attachments = node.attachments(network);
    let alive = attachments.iter().filter(|at| at.state == State::Alive);
    let ips: Vec<IpAddr> = alive.flat_map(|at| &at.leases).map(|lease| lease.ip).collect();
    for range in network.ranges.iter().flatten().filter(|range| ips.iter().any(|ip| range.contains(*ip))) {
        let gateway = range.gateway;
        if have.iter().any(|address| address.cidr.ip() == gateway) {
            continue;
        }
        let what = format!("{} has lost the gateway's address {gateway}: containers reach only each other", link.name);
        // No other link has the address, and duplicate address detection would delay its use.
        let nodad = if gateway.is_ipv6() { " nodad" } else { "" };
        let prefix = range.subnet.prefix();
        let command = format!("ip address add {gateway}/{prefix} dev {}{nodad}", shell_word(&link.name));
        let finding = Finding::fail(GATEWAY, what).about([Subject::link(&link.name), Subject::address(gateway)]);
        findings.push(finding.about(affected.iter().cloned()).run([command]));
    }
    findings
}

/// Returns the addresses of other links whose subnets overlap that of the gateway. An address of host length, such as the
/// one of a tunnel, has no subnet: no packet takes another way because of it.
fn conflicts<'a>(node: &'a Node, name: &str, gateway: &Cidr) -> Vec<(&'a str, Cidr)> {
    let mut found = Vec::new();
    for link in node.links.iter().filter(|link| link.name != *name) {
        let subnets = node.addresses(link.index).into_iter().filter(|cidr| *cidr != Cidr::host(cidr.ip()));
        let overlapping = subnets.filter(|cidr| gateway.contains(cidr.ip()) || cidr.contains(gateway.ip()));
        found.extend(overlapping.map(|cidr| (link.name.as_str(), cidr)));
    }
    found
}

/// Reports networks with overlapping subnets, which lease the same addresses independently of each other.
fn overlaps(scope: &Scope, report: &mut Report) {
    let subnets: Vec<(&Network, Cidr)> = scope
        .node
        .networks
        .iter()
        .flat_map(|network| network.ranges.iter().flatten().map(move |range| (network, range.subnet)))
        .collect();
    for (at, (network, subnet)) in subnets.iter().enumerate() {
        let others = subnets.iter().take(at).filter(|(other, _)| other.name != network.name);
        for (other, second) in others.filter(|(_, other)| other.contains(subnet.ip()) || subnet.contains(other.ip())) {
            // Reported once, for the chosen network.
            let (network, subnet, other, second) = match scope.includes(&network.name) {
                true => (network, subnet, other, second),
                false => (other, second, network, subnet),
            };
            let what = format!(
                "its subnet {subnet} overlaps {second} of network {}: both lease the same addresses",
                other.name
            );
            let subjects = [&network.name, &other.name].map(|name| Subject::new("network", name.as_str()));
            let finding = Finding::warn("ranges", what).about(subjects).remedy("set another \"subnet\" in one of them");
            if scope.includes(&network.name) {
                report.network(&network.name, finding);
            }
        }
    }
}

/// Compares the MTUs of the bridge, its ports, the containers and the uplink.
fn mtu(scope: &Scope, report: &mut Report) -> Result<()> {
    let node = &scope.node;
    let defaults = Netlink::open()?.default_routes()?;
    let uplink = defaults.iter().find_map(|route| node.links.iter().find(|link| Some(link.index) == route.link));
    for network in scope.networks() {
        let Some(bridge) = &network.bridge else { continue };
        let link = node.link(&bridge.name).filter(|link| link.kind == "bridge");
        let ports = node.ports_of(network);
        if let Some(link) = link {
            // The kernel resets the MTU of a bridge without ports; the next add sets it again.
            let wanted = bridge.mtu.filter(|_| node.ports(link).next().is_some());
            for finding in wrong_mtu(wanted, link).into_iter().chain(different_mtus(link, &ports)) {
                report.network(&network.name, finding);
            }
        }
        if let Some(finding) = larger_than_port(node, network, &ports) {
            report.network(&network.name, finding);
        }
        let of_bridge = || link.map_or(DEFAULT_MTU, |link| link.mtu);
        let inside = bridge.mtu.or_else(|| ports.iter().map(|port| port.mtu).max()).unwrap_or_else(of_bridge);
        let Some(uplink) = uplink.filter(|_| bridge.gateway.is_some()) else { continue };
        let finding = match inside > uplink.mtu {
            true => {
                let (name, carried) = (&uplink.name, uplink.mtu);
                let what = format!(
                    "containers send packets of {inside} bytes, and {name} carries {carried}: \
                     if ICMP is filtered, they are lost"
                );
                let remedy = format!("set \"mtu\": {carried} in the network's configuration");
                Finding::warn(MTU, what).about([Subject::link(name)]).remedy(remedy)
            }
            false => Finding::ok(MTU, format!("{inside} inside, {} on {}", uplink.mtu, uplink.name)),
        };
        report.network(&network.name, finding);
    }
    Ok(())
}

/// Compares the MTU of the bridge with the configuration.
fn wrong_mtu(wanted: Option<u32>, bridge: &Link) -> Option<Finding> {
    let wanted = wanted.filter(|wanted| *wanted != bridge.mtu)?;
    let what = format!("\"mtu\" is {wanted}, and {} has {}: larger packets are lost", bridge.name, bridge.mtu);
    let command = format!("ip link set {} mtu {wanted}", shell_word(&bridge.name));
    let remedy = format!("{command}, or correct \"mtu\"");
    Some(Finding::warn(MTU, what).about([Subject::link(&bridge.name)]).remedy(remedy).run([command]))
}

/// Checks that the bridge has the MTU of its ports. Packets larger than the bridge's MTU are not sent to containers, and
/// packets larger than a port's MTU are dropped without an error.
fn different_mtus(bridge: &Link, ports: &[&Link]) -> Option<Finding> {
    let of_ports: BTreeSet<u32> = ports.iter().map(|port| port.mtu).collect();
    if of_ports.iter().all(|mtu| *mtu == bridge.mtu) {
        return None;
    }
    let all: Vec<String> = of_ports.iter().map(ToString::to_string).collect();
    let what = format!("{} has {}, and its ports {}: larger packets are lost", bridge.name, bridge.mtu, all.join(", "));
    let different = ports.iter().filter(|port| port.mtu != bridge.mtu).map(|port| Subject::link(&port.name));
    let finding = Finding::warn(MTU, what).about([Subject::link(&bridge.name)]).about(different);
    Some(match all.as_slice() {
        [only] => finding.run([format!("ip link set {} mtu {only}", shell_word(&bridge.name))]),
        _ => finding.remedy("set \"mtu\" in the network's configuration; detach the containers and attach them again"),
    })
}

/// Reports containers that send packets larger than their port, and so the bridge, accepts: the kernel drops them without
/// an error.
fn larger_than_port(node: &Node, network: &Network, ports: &[&Link]) -> Option<Finding> {
    let attachments = node.attachments(network);
    let (mut subjects, mut commands, mut text) = (Vec::new(), Vec::new(), None);
    for port in ports {
        let Some(guest) = node.guest(port.index).filter(|guest| guest.mtu > port.mtu) else { continue };
        subjects.push(subject_of(node, port, &attachments));
        commands.extend(guest.command(&format!("ip link set {} mtu {}", shell_word(&guest.name), port.mtu)));
        text.get_or_insert_with(|| {
            format!("packets of {} bytes, and port {} accepts {}", guest.mtu, port.name, port.mtu)
        });
    }
    let number = table::count(subjects.len(), "container");
    let verb = if subjects.len() == 1 { "sends" } else { "send" };
    let finding = Finding::warn(MTU, format!("{number} {verb} {}: larger ones are lost", text?)).about(subjects);
    Some(finding.remedy("set the MTU in the container to that of its port").run(commands))
}
