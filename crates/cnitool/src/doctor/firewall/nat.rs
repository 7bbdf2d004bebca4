//! Finds rules that translate addresses before the rules of plugins do: only the first translation of a connection
//! counts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::Result;
use cni::inspect::{Finding, Id, Object, Property, Subject};
use linux::ip::Cidr;
use linux::iptables::FAMILIES;
use linux::netlink::nft::{BaseChain, Family, Hook, Nftables, Table};

use super::packets::{Packets, Surroundings};
use super::path::{Chains, Last, Rule, Verdict, follow};
use super::{CHECK, LOCAL_OUTPUT, OF_PLUGINS, POSTROUTING, PREROUTING, PacketPath, read, used_families};
use crate::doctor::{Report, Selection};
use crate::node::{Network, Node, State};

/// The kind of published ports.
const PORTMAP: &str = "portmap";
/// The chain of iptables that leads to the published ports of plugins.
const OF_PORTMAP: &str = "CNI-HOSTPORT-DNAT";

/// A base chain that packets pass before, or together with, those of plugins.
struct Nat {
    name: String,
    title: String,
    family: Family,
    place: u32,
    priority: i32,
    chains: Chains,
}

/// Reports rules of other programs that lead published ports elsewhere, or give packets of containers another source.
pub(super) fn check(scope: &Selection, gateways: &[(&Network, &str)], report: &mut Report) -> Result<()> {
    let node = &scope.node;
    let found = list(node);
    let all = match found {
        Ok(all) => all,
        Err(error) => {
            report.unseen(error.to_string());
            return Ok(());
        }
    };
    for network in scope.networks() {
        for finding in published_ports(node, network, &all) {
            report.network(&network.name, finding);
        }
    }
    for (network, bridge) in gateways {
        let families = used_families(&[(network, bridge)]);
        for chain in all.iter().filter(|chain| chain.place == POSTROUTING) {
            if let Some(finding) = chain.other_source(node, network, bridge, &families) {
                report.network(&network.name, finding);
            }
        }
    }
    Ok(())
}

/// Reads the chains of nf_tables and of legacy tables, except those of plugins.
fn list(node: &Node) -> Result<Vec<Nat>> {
    let mut nft = Nftables::open()?;
    let mut all = Vec::new();
    let is_before = |chain: &BaseChain| match chain.place {
        PREROUTING => chain.priority <= Hook::LATE_DESTINATION_NAT.priority,
        LOCAL_OUTPUT => chain.priority <= Hook::LATE_LOCAL_DESTINATION_NAT.priority,
        POSTROUTING => chain.priority < Hook::SOURCE_NAT.priority,
        _ => false,
    };
    for chain in nft.base_chains()?.into_iter().filter(|chain| !chain.table.starts_with(OF_PLUGINS)) {
        let Some(family) = chain.family().filter(|family| *family != Family::Bridge && is_before(&chain)) else {
            continue;
        };
        let table = Table { family, name: &chain.table };
        let chains = read::from_nftables(&mut nft, table, &chain.name, &node.links)?;
        let (title, place, priority) = (chain.to_string(), chain.place, chain.priority);
        all.push(Nat { name: chain.name, title, family, place, priority, chains: translating(node, chains) });
    }
    for tools in FAMILIES {
        let Some(table) = tools.legacy_table("nat")? else { continue };
        for (name, place) in [("PREROUTING", PREROUTING), ("OUTPUT", LOCAL_OUTPUT)] {
            let name = name.to_owned();
            let chains = translating(node, read::from_legacy(&table.lines, &name)?);
            let title = format!("{name} of {} -t nat", table.save);
            let (family, priority) = (tools.family, Hook::DESTINATION_NAT.priority);
            all.push(Nat { name, title, family, place, priority, chains });
        }
    }
    all.sort_by_key(|chain| chain.priority);
    Ok(all)
}

/// Makes rules that translate decide, in place of those that refuse. What follows the rules of plugins does not count.
/// Answers to an address of this host arrive, as after the plugin's own masquerade.
fn translating(node: &Node, mut chains: Chains) -> Chains {
    let is_own = |ip: IpAddr| node.links.iter().flat_map(|link| node.addresses(link.index)).any(|own| own.ip() == ip);
    for rule in chains.values_mut().flatten() {
        match &rule.verdict {
            Verdict::TranslateSource(ip) if is_own(*ip) => rule.verdict = Verdict::Accept,
            Verdict::TranslateDestination | Verdict::TranslateSource(_) => rule.verdict = Verdict::Refuse,
            Verdict::Refuse => rule.verdict = Verdict::Accept,
            Verdict::Jump(chain) if chain == OF_PORTMAP => rule.verdict = Verdict::Accept,
            _ => {}
        }
    }
    chains
}

