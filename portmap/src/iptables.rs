//! Published ports in the form of the reference with iptables: rules in the nat tables of `iptables`, which it lists,
//! and which the reference's CHECK and DEL accept.
//!
//! ```text
//! -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
//! -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
//! -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: …" -m multiport --dports 8080 -j CNI-DN-1
//! -A CNI-DN-1 -s 10.9.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
//! -A CNI-DN-1 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
//! -A CNI-DN-1 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80
//! -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
//! -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
//! -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
//! ```
//!
//! `rules` has these rules, which [`linux::iptables`] writes in two ways: to nf_tables, where `iptables-nft` keeps its
//! tables, and as text for the tools of legacy tables. `found` reads both, `removal` decides which rules belong to an
//! attachment, and `names` has the names and comments.

mod found;
mod names;
mod removal;
mod rules;

use std::net::{IpAddr, Ipv4Addr};

use cni::{AttachmentKey, Error, ErrorCollector, Keep, Result, remove_chains, try_iptables};
use linux::ip::{Cidr, Protocol};
#[cfg(feature = "fuzzing")]
use linux::iptables::Match;
use linux::iptables::{FAMILIES, Rule, Target, Tools, View, change_legacy, rules_in};
use linux::log::debug;
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Edit, Family, Nftables};

use crate::config::{Backend, Config, Marking, Masquerade};
use crate::host::Host;
use crate::mapping::{self, HostAddress, Key, Mapping, Port};
use crate::publication::{PortRemoval, Publication, difference};
use crate::published::{Form, PortOwner, PublishedPort, Wanted};
use found::Found;
use names::{ContainerChain, ENTRIES};
use rules::Rules;

/// The name of the tables.
pub(crate) const NAT: &str = "nat";

/// The changes of a table, and the mappings that they remove.
type TablePlan<'a> = linux::iptables::TablePlan<'a, Mapping>;

/// What an ADD does beside adding its rules.
#[derive(Debug)]
pub(crate) struct Preparation {
    /// The addresses of the attachment, earlier ones included.
    pub(crate) ips: Vec<IpAddr>,
    /// The changes of other tables.
    pub(crate) edits: Vec<Edit>,
}

/// Adds the chains and rules of an attachment. Replaces those of an earlier ADD.
///
/// The tables in nf_tables change in one transaction, together with the edits of `prepare`, which returns an error if a
/// port is taken. It is called again if any ruleset changes meanwhile, so that ADDs at the same time neither publish
/// the same port nor add the shared rules twice. Sets `has_legacy_rules` if a legacy table changed, or may have.
/// Returns the addresses of the attachment.
pub(crate) fn add(
    nft: &mut Nftables,
    publication: &Publication<'_>,
    has_legacy_rules: &mut bool,
    host: &mut Host,
    prepare: &mut dyn FnMut(&mut Nftables, &mut Netlink) -> Result<Preparation>,
) -> Result<Vec<IpAddr>> {
    let Publication { owner, port: link, .. } = *publication;
    let [chain, old] = [ContainerChain::new(owner), ContainerChain::old(owner)];
    let (mut in_nft, mut legacy) = (Vec::new(), Vec::new());
    for tools in &FAMILIES {
        let rules = rules_of(tools, &chain, publication)?;
        if tools.legacy_table_in_use(NAT)?.is_some() {
            legacy.extend(rules.map(|rules| (tools, rules)));
        } else {
            in_nft.extend(rules.map(|rules| (tools, rules)));
        }
    }
    let mut ips = Vec::new();
    let outcome = nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
        let mut edits;
        Preparation { ips, edits } = prepare(nft, host.socket()?)?;
        let removal = PortRemoval { owner, ips: &ips, link, is_del: false };
        for tools in &FAMILIES {
            let table = tools.table(NAT);
            let mut view = View::Nft(nft, table);
            let plan = match in_nft.iter().find(|(wanted, _)| wanted.family == tools.family) {
                Some((_, rules)) => rules.plan(host, &mut view, &removal)?,
                // An earlier ADD may have published ports in this family, or in this kind of table.
                None => removal.plan(host, &mut view, &chain, false)?,
            };
            edits.extend(plan.edits(table));
            edits.extend(removal.plan(host, &mut view, &old, false)?.edits(table));
        }
        Ok(edits)
    });
    let unavailable = match outcome {
        Err(error) if nft::is_unavailable(&error) => {
            debug!("nf_tables is unavailable, use the tools of iptables: {error}");
            legacy.append(&mut in_nft);
            Some(error)
        }
        outcome => outcome.map(|()| None)?,
    };
    let removal = PortRemoval { owner, ips: &ips, link, is_del: false };
    for (tools, rules) in &legacy {
        let mut before = None;
        let outcome = change_legacy(tools, NAT, |view| {
            if let View::Legacy(lines) = view {
                before.get_or_insert_with(|| lines.to_vec());
            }
            rules.plan(host, view, &removal)
        });
        *has_legacy_rules |= outcome.is_ok() || before.is_some_and(|before| may_differ(tools, &before));
        outcome.map_err(|second: Error| match &unavailable {
            Some(error) => second.details(format!("nf_tables: {error}")),
            None => second,
        })?;
    }
    Ok(ips)
}

