//! Checks whether the host's firewall lets packets of containers pass.
//!
//! A packet must pass every base chain of a hook. A plugin can accept packets in a chain of its own choice, but not in the
//! chains of other programs.

use cni::Result;
use cni::inspect::ForwardChain;
use linux::iptables::{FAMILIES, Tools};
use linux::netlink::nft::{BaseChain, Family, Nftables, Rule, Table, Verdict};
use linux::sysctl;

use super::{Level, Report};
use crate::node::Network;

/// The check of all findings about chains.
const CHECK: &str = "firewall";
/// The table and the chain of iptables.
const FILTER: &str = "filter";
const FORWARD: &str = "FORWARD";
/// The name of a chain of iptables for packets to this host.
const INPUT: &str = "INPUT";
/// The kernel's number of the hook for packets to this host.
const LOCAL_INPUT: u32 = 1;

/// A chain that drops packets.
#[derive(Debug)]
struct DropChain {
    name: String,
    place: Place,
    /// How it drops them.
    how: Cause,
    /// The table in nf_tables; `None` for a chain of iptables.
    table: Option<String>,
}

/// Which packets pass a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Those that are not addressed to this host.
    Forward,
    /// Those to this host.
    Input,
    /// Frames between the ports of a bridge.
    WithinBridge,
    /// Frames between a bridge and this host.
    BridgeToHost,
}

/// How a chain drops packets.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    /// All, because it has no rules.
    Everything,
    /// Those that none of its rules accepts.
    Unaccepted,
    /// Those on this link, by a rule.
    OnLink(String),
}

pub(super) fn check(report: &mut Report) -> Result<()> {
    let bridges: Vec<String> = gateways(report).map(|(_, bridge)| bridge.to_owned()).collect();
    if bridges.is_empty() {
        return Ok(());
    }
    let filtered = sysctl::read(&["net", "bridge", "bridge-nf-call-iptables"])?.is_some_and(|value| value != "0");
    chains(report, &bridges, filtered)?;
    let what = if filtered { "on: packets within a bridge pass the firewall" } else { "off" };
    let text = format!("{what}{}", if filtered { "" } else { " (kube-proxy needs it on for services)" });
    report.ok("br_netfilter", None, text);
    Ok(())
}

/// Returns the networks with a gateway on this host, each with its bridge.
fn gateways(report: &Report) -> impl Iterator<Item = (&Network, &str)> {
    report.node.networks.iter().filter_map(|network| {
        let bridge = network.bridge.as_ref().filter(|bridge| bridge.gateway.is_some())?;
        Some((network, bridge.name.as_str()))
    })
}

/// Checks the chains that packets to and from containers pass.
fn chains(report: &mut Report, bridges: &[String], filtered: bool) -> Result<()> {
    let (mut found, mut is_complete) = (Vec::new(), true);
    let families = used_families(report);
    match in_nftables(&families, bridges) {
        Ok(chains) => found.extend(chains),
        Err(error) => {
            report.unseen(&error);
            is_complete = false;
        }
    }
    for tools in FAMILIES.iter().filter(|tools| families.contains(&tools.family)) {
        if let Some(table) = tools.legacy_table(FILTER)? {
            found.extend(in_legacy_table(&table.lines, table.save));
        }
    }
    let mut is_blocked = false;
    for chain in found {
        match blocked_bridges(report, &chain) {
            Ok(bridges) if bridges.is_empty() => {}
            Ok(bridges) => {
                is_blocked |= chain.place == Place::Forward;
                let (level, what, remedy) = describe(&chain, &bridges, filtered);
                report.add(level, CHECK, None, what, remedy);
            }
            Err(error) => {
                report.unseen(&error);
                is_complete = false;
            }
        }
    }
    if !is_blocked && is_complete {
        report.ok(CHECK, None, "no chain drops forwarded packets of containers by its policy");
    }
    Ok(())
}

/// Returns the address families of all networks. If the ranges are unknown, a network is assumed to use IPv4.
fn used_families(report: &Report) -> Vec<Family> {
    let ranges = || report.node.networks.iter().flat_map(|network| network.ranges.iter().flatten());
    let is_used = |tools: &&Tools| tools.family == Family::Ipv4 || ranges().any(|range| tools.includes(range.gateway));
    FAMILIES.iter().filter(is_used).map(|tools| tools.family).collect()
}

/// Returns the bridges whose packets a chain drops: those of the networks without a plugin that accepts them there.
fn blocked_bridges(report: &Report, chain: &DropChain) -> Result<Vec<String>> {
    let forward = match &chain.table {
        Some(table) => ForwardChain::InTable(table),
        None => ForwardChain::Iptables,
    };
    let mut blocked: Vec<String> = Vec::new();
    for (network, bridge) in gateways(report) {
        let is_meant = match &chain.how {
            Cause::OnLink(link) => link == bridge,
            Cause::Everything | Cause::Unaccepted => true,
        };
        if !is_meant || (chain.place == Place::Forward && network.accepts_in(forward)?) {
            continue;
        }
        if !blocked.iter().any(|other| other == bridge) {
            blocked.push(bridge.to_owned());
        }
    }
    Ok(blocked)
}

