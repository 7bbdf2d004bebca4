//! Removes what ADD added: for an attachment for DEL, for all stale attachments for GC.

use std::net::IpAddr;

use cni::key::mark_in;
use cni::{AttachmentKey, Code, Error, ErrorCollector, Keep, KnownOwner, Ownership, Result, Trace};
use linux::iptables::{FAMILIES, ListedRule, Step, TablePlan, Tools, View, change, change_legacy};
use linux::log::warn;
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Edit, Nftables};

use crate::config::{Backend, Config, IngressPolicy, Zone};
use crate::filter::{self, CONTAINERS, FILTER};
use crate::firewalld::{Firewalld, ZoneScope};
use crate::need::Leaver;
use crate::{accepted, bindings, isolation, policy};

/// DEL: removes everything of an attachment, with every backend: the configuration, the implementation or the state of
/// firewalld may have changed since ADD. `ips` are its addresses, if known.
///
/// What has no owner is removed only if no other attachment has the address. The ingress policy stays as long as
/// another attachment needs it. `port` is the attachment's link on this host, if known.
pub(crate) fn remove(owner: AttachmentKey<'_>, ips: &[IpAddr], port: Option<&str>, config: &Config) -> Result<()> {
    let Config { backend, zone, ingress, .. } = config;
    let mut failures = ErrorCollector::default();
    let mut nft = Nftables::open()?;
    let is_any = failures.keep(remove_from_nft(&mut nft, owner, ips)).unwrap_or_default();
    for tools in FAMILIES.iter().filter(|tools| ips.iter().any(|ip| tools.includes(*ip))) {
        failures.record(remove_from_legacy(&mut nft, tools, owner, ips));
    }
    // With rules, ADD did not use firewalld.
    let is_expected = matches!(backend, Backend::Auto | Backend::Firewalld) && !is_any && !ips.is_empty();
    failures.record(unbind(&mut nft, owner, ips, zone, is_expected));
    let leaver = Leaver { network: owner.network, owner: Some(owner), port, is_traced: is_any || !ips.is_empty() };
    failures.record(leaver.end_policies(&mut nft));
    for tools in FAMILIES.iter().filter(|_| *ingress != IngressPolicy::Open) {
        failures.record(leaver.end_legacy_policies(tools));
    }
    if is_any {
        nft.close_detached();
    }
    failures.into_result()
}

/// Removes the addresses, rules and elements of an attachment, and the policy if no other attachment needs it.
pub(crate) fn remove_marked(owner: AttachmentKey<'_>, config: &Config) -> Result<()> {
    let mut nft = Nftables::open()?;
    let is_any = remove_from_nft(&mut nft, owner, &[])?;
    match config.ingress {
        IngressPolicy::Open => Ok(()),
        _ => {
            Leaver { network: owner.network, owner: Some(owner), port: None, is_traced: is_any }.end_policies(&mut nft)
        }
    }
}

/// Removes the addresses and rules of an attachment from nf_tables, and ends its isolation, in one transaction. Returns
/// whether there was anything.
fn remove_from_nft(nft: &mut Nftables, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<bool> {
    let mark = owner.mark();
    let release = |nft: &mut Nftables| isolation::release(nft, &|comment| mark_in(comment) == Some(&mark));
    let delete = |nft: &mut Nftables| -> Result<(Vec<Edit>, bool)> {
        let (mut edits, is_numbered) = accepted::release(nft, &mark, ips)?;
        edits.extend(delete_rules(nft, owner, &mark, ips)?);
        Ok((edits, is_numbered))
    };
    // Handles of rules and numbers of attachments are unique: nothing of another attachment can be meant.
    let is_independent = release(nft)?.is_empty();
    let outcome = nft::retry(|| match delete(nft)? {
        (edits, true) if is_independent => Ok::<_, Error>(nft.apply(&edits).map(|()| Some(!edits.is_empty()))?),
        _ => Ok(None),
    });
    match outcome {
        Ok(Some(is_any)) => return Ok(is_any),
        Ok(None) => {}
        // Many calls for the same address changed it all the time.
        Err(error) if matches!(error.as_ref().errno(), Some(libc::ENOENT | libc::EEXIST)) => {}
        Err(error) => return Err(error),
    }
    let mut is_any = false;
    nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
        let mut edits = release(nft)?;
        edits.extend(delete(nft)?.0);
        is_any = !edits.is_empty();
        Ok(edits)
    })?;
    Ok(is_any)
}

/// Returns the edits that delete the rules for single addresses of an attachment, whose mark is `mark`.
fn delete_rules(nft: &mut Nftables, owner: AttachmentKey<'_>, mark: &str, ips: &[IpAddr]) -> Result<Vec<Edit>> {
    let mut edits = Vec::new();
    for tools in &FAMILIES {
        let table = tools.table(FILTER);
        let mut view = View::Nft(nft, table);
        let (mut rules, ownerless): (Vec<ListedRule>, Vec<ListedRule>) =
            filter::list(&mut view, mark)?.into_iter().partition(|rule| filter::is_of(mark, rule));
        for ip in ips.iter().filter(|ip| tools.includes(**ip)) {
            let is_for = |rule: &&ListedRule| filter::is_for(tools, rule, *ip);
            if ownerless.iter().any(|rule| is_for(&rule)) && !filter::has_other_owner(&mut view, tools, owner, *ip)? {
                rules.extend(ownerless.iter().filter(is_for).cloned());
            }
        }
        edits.extend(delete(rules).edits(table));
    }
    Ok(edits)
}