/// Returns whether a legacy table may have other rules than in the lines `before`. A tool that was killed may have
/// changed it.
fn may_differ(tools: &Tools, before: &[String]) -> bool {
    let now = tools.legacy_table(NAT);
    now.map_or(true, |table| rules_in(&table.map(|table| table.lines).unwrap_or_default()).ne(rules_in(before)))
}

/// Returns the rules for the container's address of a family; `None` if it has none.
fn rules_of<'a>(
    tools: &Tools,
    chain: &'a ContainerChain,
    publication: &'a Publication<'_>,
) -> Result<Option<Rules<'a>>> {
    let Publication { config, addresses, unpublished, port, .. } = publication;
    let published = addresses.iter().map(|(address, mappings)| (*address, mappings.as_slice()));
    let mut all = published.chain(unpublished.map(|address| (address, &[][..])));
    let Some((address, mappings)) = all.find(|(address, _)| tools.includes(address.ip())) else { return Ok(None) };
    Rules::new(chain, config, address, mappings, *port).map(Some)
}

/// Lists the published ports of all networks, by either implementation, at least those for which `wanted` returns true.
/// Also returns whether any rule leads to a chain of a container.
pub(crate) fn list(nft: &mut Nftables, wanted: Wanted<'_>) -> Result<(bool, Vec<PublishedPort>)> {
    let (mut has_entries, mut found) = (false, Vec::new());
    let mut list_in = |view: &mut View<'_>| -> Result<()> {
        let entries = found::list(view, ENTRIES)?;
        has_entries |= !entries.is_empty();
        found.extend(published(view, &entries, wanted)?);
        Ok(())
    };
    for tools in &FAMILIES {
        list_in(&mut View::Nft(nft, tools.table(NAT)))?;
        if let Some(table) = tools.legacy_table_in_use(NAT)? {
            list_in(&mut View::Legacy(&table.lines))?;
        }
    }
    Ok((has_entries, found))
}

/// Returns whether a port is one of those that the rules of another program's chain lead into further chains.
pub(crate) fn ports_that_leave(view: &mut View<'_>, chain: &str) -> Result<impl Fn(&Key) -> bool + use<>> {
    let mut rules = found::list(view, chain)?;
    rules.retain(|rule| rule.jump.is_some() && !rule.ports.is_empty());
    Ok(move |key: &Key| rules.iter().any(|rule| rule.covers(key.protocol, key.port)))
}

