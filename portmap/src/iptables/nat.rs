//! The nat tables of `iptables`, in nf_tables and of the legacy kind: the same steps change both.

use std::fmt::Write;

use cni::Result;
use linux::iptables::{LegacyTable, Tools};
use linux::netlink::nft::{Edit, Hook, Nftables, Position, Table};

use super::found::{Found, Place};
use super::rule::NatRule;
use crate::mapping::Mapping;

/// The name of the tables.
pub(crate) const NAT: &str = "nat";
/// Attempts to change a legacy table while other programs change it too.
const LEGACY_ATTEMPTS: u32 = 20;

/// The nat table of one address family, as it is listed.
#[derive(Debug)]
pub(super) enum View<'a> {
    Nft(&'a mut Nftables, Table<'static>),
    /// The lines of the save tool; none if the table does not exist.
    Legacy(&'a [String]),
}

impl View<'_> {
    /// Returns the rules of a chain; none if it does not exist.
    pub(super) fn rules(&mut self, chain: &str) -> Result<Vec<Found>> {
        Ok(match self {
            View::Nft(nft, table) => {
                let rules = nft.rules(table.chain(chain))?.into_iter();
                rules.map(|rule| Found::from_rule(rule, table.family)).collect()
            }
            View::Legacy(lines) => lines.iter().filter_map(|line| Found::from_line(line, chain)).collect(),
        })
    }

    pub(super) fn has_chain(&mut self, chain: &str) -> Result<bool> {
        Ok(match self {
            View::Nft(nft, table) => nft.has_chain(table.chain(chain))?,
            View::Legacy(lines) => lines
                .iter()
                .any(|line| line.strip_prefix(':').is_some_and(|rest| rest.split(' ').next() == Some(chain))),
        })
    }

    /// Returns whether a rule of one chain leads to another.
    pub(super) fn has_jump(&mut self, chain: &str, target: &str) -> Result<bool> {
        Ok(match self {
            View::Nft(nft, table) => nft.has_jump_to(table.chain(chain), target)?,
            View::Legacy(_) => self.rules(chain)?.iter().any(|rule| rule.jump.as_deref() == Some(target)),
        })
    }
}

