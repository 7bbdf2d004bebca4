//! For tools: reads configurations, lists accepted addresses and ingress policies, reports problems, and repairs rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::inspect::{
    Finding, Fix, ForwardChain, Inspect, Kind, Level, NetworkView, Object, Owner, Property, Settings, Shape, Subject,
    Usage,
};
use cni::key::{AliasOwner, mark_in};
use cni::{
    AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, ErrorCollector, Namespaces, Result, evidence,
};
use linux::iptables::{FAMILIES, ListedRule, Tools, View, words};
use linux::log::debug;
use linux::netlink::Netlink;
use linux::netlink::nft::{BaseChain, Family, Nftables, Table};

use crate::add::{Traffic, connect};
use crate::config::{self, Backend, Config, IngressPolicy};
use crate::filter::{CONTAINERS, FILTER, FORWARD, address_rules};
use crate::firewalld::Firewalld;
use crate::policy::{self, Policy, STAGE_1, STAGE_2};
use crate::status::FIREWALLD;
use crate::{Firewall, check, isolation, removal};

/// The kinds of objects that the plugin creates.
static KINDS: [Kind; 2] = [
    Kind { name: "firewall", noun: "accepted address", flag: "accepted", json: "acceptedAddresses", is_listed: true },
    Kind { name: "policy", noun: "ingress policy", flag: "policy", json: "ingressPolicy", is_listed: false },
];
/// What holds the objects: even with the backend `nftables`, the tables of iptables.
const IPTABLES: &str = "iptables";
/// What holds the isolated ports.
const NFTABLES: &str = "nftables";
/// The remedy if something of an attached container is missing.
const REPAIR_HINT: &str = "something changed the host's firewall; `cnitool repair` restores it";

impl Inspect for Firewall {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let config = Config::parse(call)?;
        let nftables = match config.backend {
            Backend::Auto | Backend::Iptables => Usage::Preferred,
            Backend::Nftables => Usage::Required,
            Backend::Firewalld if config.ingress == IngressPolicy::Open => Usage::No,
            Backend::Firewalld => Usage::Preferred,
        };
        Ok(Settings { nftables, ..Settings::default() })
    }

    fn kinds(&self) -> &'static [Kind] {
        &KINDS
    }

    /// Lists the addresses that are accepted by rules with a mark, the bridges with a policy, and the isolated ports. Rules without a mark, which
    /// the reference adds, and addresses in a zone of firewalld have no known owner.
    fn objects(&self) -> Result<Vec<Object>> {
        let mut nft = Nftables::open()?;
        let mut accepted: BTreeSet<(IpAddr, String)> = BTreeSet::new();
        let mut policies: BTreeMap<String, String> = BTreeMap::new();
        for tools in &FAMILIES {
            let marked = nft.rules_with_mark(tools.table(FILTER).chain(CONTAINERS), &|mark| mark_in(mark).is_some())?;
            for rule in marked {
                let mark = rule.mark.clone();
                let address = read_rule(tools, &ListedRule::Nft(Box::new(rule)));
                accepted.extend(address.map(|(ip, _)| (ip, mark)));
            }
            for_each_table(&mut nft, tools, STAGE_1, |view| {
                for chain in [STAGE_1, STAGE_2] {
                    for rule in view.rules(chain)?.into_iter().filter(policy::is_policy) {
                        for link in rule.links() {
                            policies.entry(link).or_insert_with(|| rule.comment());
                        }
                    }
                }
                Ok(())
            })?;
        }
        let accepted = accepted.into_iter().map(|(ip, mark)| accepted_object(mark, ip));
        let policies = policies.into_iter().map(|(bridge, comment)| policy_object(bridge, comment));
        let ports = isolation::ports(&mut nft)?.into_iter().map(|(port, comment)| port_object(port, comment));
        Ok(accepted.chain(policies).chain(ports).collect())
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        if network.objects.is_none() {
            return Ok(Vec::new());
        }
        let mut nft = Nftables::open()?;
        let acceptance = Acceptance::read(&mut nft)?;
        Checker { network, config: &config, nft, host: Netlink::open()?, acceptance }.run()
    }

    fn accepts_in(&self, call: &Call<'_>, chain: ForwardChain<'_>) -> Result<bool> {
        let uses_firewalld = connect(&Config::parse(call)?)?.is_some();
        Ok(match chain {
            ForwardChain::Iptables => !uses_firewalld,
            ForwardChain::InTable(table) => uses_firewalld && table == FIREWALLD,
        })
    }

    /// Accepts the traffic of an attachment again, and applies its policy again, if CHECK finds a difference.
    ///
    /// The container must still have its interface with the addresses of the result of ADD, so that no traffic of another
    /// container is accepted.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let restored = restore(call, at).context(|| "accept the traffic again")?;
        Ok(restored.then_some("rules of the firewall"))
    }
}