/// Lists the published ports in a table to which `entries` lead, in the order in which packets meet them. Skips those
/// for which `wanted` returns false.
fn published(view: &mut View<'_>, entries: &[Found], wanted: Wanted<'_>) -> Result<Vec<PublishedPort>> {
    let mut chains: Vec<(&str, Vec<Found>)> = Vec::new();
    let mut found = Vec::new();
    for entry in entries.iter().filter(|entry| entry.covers_any(wanted)) {
        let (Some(owner), Some(chain)) = (names::read_comment(&entry.comment), entry.jump.as_deref()) else { continue };
        if !chains.iter().any(|(name, _)| *name == chain) {
            chains.push((chain, found::list(view, chain)?));
        }
        let rules = chains.iter().filter(|(name, _)| *name == chain).flat_map(|(_, rules)| rules);
        let mappings = rules.filter_map(Found::mapping);
        let is_wanted = |m: &Mapping| entry.covers(m.key.protocol, m.key.port) && wanted(m.key.protocol, m.key.port);
        found.extend(mappings.filter(is_wanted).map(|mapping| PublishedPort {
            mapping,
            owner: owner.clone(),
            port: Some(entry.link.clone()).filter(|link| !link.is_empty()),
            form: Form::Iptables,
        }));
    }
    Ok(found)
}

/// Removes the rules of an attachment, by either implementation, and chains that no other rule leads to. Its addresses
/// and its link matter only if the container has other attachments to the network. Returns the mappings.
pub(crate) fn remove(nft: &mut Nftables, host: &mut Host, removal: &PortRemoval<'_>) -> Result<Vec<Mapping>> {
    let chains = [ContainerChain::new(removal.owner), ContainerChain::old(removal.owner)];
    let mut known = None;
    remove_chains(nft, NAT, &chains.each_ref().map(|chain| chain.name.as_str()), |view, delete_chain| {
        let removal = match &mut known {
            Some(removal) => removal,
            none => none.insert(removal.without_result_of_sibling(host)?),
        };
        let mut plan = TablePlan::default();
        for chain in &chains {
            let part = removal.plan(host, view, chain, delete_chain)?;
            plan.steps.extend(part.steps);
            plan.removed.extend(part.removed);
        }
        Ok(plan)
    })
}

/// GC: removes the chains of a network's containers that are not in `keep`. Returns the mappings.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Host, keep: &Keep<'_>) -> Result<Vec<Mapping>> {
    // Of all entry rules: a DEL of the reference that was killed may have left some that lead to an empty chain.
    let mut entries = Vec::new();
    for tools in &FAMILIES {
        entries.extend(found::list(&mut View::Nft(nft, tools.table(NAT)), ENTRIES)?);
        if let Some(table) = tools.legacy_table_in_use(NAT)? {
            entries.extend(found::list(&mut View::Legacy(&table.lines), ENTRIES)?);
        }
    }
    let mut stale: Vec<String> = Vec::new();
    for entry in entries {
        match names::read_comment(&entry.comment) {
            Some(PortOwner::OnNetwork { network, container })
                if network == keep.network && !keep.has_container(&container) && !stale.contains(&container) =>
            {
                stale.push(container);
            }
            _ => {}
        }
    }
    let mut failures = ErrorCollector::default();
    let mut removed = Vec::new();
    for container in &stale {
        let removal = PortRemoval::of_container(keep.network, container);
        removed.extend(failures.keep(remove(nft, host, &removal)).into_iter().flatten());
    }
    failures.into_result()?;
    Ok(removed)
}

/// CHECK: returns an error if a port is not published as it should be. Returns whether cni0 published the ports: the
/// rules of the reference have no mark.
pub(crate) fn check(nft: &mut Nftables, publication: &Publication<'_>) -> Result<bool> {
    let chain = ContainerChain::new(publication.owner);
    let mut is_marked = false;
    for tools in &FAMILIES {
        let Some(rules) = rules_of(tools, &chain, publication)? else { continue };
        let table = tools.table(NAT);
        let legacy = tools.legacy_table_in_use(NAT)?.filter(|table| table.has_chain(&chain.name));
        let mut view = match &legacy {
            Some(table) => View::Legacy(&table.lines),
            None => View::Nft(nft, table),
        };
        if !view.has_chain(&chain.name)? {
            return Err(difference(format!("chain {} does not exist in table {table}", chain.name)));
        }
        if let Some(missing) = rules.missing(&mut view)?.first() {
            let rule = &missing.rule;
            return Err(difference(format!("rule \"{}\" in chain {} does not exist", rule.text(), rule.chain)));
        }
        let entries = found::list_reached(&mut view, ENTRIES)?;
        check_mappings(&mut view, &rules, &entries, tools.family)?;
        is_marked |= entries.iter().any(|entry| entry.comment == chain.comment && !entry.link.is_empty());
    }
    Ok(is_marked)
}

