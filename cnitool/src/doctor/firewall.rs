//! Checks whether the host's firewall lets packets of containers pass.

use bridge::inspect::REPAIR_HINT;
use cni::Result;
use linux::iptables::{FAMILIES, Tools};
use linux::netlink::nft::{BaseChain, Family, Nftables, Table};
use linux::sysctl;

use super::{Level, Report};
use crate::node::{Attachment, State};
use crate::table;

/// A chain whose policy drops packets that none of its rules accepts.
struct DropChain {
    name: String,
    /// The number of its rules, if known.
    rules: Option<usize>,
}

pub(super) fn check(report: &mut Report) -> Result<()> {
    let bridges: Vec<String> = report
        .node
        .networks
        .iter()
        .filter_map(|network| network.bridge.as_ref())
        .filter(|bridge| bridge.gateway.is_some())
        .map(|bridge| bridge.bridge.clone())
        .collect();
    if !bridges.is_empty() {
        forwarding(report, &bridges)?;
    }
    masquerade(report);
    Ok(())
}

/// Checks the chains of the hook FORWARD, which packets to and from containers pass; with br_netfilter, even those that
/// stay within a bridge.
fn forwarding(report: &mut Report, bridges: &[String]) -> Result<()> {
    let filtered = sysctl::read(&["net", "bridge", "bridge-nf-call-iptables"])?.is_some_and(|value| value != "0");
    let (mut strict, mut incomplete) = (Vec::new(), false);
    for tools in &FAMILIES {
        let is_used = report
            .node
            .networks
            .iter()
            .flat_map(|network| network.ranges.iter().flatten())
            .any(|range| tools.includes(range.gateway()));
        // If the ranges are unknown, the network is assumed to use IPv4.
        if !is_used && tools.family != Family::Ipv4 {
            continue;
        }
        match in_nftables(tools.family) {
            Ok(found) => strict.extend(found),
            Err(error) => {
                report.unseen(&error);
                incomplete = true;
            }
        }
        strict.extend(in_legacy_table(tools)?);
    }
    strict.dedup_by(|a, b| a.name == b.name);
    let (reach, scope) = match filtered {
        true => (
            "containers can reach neither each other nor other networks",
            "br_netfilter is on, so bridged packets pass it too",
        ),
        false => ("containers cannot reach other networks", "packets within a bridge do not pass it"),
    };
    for chain in &strict {
        let name = &chain.name;
        let accept: Vec<String> = bridges.iter().map(|bridge| format!("-i {bridge} and -o {bridge}")).collect();
        let remedy = format!(
            "accept {} there, add the plugin \"firewall\" to the network's list, or set the policy to accept",
            accept.join(", ")
        );
        match chain.rules {
            Some(0) => {
                let what = format!("chain {name} drops everything: {reach}");
                report.add(Level::Fail, "firewall", None, what, remedy);
            }
            _ => {
                let what = format!("chain {name} drops packets that none of its rules accepts; {scope}");
                report.add(Level::Warn, "firewall", None, what, remedy);
            }
        }
    }
    if strict.is_empty() && !incomplete {
        report.ok("firewall", None, "no chain drops forwarded packets by its policy");
    }
    let what = if filtered { "on: packets within a bridge pass the firewall" } else { "off" };
    let text = format!("{what}{}", if filtered { "" } else { " (kube-proxy needs it on for services)" });
    report.ok("br_netfilter", None, text);
    Ok(())
}

fn in_nftables(family: Family) -> Result<Vec<DropChain>> {
    let mut nft = Nftables::open()?;
    let chains = nft.base_chains()?;
    let strict = chains.iter().filter(|chain| chain.drops && chain.place == BaseChain::FORWARD && chain.sees(family));
    let mut found = Vec::new();
    for chain in strict {
        let mut rules = 0;
        for family in [family, Family::Inet] {
            let table = Table { family, name: &chain.table };
            rules += nft.rules(table.chain(&chain.name))?.len();
        }
        found.push(DropChain { name: chain.to_string(), rules: Some(rules) });
    }
    Ok(found)
}

