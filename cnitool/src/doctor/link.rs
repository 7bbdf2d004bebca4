//! Checks bridges: their ports, their addresses and their MTU.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Result;
use linux::ip::Cidr;
use linux::netlink::{Link, Netlink};

use super::{Level, Report, first_few};
use crate::node::{Network, Node, State};
use crate::table;

/// The kernel's limit (net/bridge/br_private.h: BR_MAX_PORTS minus the unused number 0).
const MAX_PORTS: usize = 1023;
const MANY_PORTS: usize = 950;
/// The kernel's default MTU.
const DEFAULT_MTU: u32 = 1500;

pub(super) fn check(report: &mut Report) -> Result<()> {
    let mut findings = Vec::new();
    for network in &report.node.networks {
        let Some(bridge) = &network.bridge else { continue };
        let link = report.node.link(&bridge.name);
        match link {
            Some(link) if link.kind != "bridge" => {
                let kind = if link.kind.is_empty() { "another kind" } else { &link.kind };
                let what = format!("{} is not a bridge, but a link of {kind}", link.name);
                let remedy = "set \"bridge\" to another name, or rename that link".to_owned();
                findings.push((Level::Fail, "bridge", network.name.clone(), what, remedy));
                continue;
            }
            Some(link) if !link.up && report.node.ports(link).next().is_some() => {
                let what = format!("{} is down: its containers have no connection", link.name);
                let remedy = format!("ip link set {} up", link.name);
                findings.push((Level::Fail, "bridge", network.name.clone(), what, remedy));
            }
            Some(link) => {
                let ports = report.node.ports(link).count();
                let level = match ports {
                    MAX_PORTS.. => Level::Fail,
                    MANY_PORTS.. => Level::Warn,
                    _ => Level::Ok,
                };
                let what = format!("{} is up with {ports} of at most {MAX_PORTS} ports", link.name);
                let remedy = match level {
                    Level::Ok => "",
                    _ => "distribute containers over networks with other bridges",
                };
                findings.push((level, "bridge", network.name.clone(), what, remedy.to_owned()));
            }
            None => {
                let what = format!("{} does not exist yet: the first add creates it", bridge.name);
                findings.push((Level::Ok, "bridge", network.name.clone(), what, String::new()));
            }
        }
        ports(&report.node, network, &bridge.name, &mut findings);
        gateways(&report.node, network, &mut findings);
    }
    overlaps(&report.node, &mut findings);
    mtu(&report.node, &mut findings)?;
    for (level, check, network, what, remedy) in findings {
        report.add(level, check, Some(&network), what, remedy);
    }
    Ok(())
}

