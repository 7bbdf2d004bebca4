//! nf_tables over netlink: tables, chains, rules, sets and maps, changed in transactions and listed. Does not need the
//! `nft` program.
//!
//! [`Edit`]s are applied together or not at all. Rules are encoded as `nft` encodes them, so that it can list them and
//! any tool can delete them. Edits that depend on what was listed are applied by [`Nftables::apply_guarded`].

mod expression;
#[cfg(test)]
mod golden;
mod rule;
mod set;
mod spec;
mod userdata;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use log::debug;
use neli::consts::nl::NlmF;

use super::socket::Socket;
use super::wire::{self, NESTED, Request};
use crate::error::{Context, Error, Kind, Result};

pub use expression::{Attributes, Comparison, Data, Field, Header, Register, Verdict};
pub use rule::Rule;
pub use set::{DataType, Element, MapsTo, Set, SetSpec, Value};
pub use spec::RuleSpec;
pub use userdata::UserData;

// linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEWTABLE: u16 = 0;
const NEWCHAIN: u16 = 3;
const GETCHAIN: u16 = 4;
const DELCHAIN: u16 = 5;
const NEWRULE: u16 = 6;
const GETRULE: u16 = 7;
const DELRULE: u16 = 8;
const NEWGEN: u16 = 15;
const GETGEN: u16 = 16;
/// The attribute with the table name, in messages about tables, chains and rules.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_PLACE: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_POSITION: u16 = 6;
const RULE_USERDATA: u16 = 7;
/// The attribute with the generation, in messages about it and in the message that begins a transaction.
const GENERATION: u16 = 1;

/// struct nfgenmsg
const HEADER: usize = 4;

/// The family number that stands for all families.
const ALL: u8 = 0;

/// The packets that a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Frames on a bridge.
    Bridge,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }

    fn number(self) -> u8 {
        // linux/netfilter.h: NFPROTO_*
        match self {
            Family::Inet => 1,
            Family::Ipv4 => 2,
            Family::Bridge => 7,
            Family::Ipv6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// The family.
    pub family: Family,
    /// The name.
    pub name: &'a str,
}

/// A chain of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The table.
    pub table: Table<'a>,
    /// The name.
    pub name: &'a str,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

impl<'a> Table<'a> {
    /// Returns a chain of this table.
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }

    /// Returns a set or map of this table.
    pub const fn set(self, name: &'a str) -> Set<'a> {
        Set { table: self, name }
    }
}

/// The hook at which packets enter a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The kernel's number of the hook.
    pub place: u32,
    /// Chains with lower numbers run first.
    pub priority: i32,
}

impl Hook {
    /// The hook for source NAT.
    pub const SOURCE_NAT: Hook = Hook { kind: "nat", place: 4, priority: 100 };
    /// The hook for destination NAT of packets that arrive.
    pub const DESTINATION_NAT: Hook = Hook { kind: "nat", place: 0, priority: -100 };
    /// The hook for destination NAT of packets that this host sends.
    pub const LOCAL_DESTINATION_NAT: Hook = Hook { kind: "nat", place: 3, priority: -100 };
    /// The hook that filters packets that are not addressed to this host, where `iptables` has its chain FORWARD.
    pub const FORWARD: Hook = Hook { kind: "filter", place: BaseChain::FORWARD, priority: 0 };
    /// The first hook for frames that a bridge receives on its ports.
    pub const BRIDGE_INPUT: Hook = Hook { kind: "filter", place: 0, priority: -300 };
}

/// A base chain, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The kernel's number of the family: other programs use families that [`Family`] lacks.
    family: u8,
    /// The table.
    pub table: String,
    /// The name.
    pub name: String,
    /// The kernel's number of the hook.
    pub place: u32,
    /// Whether the policy is to drop packets that no rule matches.
    pub drops: bool,
}

impl BaseChain {
    /// The hook for packets that are not addressed to this host.
    pub const FORWARD: u32 = 2;

    /// Returns whether the chain sees packets of this family: it has the same family, or `inet`.
    pub fn sees(&self, family: Family) -> bool {
        self.family == family.number() || (self.family == Family::Inet.number() && family != Family::Bridge)
    }

