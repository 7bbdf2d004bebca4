//! nf_tables over netlink: tables, chains, rules, sets and maps, changed in transactions and listed. Does not need the
//! `nft` program.
//!
//! [`Edit`]s are applied together or not at all. Rules are encoded as `nft` encodes them, so that it can list them and
//! any tool can delete them. Edits that depend on what was listed are applied by [`Nftables::apply_guarded`].

mod edit;
mod expression;
#[cfg(test)]
mod golden;
mod message;
mod rule;
mod set;
mod spec;
mod table;
mod trace;
mod userdata;
mod value;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use neli::consts::nl::NlmF;

use super::socket::Socket;
use super::wire;
use crate::error::{Context, Error, Kind, Result};
use crate::log::debug;
use crate::sys;
use crate::wait::Deadline;

pub use edit::{Edit, Position, digest};
pub use expression::{Attributes, Comparison, Data, Field, Header, Register, Verdict};
pub use rule::{Condition, ConnectionStates, Extension, LinkPattern, Lookup, Property, Rule, Side};
#[cfg(feature = "fuzzing")]
pub(super) use set::read_name as read_set_name;
pub use set::{Element, Elements, MapsTo, Set, SetSpec};
pub use spec::RuleSpec;
pub use table::{BaseChain, Chain, Family, Hook, Table};
pub use trace::{Trace, TraceEvent};
pub use userdata::UserData;
pub use value::{DataType, Value};

use message::{
    ALL, BATCH_END, CHAIN_USES, GENERATION, GETCHAIN, GETRULE, GETTABLE, HEADER, NEWCHAIN, NEWGEN, NEWRULE, NEWTABLE,
    RULE_CHAIN, RULE_HANDLE, RULE_USERDATA, SUBSYSTEM, TABLE, begin, begin_batch, bound, get_generation,
};
use table::{about, about_chain, about_rule};

/// Attempts to change rules while other programs delete some of them.
const ATTEMPTS: u32 = 10;
/// Attempts to change a ruleset that no other program changes meanwhile. Any change of any ruleset in the namespace
/// makes an attempt fail, at little cost, and many may happen at the same time.
const GUARDED_ATTEMPTS: u32 = 500;

/// Repeats `work` while it fails because another program has deleted what `work` had just listed, or created what
/// `work` had just not found.
pub fn retry<T, E: AsRef<Error>>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut outcome = work();
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if matches!(error.as_ref().errno(), Some(libc::ENOENT | libc::EEXIST)) => outcome = work(),
            _ => break,
        }
    }
    outcome
}

/// An nf_tables socket in one network namespace.
#[derive(Debug)]
pub struct Nftables {
    /// `None` if the kernel has no netfilter netlink. Then nothing exists, and nothing can be created.
    socket: Option<Socket>,
    may_have_changed: bool,
}

/// How long a process waits for rules that keep changing.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until no rule has changed for two grace periods: then the kernel has freed what was deleted, because its own
/// wait starts at most one grace period after a deletion. Of many processes that delete rules, each would otherwise
/// wait for the deletions of the others when it closes its socket, one process after the other.
pub(super) fn settle() {
    let settled = || -> Result<()> {
        let mut nft = Nftables::open()?;
        let (mut before, deadline) = (None, Deadline::after(SETTLE_TIMEOUT));
        loop {
            let now = nft.generation()?;
            if now == before || deadline.has_passed() {
                return Ok(());
            }
            before = now;
            sys::await_grace_period().and_then(|()| sys::await_grace_period())?;
        }
    };
    drop(settled());
}