/// One change of a nat table.
#[derive(Clone, Debug)]
pub(super) enum Step<'a> {
    /// Creates a chain at a hook. Legacy tables always have them.
    CreateBaseChain(&'a str, Hook),
    /// Creates a chain; an error if it exists.
    CreateChain(&'a str),
    Append(NatRule<'a>),
    /// Inserts a rule before all others of its chain.
    Prepend(NatRule<'a>),
    /// Deletes a rule of a chain.
    Delete(&'a str, Found),
    Flush(&'a str),
    /// Deletes a chain without rules.
    DeleteChain(&'a str),
}

/// The changes of one table, and what they remove.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub(super) steps: Vec<Step<'a>>,
    pub(super) removed: Vec<Mapping>,
}

impl Plan<'_> {
    /// Returns the changes of a table in nf_tables.
    pub(super) fn edits(&self, table: Table<'static>) -> Vec<Edit> {
        let mut edits = Vec::new();
        let creates = |step: &Step<'_>| matches!(step, Step::CreateBaseChain(..) | Step::CreateChain(_));
        if self.steps.iter().any(creates) {
            edits.push(Edit::add_table(table));
        }
        edits.extend(self.steps.iter().filter_map(|step| {
            Some(match step {
                Step::CreateBaseChain(chain, hook) => Edit::add_base_chain(table.chain(chain), *hook),
                Step::CreateChain(chain) => Edit::create_chain(table.chain(chain)),
                Step::Append(rule) => Edit::add_rule(&rule.spec(table)),
                Step::Prepend(rule) => Edit::insert_rule(&rule.spec(table), Position::First),
                Step::Delete(chain, Found { place: Place::Nft(rule), .. }) => {
                    Edit::delete_rule(table.chain(chain), rule)
                }
                Step::Delete(..) => return None,
                Step::Flush(chain) => Edit::flush(table.chain(chain)),
                Step::DeleteChain(chain) => Edit::delete_chain(table.chain(chain)),
            })
        }));
        edits
    }

    /// Returns the changes as input for a restore tool. It creates a chain by a command, which fails if the chain exists; a
    /// declaration would flush the chain, and with it the rules that another process has added meanwhile.
    pub(super) fn script(&self) -> String {
        let mut text = format!("*{NAT}\n");
        for step in &self.steps {
            // Writing to a String cannot fail.
            let _ = match step {
                Step::CreateChain(chain) => writeln!(text, "-N {chain}"),
                Step::Append(rule) => writeln!(text, "-A {} {}", rule.chain, rule.text()),
                Step::Prepend(rule) => writeln!(text, "-I {} {}", rule.chain, rule.text()),
                Step::Delete(chain, Found { place: Place::Legacy(rule), .. }) => writeln!(text, "-D {chain} {rule}"),
                Step::CreateBaseChain(..) | Step::Delete(..) => Ok(()),
                Step::Flush(chain) => writeln!(text, "-F {chain}"),
                Step::DeleteChain(chain) => writeln!(text, "-X {chain}"),
            };
        }
        text.push_str("COMMIT\n");
        text
    }
}

/// Returns the legacy nat table if it has rules or chains of its own. An empty one may be left from a program that listed
/// it.
pub(super) fn legacy_table(tools: &Tools) -> Result<Option<LegacyTable>> {
    let is_used = |line: &String| line.starts_with("-A ") || (line.starts_with(':') && line.contains(" - ["));
    Ok(tools.legacy_table(NAT)?.filter(|table| table.lines.iter().any(is_used)))
}

/// Applies what `plan` computes for each family to the tables in nf_tables, in one transaction. It is repeated if any
/// ruleset changes meanwhile. Returns what was removed.
pub(super) fn change<'a>(
    nft: &mut Nftables,
    families: &[&'static Tools],
    mut plan: impl FnMut(&'static Tools, &mut View<'_>) -> Result<Plan<'a>>,
) -> Result<Vec<Mapping>> {
    let mut removed = Vec::new();
    nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
        removed.clear();
        let mut edits = Vec::new();
        for tools in families {
            let table = tools.table(NAT);
            let plan = plan(tools, &mut View::Nft(nft, table))?;
            edits.extend(plan.edits(table));
            removed.extend(plan.removed);
        }
        Ok(edits)
    })?;
    Ok(removed)
}

/// Applies what `plan` computes to a legacy table, or to the table that the host's tools use if it does not exist yet.
/// Returns what was removed.
///
/// The tools apply a script as a whole, but cannot refuse one that was computed from an outdated listing. A script that
/// creates a chain or deletes a rule fails if another process was faster, and is computed again.
pub(super) fn change_legacy<'a>(
    tools: &Tools,
    mut plan: impl FnMut(&mut View<'_>) -> Result<Plan<'a>>,
) -> Result<Vec<Mapping>> {
    let rules = |table: &Option<LegacyTable>| -> Vec<String> {
        let lines = table.iter().flat_map(|table| &table.lines);
        lines.filter(|line| !line.starts_with(['#', ':'])).cloned().collect()
    };
    let mut table = tools.legacy_table(NAT)?;
    let mut attempt = 1;
    loop {
        let lines = table.as_ref().map(|table| table.lines.as_slice()).unwrap_or_default();
        let plan = plan(&mut View::Legacy(lines))?;
        if plan.steps.is_empty() {
            return Ok(plan.removed);
        }
        let outcome = match &table {
            Some(table) => table.restore(&plan.script()),
            None => tools.restore(&plan.script()),
        };
        let Err(error) = outcome else { return Ok(plan.removed) };
        let now = tools.legacy_table(NAT)?;
        if attempt == LEGACY_ATTEMPTS || rules(&now) == rules(&table) {
            return Err(error.into());
        }
        (table, attempt) = (now, attempt + 1);
    }
}