fn accepted_object(comment: String, ip: IpAddr) -> Object {
    Object {
        kind: &KINDS[0],
        owner: owner_in(&comment),
        backend: IPTABLES,
        address: Some(ip),
        name: ip.to_string(),
        detail: String::new(),
        properties: vec![("address", Property::Address(Some(ip)))],
        about: about(&comment),
        comment,
    }
}

fn port_object(port: String, comment: String) -> Object {
    Object {
        kind: &KINDS[1],
        owner: owner_in(&comment),
        backend: NFTABLES,
        address: None,
        name: port,
        detail: String::new(),
        properties: Vec::new(),
        about: about(&comment),
        comment,
    }
}

/// Returns the owner that the comment of an attachment names.
fn owner_in(comment: &str) -> Owner {
    Owner::Marked(mark_in(comment).unwrap_or(comment).to_owned())
}

/// Returns what the comment of an attachment says after its mark.
fn about(comment: &str) -> String {
    comment.split_once(", net: ").map_or(comment, |(_, about)| about).to_owned()
}

fn policy_object(bridge: String, comment: String) -> Object {
    Object {
        kind: &KINDS[1],
        backend: IPTABLES,
        address: None,
        name: bridge.clone(),
        detail: String::new(),
        properties: Vec::new(),
        owner: Owner::Port(bridge),
        about: comment.clone(),
        comment,
    }
}

