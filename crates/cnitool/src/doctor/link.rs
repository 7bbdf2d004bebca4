//! Checks bridges: their ports, their addresses and their MTU.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Result;
use cni::inspect::{Bridge, Command, CommandLine, Finding, Id, Level, Subject};
use linux::ip::Cidr;
use linux::netlink::{Link, Netlink};

use super::report::first_few;
use super::{Report, Selection};
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
/// The smallest MTU of a link with IPv6 addresses (RFC 8200).
const MIN_IPV6_MTU: u32 = 1280;

pub(super) fn check(scope: &Selection, report: &mut Report) -> Result<()> {
    for network in scope.networks() {
        let Some(bridge) = &network.bridge else { continue };
        let affected = containers(&scope.node, network);
        let (finding, is_bridge) = check_bridge(&scope.node, &bridge.name, &affected);
        report.network(&network.name, finding);
        if is_bridge {
            ports(&scope.node, network, bridge, report);
            gateways(&scope.node, network, &affected, report)?;
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
        return (
            Finding::ok(BRIDGE, Id("bridge-absent"), format!("{name} does not exist yet: the first add creates it")),
            true,
        );
    };
    let finding = match node.ports(link).count() {
        _ if link.kind != "bridge" => {
            let kind = if link.kind.is_empty() { "link of another kind" } else { &link.kind };
            let finding = Finding::fail(BRIDGE, Id("bridge-other-kind"), format!("{name} is a {kind}, not a bridge"));
            let remedy = "set \"bridge\" to another name, or remove that link";
            return (finding.about([Subject::link(name)]).remedy(remedy), false);
        }
        1.. if !link.up => {
            let what = format!("{name} is down: its containers have no connection");
            let finding = Finding::fail(BRIDGE, Id("bridge-down"), what)
                .about([Subject::link(name)])
                .about(affected.iter().cloned());
            finding.run([Command::SetUp.line(&[name])])
        }
        ports => {
            let level = match ports {
                MAX_PORTS.. => Level::Fail,
                MANY_PORTS.. => Level::Warn,
                _ => Level::Ok,
            };
            let what = format!("{name} is up with {ports} of at most {MAX_PORTS} ports");
            let finding = Finding::new(level, BRIDGE, Id("bridge-ports"), what).about([Subject::link(name)]);
            match level {
                Level::Ok => finding,
                _ => finding.remedy("distribute containers over networks with other bridges"),
            }
        }
    };
    (finding, true)
}

/// Checks that the host veths are up and on the bridge, with the settings of the configuration.
fn ports(node: &Node, network: &Network, bridge: &Bridge, report: &mut Report) {
    let link = node.link(&bridge.name);
    let ports = node.ports_of(network);
    let attachments = node.attachments(network);
    let subject = |port: &Link| subject_of(node, port, &attachments);
    let affected = |is_affected: &dyn Fn(&Link) -> bool| -> Vec<&Link> {
        ports.iter().copied().filter(|port| is_affected(port)).collect()
    };
    let found = |level, id, affected: &[&Link], how: &str| {
        let names: Vec<String> = affected.iter().map(|port| port.name.clone()).collect();
        let what = match names.as_slice() {
            [] => return None,
            [only] => format!("port {only} is {how}"),
            _ => format!("{} are {how}: {}", table::count(names.len(), "port"), first_few(&names)),
        };
        Some(Finding::new(level, BRIDGE, id, what).about(affected.iter().map(|port| subject(port))))
    };
    let each = |affected: &[&Link], command: &dyn Fn(&str) -> CommandLine| -> Vec<CommandLine> {
        affected.iter().map(|port| command(&port.name)).collect()
    };
    let master = |port: &str| Command::SetMaster.line(&[port, &bridge.name]);
    let hairpin = |port: &str| Command::SetHairpin.line(&[port]);
    let isolate = |port: &str| Command::Isolate.line(&[port]);
    let reattach = "detach the container and attach it again";
    let mut findings = Vec::new();
    let detached = affected(&|port| port.master.is_none());
    findings.extend(found(Level::Fail, Id("port-on-no-bridge"), &detached, "on no bridge").map(|finding| match link {
        // A port that is added by hand to a bridge with VLAN filtering lacks its VLANs.
        Some(link) if link.vlan_filtering != Some(true) => {
            // A port loses its settings when it leaves the bridge.
            let hairpin = if bridge.hairpin { each(&detached, &hairpin) } else { Vec::new() };
            let isolate = if bridge.isolated { each(&detached, &isolate) } else { Vec::new() };
            finding.run(each(&detached, &master).into_iter().chain(hairpin).chain(isolate))
        }
        _ => finding.remedy(reattach),
    }));
    // A port that an ADD in progress had not yet set up is up by now, so it is read again.
    let down = affected(&|port| {
        let now = || Netlink::open().and_then(|mut host| host.link(port.index));
        !port.up && now().is_ok_and(|link| link.is_some_and(|link| !link.up))
    });
    let set_up = each(&down, &|port| Command::SetUp.line(&[port]));
    findings.extend(found(Level::Fail, Id("port-down"), &down, "down").map(|finding| finding.run(set_up)));
    let is_on_bridge = |port: &Link| port.master.is_some() && port.master == link.map(|link| link.index);
    let moved = affected(&|port| port.master.is_some() && !is_on_bridge(port));
    let finding =
        found(Level::Warn, Id("port-on-other-bridge"), &moved, &format!("on another bridge than {}", bridge.name));
    findings.extend(finding.map(|finding| finding.remedy(format!("{reattach}, or correct \"bridge\""))));
    let one_way = affected(&|port| is_on_bridge(port) && bridge.hairpin && port.port.is_some_and(|now| !now.hairpin));
    let finding = found(
        Level::Warn,
        Id("port-without-hairpin"),
        &one_way,
        "without hairpin mode, which \"hairpinMode\" requires",
    );
    findings.extend(finding.map(|finding| finding.run(each(&one_way, &hairpin))));
    let open = affected(&|port| is_on_bridge(port) && bridge.isolated && port.port.is_some_and(|now| !now.isolated));
    let finding = found(Level::Warn, Id("port-not-isolated"), &open, "not isolated, as \"portIsolation\" requires");
    findings.extend(finding.map(|finding| finding.run(each(&open, &isolate))));
    // A single isolated port reaches all others.
    let closed = affected(&|port| is_on_bridge(port) && !bridge.isolated && port.port.is_some_and(|now| now.isolated));
    let closed = if closed.len() > 1 { closed } else { Vec::new() };
    let finding =
        found(Level::Warn, Id("port-isolated"), &closed, "isolated from each other, without \"portIsolation\"");
    let remedy = "decide whether these containers may reach each other; if so, `ip link set PORT type bridge_slave isolated off`";
    findings.extend(finding.map(|finding| finding.remedy(remedy)));
    findings.into_iter().for_each(|finding| report.network(&network.name, finding));
}

/// Checks that no other link has the gateway's address or subnet, that the bridge has no conflicting address, and that
/// packets to containers leave by it.
fn gateways(node: &Node, network: &Network, affected: &[Subject], report: &mut Report) -> Result<()> {
    let Some(name) = network.bridge.as_ref().and_then(|bridge| bridge.gateway.as_ref()) else { return Ok(()) };
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
            let finding = Finding::fail(GATEWAY, Id("gateway-conflict"), what)
                .about([Subject::link(other), Subject::address(cidr.ip())]);
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
            Ok(()) if findings.is_empty() => findings.extend(lost_gateways(node, network, link, affected)),
            Ok(()) => {}
            Err(error) => {
                let is_conflicting = |ip: &IpAddr| wanted.iter().any(|gateway| gateway.contains(*ip));
                let mut conflicting = have.iter().map(|address| address.cidr.ip()).filter(is_conflicting);
                let subjects = [Subject::link(name)].into_iter().chain(affected.iter().cloned());
                let finding = Finding::error(GATEWAY, Id("gateway-other-address"), &error).about(subjects);
                findings.push(match conflicting.find_map(|ip| gateway_of(node, network, name, ip)) {
                    Some(second) => finding.remedy(other_subnet(network, second)),
                    None => finding,
                });
            }
        }
    }
    if findings.is_empty() && !wanted.is_empty() {
        let ips: Vec<String> = wanted.iter().map(|gateway| gateway.ip().to_string()).collect();
        findings.push(Finding::ok(
            GATEWAY,
            Id("gateway-unique"),
            format!("{} of {name}: on no other link", ips.join(", ")),
        ));
    }
    findings.into_iter().for_each(|finding| report.network(&network.name, finding));
    Ok(())
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
        let command = if gateway.is_ipv6() { Command::AddAddressIpv6 } else { Command::AddAddress };
        let command = command.line(&[&format!("{gateway}/{}", range.subnet.prefix()), &link.name]);
        let finding = Finding::fail(GATEWAY, Id("gateway-lost"), what)
            .about([Subject::link(&link.name), Subject::address(gateway)]);
        findings.push(finding.about(affected.iter().cloned()).run([command]));
    }
    findings
}

