//! Compares the host's firewall with the live attachments of a network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::inspect::{self, Finding, Fix, Id, Level, LiveAttachment, NetworkView, ObjectKind, Subject};
use cni::{Code, Result};
use linux::iptables::FAMILIES;
use linux::log::debug;
use linux::netlink::Netlink;
use linux::netlink::nft::{BaseChain, Family, Nftables, Table};

use super::{KINDS, for_each_table};
use crate::accepted::{self, Frame};
use crate::add::Traffic;
use crate::config::{Backend, Config, IngressPolicy};
use crate::filter::{self, CONTAINERS, FILTER, FORWARD, read_rule};
use crate::firewalld::Firewalld;
use crate::policy::STAGE_1;

/// The remedy if something of an attached container is missing.
const REPAIR_HINT: &str = "something changed the host's firewall; `cnitool repair` restores it";

/// Reports attachments whose traffic is not accepted, rules that no packet reaches, and a policy that is not in effect.
pub(super) fn findings(network: &NetworkView<'_>, config: &Config) -> Result<Vec<Finding>> {
    let mut nft = Nftables::open()?;
    let acceptance = Acceptance::read(&mut nft, config.accept_bit)?;
    Checker { network, config, nft, host: Netlink::open()?, acceptance }.run()
}

/// What the rules of this host accept.
struct Acceptance {
    /// For each table: its family, whether packets reach the rules, and the accepted addresses.
    tables: Vec<(Family, bool, Vec<IpAddr>)>,
}

impl Acceptance {
    /// Reads the tables. `bit` is that of the packet mark that accepted packets have.
    fn read(nft: &mut Nftables, bit: u32) -> Result<Acceptance> {
        let mut tables = Vec::new();
        let marked = if (Frame { bit }).is_complete(nft)? { accepted::list(nft)? } else { Vec::new() };
        for tools in &FAMILIES {
            for_each_table(nft, tools, CONTAINERS, |view| {
                let is_reached = view.rules(FORWARD)?.iter().any(|rule| rule.is_jump_to(CONTAINERS));
                // The reference does not add the third rule.
                let mut found: BTreeMap<IpAddr, [bool; 3]> = BTreeMap::new();
                let rules = view.rules(CONTAINERS)?;
                for (ip, which) in rules.iter().filter_map(|rule| read_rule(tools, rule)) {
                    if let Some(rule) = found.entry(ip).or_default().get_mut(which) {
                        *rule = true;
                    }
                }
                if filter::accept_mark(&rules, tools, bit) {
                    let of_family = marked.iter().filter(|(ip, _)| tools.includes(*ip));
                    found.extend(of_family.map(|(ip, _)| (*ip, [true; 3])));
                }
                let accepted = found.into_iter().filter(|(_, [replies, from, _])| *replies && *from);
                tables.push((tools.family, is_reached, accepted.map(|(ip, _)| ip).collect()));
                Ok(())
            })?;
        }
        Ok(Acceptance { tables })
    }

    /// Returns whether all tables of its family accept an address, and there is one.
    fn includes(&self, ip: IpAddr) -> bool {
        let mut tables = self.of_family(Family::of(ip)).peekable();
        tables.peek().is_some() && tables.all(|(_, _, ips)| ips.binary_search(&ip).is_ok())
    }

    /// Returns whether a table that accepts a family is not reached by packets.
    fn is_cut_off(&self, family: Family) -> bool {
        self.of_family(family).any(|(_, is_reached, _)| !is_reached)
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = &(Family, bool, Vec<IpAddr>)> {
        self.tables.iter().filter(move |(of, _, _)| *of == family)
    }
}

/// A network, and the state of the host that concerns it.
struct Checker<'a> {
    network: &'a NetworkView<'a>,
    config: &'a Config,
    nft: Nftables,
    host: Netlink,
    acceptance: Acceptance,
}

/// The accepted traffic of the live attachments of a network.
#[derive(Default)]
struct Comparison<'a> {
    /// The number of attachments that have addresses.
    count: usize,
    /// The attachments whose traffic is not accepted, each with the first such address.
    lacking: Vec<(&'a LiveAttachment, IpAddr)>,
    /// The addresses that rules accept.
    by_rules: Vec<IpAddr>,
    /// The attachments with these addresses.
    accepted: Vec<&'a LiveAttachment>,
}

