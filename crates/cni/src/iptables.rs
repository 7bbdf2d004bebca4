//! Rules in tables of iptables, as several plugins add and remove them: in nf_tables, where `iptables-nft` has its
//! tables, or in legacy tables if these are in use, or if the kernel has no nf_tables.

use linux::iptables::{FAMILIES, LegacyTable, TablePlan, Tools, View, change, change_legacy};
use linux::log::debug;
use linux::netlink::nft::{self, Nftables};

use crate::collector::ErrorCollector;
use crate::error::{Code, Error, Result};
use crate::trial::try_edits;

/// Adds the rules that `plan` computes for each family: to the legacy table of this name if it is in use, or if the
/// kernel has no nf_tables, otherwise to the table in nf_tables, without a process.
pub fn add_rules<'a>(
    table: &'static str,
    families: impl Iterator<Item = &'static Tools>,
    mut plan: impl FnMut(&'static Tools, &mut View<'_>) -> Result<TablePlan<'a>>,
) -> Result<()> {
    let (mut in_nft, mut legacy) = (Vec::new(), Vec::new());
    for tools in families {
        let is_legacy = tools.legacy_table_in_use(table)?.is_some();
        if is_legacy { legacy.push(tools) } else { in_nft.push(tools) }
    }
    let unavailable = match change(&mut Nftables::open()?, table, &in_nft, &mut plan) {
        Err(error) if nft::is_unavailable(&error) => {
            debug!("nf_tables is unavailable, use the tools of iptables: {error}");
            legacy.append(&mut in_nft);
            Some(error)
        }
        outcome => outcome.map(|_| None)?,
    };
    for tools in legacy {
        change_legacy(tools, table, |view| plan(tools, view)).map_err(|second| match &unavailable {
            Some(error) => second.details(format!("nf_tables: {error}")),
            None => second,
        })?;
    }
    Ok(())
}

/// Removes what `plan` computes from all tables of this name that have one of `chains`. Returns what was removed.
///
/// If the second argument of `plan` is `true`, it deletes chains with their rules. It is called again with `false` if a
/// rule of another program leads to a chain: then the chain stays, without rules.
pub fn remove_chains<'a, R>(
    nft: &mut Nftables,
    table: &'static str,
    chains: &[&str],
    mut plan: impl FnMut(&mut View<'_>, bool) -> Result<TablePlan<'a, R>>,
) -> Result<Vec<R>> {
    let mut failures = ErrorCollector::default();
    let (families, legacy) = find_tables(nft, table, chains, &mut failures);
    let mut removed = Vec::new();
    if !families.is_empty() {
        let is_in_use = |error: &Error| error.errno() == Some(libc::EBUSY);
        let outcome = delete_or_empty(is_in_use, |delete| change(nft, table, &families, |_, view| plan(view, delete)));
        removed.extend(failures.keep(outcome).into_iter().flatten());
    }
    for tools in legacy {
        // The error of a tool does not say why.
        let outcome = delete_or_empty(|_| true, |delete| change_legacy(tools, table, |view| plan(view, delete)));
        removed.extend(failures.keep(outcome).into_iter().flatten());
    }
    failures.into_result()?;
    Ok(removed)
}

/// Returns the families whose table in nf_tables has one of these chains, and those whose legacy table has.
fn find_tables(
    nft: &mut Nftables,
    table: &str,
    chains: &[&str],
    failures: &mut ErrorCollector,
) -> (Vec<&'static Tools>, Vec<&'static Tools>) {
    let (mut families, mut legacy) = (Vec::new(), Vec::new());
    for tools in &FAMILIES {
        for chain in chains {
            if failures.keep(nft.has_chain(tools.table(table).chain(chain))) == Some(true) {
                families.push(tools);
                break;
            }
        }
        let has_chain = |table: LegacyTable| chains.iter().any(|chain| table.has_chain(chain));
        if failures.keep(tools.legacy_table_in_use(table)).flatten().is_some_and(has_chain) {
            legacy.push(tools);
        }
    }
    (families, legacy)
}

/// Calls `remove` with `true`, to delete chains. If a chain is in use, as `is_in_use` decides by the error, calls it
/// again with `false`.
fn delete_or_empty<T>(is_in_use: impl Fn(&Error) -> bool, mut remove: impl FnMut(bool) -> Result<T>) -> Result<T> {
    match remove(true) {
        Err(error) if is_in_use(&error) => remove(false),
        outcome => outcome,
    }
}

/// STATUS: returns an error if the kernel does not accept the rules that `plan` adds to the table for IPv4, or if the
/// tools that would be needed do not work. Changes nothing. `remedy` says what to do then.
pub fn try_iptables<'a, R>(
    table: &'static str,
    remedy: &str,
    plan: impl FnOnce(&'static Tools, &mut View<'_>) -> Result<TablePlan<'a, R>>,
) -> Result<()> {
    let [tools, _] = &FAMILIES;
    if tools.legacy_table_in_use(table)?.is_none() {
        let mut nft = Nftables::open()?;
        let place = tools.table(table);
        let plan = plan(tools, &mut View::Nft(&mut nft, place));
        match plan.and_then(|plan| try_edits(&mut nft, &plan.edits(place))) {
            Err(error) if nft::is_unavailable(&error) => debug!("nf_tables is unavailable: {error}"),
            outcome => return outcome,
        }
    }
    tools
        .test(&TablePlan::<()>::default().script(table))
        .map_err(|error| Error::new(Code::INTERNAL, format!("iptables cannot be used: {error}")).details(remedy))
}