type Findings = Vec<(Level, &'static str, String, String, String)>;

/// Checks that the host veths are up and on the bridge.
fn ports(node: &Node, network: &Network, name: &str, findings: &mut Findings) {
    let bridge = node.link(name);
    let ports = node.ports_of(network);
    let named = |is_affected: &dyn Fn(&Link) -> bool| -> Vec<String> {
        ports.iter().filter(|port| is_affected(port)).map(|port| port.name.clone()).collect()
    };
    let reattach = "detach the container and attach it again";
    let mut note = |level, affected: &[String], how: &str, remedy: String| {
        let Some(first) = affected.first() else { return };
        let what = match affected.len() {
            1 => format!("port {first} is {how}"),
            number => format!("{} are {how}: {}", table::count(number, "port"), first_few(affected)),
        };
        let remedy = if affected.len() == 1 { remedy } else { format!("{remedy}; repeat for each") };
        findings.push((level, "bridge", network.name.clone(), what, remedy));
    };
    let detached = named(&|port| port.master.is_none());
    let remedy = match (detached.first(), bridge) {
        // A port that is added by hand to a bridge with VLAN filtering lacks its VLANs.
        (Some(port), Some(bridge)) if bridge.vlan_filtering != Some(true) => {
            format!("ip link set {port} master {}", bridge.name)
        }
        _ => reattach.to_owned(),
    };
    note(Level::Fail, &detached, "on no bridge", remedy);
    // A port that an ADD in progress had not yet set up is up by now, so it is read again.
    let is_down = |port: &Link| {
        let now = || Netlink::open().and_then(|mut host| host.link(port.index));
        !port.up && now().is_ok_and(|link| link.is_some_and(|link| !link.up))
    };
    let down = named(&is_down);
    let remedy = down.first().map(|port| format!("ip link set {port} up")).unwrap_or_default();
    note(Level::Fail, &down, "down", remedy);
    let moved = named(&|port| port.master.is_some() && port.master != bridge.map(|bridge| bridge.index));
    let how = format!("on another bridge than {name}");
    note(Level::Warn, &moved, &how, format!("{reattach}, or correct \"bridge\""));
}

/// Checks that no other link has the gateway's address or subnet, and that the bridge has no conflicting address.
fn gateways(node: &Node, network: &Network, findings: &mut Findings) {
    let Some(bridge) = &network.bridge else { return };
    let Some(name) = &bridge.gateway else { return };
    let wanted: Vec<Cidr> =
        network.ranges.iter().flatten().filter_map(|range| Cidr::new(range.gateway, range.subnet.prefix())).collect();
    let before = findings.len();
    for gateway in &wanted {
        for other in node.holders(gateway.ip()).filter(|link| link.name != *name) {
            let what = format!("the gateway's address {} is on {}, not on {name}", gateway.ip(), other.name);
            let cidr = node.addresses(other.index).into_iter().find(|cidr| cidr.ip() == gateway.ip());
            let cidr = cidr.unwrap_or(*gateway);
            let remedy = match gateway_of(node, network, &other.name, cidr.ip()) {
                Some(second) => other_subnet(network, second),
                None => format!("ip address del {cidr} dev {}, or set another \"gateway\"", other.name),
            };
            findings.push((Level::Fail, "gateway", network.name.clone(), what, remedy));
        }
        for (other, cidr) in neighbours(node, name, gateway) {
            let what =
                format!("the subnet {} is on {other} too ({cidr}): packets may take the wrong link", gateway.network());
            let remedy = match gateway_of(node, network, &other, cidr.ip()) {
                Some(second) => other_subnet(network, second),
                None => "set another \"subnet\", or change the address of that link".to_owned(),
            };
            findings.push((Level::Fail, "gateway", network.name.clone(), what, remedy));
        }
    }
    if let Some(link) = node.link(name) {
        let have = node.raw_addresses(link.index);
        match network.check_gateway_conflict(&have, &wanted) {
            Ok(()) => check_lost_gateways(node, network, link, findings),
            Err(error) => {
                let is_conflicting = |ip: &IpAddr| wanted.iter().any(|gateway| gateway.contains(*ip));
                let mut conflicting = have.iter().map(|address| address.cidr.ip()).filter(is_conflicting);
                let remedy = match conflicting.find_map(|ip| gateway_of(node, network, name, ip)) {
                    Some(second) => other_subnet(network, second),
                    None => error.details_text().to_owned(),
                };
                findings.push((Level::Fail, "gateway", network.name.clone(), error.to_string(), remedy));
            }
        }
    }
    if findings.len() == before && !wanted.is_empty() {
        let ips: Vec<String> = wanted.iter().map(|gateway| gateway.ip().to_string()).collect();
        let what = format!("{} of {name}: on no other link", ips.join(", "));
        findings.push((Level::Ok, "gateway", network.name.clone(), what, String::new()));
    }
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
fn check_lost_gateways(node: &Node, network: &Network, link: &Link, findings: &mut Findings) {
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
        let remedy = format!("ip address add {gateway}/{prefix} dev {}{nodad}", link.name);
        findings.push((Level::Fail, "gateway", network.name.clone(), what, remedy));
    }
}

/// Returns the addresses of other links that are in the gateway's network, or whose network contains the gateway.
fn neighbours(node: &Node, name: &str, gateway: &Cidr) -> Vec<(String, Cidr)> {
    let mut found = Vec::new();
    for link in node.links.iter().filter(|link| link.name != *name) {
        for cidr in node.addresses(link.index) {
            let same = cidr.ip() == gateway.ip();
            if !same && (gateway.contains(cidr.ip()) || cidr.contains(gateway.ip())) {
                found.push((link.name.clone(), cidr));
            }
        }
    }
    found
}

/// Reports networks with overlapping subnets, which lease the same addresses independently of each other.
fn overlaps(node: &Node, findings: &mut Findings) {
    let subnets: Vec<(&Network, Cidr)> = node
        .networks
        .iter()
        .flat_map(|network| network.ranges.iter().flatten().map(move |range| (network, range.subnet)))
        .collect();
    for (at, (network, subnet)) in subnets.iter().enumerate() {
        let others = subnets.iter().take(at).filter(|(other, _)| other.name != network.name);
        for (other, second) in others.filter(|(_, other)| other.contains(subnet.ip()) || subnet.contains(other.ip())) {
            let what = format!(
                "its subnet {subnet} overlaps {second} of network {}: both lease the same addresses",
                other.name
            );
            let remedy = "set another \"subnet\" in one of them".to_owned();
            findings.push((Level::Warn, "ranges", network.name.clone(), what, remedy));
        }
    }
}

fn mtu(node: &Node, findings: &mut Findings) -> Result<()> {
    let defaults = Netlink::open()?.default_routes()?;
    let uplink = defaults.iter().find_map(|route| node.links.iter().find(|link| Some(link.index) == route.link));
    for network in &node.networks {
        let Some(bridge) = &network.bridge else { continue };
        let link = node.link(&bridge.name);
        if let (Some(wanted), Some(link)) = (bridge.mtu, link)
            && link.kind == "bridge"
            && link.mtu != wanted
        {
            let what = format!("\"mtu\" is {wanted}, and {} has {}: larger packets are lost", link.name, link.mtu);
            let remedy = format!("ip link set {} mtu {wanted}, or correct \"mtu\"", link.name);
            findings.push((Level::Warn, "mtu", network.name.clone(), what, remedy));
        }
        let of_ports: BTreeSet<u32> = node.ports_of(network).iter().map(|port| port.mtu).collect();
        if let Some(link) = link.filter(|link| link.kind == "bridge") {
            compare_mtus(network, link, &of_ports, findings);
        }
        let of_bridge = || link.map_or(DEFAULT_MTU, |link| link.mtu);
        let inside = bridge.mtu.or_else(|| of_ports.last().copied()).unwrap_or_else(of_bridge);
        let Some(uplink) = uplink.filter(|_| bridge.gateway.is_some()) else { continue };
        if inside > uplink.mtu {
            let what = format!(
                "containers send packets of {inside} bytes, and {} carries {}: if ICMP is filtered, they are lost",
                uplink.name, uplink.mtu
            );
            let remedy = format!("set \"mtu\": {} in the network's configuration", uplink.mtu);
            findings.push((Level::Warn, "mtu", network.name.clone(), what, remedy));
        } else {
            let what = format!("{inside} inside, {} on {}", uplink.mtu, uplink.name);
            findings.push((Level::Ok, "mtu", network.name.clone(), what, String::new()));
        }
    }
    Ok(())
}

/// Checks that the bridge has the MTU of its ports. Packets larger than the bridge's MTU are not sent to containers, and
/// packets larger than a port's MTU are dropped without an error.
fn compare_mtus(network: &Network, bridge: &Link, of_ports: &BTreeSet<u32>, findings: &mut Findings) {
    if of_ports.iter().all(|mtu| *mtu == bridge.mtu) {
        return;
    }
    let all: Vec<String> = of_ports.iter().map(ToString::to_string).collect();
    let what = format!("{} has {}, and its ports {}: larger packets are lost", bridge.name, bridge.mtu, all.join(", "));
    let remedy = match all.as_slice() {
        [only] => format!("ip link set {} mtu {only}", bridge.name),
        _ => "set \"mtu\" in the network's configuration; detach the containers and attach them again".to_owned(),
    };
    findings.push((Level::Warn, "mtu", network.name.clone(), what, remedy));
}