/// Returns the address that a rule of [`CONTAINERS`] is for, and which of the address's rules it is.
fn read_rule(tools: &Tools, rule: &ListedRule) -> Option<(IpAddr, usize)> {
    let candidates: Vec<IpAddr> = match rule {
        ListedRule::Nft(rule) => rule.values.iter().filter_map(|value| address(value)).collect(),
        ListedRule::Legacy(text) => {
            words(text).iter().filter_map(|word| word.split_once('/')?.0.parse().ok()).collect()
        }
    };
    candidates.into_iter().filter(|ip| tools.includes(*ip)).find_map(|ip| {
        let which = address_rules(ip, None).iter().position(|wanted| rule.is_same_as(wanted, tools.family))?;
        Some((ip, which))
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Calls `work` for each table of a family with this chain: that in nf_tables, and the legacy one.
fn for_each_table(
    nft: &mut Nftables,
    tools: &Tools,
    chain: &str,
    mut work: impl FnMut(&mut View<'_>) -> Result<()>,
) -> Result<()> {
    let table = tools.table(FILTER);
    if nft.has_chain(table.chain(chain))? {
        work(&mut View::Nft(nft, table))?;
    }
    match tools.legacy_table_in_use(FILTER)?.filter(|legacy| legacy.has_chain(chain)) {
        Some(legacy) => work(&mut View::Legacy(&legacy.lines)),
        None => Ok(()),
    }
}

/// What the rules of this host accept.
struct Acceptance {
    /// For each table: its family, whether packets reach the rules, and the accepted addresses.
    tables: Vec<(Family, bool, Vec<IpAddr>)>,
}

impl Acceptance {
    fn read(nft: &mut Nftables) -> Result<Acceptance> {
        let mut tables = Vec::new();
        for tools in &FAMILIES {
            for_each_table(nft, tools, CONTAINERS, |view| {
                let is_reached = view.rules(FORWARD)?.iter().any(|rule| rule.is_jump_to(CONTAINERS));
                // The reference does not add the third rule.
                let mut found: BTreeMap<IpAddr, [bool; 3]> = BTreeMap::new();
                for (ip, which) in view.rules(CONTAINERS)?.iter().filter_map(|rule| read_rule(tools, rule)) {
                    if let Some(rule) = found.entry(ip).or_default().get_mut(which) {
                        *rule = true;
                    }
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

/// Compares the host's firewall with the live attachments of a network.
struct Checker<'a> {
    network: &'a NetworkView<'a>,
    config: &'a Config,
    nft: Nftables,
    host: Netlink,
    acceptance: Acceptance,
}

/// The accepted traffic of the live attachments of a network.
#[derive(Default)]
struct Comparison {
    /// The number of attachments that have addresses.
    count: usize,
    /// Of each attachment whose traffic is not accepted, the first such address.
    lacking: Vec<IpAddr>,
    /// These attachments.
    affected: Vec<Subject>,
    /// The addresses that rules accept.
    by_rules: Vec<IpAddr>,
    /// The attachments with these addresses.
    accepted: Vec<Subject>,
}

impl Checker<'_> {
    /// Reports attachments whose traffic is not accepted, rules that no packet reaches, and a policy that is not in effect.
    fn run(&mut self) -> Result<Vec<Finding>> {
        let [acceptance, _] = &KINDS;
        let Comparison { count, lacking, affected, by_rules, accepted } = self.compare()?;
        let mut findings = Vec::new();
        let level = if lacking.is_empty() && by_rules.is_empty() { Level::Ok } else { self.severity()? };
        if let Some(first) = lacking.first() {
            let text = format!("{} of {count} live containers lack their rules, such as {first}", lacking.len());
            findings.push(finding(acceptance, level, format!("{text}{}", consequence(level))).about(affected));
        }
        for tools in &FAMILIES {
            let is_used = by_rules.iter().any(|ip| tools.includes(*ip));
            if is_used && self.acceptance.is_cut_off(tools.family) {
                let table = tools.table(FILTER);
                let text = format!("no rule in chain {FORWARD} of table {table} leads to chain {CONTAINERS}");
                let finding = finding(acceptance, level, format!("{text}{}", consequence(level)));
                findings.push(finding.about(accepted.iter().cloned()));
            }
        }
        if findings.is_empty() && count > 0 {
            findings.push(Finding::ok(acceptance.name, "the traffic of live containers is accepted"));
        }
        findings.extend(self.policy_findings()?);
        Ok(findings)
    }

    /// Compares the addresses of live attachments with those that rules or firewalld accept.
    fn compare(&self) -> Result<Comparison> {
        let mut firewalld = None;
        let mut comparison = Comparison::default();
        for at in self.network.alive {
            // The addresses that an IPAM plugin without leases has assigned are only in the result.
            let added = at
                .added
                .as_ref()
                .map(|added| added.with_call(|call, _| Ok(crate::add::addresses(&call.chained_result()?))));
            let ips = match added {
                Some(Ok(ips)) => ips,
                Some(Err(_)) | None => at.addresses.clone(),
            };
            comparison.count += usize::from(!ips.is_empty());
            match ips.iter().copied().find(|ip| !self.acceptance.includes(*ip)) {
                Some(_) if self.is_in_zone(&mut firewalld, &ips)? => {}
                Some(ip) => {
                    comparison.lacking.push(ip);
                    comparison.affected.push(at.subject.clone());
                }
                None => {
                    comparison.by_rules.extend(ips);
                    comparison.accepted.push(at.subject.clone());
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

    /// Reports rules of the ingress policy that are missing, and ports that should be isolated. The policies of bridges that
    /// are gone are objects.
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
            findings.push(Finding::ok(policy.name, "the ingress policy of live containers is in effect"));
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
            && !port.is_isolated(&mut self.nft, traffic.owner)?
        {
            into.ports.push((port.name.to_owned(), subject.clone()));
        }
        for tools in FAMILIES.iter().filter(|tools| traffic.ips.iter().any(|ip| tools.includes(*ip))) {
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

fn finding(kind: &Kind, level: Level, what: String) -> Finding {
    Finding::new(level, kind.name, what).remedy(REPAIR_HINT).fix(Fix::Repair)
}

/// Accepts the traffic of an attachment. Returns `false` if there is nothing to restore.
fn restore(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(result) = call.prev_result()? else { return Ok(false) };
    let mut host = Netlink::open()?;
    let traffic = Traffic::new(call, at, &config, &result, &mut host)?;
    let is_isolated = match traffic.policy.as_ref().and_then(Policy::isolated_port) {
        Some(port) => port.is_isolated(&mut Nftables::open()?, traffic.owner)?,
        None => true,
    };
    if traffic.ips.is_empty() || (is_isolated && check::run(&traffic).is_ok()) {
        return Ok(false);
    }
    require_attached(call, at, &traffic, &result)?;
    traffic.accept(host)?;
    // A concurrent DEL of another runtime may have looked for rules before, and then removes the interface.
    if let Err(gone) = require_attached(call, at, &traffic, &result) {
        let mut failures = ErrorCollector::default();
        failures.record(Err(gone));
        failures.record(removal::remove(traffic.owner, &traffic.ips, &config.zone, config.backend));
        return failures.into_result().map(|()| false);
    }
    Ok(true)
}

/// Returns an error unless the container has its interface with the addresses of the result, and its link on this host.
fn require_attached(call: &Call<'_>, at: &Attachment, traffic: &Traffic<'_>, result: &AddResult) -> Result<()> {
    let fail = |what: String| Err(Error::new(Code::INTERNAL, what).details("attach the container again"));
    let mut namespaces = Namespaces::open(call, at)?;
    let mut guest = namespaces.open_guest(at)?;
    let interface = guest.interface()?;
    let have = guest.netlink.addresses(interface.index)?;
    if let Some(ip) = traffic.ips.iter().find(|ip| !have.iter().any(|address| address.cidr.ip() == **ip)) {
        let (ifname, sandbox) = (at.ifname.as_str(), at.sandbox());
        return fail(format!("interface {ifname:?} in {sandbox:?} does not have the address {ip}"));
    }
    let Some(port) = evidence::host_link(result, at) else { return Ok(()) };
    match namespaces.host.netlink.link(port)? {
        Some(link) if !belongs_to_other(&link.alias, traffic.owner) => Ok(()),
        _ => fail(format!("link {port:?} of the container does not exist, or belongs to another container")),
    }
}

/// Returns whether an alias names another attachment. An alias that is cut could name any.
fn belongs_to_other(alias: &str, owner: AttachmentKey<'_>) -> bool {
    AliasOwner::parse(alias).is_some_and(|found| found.attachment.is_some())
        && !owner.aliases().iter().any(|own| own == alias)
}