/// Returns the level of a finding about a chain, its text and the remedy.
fn describe(chain: &DropChain, bridges: &[String], filtered: bool) -> (Level, String, String) {
    let DropChain { name, place, how, table } = chain;
    let reach = match place {
        Place::Forward if filtered => "containers can reach neither each other nor other networks",
        Place::Forward => "containers cannot reach other networks",
        Place::Input => "containers cannot reach services of this host, such as DNS",
        Place::WithinBridge => "containers on a bridge cannot reach each other",
        Place::BridgeToHost => "containers cannot reach the gateway",
    };
    let scope = match place {
        Place::Forward if filtered => "br_netfilter is on, so bridged packets pass it too",
        Place::Forward => "packets within a bridge do not pass it",
        Place::Input => "containers may need services of this host, such as DNS",
        Place::WithinBridge => "packets between containers on a bridge pass it",
        Place::BridgeToHost => "packets between containers and the gateway pass it",
    };
    let level = match (how, place) {
        (Cause::Everything, Place::Forward | Place::WithinBridge | Place::BridgeToHost) => Level::Fail,
        _ => Level::Warn,
    };
    let what = match how {
        Cause::Everything => format!("chain {name} drops everything: {reach}"),
        Cause::Unaccepted => format!("chain {name} drops packets that none of its rules accepts; {scope}"),
        Cause::OnLink(link) => format!("a rule of chain {name} drops packets on {link}; {scope}"),
    };
    let accept = |pattern: fn(&String) -> String| bridges.iter().map(pattern).collect::<Vec<_>>().join(", ");
    let remedy = match (how, place) {
        (Cause::OnLink(_), _) => "remove the rule if it should not apply to containers".to_owned(),
        (_, Place::Forward) => {
            let links = accept(|bridge| format!("-i {bridge} and -o {bridge}"));
            // No plugin can accept packets in the tables of other programs.
            let plugin = if table.is_none() { ", add the plugin \"firewall\" to the network's list," } else { "" };
            format!("accept {links} there{plugin} or set the policy to accept")
        }
        (_, Place::Input) => format!("accept the services there, with {}", accept(|bridge| format!("-i {bridge}"))),
        (_, Place::WithinBridge | Place::BridgeToHost) => {
            format!("accept the frames of {} there, or set the policy to accept", accept(Clone::clone))
        }
    };
    (level, what, remedy)
}

fn in_nftables(families: &[Family], bridges: &[String]) -> Result<Vec<DropChain>> {
    let mut nft = Nftables::open()?;
    let mut found = Vec::new();
    for chain in nft.base_chains()? {
        let is_bridge = chain.family() == Some(Family::Bridge);
        let Some(family) = chain.family().filter(|_| is_bridge || families.iter().any(|used| chain.sees(*used))) else {
            continue;
        };
        let place = match (is_bridge, chain.place) {
            (false, BaseChain::FORWARD) => Place::Forward,
            (false, LOCAL_INPUT) => Place::Input,
            (true, BaseChain::FORWARD) => Place::WithinBridge,
            (true, _) => Place::BridgeToHost,
            (false, _) => continue,
        };
        let rules = nft.rules(Table { family, name: &chain.table }.chain(&chain.name))?;
        let Some(how) = cause(chain.drops, &rules, bridges) else { continue };
        let is_iptables = chain.table == FILTER && [FORWARD, INPUT].contains(&chain.name.as_str());
        let table = Some(chain.table.clone()).filter(|_| !is_iptables || family == Family::Inet);
        found.push(DropChain { name: chain.to_string(), place, how, table });
    }
    Ok(found)
}

/// Returns how a chain drops packets, if it does.
fn cause(drops: bool, rules: &[Rule], bridges: &[String]) -> Option<Cause> {
    let decisive =
        rules.iter().find(|rule| rule.is_unconditional() && (rule.refuses() || rule.verdict == Some(Verdict::Accept)));
    match decisive.map(Rule::refuses) {
        Some(true) => return Some(Cause::Unaccepted),
        None if drops && rules.is_empty() => return Some(Cause::Everything),
        None if drops => return Some(Cause::Unaccepted),
        None | Some(false) => {}
    }
    let mut links = rules.iter().filter(|rule| rule.refuses()).flat_map(Rule::links);
    links.find(|link| bridges.contains(link)).map(Cause::OnLink)
}

/// Checks the lines of a legacy table, which nf_tables does not list.
fn in_legacy_table(lines: &[String], tool: &str) -> Vec<DropChain> {
    let chains = [(FORWARD, Place::Forward), (INPUT, Place::Input)];
    let found = chains.into_iter().filter_map(|(chain, place)| {
        let how = if strict(lines, chain)? == 0 { Cause::Everything } else { Cause::Unaccepted };
        Some(DropChain { name: format!("{chain} of {tool}"), place, how, table: None })
    });
    found.collect()
}

/// Returns the number of rules in a chain if its policy is DROP, or if a rule drops or rejects every packet.
fn strict(lines: &[String], chain: &str) -> Option<usize> {
    let policy = lines.iter().find_map(|line| line.strip_prefix(&format!(":{chain} ")))?;
    let prefix = format!("-A {chain} ");
    let rules: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
    let refuses = |rule: &&str| *rule == "-j DROP" || rule.starts_with("-j REJECT");
    (policy.starts_with("DROP") || rules.iter().any(refuses)).then_some(rules.len())
}

#[cfg(test)]
mod tests {
    use super::strict;

    #[test]
    fn the_policy_in_the_output_of_iptables_save_is_parsed() {
        let listing = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [3:252]\n:OUTPUT ACCEPT [0:0]\n\
                       -A FORWARD -i cni0 -j ACCEPT\n-A INPUT -j ACCEPT\nCOMMIT\n";
        let rules = |listing: &str| strict(&listing.lines().map(str::to_owned).collect::<Vec<_>>(), "FORWARD");
        assert_eq!(rules(listing), Some(1));
        assert_eq!(rules(&listing.replace("FORWARD DROP", "FORWARD ACCEPT")), None);
        assert_eq!(rules(""), None);
        let refusing = ":FORWARD ACCEPT [0:0]\n-A FORWARD -i cni0 -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n";
        assert_eq!(rules(refusing), Some(2));
        assert_eq!(rules(&refusing.replace("-j REJECT", "-o eth0 -j REJECT")), None);
    }
}