/// Removes the rules of addresses from the legacy table.
fn remove_from_legacy(
    nft: &mut Nftables,
    tools: &'static Tools,
    owner: AttachmentKey<'_>,
    ips: &[IpAddr],
) -> Result<()> {
    if !tools.legacy_table_in_use(FILTER)?.is_some_and(|table| table.has_chain(CONTAINERS)) {
        return Ok(());
    }
    let ips = unshared(nft, tools, owner, ips)?;
    let is_for_us = |rule: &ListedRule| ips.iter().any(|ip| filter::is_for(tools, rule, *ip));
    change_legacy(tools, FILTER, |view| -> Result<TablePlan<'_>> {
        Ok(delete(view.rules(CONTAINERS)?.into_iter().filter(is_for_us)))
    })
    .map(drop)
}

fn delete(rules: impl IntoIterator<Item = ListedRule>) -> TablePlan<'static> {
    TablePlan { steps: rules.into_iter().map(|rule| Step::Delete(CONTAINERS, rule)).collect(), removed: vec![] }
}

/// Returns the addresses of a family that no other attachment has.
fn unshared(nft: &mut Nftables, tools: &Tools, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<Vec<IpAddr>> {
    let mut view = View::Nft(nft, tools.table(FILTER));
    let mut unshared = Vec::new();
    for ip in ips.iter().filter(|ip| tools.includes(**ip)) {
        if !filter::has_other_owner(&mut view, tools, owner, *ip)? {
            unshared.push(*ip);
        }
    }
    Ok(unshared)
}

/// Removes the addresses of an attachment from the zones of firewalld, if it is running. Returns an error if it does
/// not answer, if ADD may have used it.
fn unbind(nft: &mut Nftables, owner: AttachmentKey<'_>, ips: &[IpAddr], zone: &Zone, is_expected: bool) -> Result<()> {
    let mut firewalld = match Firewalld::connect() {
        Ok(Some(firewalld)) => firewalld,
        Ok(None) => return Ok(()),
        Err(error) if error.code() == Code::TRY_LATER && is_expected => return Err(error),
        Err(error) => {
            warn!("cannot find out whether firewalld is running: {error:?}");
            return Ok(());
        }
    };
    let mut failures = ErrorCollector::default();
    let mark = owner.mark();
    let of_others = bindings::list(nft, &|comment| mark_in(comment) != Some(&mark))?;
    for tools in &FAMILIES {
        for ip in failures.keep(unshared(nft, tools, owner, ips)).into_iter().flatten() {
            if !of_others.iter().any(|binding| binding.ip == ip) {
                failures.record(firewalld.remove(zone, ip, ZoneScope::AnyZone));
            }
        }
    }
    failures.record(unbind_recorded(nft, &mut firewalld, &|comment| mark_in(comment) == Some(&mark)));
    failures.into_result()
}

/// Removes the recorded bindings with comments for which `removed` returns true, and their records. An address that
/// another attachment has by now stays bound.
fn unbind_recorded(nft: &mut Nftables, firewalld: &mut Firewalld, removed: &dyn Fn(&str) -> bool) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let mut unbound = Vec::new();
    for binding in bindings::list(nft, removed)? {
        let mark = mark_in(&binding.comment).unwrap_or_default();
        let outcome = match Ownership::new(KnownOwner::Mark(mark)).judge(Trace::Address(binding.ip)).is_others() {
            true => Ok(()),
            false => firewalld.remove_runtime(&binding.zone, binding.ip),
        };
        unbound.extend(failures.keep(outcome).map(|()| binding));
    }
    failures.record(bindings::forget(nft, &unbound));
    failures.into_result()
}

/// Removes the recorded bindings with comments for which `stale` returns true. Without firewalld, there are only
/// records.
fn collect_bindings(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<()> {
    let recorded = bindings::list(nft, stale)?;
    if recorded.is_empty() {
        return Ok(());
    }
    match Firewalld::connect()? {
        Some(mut firewalld) => unbind_recorded(nft, &mut firewalld, stale),
        None => bindings::forget(nft, &recorded),
    }
}

/// GC: removes the addresses, rules and bindings of a network's attachments that are not in `keep`, the policies of
/// bridges that are gone, and those of the network if no attachment is left.
pub(crate) fn collect(keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let mut nft = Nftables::open()?;
    let mut host = Netlink::open()?;
    let families: Vec<&'static Tools> = FAMILIES.iter().collect();
    let mut has_removed = false;
    let outcome = change(&mut nft, FILTER, &families, |_, view| -> Result<TablePlan<'_>> {
        let stale = view.rules_with_mark(CONTAINERS, &|mark| keep.is_stale_comment(mark))?;
        let mut steps: Vec<Step<'_>> = stale.into_iter().map(|rule| Step::Delete(CONTAINERS, rule)).collect();
        steps.extend(policy::collect(view, &mut host, &mut |_, _| Ok(true))?);
        has_removed |= !steps.is_empty();
        Ok(TablePlan { steps, removed: vec![] })
    });
    failures.record(outcome.map(drop));
    let is_stale = |comment: &str| keep.is_stale_comment(comment);
    has_removed |= failures.keep(accepted::collect(&mut nft, &is_stale)) == Some(true);
    has_removed |= failures.keep(isolation::remove(&mut nft, &is_stale)) == Some(true);
    failures.record(collect_bindings(&mut nft, &is_stale));
    let leaver = Leaver { network: keep.network, owner: None, port: None, is_traced: false };
    if keep.is_empty() {
        failures.record(leaver.end_policies(&mut nft));
    }
    for tools in &FAMILIES {
        failures.record(leaver.end_legacy_policies(tools));
    }
    if has_removed {
        nft.close_detached();
    }
    failures.into_result()
}