    /// Parses a chain; `None` if it is not a base chain.
    fn read(payload: &[u8]) -> Result<Option<BaseChain>> {
        let mut chain = BaseChain {
            family: wire::byte(payload, 0)?,
            table: String::new(),
            name: String::new(),
            place: 0,
            drops: false,
        };
        let mut is_base = false;
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (TABLE, value) => chain.table = wire::text(value),
                (CHAIN_NAME, value) => chain.name = wire::text(value),
                (CHAIN_HOOK, hook) => {
                    is_base = true;
                    for attribute in wire::attributes(hook, 0) {
                        if let (HOOK_PLACE, value) = attribute? {
                            chain.place = u32::from_be(wire::number(value, 0)?);
                        }
                    }
                }
                (CHAIN_POLICY, value) => chain.drops = wire::number(value, 0)? == 0,
                _ => {}
            }
        }
        Ok(is_base.then_some(chain))
    }
}

impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = [Family::Inet, Family::Ipv4, Family::Ipv6, Family::Bridge];
        match known.into_iter().find(|family| family.number() == self.family) {
            Some(family) => write!(f, "{family} {} {}", self.table, self.name),
            None => write!(f, "{} {}", self.table, self.name),
        }
    }
}

/// Attempts to change rules while other programs delete some of them.
const ATTEMPTS: u32 = 10;
/// Attempts to change a ruleset that no other program changes meanwhile. Any change of any ruleset in the namespace
/// makes an attempt fail, at little cost, and many may happen at the same time.
const GUARDED_ATTEMPTS: u32 = 500;

/// Repeats `work` while it fails because another program has deleted a rule or chain that `work` had just listed.
pub fn retry<T, E: AsRef<Error>>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut outcome = work();
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if error.as_ref().errno() == Some(libc::ENOENT) => outcome = work(),
            _ => break,
        }
    }
    outcome
}

/// One change of a ruleset. Each constructor is an operation.
pub struct Edit<'a> {
    /// Describes the change. A closure, because the text is rarely needed.
    what: Box<dyn Fn() -> String + 'a>,
    message: Vec<u8>,
}

