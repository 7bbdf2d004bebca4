//! Checks whether the host's firewall lets packets of containers pass.

use cni::Result;
use linux::iptables::{FAMILIES, Tools};
use linux::netlink::nft::{BaseChain, Family, Nftables, Table};
use linux::sysctl;

use super::{Level, Report};

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
        .map(|bridge| bridge.name.clone())
        .collect();
    if bridges.is_empty() {
        return Ok(());
    }
    forwarding(report, &bridges)
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
            .any(|range| tools.includes(range.gateway));
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
