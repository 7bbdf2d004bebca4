//! Checks whether the host's firewall lets packets of containers pass.
//!
//! A packet must pass every base chain of a hook, in nf_tables and in legacy tables. In each of them, the first rule
//! that matches decides. A plugin can accept packets in a chain of its own choice, but not in the chains of other
//! programs.

#[cfg(feature = "fuzzing")]
mod fuzzing;
mod nat;
mod packets;
mod path;
mod read;

#[cfg(feature = "fuzzing")]
pub(crate) use fuzzing::fuzz;

use cni::Result;
use cni::inspect::{Command, CommandLine, Finding, ForwardChain, Id, Level, Subject};
use linux::iptables::{FAMILIES, LegacyTable, Tools};
use linux::netlink::nft::{BaseChain, Family, Nftables, Side, Table};
use linux::{sysctl, tool};

use super::{Report, Selection};
use crate::node::{Network, Node, State};
use packets::Surroundings;
use path::{Chains, Effect, Last, Rule, follow, refusing};

/// The check of all findings about chains.
const CHECK: &str = "firewall";
/// The tables of iptables in which rules drop packets, with the priority of their chains. Plugins accept in `filter`.
const TABLES: [(&str, i32); 4] = [("raw", -300), ("mangle", -150), (FILTER, 0), ("security", 50)];
const FILTER: &str = "filter";
/// The chains of iptables.
const FORWARD: &str = "FORWARD";
const INPUT: &str = "INPUT";
/// The kernel's numbers of the hooks for packets that arrive, for those to this host, for those that it sends, and for
/// those that leave.
const PREROUTING: u32 = 0;
const LOCAL_INPUT: u32 = 1;
const LOCAL_OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
/// The prefix of tables that plugins create, here and in the reference.
const OF_PLUGINS: &str = "cni_";

/// A base chain with the chains that it leads to.
#[derive(Debug)]
struct Base {
    /// The name in its table.
    name: String,
    /// The name for a reader.
    title: String,
    family: Family,
    place: PacketPath,
    /// Chains of a hook with a lower priority are earlier.
    priority: i32,
    /// Whether the policy is to drop packets.
    drops: bool,
    chains: Chains,
    tool: Tool,
}

/// What changes a chain.
#[derive(Debug)]
enum Tool {
    /// A program of iptables for the table `filter` in nf_tables.
    Iptables(&'static str),
    /// A program of iptables for a legacy table.
    Legacy(&'static str, &'static str),
    /// The program that owns this table of nf_tables.
    Nft(String),
}

/// Which packets pass a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PacketPath {
    /// Those that arrive, before the kernel looks for their route.
    Prerouting,
    /// Those that are not addressed to this host.
    Forward,
    /// Those to this host.
    Input,
    /// Those that leave.
    Postrouting,
    /// Frames between the ports of a bridge.
    WithinBridge,
    /// Frames between a bridge and this host.
    BridgeToHost,
}

/// What a base chain does to the packets of all networks.
#[derive(Debug, Default)]
struct Blocked<'a> {
    /// The bridges whose packets, in a direction, are dropped unless a rule accepts them.
    unaccepted: Vec<(&'a str, Side)>,
    /// What drops them.
    last: Option<Last>,
    /// The bridges on which rules drop packets, and these rules.
    dropped: Vec<&'a str>,
    rules: Vec<&'a Rule>,
    /// The rule that drops all packets before they get to the rules of the plugin `firewall`, and the bridges.
    above: Option<&'a Rule>,
    behind: Vec<&'a str>,
    /// The rules that drop packets on conditions that are not examined.
    unclear: Vec<&'a Rule>,
}

impl PacketPath {
    /// Returns whether packets between containers and other networks pass it.
    fn is_on_the_way(self) -> bool {
        matches!(self, PacketPath::Prerouting | PacketPath::Forward | PacketPath::Postrouting)
    }
}

impl<'a> Blocked<'a> {
    fn is_empty(&self) -> bool {
        self.unaccepted.is_empty() && self.rules.is_empty() && self.above.is_none()
    }