impl<'a> Edit<'a> {
    /// Creates a table unless it exists.
    pub fn add_table(table: Table<'a>) -> Edit<'a> {
        let request = about(NEWTABLE, NlmF::CREATE, table);
        Edit::new(request, move || format!("add table {table}"))
    }

    /// Creates a chain unless it exists.
    pub fn add_chain(chain: Chain<'a>) -> Edit<'a> {
        let request = about_chain(NEWCHAIN, NlmF::CREATE, chain);
        Edit::new(request, move || format!("add chain {chain}"))
    }

    /// Creates a chain; EEXIST if it exists.
    pub fn create_chain(chain: Chain<'a>) -> Edit<'a> {
        let request = about_chain(NEWCHAIN, NlmF::CREATE | NlmF::EXCL, chain);
        Edit::new(request, move || format!("create chain {chain}"))
    }

    /// Creates a base chain unless it exists. Its policy is to accept packets.
    pub fn add_base_chain(chain: Chain<'a>, hook: Hook) -> Edit<'a> {
        const ACCEPT: u32 = 1;
        let mut request = about_chain(NEWCHAIN, NlmF::CREATE, chain);
        request.nest(NESTED | CHAIN_HOOK, |place| {
            place.attr(HOOK_PLACE, &hook.place.to_be_bytes());
            place.attr(HOOK_PRIORITY, &hook.priority.to_be_bytes());
        });
        request.attr(CHAIN_POLICY, &ACCEPT.to_be_bytes());
        request.text(CHAIN_TYPE, hook.kind);
        Edit::new(request, move || format!("add chain {chain}"))
    }

    /// Deletes a chain and its rules. No other rule may refer to it.
    pub fn delete_chain(chain: Chain<'a>) -> Edit<'a> {
        let request = about_chain(DELCHAIN, NlmF::empty(), chain);
        Edit::new(request, move || format!("delete chain {chain}"))
    }

    /// Deletes all rules of a chain.
    pub fn flush(chain: Chain<'a>) -> Edit<'a> {
        let request = about_rule(DELRULE, NlmF::empty(), chain);
        Edit::new(request, move || format!("flush chain {chain}"))
    }

    /// Appends a rule to its chain.
    pub fn add_rule(rule: &RuleSpec<'a>) -> Edit<'a> {
        let chain = rule.chain;
        let mut request = about_rule(NEWRULE, NlmF::CREATE | NlmF::APPEND, chain);
        rule.write(&mut request);
        Edit::new(request, move || format!("add rule to chain {chain}"))
    }

    /// Inserts a rule into its chain. ENOENT if the rule that determines the position does not exist.
    pub fn insert_rule(rule: &RuleSpec<'a>, position: Position) -> Edit<'a> {
        let chain = rule.chain;
        let flags = match position {
            Position::First | Position::Before(_) => NlmF::CREATE,
            Position::After(_) => NlmF::CREATE | NlmF::APPEND,
        };
        let mut request = about_rule(NEWRULE, flags, chain);
        if let Position::Before(handle) | Position::After(handle) = position {
            request.attr(RULE_POSITION, &handle.to_be_bytes());
        }
        rule.write(&mut request);
        Edit::new(request, move || format!("insert rule into chain {chain}"))
    }

    /// Replaces a rule at its position; ENOENT if it does not exist. Its handle may change.
    pub fn replace_rule(handle: u64, rule: &RuleSpec<'a>) -> Edit<'a> {
        let chain = rule.chain;
        let mut request = about_rule(NEWRULE, NlmF::REPLACE, chain);
        request.attr(RULE_HANDLE, &handle.to_be_bytes());
        rule.write(&mut request);
        Edit::new(request, move || format!("replace rule {handle} of chain {chain}"))
    }

    /// Deletes a rule; ENOENT if it is already deleted.
    pub fn delete_rule(chain: Chain<'a>, rule: &Rule) -> Edit<'a> {
        let handle = rule.handle;
        let mut request = about_rule(DELRULE, NlmF::empty(), chain);
        request.attr(RULE_HANDLE, &handle.to_be_bytes());
        Edit::new(request, move || format!("delete rule {handle} of chain {chain}"))
    }

    fn new(request: Request, what: impl Fn() -> String + 'a) -> Edit<'a> {
        Edit { what: Box::new(what), message: request.finish() }
    }
}

/// Where a rule is inserted. The numbers are handles of other rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before all rules of the chain.
    First,
    /// Before this rule.
    Before(u64),
    /// After this rule.
    After(u64),
}

impl fmt::Debug for Edit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&(self.what)())
    }
}

/// An nf_tables socket in one network namespace.
#[derive(Debug)]
pub struct Nftables {
    /// `None` if the kernel has no netfilter netlink. Then nothing exists, and nothing can be created.
    socket: Option<Socket>,
}

impl Nftables {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        match Socket::netfilter() {
            Err(error) if matches!(error.errno(), Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT)) => {
                Ok(Nftables { socket: None })
            }
            socket => Ok(Nftables { socket: Some(socket.context(|| "open a netfilter socket")?) }),
        }
    }

    /// Returns the socket, for callers that keep it open: closing it after a deletion waits for all processors.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(Socket::fd)
    }

    /// Applies all `edits` in order, or none of them.
    pub fn apply(&mut self, edits: &[Edit<'_>]) -> Result<()> {
        self.send(edits, &begin_batch(None), true)
    }

    /// Validates `edits` without applying them.
    pub fn dry_run(&mut self, edits: &[Edit<'_>]) -> Result<()> {
        self.send(edits, &begin_batch(None), false)
    }

    /// Applies the edits that `plan` computes from what it lists, unless another program has changed any ruleset since
    /// the start of `plan`. In that case, calls `plan` again.
    ///
    /// Elements need it: they have no handle, so that a deletion could hit a new element with the same key.
    pub fn apply_guarded<'a, E: From<Error>>(
        &mut self,
        mut plan: impl FnMut(&mut Nftables) -> Result<Vec<Edit<'a>>, E>,
    ) -> Result<(), E> {
        for _ in 0..GUARDED_ATTEMPTS {
            let generation = self.generation()?;
            let edits = plan(self)?;
            match self.send(&edits, &begin_batch(generation), true) {
                Err(error) if error.errno() == Some(libc::ERESTART) => {}
                outcome => return Ok(outcome?),
            }
        }
        let what = format!("the ruleset changed each of the {GUARDED_ATTEMPTS} times it was read");
        Err(Error::new(Kind::Transient, what).details("many rules come and go at once; try again").into())
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

    fn send(&mut self, edits: &[Edit<'_>], begin: &[u8], commit: bool) -> Result<()> {
        let mut messages = Vec::with_capacity(edits.len());
        for edit in edits {
            debug!("nf_tables{}: {edit:?}", if commit { "" } else { " (trying)" });
            messages.push(edit.message.as_slice());
        }
        let end = bound(BATCH_END).finish();
        let Some(socket) = &mut self.socket else {
            return Err(Error::kernel(libc::EPROTONOSUPPORT, "")).context(|| "nf_tables");
        };
        let refused = socket.transact(begin, &messages, commit.then_some(end.as_slice()))?;
        match refused {
            None => Ok(()),
            Some((index, error)) => {
                let what = edits.get(index).map(|edit| (edit.what)()).unwrap_or_default();
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
            Ok(rule.filter(|rule| rule.target.as_deref() == Some(target)))
        });
        let found = found.or_else(|error| absent(error, Vec::new()));
        Ok(!found.context(|| format!("list the rules of chain {chain}"))?.is_empty())
    }

    /// Returns the rules of all chains of a table; none if the table does not exist.
    pub fn table_rules(&mut self, table: Table<'_>) -> Result<Vec<Rule>> {
        self.rules_in(table, None, None).context(|| format!("list the rules of table {table}"))
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

    /// Returns the elements of a set or map, ordered by their keys; none if it does not exist.
    ///
    /// The kernel enlarges its hash table in the background and does not report that to a listing in progress. Such a
    /// listing has the right number of elements, but some of them twice instead of others. So it is repeated.
    pub fn elements(&mut self, set: Set<'_>) -> Result<Vec<Element>> {
        let request = set::about_set(set::GETSETELEM, NlmF::empty(), set).finish();
        for _ in 0..ATTEMPTS {
            let listed = self.list(&request, set::NEWSETELEM, |payload| Element::read_all(payload).map(Some));
            let listed = listed.or_else(|error| absent(error, Vec::new()));
            let mut elements = listed.context(|| format!("list the elements of set {set}"))?.concat();
            elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            if elements.is_sorted_by(|a, b| a.key < b.key) {
                return Ok(elements);
            }
        }
        let what = format!("the list changed each of the {ATTEMPTS} times it was read");
        Err(Error::new(Kind::Transient, what)).context(|| format!("list the elements of set {set}"))
    }

    /// Returns the element of a set or map with this key; `None` if there is none.
    pub fn element(&mut self, set: Set<'_>, key: &[Value]) -> Result<Option<Element>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let request = set::get_element(set, key);
        let found = socket.get(&request, SUBSYSTEM << 8 | set::NEWSETELEM, &[libc::ENOENT], Element::read_all);
        let found =
            found.or_else(|error| absent(error, None)).context(|| format!("look up an element of set {set}"))?;
        Ok(found.and_then(|elements| elements.into_iter().next()))
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&mut self, chain: Chain<'_>) -> Result<bool> {
        self.chain(chain).map(|found| found.is_some())
    }

    /// Returns whether a base chain with this hook exists.
    pub fn has_base_chain(&mut self, chain: Chain<'_>, hook: Hook) -> Result<bool> {
        Ok(self.chain(chain)?.flatten().is_some_and(|base| base.place == hook.place))
    }

    /// Returns a chain: `None` if it does not exist, `Some(None)` if it is not a base chain.
    fn chain(&mut self, chain: Chain<'_>) -> Result<Option<Option<BaseChain>>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let request = about_chain(GETCHAIN, NlmF::empty(), chain).finish();
        let found = socket.get(&request, SUBSYSTEM << 8 | NEWCHAIN, &[libc::ENOENT], BaseChain::read);
        found.or_else(|error| absent(error, None)).context(|| format!("look for chain {chain}"))
    }
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

/// Starts an nf_tables message.
fn begin(kind: u16, flags: NlmF, family: u8) -> Request {
    let mut request = Request::new(SUBSYSTEM << 8 | kind, flags);
    request.raw(&head(family, 0));
    request
}

/// Starts a message about a table, or about an object in it.
fn about(kind: u16, flags: NlmF, table: Table<'_>) -> Request {
    let mut request = begin(kind, flags, table.family.number());
    request.text(TABLE, table.name);
    request
}

fn about_chain(kind: u16, flags: NlmF, chain: Chain<'_>) -> Request {
    let mut request = about(kind, flags, chain.table);
    request.text(CHAIN_NAME, chain.name);
    request
}

/// Starts a message about the rules of a chain.
fn about_rule(kind: u16, flags: NlmF, chain: Chain<'_>) -> Request {
    let mut request = about(kind, flags, chain.table);
    request.text(RULE_CHAIN, chain.name);
    request
}

/// Starts the message that begins or ends a transaction.
fn bound(kind: u16) -> Request {
    let mut request = Request::new(kind, NlmF::empty());
    request.raw(&head(0, SUBSYSTEM));
    request
}

/// Encodes the message that begins a transaction. With a generation, the kernel rejects the transaction with ERESTART if
/// the rulesets have another one.
fn begin_batch(generation: Option<u32>) -> Vec<u8> {
    let mut request = bound(BATCH_BEGIN);
    if let Some(generation) = generation {
        request.attr(GENERATION, &generation.to_be_bytes());
    }
    request.finish()
}

fn get_generation() -> Vec<u8> {
    begin(GETGEN, NlmF::empty(), ALL).finish()
}

/// struct nfgenmsg: family, version, resource
fn head(family: u8, resource: u16) -> [u8; HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
