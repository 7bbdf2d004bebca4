//! Checks whether the host's firewall lets packets of containers pass.
//!
//! A packet must pass every base chain of a hook. A plugin can accept packets in a chain of its own choice, but not in the
//! chains of other programs.

mod path;
mod read;

use cni::Result;
use cni::inspect::{Finding, ForwardChain, Level, Subject, shell_word};
use linux::ip::Cidr;
use linux::iptables::{FAMILIES, LegacyTable, Tools};
use linux::netlink::nft::{BaseChain, Family, Nftables, Table};
use linux::sysctl;

use super::{Report, Scope};
use crate::node::{Network, Node};
use path::{Chains, Packets, Rule, follow};

/// The check of all findings about chains.
const CHECK: &str = "firewall";
/// The table and the chains of iptables.
const FILTER: &str = "filter";
const FORWARD: &str = "FORWARD";
const INPUT: &str = "INPUT";
/// The kernel's number of the hook for packets to this host.
const LOCAL_INPUT: u32 = 1;
/// The prefix of tables that plugins create, here and in the reference.
const OF_PLUGINS: &str = "cni_";

/// A base chain with the chains that it leads to.
#[derive(Debug)]
struct Base {
    /// The name in its table.
    name: String,
    /// The name for a reader.
    title: String,
    place: Place,
    /// Whether the policy is to drop packets.
    drops: bool,
    chains: Chains,
    tool: Tool,
}

/// What changes a chain.
#[derive(Debug)]
enum Tool {
    /// A program of iptables.
    Iptables(&'static str),
    /// `nft`, for a chain of this table.
    Nft(Family, String),
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

/// What a base chain does to the packets of all networks.
#[derive(Debug, Default)]
struct Blocked<'a> {
    /// The bridges whose packets are dropped unless a rule accepts them.
    unaccepted: Vec<&'a str>,
    /// The bridges on which rules drop packets, and these rules.
    dropped: Vec<&'a str>,
    rules: Vec<&'a Rule>,
}

impl Blocked<'_> {
    fn is_empty(&self) -> bool {
        self.unaccepted.is_empty() && self.rules.is_empty()
    }
}

pub(super) fn check(scope: &Scope, report: &mut Report) -> Result<()> {
    let gateways: Vec<(&Network, &str)> = scope.networks().filter_map(gateway).collect();
    if gateways.is_empty() {
        return Ok(());
    }
    let filtered = sysctl::read(&["net", "bridge", "bridge-nf-call-iptables"])?.is_some_and(|value| value != "0");
    check_chains(&scope.node, &gateways, filtered, report)?;
    let text = match filtered {
        true => "on: packets within a bridge pass the firewall",
        false => "off (kube-proxy needs it on for services)",
    };
    report.host(Finding::ok("br_netfilter", text));
    Ok(())
}

/// Returns a network with its bridge if it has a gateway on this host.
fn gateway(network: &Network) -> Option<(&Network, &str)> {
    let bridge = network.bridge.as_ref().filter(|bridge| bridge.gateway.is_some())?;
    Some((network, bridge.name.as_str()))
}

/// Checks the chains that packets to and from containers pass.
fn check_chains(node: &Node, gateways: &[(&Network, &str)], filtered: bool, report: &mut Report) -> Result<()> {
    let (mut bases, mut is_complete, mut is_blocked) = (Vec::new(), true, false);
    let families = used_families(gateways);
    match in_nftables(node, &families) {
        Ok(found) => bases.extend(found),
        Err(error) => {
            report.unseen(error.to_string());
            is_complete = false;
        }
    }
    for tools in FAMILIES.iter().filter(|tools| families.contains(&tools.family)) {
        if let Some(table) = tools.legacy_table(FILTER)? {
            bases.extend(in_legacy_table(&table)?);
        }
    }
    for base in &bases {
        match base.blocked(node, gateways, &families) {
            Ok(blocked) => {
                is_blocked |= base.place == Place::Forward && !blocked.is_empty();
                base.describe(&blocked, filtered).into_iter().for_each(|finding| report.host(finding));
            }
            Err(error) => {
                report.unseen(error.to_string());
                is_complete = false;
            }
        }
    }
    if !is_blocked && is_complete {
        report.host(Finding::ok(CHECK, "no chain drops forwarded packets of containers"));
    }
    Ok(())
}

/// Returns the address families of the networks. If the ranges are unknown, a network is assumed to use IPv4.
fn used_families(gateways: &[(&Network, &str)]) -> Vec<Family> {
    let ranges = || gateways.iter().flat_map(|(network, _)| network.ranges.iter().flatten());
    let is_used = |tools: &&Tools| tools.family == Family::Ipv4 || ranges().any(|range| tools.includes(range.gateway));
    FAMILIES.iter().filter(is_used).map(|tools| tools.family).collect()
}