/// Checks the legacy table, which nf_tables does not list.
fn in_legacy_table(tools: &Tools) -> Result<Option<DropChain>> {
    let Some(table) = tools.legacy_table("filter")? else { return Ok(None) };
    let rules = strict_forward(&table.lines);
    Ok(rules.map(|rules| DropChain { name: format!("FORWARD of {}", table.save), rules: Some(rules) }))
}

/// Returns the number of rules in FORWARD if its policy is DROP.
fn strict_forward(listing: &[String]) -> Option<usize> {
    let policy = listing.iter().find_map(|line| line.strip_prefix(":FORWARD "))?;
    let rules = listing.iter().filter(|line| line.starts_with("-A FORWARD ")).count();
    policy.starts_with("DROP").then_some(rules)
}

/// Checks the masquerade rules, which a flush of the host's firewall removes until `cnitool repair` restores them.
fn masquerade(report: &mut Report) {
    let (mut missing_rules, mut unreachable, mut stale) = (Vec::new(), Vec::new(), Vec::new());
    for network in report.node.networks.iter().filter(|network| network.bridge.as_ref().is_some_and(|b| b.masquerade)) {
        let attachments = report.node.attachments(network);
        let rules = report.node.rules(&network.name);
        let alive: Vec<_> = attachments.iter().filter(|at| at.state == State::Alive && at.port.is_some()).collect();
        let masquerades = |at: &Attachment, ip| rules.iter().any(|rule| at.has_rule(rule) && rule.source == Some(ip));
        let lacks_rule = |at: &&&Attachment| match at.leases.as_slice() {
            // Another IPAM plugin has the addresses. One existing rule suffices as a sign that no rule was flushed.
            [] => !rules.iter().any(|rule| at.has_rule(rule)),
            leases => !leases.iter().all(|lease| masquerades(at, lease.ip)),
        };
        let lacking = alive.iter().filter(lacks_rule).count();
        missing_rules.push((network.name.clone(), lacking, alive.len()));
        let by_iptables = alive.iter().filter(|at| rules.iter().any(|rule| rule.iptables && at.has_rule(rule))).count();
        if report.node.masquerade_is_unreachable && by_iptables < alive.len() {
            unreachable.push(network.name.clone());
        }
        let is_kept = |rule: &bridge::inspect::Masquerade| {
            attachments.iter().any(|at| at.state != State::Gone && at.has_rule(rule))
        };
        stale.push((network.name.clone(), rules.iter().filter(|rule| !is_kept(rule)).count()));
    }
    if !report.node.rules_seen {
        return;
    }
    for (name, lacking, alive) in missing_rules {
        if lacking > 0 {
            let what = format!(
                "{lacking} of {alive} live containers lack a masquerade rule: other networks cannot reply to them"
            );
            report.add(Level::Fail, "masquerade", Some(&name), what, REPAIR_HINT);
        }
        if unreachable.contains(&name) {
            let what = "no packet reaches the masquerade rules: other networks cannot reply to containers";
            report.add(Level::Fail, "masquerade", Some(&name), what, REPAIR_HINT);
        } else if lacking == 0 {
            report.ok("masquerade", Some(&name), "all live containers have their rules");
        }
    }
    for (name, left) in stale.into_iter().filter(|(_, left)| *left > 0) {
        let what = format!("{} of containers that are gone", table::count(left, "rule"));
        report.add(Level::Warn, "masquerade", Some(&name), what, format!("cnitool prune {name}"));
    }
    let dangling = report.node.spoof_checks.iter().filter(|check| report.node.link(&check.port).is_none()).count();
    if dangling > 0 {
        let what = format!("{} of ports that are gone", table::count(dangling, "spoof check"));
        report.add(Level::Warn, "spoofcheck", None, what, "cnitool prune");
    }
}

#[cfg(test)]
mod tests {
    use super::strict_forward;

    #[test]
    fn the_policy_in_the_output_of_iptables_save_is_parsed() {
        let listing = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [3:252]\n:OUTPUT ACCEPT [0:0]\n\
                       -A FORWARD -i cni0 -j ACCEPT\n-A INPUT -j ACCEPT\nCOMMIT\n";
        let rules = |listing: &str| strict_forward(&listing.lines().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(rules(listing), Some(1));
        assert_eq!(rules(&listing.replace("FORWARD DROP", "FORWARD ACCEPT")), None);
        assert_eq!(rules(""), None);
    }
}