impl<'a> Checker<'a> {
    fn run(&mut self) -> Result<Vec<Finding>> {
        let [acceptance, _] = &KINDS;
        let Comparison { count, lacking, by_rules, accepted } = self.compare()?;
        let level = if lacking.is_empty() && by_rules.is_empty() { Level::Ok } else { self.severity()? };
        let affected: Vec<&LiveAttachment> = lacking.iter().map(|(at, _)| *at).collect();
        let mut findings = inspect::lacking(&affected, REPAIR_HINT, |affected| {
            let of = |at: &LiveAttachment| lacking.iter().find(|(other, _)| std::ptr::eq(*other, at));
            let first = affected.first().and_then(|first| of(first)).map_or_else(String::new, |(_, ip)| ip.to_string());
            let text = format!("{} of {count} live containers lack their rules, such as {first}", affected.len());
            Finding::new(level, acceptance.name, Id("firewall-rules-missing"), format!("{text}{}", consequence(level)))
        });
        for tools in &FAMILIES {
            let is_used = by_rules.iter().any(|ip| tools.includes(*ip));
            if is_used && self.acceptance.is_cut_off(tools.family) {
                let table = tools.table(FILTER);
                let text = format!("no rule in chain {FORWARD} of table {table} leads to chain {CONTAINERS}");
                let finding = Finding::new(
                    level,
                    acceptance.name,
                    Id("firewall-rules-cut-off"),
                    format!("{text}{}", consequence(level)),
                );
                let finding = finding.about(accepted.iter().map(|at| at.subject.clone()));
                findings.push(match accepted.iter().any(|at| at.added.is_some()) {
                    true => finding.remedy(REPAIR_HINT).fix(Fix::Repair),
                    false => finding.remedy("the next add to the network restores the rule"),
                });
            }
        }
        if findings.is_empty() && count > 0 {
            findings.push(Finding::ok(
                acceptance.name,
                Id("firewall-rules-complete"),
                "the traffic of live containers is accepted",
            ));
        }
        findings.extend(self.policy_findings()?);
        Ok(findings)
    }