    /// Adds what a chain does to the packets on a bridge in a direction.
    fn add(&mut self, bridge: &'a str, side: Side, effect: Effect<'a>) {
        let insert = |list: &mut Vec<&'a str>| {
            if !list.contains(&bridge) {
                list.push(bridge);
            }
        };
        if let Some(last) = effect.last {
            // Several networks can share a bridge.
            if !self.unaccepted.contains(&(bridge, side)) {
                self.unaccepted.push((bridge, side));
            }
            self.last = Some(last);
        }
        if let Some(rule) = effect.above {
            insert(&mut self.behind);
            self.above = Some(rule);
        }
        self.unclear.extend(effect.unclear);
        effect.rules.into_iter().for_each(|rule| self.add_rule(bridge, rule));
    }

    /// Adds a rule that drops packets on a bridge.
    fn add_rule(&mut self, bridge: &'a str, rule: &'a Rule) {
        if !self.dropped.contains(&bridge) {
            self.dropped.push(bridge);
        }
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }
}

pub(super) fn check(scope: &Selection, report: &mut Report) -> Result<()> {
    let gateways: Vec<(&Network, &str)> = scope.networks().filter_map(gateway).collect();
    if gateways.is_empty() {
        return Ok(());
    }
    let filtered = sysctl::read(&["net", "bridge", "bridge-nf-call-iptables"])?.is_some_and(|value| value != "0");
    check_chains(&scope.node, &gateways, filtered, report)?;
    nat::check(scope, &gateways, report)?;
    let text = match filtered {
        true => "on: packets within a bridge pass the firewall",
        false => "off (kube-proxy needs it on for services)",
    };
    report.host(Finding::ok("br_netfilter", Id("br-netfilter"), text));
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
        for (name, priority) in TABLES {
            if let Some(table) = tools.legacy_table(name)? {
                bases.extend(in_legacy_table(&table, tools.family, name, priority)?);
            }
        }
    }
    bases.sort_by_key(|base| (base.place, base.priority));
    let uplink = node.uplink().map(|link| link.name.clone());
    for base in &bases {
        match base.blocked(node, gateways, &bases, uplink.as_deref()) {
            Ok(blocked) => {
                is_blocked |= base.place.is_on_the_way() && !blocked.is_empty();
                report.unclear_rules(blocked.unclear.iter().map(|rule| rule.name.as_str()));
                base.describe(&blocked, filtered).into_iter().for_each(|finding| report.host(finding));
            }
            Err(error) => {
                report.unseen(error.to_string());
                is_complete = false;
            }
        }
    }
    if !is_blocked && is_complete {
        report.host(Finding::ok(CHECK, Id("firewall-open"), "no chain drops forwarded packets of containers"));
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
            (false, PREROUTING) => PacketPath::Prerouting,
            (false, BaseChain::FORWARD) => PacketPath::Forward,
            (false, LOCAL_INPUT) => PacketPath::Input,
            (false, POSTROUTING) => PacketPath::Postrouting,
            (true, BaseChain::FORWARD) => PacketPath::WithinBridge,
            (true, _) => PacketPath::BridgeToHost,
            (false, _) => continue,
        };
        let table = Table { family, name: &chain.table };
        let chains = read::from_nftables(&mut nft, table, &chain.name, &node.links)?;
        let is_iptables = chain.table == FILTER && [FORWARD, INPUT].contains(&chain.name.as_str());
        let tool = match family {
            Family::Ipv4 if is_iptables => Tool::Iptables(installed(["iptables-nft", "iptables"])),
            Family::Ipv6 if is_iptables => Tool::Iptables(installed(["ip6tables-nft", "ip6tables"])),
            _ => Tool::Nft(chain.table.clone()),
        };
        let (title, priority, drops) = (chain.to_string(), chain.priority, chain.drops);
        bases.push(Base { title, name: chain.name, family, place, priority, drops, chains, tool });
    }
    Ok(bases)
}

