//! For tools: reads configurations, lists accepted addresses and ingress policies, reports problems, and repairs rules.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::inspect::{
    Finding, ForwardChain, Inspect, NetworkView, Object, ObjectKind, Owner, Property, Settings, Shape, Usage,
    require_attached,
};
use cni::key::mark_in;
use cni::{Attachment, Call, Context, ErrorCollector, Keep, Result};
use linux::iptables::{FAMILIES, ListedRule, Tools, View};
use linux::netlink::Netlink;
use linux::netlink::nft::Nftables;

use crate::add::{Traffic, connect};
use crate::config::{self, Backend, Config, IngressPolicy};
use crate::filter::{CONTAINERS, FILTER, read_rule};
use crate::policy::{self, Policy, STAGE_1, STAGE_2};
use crate::status::FIREWALLD;
use crate::{Firewall, accepted, check, isolation, removal};

/// The kinds of objects that the plugin creates.
static KINDS: [ObjectKind; 2] = [
    ObjectKind {
        name: "firewall",
        noun: "accepted address",
        flag: "accepted",
        json: "acceptedAddresses",
        is_listed: true,
    },
    ObjectKind { name: "policy", noun: "ingress policy", flag: "policy", json: "ingressPolicy", is_listed: false },
];
/// What holds policies, and addresses that earlier versions accepted: even with the backend `nftables`, the tables of
/// iptables.
const IPTABLES: &str = "iptables";
/// What holds accepted addresses and isolated ports.
const NFTABLES: &str = "nftables";

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

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    /// Lists the accepted addresses, the bridges with a policy, and the isolated ports. Rules for single addresses
    /// without a mark, which the reference adds, and addresses in a zone of firewalld have no known owner.
    fn objects(&self) -> Result<Vec<Object>> {
        let mut nft = Nftables::open()?;
        let accepted = accepted::list(&mut nft)?.into_iter();
        let mut accepted: BTreeSet<_> = accepted.map(|(ip, comment)| (ip, comment, NFTABLES)).collect();
        let mut policies: BTreeMap<String, String> = BTreeMap::new();
        for tools in &FAMILIES {
            let marked = nft.rules_with_mark(tools.table(FILTER).chain(CONTAINERS), &|mark| mark_in(mark).is_some())?;
            for rule in marked {
                let mark = rule.mark.clone();
                let address = read_rule(tools, &ListedRule::Nft(Box::new(rule)));
                accepted.extend(address.map(|(ip, _)| (ip, mark, IPTABLES)));
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
        let accepted = accepted.into_iter().map(|(ip, comment, backend)| accepted_object(comment, ip, backend));
        let policies = policies.into_iter().map(|(bridge, comment)| policy_object(bridge, comment));
        let ports = isolation::ports(&mut nft)?.into_iter().map(|(port, comment)| port_object(port, comment));
        Ok(accepted.chain(policies).chain(ports).collect())
    }

    fn collect(&self, _: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        removal::collect(keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        if network.objects.is_none() {
            return Ok(Vec::new());
        }
        compare::findings(network, &config)
    }

    fn accepts_in(&self, call: &Call<'_>, chain: ForwardChain<'_>) -> Result<bool> {
        let config = Config::parse(call)?;
        let uses_firewalld = connect(&config)?.is_some();
        Ok(match chain {
            ForwardChain::Iptables => !uses_firewalld,
            ForwardChain::Legacy => !uses_firewalld && config.backend != Backend::Nftables,
            ForwardChain::InTable(table) => uses_firewalld && table == FIREWALLD,
        })
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        let config = Config::parse(call)?;
        match call.prev_result()? {
            Some(result) => is_incomplete(&Traffic::new(call, at, &config, &result, &mut Netlink::open()?)?),
            None => Ok(false),
        }
    }

    /// Accepts the traffic of an attachment again, and applies its policy again, if CHECK finds a difference.
    ///
    /// The container must still have its interface with the addresses of the result of ADD, so that no traffic of
    /// another container is accepted.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let restored = restore(call, at).context(|| "accept the traffic again")?;
        Ok(restored.then_some("rules of the firewall"))
    }
}

fn accepted_object(comment: String, ip: IpAddr, backend: &'static str) -> Object {
    Object {
        kind: &KINDS[0],
        owner: owner_in(&comment),
        backend,
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

/// Returns whether something of the rules of an attachment is missing.
fn is_incomplete(traffic: &Traffic<'_>) -> Result<bool> {
    let is_isolated = match traffic.policy.as_ref().and_then(Policy::isolated_port) {
        Some(port) => port.is_isolated(&mut Nftables::open()?)?,
        None => true,
    };
    Ok(!traffic.ips.is_empty() && (!is_isolated || check::run(traffic).is_err()))
}

/// Accepts the traffic of an attachment. Returns `false` if there is nothing to restore.
fn restore(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(result) = call.prev_result()? else { return Ok(false) };
    let mut host = Netlink::open()?;
    let mut traffic = Traffic::new(call, at, &config, &result, &mut host)?;
    if !is_incomplete(&traffic)? {
        return Ok(false);
    }
    let link = result.host_link(at);
    require_attached(call, at, &traffic.ips, link)?;
    traffic.accept(host)?;
    // A concurrent DEL of another runtime may have looked for rules before, and then removes the interface.
    if let Err(gone) = require_attached(call, at, &traffic.ips, link) {
        let mut failures = ErrorCollector::default();
        failures.record(Err(gone));
        failures.record(removal::remove(traffic.owner, &traffic.ips, link, &config));
        return failures.into_result().map(|()| false);
    }
    Ok(true)
}