/// Returns the addresses of other links whose subnets overlap that of the gateway. An address of host length, such as
/// the one of a tunnel, has no subnet: no packet takes another way because of it.
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
fn overlaps(scope: &Selection, report: &mut Report) {
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
            let finding = Finding::warn("ranges", Id("ranges-overlap"), what)
                .about(subjects)
                .remedy("set another \"subnet\" in one of them");
            if scope.includes(&network.name) {
                report.network(&network.name, finding);
            }
        }
    }
}

/// Compares the MTUs of the bridge, its ports, the containers and the uplink.
fn mtu(scope: &Selection, report: &mut Report) -> Result<()> {
    let node = &scope.node;
    let defaults = Netlink::open()?.default_routes()?;
    let uplink = defaults.iter().find_map(|route| node.links.iter().find(|link| Some(link.index) == route.link));
    for network in scope.networks() {
        let Some(bridge) = &network.bridge else { continue };
        let link = node.link(&bridge.name).filter(|link| link.kind == "bridge");
        let ports = node.ports_of(network);
        if let Some(finding) = link.and_then(|link| bridge_mtu(scope, network, link)) {
            report.network(&network.name, finding);
        }
        if let Some(finding) = larger_than_port(node, network, link, &ports) {
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
                Finding::warn(MTU, Id("mtu-exceeds-uplink"), what).about([Subject::link(name)]).remedy(remedy)
            }
            false => {
                Finding::ok(MTU, Id("mtu-suits-uplink"), format!("{inside} inside, {} on {}", uplink.mtu, uplink.name))
            }
        };
        report.network(&network.name, finding);
    }
    Ok(())
}