/// A published port as its object describes it.
struct Published {
    host: IpAddr,
    port: u16,
    /// Its number (linux/in.h).
    protocol: u8,
}

impl Published {
    fn read(object: &Object) -> Option<Published> {
        let property = |wanted: &str| object.properties.iter().find(|(key, _)| *key == wanted).map(|(_, value)| value);
        match (property("hostIP")?, property("hostPort")?, property("protocol")?) {
            (Property::Address(Some(host)), Property::Number(port), Property::Text(protocol)) => {
                Some(Published { host: *host, port: u16::try_from(*port).ok()?, protocol: read::protocol(protocol)? })
            }
            _ => None,
        }
    }
}

/// Reports published ports of live containers whose connections another rule translates first.
fn published_ports(node: &Node, network: &Network, all: &[Nat]) -> Vec<Finding> {
    let attachments = node.attachments(network);
    let objects = node.objects_of(&network.name).into_iter().filter(|object| object.kind.name == PORTMAP);
    let is_live = |object: &&Object| attachments.iter().any(|at| at.state == State::Alive && at.owns(object));
    let mut by_rule: BTreeMap<String, (&Nat, Vec<Subject>)> = BTreeMap::new();
    for object in objects.filter(is_live) {
        let Some(published) = Published::read(object) else { continue };
        // A rule for all connections is not reported again for those of this host.
        let at = |place| all.iter().filter(move |chain| chain.place == place);
        let first = at(PREROUTING).chain(at(LOCAL_OUTPUT));
        let mut first = first.filter_map(|chain| Some((chain, chain.translates(node, &published)?)));
        if let Some((chain, rule)) = first.next() {
            let (_, subjects) = by_rule.entry(rule.name.clone()).or_insert_with(|| (chain, Vec::new()));
            subjects.push(Subject::published_port(&object.name));
        }
    }
    let describe = |(rule, (chain, subjects)): (String, (&Nat, Vec<Subject>))| {
        let whose = if chain.place == LOCAL_OUTPUT { "connections of this host to a" } else { "a" };
        let title = &chain.title;
        let what = format!("a rule of chain {title} leads {whose} published port elsewhere, before the plugin does");
        let remedy = "decide which one needs the port, and remove the rule where it was added, or publish another port";
        Finding::fail(PORTMAP, Id("portmap-port-taken"), what)
            .about(subjects)
            .about([Subject::new("rule", rule)])
            .remedy(remedy)
    };
    by_rule.into_iter().map(describe).collect()
}

impl Nat {
    /// Returns the first rule that translates connections to a published port.
    fn translates(&self, node: &Node, published: &Published) -> Option<&Rule> {
        let family = Family::of(published.host);
        if self.family != family && self.family != Family::Inet {
            return None;
        }
        let of_host = || {
            let all = node.links.iter().flat_map(|link| node.addresses(link.index)).map(|cidr| cidr.ip());
            all.filter(|ip| ip.is_ipv4() == published.host.is_ipv4()).map(Cidr::host).collect::<Vec<_>>()
        };
        let to = if published.host.is_unspecified() { of_host() } else { vec![Cidr::host(published.host)] };
        let packets = Packets {
            addresses: [None, Some(to)],
            families: vec![family],
            port: Some(published.port),
            protocol: Some(published.protocol),
            to_host: Some(true),
            ..Packets::default()
        };
        let effect = follow(&self.chains, &self.name, false, &packets, false);
        let of_base = || match effect.last? {
            Last::Rule(number) => self.chains.get(&self.name)?.get(number - 1),
            Last::Policy => None,
        };
        effect.rules.into_iter().next().or_else(of_base)
    }

    /// Returns the finding about a rule that gives packets of a network another source than the plugin does, before it.
    fn other_source(&self, node: &Node, network: &Network, bridge: &str, families: &[Family]) -> Option<Finding> {
        let host = Surroundings { node, uplink: None, priority: self.priority };
        let packets = host.packets(PacketPath::Postrouting, network, bridge, families);
        let effects = packets.iter().map(|(_, packets)| follow(&self.chains, &self.name, false, packets, false));
        let rules: Vec<&Rule> = effects.flat_map(|effect| effect.rules).collect();
        let first = rules.first()?;
        let what = format!(
            "a rule of chain {} replaces the source of packets on {bridge} before the plugin does: answers may not arrive",
            self.title
        );
        let remedy =
            "decide whether these packets need that source; if not, remove or change the rule where it was added";
        let subjects = [Subject::new("rule", first.name.as_str()), Subject::link(bridge)];
        Some(Finding::warn(CHECK, Id("source-translated"), what).about(subjects).remedy(remedy))
    }
}