impl Nftables {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        match Socket::netfilter() {
            Err(error) if matches!(error.errno(), Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT)) => {
                Ok(Nftables { socket: None, may_have_changed: false })
            }
            socket => {
                let socket = Some(socket.context(|| "open a netfilter socket")?);
                Ok(Nftables { socket, may_have_changed: false })
            }
        }
    }

    /// Returns the socket, for callers that keep it open: closing it after a deletion waits for all processors.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(Socket::fd)
    }

    /// Closes the socket after a deletion without waiting for all processors: a detached child process waits instead.
    pub fn close_detached(self) {
        if let Some(socket) = self.socket {
            socket.close_detached(settle);
        }
    }

    /// Returns the socket for connection tracking, which uses the same protocol.
    pub(super) fn into_socket(self) -> Option<Socket> {
        self.socket
    }

    /// Returns whether a transaction on this socket changed rules, or may have: the kernel's answer was lost. A
    /// transaction that the kernel refused changed nothing.
    pub fn may_have_changed(&self) -> bool {
        self.may_have_changed
    }

    /// Applies all `edits` in order, or none of them.
    pub fn apply(&mut self, edits: &[Edit]) -> Result<()> {
        self.send(edits, &begin_batch(None), true)
    }

    /// Validates `edits` without applying them.
    pub fn dry_run(&mut self, edits: &[Edit]) -> Result<()> {
        self.send(edits, &begin_batch(None), false)
    }

    /// Applies the edits that `plan` computes from what it lists, unless another program has changed any ruleset since
    /// the start of `plan`. In that case, calls `plan` again.
    ///
    /// Elements need it: they have no handle, so that a deletion could hit a new element with the same key.
    ///
    /// The kernel increments the generation shortly before it shows all elements of a transaction to other processors.
    /// So `plan` is also called again, a few times, if the kernel reports that an object exists already, or not at all.
    pub fn apply_guarded<E: From<Error>>(
        &mut self,
        mut plan: impl FnMut(&mut Nftables) -> Result<Vec<Edit>, E>,
    ) -> Result<(), E> {
        let mut outdated = 0;
        for _ in 0..GUARDED_ATTEMPTS {
            let generation = self.generation()?;
            let edits = plan(self)?;
            match self.send(&edits, &begin_batch(generation), true) {
                Err(error) if error.errno() == Some(libc::ERESTART) => {}
                Err(error)
                    if matches!(error.errno(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOENT))
                        && outdated < ATTEMPTS =>
                {
                    outdated += 1;
                }
                outcome => return Ok(outcome?),
            }
        }
        Err(always_changed().into())
    }

    /// Applies `edits`, unless another program has changed any ruleset since the start of `check`. In that case, calls
    /// `check` again. The edits stay the same, so that others may change rulesets while they are computed.
    pub fn apply_checked<E: From<Error>>(
        &mut self,
        edits: &[Edit],
        mut check: impl FnMut(&mut Nftables) -> Result<(), E>,
    ) -> Result<(), E> {
        for _ in 0..GUARDED_ATTEMPTS {
            let generation = self.generation()?;
            check(self)?;
            match self.send(edits, &begin_batch(generation), true) {
                Err(error) if error.errno() == Some(libc::ERESTART) => {}
                outcome => return Ok(outcome?),
            }
        }
        Err(always_changed().into())
    }

    /// Returns the generation of the rulesets, a number that each transaction increments; `None` without nf_tables.
    fn generation(&mut self) -> Result<Option<u32>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let found = socket.get(&get_generation(), SUBSYSTEM << 8 | NEWGEN, &[], |payload| {
            for attribute in wire::attributes(payload, HEADER) {
                if let (GENERATION, value) = attribute? {
                    return Ok(u32::from_be(wire::number(value, 0)?));
                }
            }
            Err(wire::malformed("no generation"))
        });
        found.or_else(|error| absent(error, None)).context(|| "query the generation of the ruleset")
    }

    fn send(&mut self, edits: &[Edit], begin: &[u8], commit: bool) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        let mut messages = Vec::with_capacity(edits.len());
        for edit in edits {
            debug!("nf_tables{}: {edit:?}", if commit { "" } else { " (trying)" });
            messages.push(edit.message.as_slice());
        }
        let end = bound(BATCH_END).finish();
        let Some(socket) = &mut self.socket else {
            return Err(Error::kernel(libc::EPROTONOSUPPORT, "")).context(|| "nf_tables");
        };
        let answer = socket.transact(begin, &messages, commit.then_some(end.as_slice()));
        self.may_have_changed |= commit && !matches!(answer, Ok(Some(_)));
        match answer? {
            None => Ok(()),
            Some((index, error)) => {
                let what = edits.get(index).map(ToString::to_string).unwrap_or_default();
                Err(error).context(|| what).context(|| "nf_tables")
            }
        }
    }

    /// Returns whether the kernel has nf_tables. Fails without permission to query it.
    pub fn is_available(&mut self) -> Result<bool> {
        if self.socket.is_none() {
            return Ok(false);
        }
        let request = begin(GETCHAIN, NlmF::empty(), ALL).finish();
        match self.list(&request, NEWCHAIN, |_| Ok(None::<()>)) {
            Ok(_) => Ok(true),
            Err(error) => absent(error, false).context(|| "query nf_tables"),
        }
    }

    /// Returns the rules of a chain; none if the chain does not exist.
    pub fn rules(&mut self, chain: Chain<'_>) -> Result<Vec<Rule>> {
        self.rules_in(chain.table, Some(chain.name), None).context(|| format!("list the rules of chain {chain}"))
    }

    /// Returns the rules of a chain whose comments are `wanted`. Other rules are not parsed, because there may be a
    /// thousand.
    pub fn rules_with_comment(&mut self, chain: Chain<'_>, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Rule>> {
        let wanted = |data: &UserData| wanted(&data.comment);
        let found = self.rules_in(chain.table, Some(chain.name), Some(&wanted));
        found.context(|| format!("list the rules of chain {chain}"))
    }

    /// Returns the rules of a chain whose marks are `wanted`. Other rules are not parsed.
    pub fn rules_with_mark(&mut self, chain: Chain<'_>, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Rule>> {
        let wanted = |data: &UserData| wanted(&data.mark);
        let found = self.rules_in(chain.table, Some(chain.name), Some(&wanted));
        found.context(|| format!("list the rules of chain {chain}"))
    }

    /// Returns whether a rule that was listed before still exists. Does not list the chain.
    pub fn has_rule(&mut self, chain: Chain<'_>, rule: &Rule) -> Result<bool> {
        let Some(socket) = &mut self.socket else { return Ok(false) };
        let mut request = about_rule(GETRULE, NlmF::empty(), chain);
        request.attr(RULE_HANDLE, &rule.handle.to_be_bytes());
        let found = socket.get(&request.finish(), SUBSYSTEM << 8 | NEWRULE, &[libc::ENOENT], Rule::read);
        let found =
            found.or_else(|error| absent(error, None)).context(|| format!("look up a rule of chain {chain}"))?;
        Ok(found.is_some())
    }

    /// Returns whether a rule of `chain` jumps to the chain `target` of the same table; `false` if `chain` does not
    /// exist.
    ///
    /// A transaction of another process interrupts the listing. A rule that was listed exists all the same, so the
    /// listing is repeated only while no such rule is found.
    pub fn has_jump_to(&mut self, chain: Chain<'_>, target: &str) -> Result<bool> {
        let Some(socket) = &mut self.socket else { return Ok(false) };
        let request = about_rule(GETRULE, NlmF::empty(), chain).finish();
        let found = socket.find(&request, SUBSYSTEM << 8 | NEWRULE, |payload| {
            let rule = Rule::read(payload)?.filter(|rule| rule.is_in(chain.table, Some(chain.name)));
            Ok(rule.filter(|rule| rule.target() == Some(target)))
        });
        let found = found.or_else(|error| absent(error, Vec::new()));
        Ok(!found.context(|| format!("list the rules of chain {chain}"))?.is_empty())
    }

    /// Returns the rules of all chains of a table; none if the table does not exist.
    pub fn table_rules(&mut self, table: Table<'_>) -> Result<Vec<Rule>> {
        self.rules_in(table, None, None).context(|| format!("list the rules of table {table}"))
    }

    /// Returns the chain and the comment of each rule of a table, without parsing the rest; none if the table does not
    /// exist.
    pub fn rule_comments(&mut self, table: Table<'_>) -> Result<Vec<(String, String)>> {
        let request = about(GETRULE, NlmF::empty(), table).finish();
        let listed = self.list(&request, NEWRULE, |payload| {
            let mut rule = (String::new(), String::new());
            let mut is_wanted = true;
            for attribute in wire::attributes(payload, HEADER) {
                match attribute? {
                    // Kernels before 4.17 ignore the name and list everything.
                    (TABLE, value) => is_wanted = wire::text(value) == table.name,
                    (RULE_CHAIN, value) => rule.0 = wire::text(value),
                    (RULE_USERDATA, value) => rule.1 = UserData::read(value).comment,
                    _ => {}
                }
            }
            Ok(is_wanted.then_some(rule))
        });
        listed.or_else(|error| absent(error, Vec::new())).context(|| format!("list the rules of table {table}"))
    }

    /// Returns whether a table exists whose family and name are `wanted`.
    pub fn has_table(&mut self, wanted: &dyn Fn(Family, &str) -> bool) -> Result<bool> {
        let request = begin(GETTABLE, NlmF::empty(), ALL).finish();
        let listed = self.list(&request, NEWTABLE, |payload| {
            let Some(family) = Family::numbered(wire::byte(payload, 0)?) else { return Ok(None) };
            let name = wire::attributes(payload, HEADER).flatten().find(|(kind, _)| *kind == TABLE);
            Ok(name.is_some_and(|(_, name)| wanted(family, &wire::text(name))).then_some(()))
        });
        let found = listed.or_else(|error| absent(error, Vec::new())).context(|| "list the tables")?;
        Ok(!found.is_empty())
    }

    fn rules_in(
        &mut self,
        table: Table<'_>,
        chain: Option<&str>,
        wanted: Option<&dyn Fn(&UserData) -> bool>,
    ) -> Result<Vec<Rule>> {
        let request = match chain {
            Some(chain) => about_rule(GETRULE, NlmF::empty(), table.chain(chain)),
            None => about(GETRULE, NlmF::empty(), table),
        };
        let listed = self.list(&request.finish(), NEWRULE, |payload| {
            if let Some(wanted) = wanted
                && !wanted(&Rule::userdata_of(payload)?)
            {
                return Ok(None);
            }
            // Kernels before 4.17 ignore both names and list everything.
            Rule::read(payload).map(|rule| rule.filter(|rule| rule.is_in(table, chain)))
        });
        listed.or_else(|error| absent(error, Vec::new()))
    }

    /// Returns the base chains of all tables and families.
    pub fn base_chains(&mut self) -> Result<Vec<BaseChain>> {
        let request = begin(GETCHAIN, NlmF::empty(), ALL).finish();
        let listed = self.list(&request, NEWCHAIN, BaseChain::read);
        listed.or_else(|error| absent(error, Vec::new())).context(|| "list the chains of all tables")
    }

    fn list<T>(
        &mut self,
        request: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>> + Copy,
    ) -> Result<Vec<T>> {
        match &mut self.socket {
            Some(socket) => socket.list(request, SUBSYSTEM << 8 | kind, read),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the names of the sets and maps of a table, without anonymous ones, which are parts of rules; none if the
    /// table does not exist.
    pub fn sets(&mut self, table: Table<'_>) -> Result<Vec<String>> {
        let request = about(set::GETSET, NlmF::empty(), table).finish();
        let listed = self.list(&request, set::NEWSET, |payload| set::read_name(table.name, payload));
        listed.or_else(|error| absent(error, Vec::new())).context(|| format!("list the sets of table {table}"))
    }

    /// Returns the elements of a set or map, ordered by their keys; none if it does not exist.
    ///
    /// - The kernel enlarges its hash table in the background and does not report that to a listing in progress. Such a
    ///   listing has the right number of elements, but some of them twice instead of others. So it is repeated.
    /// - Any transaction in any table interrupts a listing. It is right all the same if the set itself has not changed:
    ///   then the next one has the same elements.
    pub fn elements(&mut self, set: Set<'_>) -> Result<Vec<Element>> {
        let Some(socket) = &mut self.socket else { return Ok(Vec::new()) };
        let request = set::about_set(set::GETSETELEM, NlmF::empty(), set).finish();
        let mut before = None;
        for _ in 0..GUARDED_ATTEMPTS {
            let mut is_interrupted = false;
            let listed = socket.list_until(
                &request,
                SUBSYSTEM << 8 | set::NEWSETELEM,
                |payload| Element::read_all(payload).map(Some),
                |_, interrupted| {
                    is_interrupted = interrupted;
                    true
                },
            );
            let listed = listed.or_else(|error| absent(error, None));
            let listed = listed.context(|| format!("list the elements of set {set}"))?;
            let mut elements = listed.unwrap_or_default().concat();
            elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            if elements.is_sorted_by(|a, b| a.key < b.key) {
                if !is_interrupted || before.as_ref() == Some(&elements) {
                    return Ok(elements);
                }
                before = Some(elements);
            }
        }
        let what = format!("the list changed each of the {GUARDED_ATTEMPTS} times it was read");
        Err(Error::new(Kind::Transient, what)).context(|| format!("list the elements of set {set}"))
    }

    /// Returns the elements of any set or map of another program, in any order; none if it does not exist.
    pub fn listed_elements(&mut self, set: Set<'_>) -> Result<Vec<Element>> {
        let request = set::about_set(set::GETSETELEM, NlmF::empty(), set).finish();
        let listed = self.list(&request, set::NEWSETELEM, |payload| Element::read_all(payload).map(Some));
        let listed = listed.or_else(|error| absent(error, Vec::new()));
        Ok(listed.context(|| format!("list the elements of set {set}"))?.concat())
    }

    /// Returns the element of a set or map with this key; `None` if there is none.
    pub fn element(&mut self, set: Set<'_>, key: &[Value]) -> Result<Option<Element>> {
        Ok(self.find_elements([(set, &*Value::concatenate(key))])?.pop().flatten())
    }

    /// Returns the elements with these keys, in the same order; `None` for those that do not exist. In a set of ranges,
    /// the element whose range includes the key. Sends few messages, and does not list the sets.
    pub fn find_elements<'a>(
        &mut self,
        keys: impl IntoIterator<Item = (Set<'a>, &'a [u8])>,
    ) -> Result<Vec<Option<Element>>> {
        let questions: Vec<_> = keys.into_iter().map(|(set, key)| set::get_element(set, key)).collect();
        let Some(socket) = &mut self.socket else { return Ok(vec![None; questions.len()]) };
        let read = |payload: &[u8]| Ok(Element::read_all(payload)?.pop());
        let found = socket.get_each(&questions, SUBSYSTEM << 8 | set::NEWSETELEM, &[libc::ENOENT], read);
        let found = found.or_else(|error| absent(error, vec![None; questions.len()]));
        Ok(found.context(|| "look up elements")?.into_iter().map(Option::flatten).collect())
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&mut self, chain: Chain<'_>) -> Result<bool> {
        self.chain(chain).map(|found| found.is_some())
    }

    /// Returns whether a base chain with this hook exists.
    pub fn has_base_chain(&mut self, chain: Chain<'_>, hook: Hook) -> Result<bool> {
        Ok(self.chain(chain)?.flatten().is_some_and(|base| base.place == hook.place))
    }

    /// Returns how often a chain is used: the number of its rules, of the rules that lead to it, and of the elements
    /// that do, also those of a transaction in progress; `None` if the chain does not exist.
    pub fn uses_of(&mut self, chain: Chain<'_>) -> Result<Option<u32>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let request = about_chain(GETCHAIN, NlmF::empty(), chain).finish();
        let found = socket.get(&request, SUBSYSTEM << 8 | NEWCHAIN, &[libc::ENOENT], |payload| {
            let mut uses = wire::attributes(payload, HEADER).flatten().filter(|(kind, _)| *kind == CHAIN_USES);
            uses.next().map_or(Ok(0), |(_, value)| wire::number(value, 0).map(u32::from_be))
        });
        found.or_else(|error| absent(error, None)).context(|| format!("look for chain {chain}"))
    }

    /// Returns a chain: `None` if it does not exist, `Some(None)` if it is not a base chain.
    fn chain(&mut self, chain: Chain<'_>) -> Result<Option<Option<BaseChain>>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let request = about_chain(GETCHAIN, NlmF::empty(), chain).finish();
        let found = socket.get(&request, SUBSYSTEM << 8 | NEWCHAIN, &[libc::ENOENT], BaseChain::read);
        found.or_else(|error| absent(error, None)).context(|| format!("look for chain {chain}"))
    }
}

/// Returns the error for a ruleset that changes all the time.
fn always_changed() -> Error {
    let what = format!("the ruleset changed each of the {GUARDED_ATTEMPTS} times it was read");
    Error::new(Kind::Transient, what).details("many rules come and go at once; try again")
}

/// Returns whether an error means that the kernel lacks nf_tables, or the requested part of it.
pub fn is_unavailable(error: &impl AsRef<Error>) -> bool {
    matches!(error.as_ref().errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENOENT))
}

/// Returns `nothing` if the error means that an object does not exist: without nf_tables nothing does, nor does an
/// object whose name is longer than the kernel allows.
fn absent<T>(error: Error, nothing: T) -> Result<T> {
    match error.errno() {
        Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ERANGE) => Ok(nothing),
        _ => Err(error),
    }
}