/// Returns an error if a mapping is not published as it should be. `entries` lead to the chains of containers.
fn check_mappings(view: &mut View<'_>, rules: &Rules<'_>, entries: &[Found], family: Family) -> Result<()> {
    let chain = rules.chain;
    let own = names::read_comment(&chain.comment);
    let found = published(view, entries, &|_, _| true)?;
    let reached = found::list_reached(view, &chain.name)?;
    for (Mapping { key, target }, translations) in rules.mappings.iter().zip(&rules.translations) {
        match found.iter().find(|found| found.mapping.key == *key) {
            None => return Err(difference(format!("{key} is missing"))),
            Some(PublishedPort { owner, .. }) if Some(owner) != own.as_ref() => {
                // Another network of the container may publish the port.
                if !matches!(&own, Some(PortOwner::OnNetwork { container, .. }) if owner.is_container(container)) {
                    return Err(difference(format!("{key} is published by another attachment ({owner})")));
                }
            }
            Some(found) if found.mapping.target != *target => {
                return Err(difference(format!("{key} leads to {}, not to {target}", found.mapping.target)));
            }
            Some(_) => {}
        }
        let exists = |rule: &Rule<'_>, among: &[Found]| {
            let mut candidates = among.iter().filter(|found| found.covers(key.protocol, key.port));
            candidates.any(|found| found.is_same_as(rule, family))
        };
        if let Some(missing) = translations.iter().find(|rule| !exists(rule, &reached)) {
            return Err(difference(match missing.target {
                Target::Jump(_) => format!("connections to {key} are not marked for masquerade"),
                _ => format!("{key} is missing"),
            }));
        }
        let mut leading = rules.entries.iter().filter(|rule| rules::covers(rule, key));
        if let Some(missing) = leading.find(|rule| !exists(rule, entries)) {
            return Err(difference(format!("rule \"{}\" in chain {ENTRIES} does not exist", missing.text())));
        }
    }
    Ok(())
}

/// STATUS: returns an error if the kernel does not accept the rules of an imaginary container, or the tools that would
/// be needed do not work.
pub(crate) fn status() -> Result<()> {
    let owner = AttachmentKey { network: "", container: "", ifname: "" };
    let chain = ContainerChain::new(owner);
    let host = HostAddress::Any;
    let config = Config {
        ports: vec![Port { protocol: Protocol::Tcp, host, host_port: 1, container_port: 1 }],
        backend: Backend::Iptables,
        masquerade: Masquerade::Local,
        conditions_v4: vec![],
        conditions_v6: vec![],
        marking: Marking::Bit(1),
    };
    let address = Cidr::host(Ipv4Addr::LOCALHOST.into());
    let mappings = mapping::mappings(&config.ports, address.ip());
    let rules = Rules::new(&chain, &config, address, &mappings, None)?;
    let removal = PortRemoval { owner, ips: &[], link: None, is_del: false };
    let remedy = "install iptables, or set \"backend\" to \"nftables\"";
    try_iptables(NAT, remedy, |_, view| rules.plan(&mut Host::default(), view, &removal))
}

/// Reads the ports that the lines of a save tool publish, and asserts that each is read again from the rule that
/// publishes it.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(lines: &[String]) {
    let mut view = View::Legacy(lines);
    let entries = found::list(&mut view, ENTRIES).unwrap_or_default();
    for PublishedPort { mapping, .. } in published(&mut view, &entries, &|_, _| true).unwrap_or_default() {
        let Mapping { key, target } = mapping;
        let mut matches = vec![Match::Protocol(key.protocol)];
        matches.extend(key.host_ip.map(Match::destination));
        matches.push(Match::Port(key.protocol, key.port));
        let rule = Rule::new(ENTRIES, matches, Target::Translate(target)).text();
        let again = found::list(&mut View::Legacy(&[format!("-A {ENTRIES} {rule}")]), ENTRIES).unwrap_or_default();
        assert_eq!(again.iter().filter_map(Found::mapping).collect::<Vec<_>>(), [mapping], "{rule}");
    }
}