/// Returns the first of these programs if the host has it, otherwise the second. The second may change legacy tables.
fn installed([first, second]: [&'static str; 2]) -> &'static str {
    if tool::find(first).is_some() { first } else { second }
}

/// Reads the chains of a legacy table, which nf_tables does not list.
fn in_legacy_table(table: &LegacyTable, family: Family, of: &'static str, priority: i32) -> Result<Vec<Base>> {
    let mut bases = Vec::new();
    let tool = table.save.trim_end_matches("-save");
    let title = if of == FILTER { String::new() } else { format!(" -t {of}") };
    for (name, place) in [
        ("PREROUTING", PacketPath::Prerouting),
        (FORWARD, PacketPath::Forward),
        (INPUT, PacketPath::Input),
        ("POSTROUTING", PacketPath::Postrouting),
    ] {
        let policy = table.lines.iter().find_map(|line| line.strip_prefix(&format!(":{name} ")));
        let Some(policy) = policy else { continue };
        bases.push(Base {
            name: name.to_owned(),
            title: format!("{name} of {}{title}", table.save),
            family,
            place,
            priority,
            drops: policy.starts_with("DROP"),
            chains: read::from_legacy(&table.lines, name)?,
            tool: Tool::Legacy(tool, of),
        });
    }
    Ok(bases)
}

impl Base {
    /// Returns whether the chain leads to the rules in which the plugin `firewall` accepts packets.
    fn leads_to_acceptance(&self) -> bool {
        path::leads_to_acceptance(&self.chains, &self.name)
    }

    /// Returns whether a plugin of the network accepts its packets in this chain. `bases` are all chains.
    ///
    /// An ADD makes the chain lead to the plugin's rules. If no chain leads there any more, the plugin reports it. But
    /// if one does and this one does not, it came into use later.
    fn is_accepted(&self, node: &Node, network: &Network, bases: &[Base]) -> Result<bool> {
        let chain = match &self.tool {
            Tool::Iptables(_) => ForwardChain::Iptables,
            Tool::Legacy(_, FILTER) => ForwardChain::Legacy,
            Tool::Legacy(..) => return Ok(false),
            Tool::Nft(table) => ForwardChain::InTable(table),
        };
        if self.place != PacketPath::Forward || !network.accepts_in(chain)? {
            return Ok(false);
        }
        let is_other = |base: &&Base| base.family == self.family && base.place == self.place;
        let is_led = bases.iter().filter(is_other).any(Base::leads_to_acceptance);
        let has_containers = || node.attachments(network).iter().any(|at| at.state == State::Alive);
        let is_left_out = is_led && !self.leads_to_acceptance() && has_containers();
        Ok(!is_left_out || matches!(self.tool, Tool::Nft(..)))
    }

    /// Follows the packets of all networks through the chain. `bases` are all chains.
    fn blocked<'a>(
        &'a self,
        node: &Node,
        gateways: &[(&'a Network, &'a str)],
        bases: &[Base],
        uplink: Option<&str>,
    ) -> Result<Blocked<'a>> {
        let mut blocked = Blocked::default();
        for (network, bridge) in gateways {
            let families = used_families(&[(network, bridge)]);
            if self.family != Family::Bridge && self.family != Family::Inet && !families.contains(&self.family) {
                continue;
            }
            let is_accepted = self.is_accepted(node, network, bases)?;
            if is_accepted && matches!(self.tool, Tool::Nft(..)) {
                continue;
            }
            let host = Surroundings { node, uplink, priority: self.priority };
            for (side, packets) in host.packets(self.place, network, bridge, &families) {
                blocked.add(bridge, side, follow(&self.chains, &self.name, self.drops, &packets, is_accepted));
            }
            for packets in host.by_uplink(self.place, network, bridge, &families) {
                if let Some(rule) = refusing(&self.chains, &self.name, &packets, is_accepted) {
                    blocked.add_rule(bridge, rule);
                }
            }
        }
        Ok(blocked)
    }

    /// Returns the findings about the chain.
    fn describe(&self, blocked: &Blocked<'_>, filtered: bool) -> Vec<Finding> {
        let links = |bridges: &[&str]| bridges.iter().map(|bridge| Subject::link(bridge)).collect::<Vec<_>>();
        let rule = |rule: &&Rule| Subject::new("rule", rule.name.as_str());
        let mut findings = Vec::new();
        if let Some(last) = blocked.last {
            findings.push(self.describe_unaccepted(&blocked.unaccepted, last, filtered));
        }
        if let Some(above) = &blocked.above {
            let what = format!(
                "a rule of chain {} drops all packets before they get to the rules of the plugin \"firewall\": {}",
                self.title,
                self.consequence(filtered)
            );
            let remedy = "decide whether the rule should apply to containers; if not, move it behind the rule that leads to \
                          CNI-FORWARD";
            let finding = Finding::fail(CHECK, Id("firewall-rule-above-plugin"), what)
                .about([rule(above)])
                .about(links(&blocked.behind));
            findings.push(finding.remedy(remedy));
        }
        if !blocked.rules.is_empty() {
            let subject = match blocked.rules.len() {
                1 => format!("a rule of chain {} drops packets", self.title),
                number => format!("{number} rules of chain {} drop packets", self.title),
            };
            let what = format!("{subject} on {}; {}", blocked.dropped.join(", "), self.scope(filtered));
            let subjects = links(&blocked.dropped).into_iter().chain(blocked.rules.iter().map(rule));
            let remedy =
                "decide whether the rule should apply to containers; if not, remove or change it where it was added";
            findings.push(Finding::warn(CHECK, Id("firewall-rule-drops"), what).about(subjects).remedy(remedy));
        }
        findings
    }

    /// Describes a chain that drops the packets that none of its rules accepts, on these bridges in these directions.
    fn describe_unaccepted(&self, unaccepted: &[(&str, Side)], last: Last, filtered: bool) -> Finding {
        let is_first = match last {
            Last::Rule(number) => number == 1,
            Last::Policy => self.chains.get(&self.name).is_none_or(Vec::is_empty),
        };
        let level = if is_first && self.place != PacketPath::Input { Level::Fail } else { Level::Warn };
        let what = match is_first {
            true => format!("chain {} drops everything: {}", self.title, self.consequence(filtered)),
            false => {
                format!("chain {} drops packets that none of its rules accepts; {}", self.title, self.scope(filtered))
            }
        };
        let mut bridges: Vec<&str> = unaccepted.iter().map(|(bridge, _)| *bridge).collect();
        bridges.dedup();
        let names = bridges.join(", ");
        let remedy = match (self.place, &self.tool) {
            (PacketPath::Forward, Tool::Iptables(_) | Tool::Legacy(_, FILTER)) => {
                "accept the packets there, or attach containers with the plugin \"firewall\", which does so".to_owned()
            }
            (PacketPath::Forward, Tool::Legacy(..) | Tool::Nft(_))
            | (PacketPath::Prerouting | PacketPath::Postrouting, _) => {
                format!("accept packets from and to {names} in the configuration of the program that owns the chain")
            }
            (PacketPath::Input, _) => format!("accept the services that containers on {names} need"),
            (PacketPath::WithinBridge | PacketPath::BridgeToHost, _) => format!("accept the frames of {names} there"),
        };
        let chain = Subject::new("chain", self.title.as_str());
        let finding = Finding::new(level, CHECK, Id("firewall-chain-drops"), what)
            .about([chain])
            .about(bridges.into_iter().map(Subject::link));
        finding.remedy(remedy).run(unaccepted.iter().filter_map(|(bridge, side)| self.accept(bridge, *side, last)))
    }

    /// Returns the command that accepts forwarded packets on a bridge if no rule has decided about them: in the chain
    /// of iptables, which all programs share. Other chains belong to a program, which services of this host containers
    /// need is not known, and a frame is not accepted without knowing its purpose.
    fn accept(&self, bridge: &str, side: Side, last: Last) -> Option<CommandLine> {
        let (Tool::Iptables(tool) | Tool::Legacy(tool, FILTER), PacketPath::Forward) = (&self.tool, self.place) else {
            return None;
        };
        Some(match (last, side) {
            (Last::Policy, Side::From) => Command::AcceptFrom.line(&[tool, bridge]),
            (Last::Policy, Side::To) => Command::AcceptTo.line(&[tool, bridge]),
            (Last::Rule(number), Side::From) => Command::AcceptFromBefore.line(&[tool, &number.to_string(), bridge]),
            (Last::Rule(number), Side::To) => Command::AcceptToBefore.line(&[tool, &number.to_string(), bridge]),
        })
    }

    /// Returns what containers cannot do if the chain drops everything.
    fn consequence(&self, filtered: bool) -> &'static str {
        match self.place {
            PacketPath::Forward if filtered => "containers can reach neither each other nor other networks",
            PacketPath::Forward | PacketPath::Postrouting => "containers cannot reach other networks",
            PacketPath::Prerouting => "containers can reach neither this host nor other networks",
            PacketPath::Input => "containers cannot reach services of this host, such as DNS",
            PacketPath::WithinBridge => "containers on a bridge cannot reach each other",
            PacketPath::BridgeToHost => "containers cannot reach the gateway",
        }
    }

    /// Returns which packets pass the chain.
    fn scope(&self, filtered: bool) -> &'static str {
        match self.place {
            PacketPath::Forward if filtered => "br_netfilter is on, so bridged packets pass it too",
            PacketPath::Forward => "packets within a bridge do not pass it",
            PacketPath::Prerouting => "packets that arrive from containers pass it",
            PacketPath::Postrouting => "packets that leave to containers, and to other networks, pass it",
            PacketPath::Input => "containers may need services of this host, such as DNS",
            PacketPath::WithinBridge => "packets between containers on a bridge pass it",
            PacketPath::BridgeToHost => "packets between containers and the gateway pass it",
        }
    }
}