/// Compares the MTU of the bridge with the configurations of its networks and with the network's ports. Packets larger
/// than the bridge's MTU are not sent to containers, and packets larger than a port's MTU are dropped without an error.
fn bridge_mtu(scope: &Selection, network: &Network, link: &Link) -> Option<Finding> {
    let node = &scope.node;
    // The kernel resets the MTU of a bridge without ports; the next add sets it again.
    node.ports(link).next()?;
    let subjects = || [Subject::link(&link.name)];
    let sharing = || node.networks.iter().filter(|other| other.bridge.as_ref().is_some_and(|b| b.name == link.name));
    let wanted: Vec<(u32, &str)> =
        sharing().filter_map(|other| Some((other.bridge.as_ref()?.mtu?, &*other.name))).collect();
    let values: BTreeSet<u32> = wanted.iter().map(|(mtu, _)| *mtu).collect();
    if values.len() > 1 {
        // Reported once.
        let mut reported = sharing().filter(|other| scope.includes(&other.name));
        reported.next().filter(|first| first.name == network.name)?;
        let wanted: Vec<String> = wanted.iter().map(|(mtu, name)| format!("{mtu} in network {name}")).collect();
        let what = format!("\"mtu\" is {}, and {}, which they share, has {}", wanted.join(", "), link.name, link.mtu);
        let remedy = "set the same \"mtu\" in these networks, or give them bridges of their own; then detach their containers \
                      and attach them again";
        return Some(Finding::warn(MTU, Id("mtu-networks-differ"), what).about(subjects()).remedy(remedy));
    }
    let of_ports: BTreeSet<u32> = node.ports_of(network).iter().map(|port| port.mtu).collect();
    let (wanted, what) = match (values.first(), of_ports.first()) {
        (Some(wanted), _) if *wanted != link.mtu => {
            (Some(*wanted), format!("\"mtu\" is {wanted}, and {} has {}", link.name, link.mtu))
        }
        (wanted, Some(first)) if of_ports.iter().any(|mtu| *mtu != link.mtu) => {
            let all: Vec<String> = of_ports.iter().map(ToString::to_string).collect();
            let only = Some(*first).filter(|_| of_ports.len() == 1 && wanted.is_none());
            (only, format!("{} has {}, and its ports {}", link.name, link.mtu, all.join(", ")))
        }
        _ => return None,
    };
    let finding =
        Finding::warn(MTU, Id("mtu-bridge-differs"), format!("{what}: larger packets are lost")).about(subjects());
    Some(match wanted.filter(|mtu| suits_all(node, link, *mtu)) {
        Some(mtu) => finding.run([Command::SetMtu.line(&[&link.name, &mtu.to_string()])]),
        None => finding
            .remedy("set \"mtu\" in the network's configuration; then detach the containers and attach them again"),
    })
}