/// Reads the base chains of nf_tables, except those of plugins.
fn in_nftables(node: &Node, families: &[Family]) -> Result<Vec<Base>> {
    let mut nft = Nftables::open()?;
    let mut bases = Vec::new();
    for chain in nft.base_chains()?.into_iter().filter(|chain| !chain.table.starts_with(OF_PLUGINS)) {
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
        let table = Table { family, name: &chain.table };
        let chains = read::from_nftables(&mut nft, table, &chain.name, &node.links)?;
        let is_iptables = chain.table == FILTER && [FORWARD, INPUT].contains(&chain.name.as_str());
        let tool = match family {
            Family::Ipv4 if is_iptables => Tool::Iptables("iptables"),
            Family::Ipv6 if is_iptables => Tool::Iptables("ip6tables"),
            _ => Tool::Nft(family, chain.table.clone()),
        };
        bases.push(Base { title: chain.to_string(), name: chain.name, place, drops: chain.drops, chains, tool });
    }
    Ok(bases)
}

/// Reads the chains of a legacy table, which nf_tables does not list.
fn in_legacy_table(table: &LegacyTable) -> Result<Vec<Base>> {
    let mut bases = Vec::new();
    let tool = table.save.trim_end_matches("-save");
    for (name, place) in [(FORWARD, Place::Forward), (INPUT, Place::Input)] {
        let policy = table.lines.iter().find_map(|line| line.strip_prefix(&format!(":{name} ")));
        let Some(policy) = policy else { continue };
        bases.push(Base {
            name: name.to_owned(),
            title: format!("{name} of {}", table.save),
            place,
            drops: policy.starts_with("DROP"),
            chains: read::from_legacy(&table.lines, tool, name)?,
            tool: Tool::Iptables(tool),
        });
    }
    Ok(bases)
}

/// Returns the packets of a network that pass a chain, in each direction.
fn packets(node: &Node, place: Place, network: &Network, bridge: &str, families: &[Family]) -> Vec<Packets> {
    let ranges = || network.ranges.iter().flatten();
    let subnets: Option<Vec<Cidr>> = (ranges().next().is_some()).then(|| ranges().map(|range| range.subnet).collect());
    let gateways = subnets.as_ref().map(|_| ranges().map(|range| Cidr::host(range.gateway)).collect());
    let of_bridge = || Some(vec![bridge.to_owned()]);
    let ports = || {
        let ports = node.link(bridge).into_iter().flat_map(|bridge| node.ports(bridge));
        Some(ports.map(|port| port.name.clone()).collect())
    };
    let families = families.to_vec();
    let from = Packets { addresses: [subnets.clone(), None], families: families.clone(), ..Packets::default() };
    let to = Packets { addresses: [None, subnets], families, ..Packets::default() };
    match place {
        Place::Forward => {
            vec![Packets { links: [of_bridge(), None], ..from }, Packets { links: [None, of_bridge()], ..to }]
        }
        Place::Input => {
            let [source, _] = from.addresses;
            vec![Packets { links: [of_bridge(), None], addresses: [source, gateways], ..to }]
        }
        Place::WithinBridge | Place::BridgeToHost => vec![
            Packets { links: [ports(), None], bridges: [of_bridge(), None], ..from },
            Packets { links: [None, ports()], bridges: [None, of_bridge()], ..to },
        ],
    }
}