    /// Compares the addresses of live attachments with those that rules or firewalld accept.
    fn compare(&self) -> Result<Comparison<'a>> {
        let mut firewalld = None;
        let mut comparison = Comparison::default();
        for at in self.network.alive {
            let ips = &at.addresses;
            comparison.count += usize::from(!ips.is_empty());
            match ips.iter().copied().find(|ip| !self.acceptance.includes(*ip)) {
                Some(_) if self.is_in_zone(&mut firewalld, ips)? => {}
                Some(ip) => comparison.lacking.push((at, ip)),
                None => {
                    comparison.by_rules.extend(ips);
                    comparison.accepted.push(at);
                }
            }
        }
        Ok(comparison)
    }

    /// Returns whether firewalld is a backend of the network, and has all of these addresses in its zone.
    fn is_in_zone(&self, firewalld: &mut Option<Firewalld>, ips: &[IpAddr]) -> Result<bool> {
        if firewalld.is_none() && matches!(self.config.backend, Backend::Auto | Backend::Firewalld) {
            *firewalld = Firewalld::connect().or_else(|error| match error.code() {
                // It may be running.
                Code::TRY_LATER => Err(error),
                _ => {
                    debug!("firewalld cannot be used: {error}");
                    Ok(None)
                }
            })?;
        }
        let Some(firewalld) = firewalld else { return Ok(false) };
        for ip in ips {
            if !firewalld.query(&self.config.zone, *ip)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the severity of missing rules: whether any chain drops the forwarded packets that no rule accepts.
    fn severity(&mut self) -> Result<Level> {
        for chain in self.nft.base_chains()? {
            let is_ip = chain.sees(Family::Ipv4) || chain.sees(Family::Ipv6);
            let Some(family) = chain.family().filter(|_| is_ip && chain.place == BaseChain::FORWARD) else { continue };
            let table = Table { family, name: &chain.table };
            let mut rules = self.nft.rules(table.chain(&chain.name))?.into_iter();
            if chain.drops || rules.any(|rule| rule.is_unconditional() && rule.refuses()) {
                return Ok(Level::Fail);
            }
        }
        for tools in &FAMILIES {
            let lines = tools.legacy_table_in_use(FILTER)?.map(|table| table.lines).unwrap_or_default();
            let refuses = |line: &String| line.starts_with(":FORWARD DROP") || line.starts_with("-A FORWARD -j DROP");
            if lines.iter().any(refuses) {
                return Ok(Level::Fail);
            }
        }
        Ok(Level::Warn)
    }

    /// Reports rules of the ingress policy that are missing, and ports that should be isolated. The policies of bridges
    /// that are gone are objects.
    fn policy_findings(&mut self) -> Result<Vec<Finding>> {
        if self.config.ingress == IngressPolicy::Open {
            return Ok(Vec::new());
        }
        let PolicyComparison { affected, differences, ports } = self.compare_policy();
        let [_, policy] = &KINDS;
        let mut findings = Vec::new();
        let count = affected.len();
        if let Some(first) = differences.first() {
            let text = format!("containers can be reached in spite of the ingress policy: {first}");
            findings.push(finding(policy, Level::Warn, text).about(affected));
        }
        if let Some((first, _)) = ports.first() {
            let text = format!(
                "{} of {count} containers are not isolated from other containers of the bridge as the ingress policy \
                 requires: their ports, such as {first}",
                ports.len()
            );
            let subjects = ports.iter().flat_map(|(port, container)| [container.clone(), Subject::link(port)]);
            findings.push(finding(policy, Level::Warn, text).about(subjects));
        }
        if findings.is_empty() && count > 0 {
            findings.push(Finding::ok(
                policy.name,
                Id("policy-complete"),
                "the ingress policy of live containers is in effect",
            ));
        }
        Ok(findings)
    }

    /// Compares the ingress policy with the rules and ports of live attachments.
    fn compare_policy(&mut self) -> PolicyComparison {
        let mut comparison = PolicyComparison::default();
        for live in self.network.alive {
            let Some(added) = &live.added else { continue };
            let compared = added.with_call(|call, at| {
                let (config, result) = (Config::parse(call)?, call.chained_result()?);
                let traffic = Traffic::new(call, at, &config, &result, &mut self.host)?;
                self.compare_policy_of(&traffic, &live.subject, &mut comparison)
            });
            // Other attachments are compared all the same.
            if let Err(error) = compared {
                debug!("the policy for {} is unknown: {error}", added.attachment.container);
            }
        }
        comparison
    }

    /// Compares the ingress policy with the rules and the port of an attachment.
    fn compare_policy_of(
        &mut self,
        traffic: &Traffic<'_>,
        subject: &Subject,
        into: &mut PolicyComparison,
    ) -> Result<()> {
        let Some(policy) = &traffic.policy else { return Ok(()) };
        into.affected.push(subject.clone());
        if let Some(port) = policy.isolated_port()
            && !port.is_isolated(&mut self.nft)?
        {
            into.ports.push((port.name.to_owned(), subject.clone()));
        }
        for tools in &FAMILIES {
            if !traffic.concerns(tools)? {
                continue;
            }
            let mut is_found = false;
            for_each_table(&mut self.nft, tools, STAGE_1, |view| {
                is_found = true;
                let forward = view.rules(FORWARD)?;
                let is_strict = policy.is_marked(view)?;
                into.record(policy.difference(view, tools, &forward, is_strict)?);
                Ok(())
            })?;
            let missing = || format!("chain {STAGE_1} does not exist in table {}", tools.table(FILTER));
            into.record((!is_found).then(missing));
        }
        Ok(())
    }
}

/// How the rules and ports of live attachments differ from the ingress policy.
#[derive(Default)]
struct PolicyComparison {
    /// The attachments with a policy.
    affected: Vec<Subject>,
    /// How rules differ, each difference once.
    differences: Vec<String>,
    /// The ports that should be isolated, and their attachments.
    ports: Vec<(String, Subject)>,
}

impl PolicyComparison {
    fn record(&mut self, difference: Option<String>) {
        self.differences.extend(difference.filter(|text| !self.differences.contains(text)));
    }
}

/// Returns what follows from missing rules.
fn consequence(level: Level) -> &'static str {
    match level {
        Level::Fail => ": the host's firewall drops their packets",
        Level::Ok | Level::Warn => ", but no chain drops forwarded packets",
    }
}

fn finding(kind: &ObjectKind, level: Level, what: String) -> Finding {
    Finding::new(level, kind.name, Id("policy-incomplete"), what).remedy(REPAIR_HINT).fix(Fix::Repair)
}