/// Returns whether a bridge can have an MTU without harm: all its ports lead to containers and have it, and its IPv6
/// addresses do not need a larger one.
fn suits_all(node: &Node, bridge: &Link, mtu: u32) -> bool {
    let of_containers: Vec<&Link> = node.networks.iter().flat_map(|network| node.ports_of(network)).collect();
    let is_known = |port: &Link| of_containers.iter().any(|known| known.index == port.index);
    let has_ipv6 = node.raw_addresses(bridge.index).iter().any(|address| address.cidr.ip().is_ipv6());
    node.ports(bridge).all(|port| port.mtu == mtu && is_known(port)) && (mtu >= MIN_IPV6_MTU || !has_ipv6)
}

/// Reports containers that send packets larger than their port, and so the bridge, accepts: the kernel drops them
/// without an error. If the port has another MTU than the bridge, that is the mistake.
fn larger_than_port(node: &Node, network: &Network, bridge: Option<&Link>, ports: &[&Link]) -> Option<Finding> {
    let attachments = node.attachments(network);
    let (mut subjects, mut commands, mut text) = (Vec::new(), Vec::new(), None);
    for port in ports.iter().filter(|port| bridge.is_none_or(|bridge| bridge.mtu == port.mtu)) {
        let Some(guest) = node.guest(port.index).filter(|guest| guest.mtu > port.mtu) else { continue };
        subjects.push(subject_of(node, port, &attachments));
        // If the ADD set this MTU, plugins would find a smaller one wrong.
        let result = node.attachment_of(port, &attachments).and_then(|at| node.result(network, at));
        let is_configured = result.is_some_and(|result| result.interfaces.iter().any(|own| own.mtu == guest.mtu));
        let netns = guest.netns.as_ref().map(|path| path.to_string_lossy()).filter(|_| !is_configured);
        commands.push(netns.map(|netns| Command::SetGuestMtu.line(&[&netns, &guest.name, &port.mtu.to_string()])));
        text.get_or_insert_with(|| {
            format!("packets of {} bytes, and port {} accepts {}", guest.mtu, port.name, port.mtu)
        });
    }
    let number = table::count(subjects.len(), "container");
    let verb = if subjects.len() == 1 { "sends" } else { "send" };
    let finding =
        Finding::warn(MTU, Id("mtu-exceeds-port"), format!("{number} {verb} {}: larger ones are lost", text?))
            .about(subjects);
    let finding =
        finding.remedy("give the container and its port the same MTU, or detach the container and attach it again");
    // All of them, or the next report would have the same finding.
    Some(finding.run(commands.into_iter().collect::<Option<Vec<CommandLine>>>().into_iter().flatten()))
}