impl Base {
    /// Follows the packets of all networks through the chain.
    fn blocked<'a>(
        &'a self,
        node: &Node,
        gateways: &[(&'a Network, &'a str)],
        families: &[Family],
    ) -> Result<Blocked<'a>> {
        let mut blocked = Blocked::default();
        for (network, bridge) in gateways {
            let is_accepted = match (self.place, &self.tool) {
                (Place::Forward, Tool::Iptables(_)) => network.accepts_in(ForwardChain::Iptables)?,
                (Place::Forward, Tool::Nft(_, table)) if network.accepts_in(ForwardChain::InTable(table))? => continue,
                _ => false,
            };
            for packets in packets(node, self.place, network, bridge, families) {
                let effect = follow(&self.chains, &self.name, self.drops, &packets, is_accepted);
                if effect.drops_unaccepted && !blocked.unaccepted.contains(bridge) {
                    blocked.unaccepted.push(bridge);
                }
                if !effect.rules.is_empty() && !blocked.dropped.contains(bridge) {
                    blocked.dropped.push(bridge);
                }
                for rule in effect.rules {
                    if !blocked.rules.contains(&rule) {
                        blocked.rules.push(rule);
                    }
                }
            }
        }
        Ok(blocked)
    }

    /// Returns the findings about the chain.
    fn describe(&self, blocked: &Blocked<'_>, filtered: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !blocked.unaccepted.is_empty() {
            findings.push(self.describe_unaccepted(&blocked.unaccepted, filtered));
        }
        if !blocked.rules.is_empty() {
            let subject = match blocked.rules.len() {
                1 => format!("a rule of chain {} drops packets", self.title),
                number => format!("{number} rules of chain {} drop packets", self.title),
            };
            let what = format!("{subject} on {}; {}", blocked.dropped.join(", "), self.scope(filtered));
            let subjects = blocked.dropped.iter().map(|bridge| Subject::link(bridge));
            let rules = blocked.rules.iter().map(|rule| Subject::new("rule", rule.name.as_str()));
            let finding = Finding::warn(CHECK, what).about(subjects.chain(rules));
            let remedy = "remove the rule if it should not apply to containers";
            findings.push(finding.remedy(remedy).run(blocked.rules.iter().map(|rule| rule.delete.as_str())));
        }
        findings
    }

    /// Describes a chain that drops the packets that none of its rules accepts.
    fn describe_unaccepted(&self, bridges: &[&str], filtered: bool) -> Finding {
        let is_empty = self.chains.get(&self.name).is_none_or(Vec::is_empty);
        let level = if is_empty && self.place != Place::Input { Level::Fail } else { Level::Warn };
        let what = match is_empty {
            true => format!("chain {} drops everything: {}", self.title, self.consequence(filtered)),
            false => {
                format!("chain {} drops packets that none of its rules accepts; {}", self.title, self.scope(filtered))
            }
        };
        let each = |pattern: fn(&&str) -> String| bridges.iter().map(pattern).collect::<Vec<_>>().join(", ");
        let remedy = match self.place {
            Place::Forward => {
                let links = each(|bridge| format!("-i {bridge} and -o {bridge}"));
                // No plugin can accept packets in the tables of other programs.
                let plugin = match self.tool {
                    Tool::Iptables(_) => ", add the plugin \"firewall\" to the network's list,",
                    Tool::Nft(..) => "",
                };
                format!("accept {links} there{plugin} or set the policy to accept")
            }
            Place::Input => format!("accept the services there, with {}", each(|bridge| format!("-i {bridge}"))),
            Place::WithinBridge | Place::BridgeToHost => {
                format!("accept the frames of {} there, or set the policy to accept", bridges.join(", "))
            }
        };
        let commands = bridges.iter().flat_map(|bridge| self.accept_commands(bridge));
        let subjects = [Subject::new("chain", self.title.as_str())].into_iter();
        let finding = Finding::new(level, CHECK, what).about(subjects.chain(bridges.iter().map(|b| Subject::link(b))));
        finding.remedy(remedy).run(commands)
    }

    /// Returns the commands that accept forwarded packets on a bridge. Which services of this host containers need is not
    /// known, and a frame is not accepted without knowing its purpose.
    fn accept_commands(&self, bridge: &str) -> Vec<String> {
        let link = shell_word(bridge);
        match (&self.tool, self.place) {
            (Tool::Iptables(tool), Place::Forward) => {
                ["-i", "-o"].map(|side| format!("{tool} -I {FORWARD} {side} {link} -j ACCEPT")).to_vec()
            }
            (Tool::Nft(family, table), Place::Forward) => ["iifname", "oifname"]
                .map(|side| {
                    let rule = format!("insert rule {family} {table} {} {side} \"{bridge}\" accept", self.name);
                    format!("nft {}", shell_word(&rule))
                })
                .to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns what containers cannot do if the chain drops everything.
    fn consequence(&self, filtered: bool) -> &'static str {
        match self.place {
            Place::Forward if filtered => "containers can reach neither each other nor other networks",
            Place::Forward => "containers cannot reach other networks",
            Place::Input => "containers cannot reach services of this host, such as DNS",
            Place::WithinBridge => "containers on a bridge cannot reach each other",
            Place::BridgeToHost => "containers cannot reach the gateway",
        }
    }

    /// Returns which packets pass the chain.
    fn scope(&self, filtered: bool) -> &'static str {
        match self.place {
            Place::Forward if filtered => "br_netfilter is on, so bridged packets pass it too",
            Place::Forward => "packets within a bridge do not pass it",
            Place::Input => "containers may need services of this host, such as DNS",
            Place::WithinBridge => "packets between containers on a bridge pass it",
            Place::BridgeToHost => "packets between containers and the gateway pass it",
        }
    }
}

/// Reads lines of a save tool, and follows the packets of a bridge through them.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(lines: &[String]) {
    let Ok(chains) = read::from_legacy(lines, "iptables-legacy", FORWARD) else { return };
    let packets = Packets {
        links: [Some(vec!["br0".to_owned()]), None],
        addresses: [Some(vec![Cidr::host([10, 22, 0, 2].into())]), None],
        families: vec![Family::Ipv4],
        ..Packets::default()
    };
    for (drops, is_accepted) in [(false, false), (true, false), (true, true)] {
        let effect = follow(&chains, FORWARD, drops, &packets, is_accepted);
        assert!(effect.rules.iter().all(|rule| rule.verdict == path::Verdict::Refuse), "{effect:?}");
        assert!(!(is_accepted && effect.drops_unaccepted), "{effect:?}");
    }
}
