//! nf_tables by netlink: tables, chains and rules, changed in transactions and listed. No `nft` is needed.
//!
//! What should change is a list of [`Edit`]s, all of which happen or none. Rules are written the way `nft` writes
//! them, so that it can list them, and any tool can delete them.

mod rule;

use std::fmt;
use std::io::Cursor;
use std::os::fd::BorrowedFd;

use log::debug;
use neli::ToBytes;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::Rtm;

use super::socket::Socket;
use super::wire::{self, Attrs, attr, list, message};
use crate::error::{Code, Context, Error, Result};

pub use rule::{Part, Rule};

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

/// How often a listing is begun anew after the socket has given it up.
const PERSISTENCE: u32 = 50;

/// struct nfgenmsg
const HEADER: usize = 4;

/// linux/netlink.h: marks an attribute made of attributes.
const NESTED: u16 = 1 << 15;

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Frames that pass a bridge.
    Bridge,
}

impl Family {
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
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'a str,
}

/// A chain of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    /// Its table.
    pub table: Table<'a>,
    /// Its name.
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
    /// A chain of this table.
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }
}

/// Where packets come into a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The place, by the kernel's number.
    pub place: u32,
    /// Lower ones come first.
    pub priority: i32,
}

impl Hook {
    /// Where source addresses are translated.
    pub const SOURCE_NAT: Hook = Hook { kind: "nat", place: 4, priority: 100 };
    /// Where a bridge takes frames from its ports, before all else.
    pub const BRIDGE_INPUT: Hook = Hook { kind: "filter", place: 0, priority: -300 };
}

/// A chain that packets come into, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// Its family, by the kernel's number: other programs use more of them than we do.
    family: u8,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// The place where packets come into it, by the kernel's number.
    pub place: u32,
    /// Is what no rule decides about thrown away?
    pub drops: bool,
}

impl BaseChain {
    /// Where packets pass that are not for this host.
    pub const FORWARD: u32 = 2;

    /// Does it see packets of this family, because it is of the family or of both?
    pub fn sees(&self, family: Family) -> bool {
        self.family == family.number() || (self.family == Family::Inet.number() && family != Family::Bridge)
    }

    /// `None` for a chain that others lead to.
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
                (1, value) => chain.table = wire::text(value),
                (3, value) => chain.name = wire::text(value),
                (4, hook) => {
                    is_base = true;
                    for attribute in wire::attributes(hook, 0) {
                        if let (1, value) = attribute? {
                            chain.place = u32::from_be(wire::number(value, 0)?);
                        }
                    }
                }
                (5, value) => chain.drops = wire::number(value, 0)? == 0,
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

/// One change of a ruleset. The constructors are the verbs.
pub struct Edit {
    what: String,
    message: Result<Vec<u8>>,
}

impl Edit {
    /// Makes a table, unless it is there.
    pub fn add_table(table: Table<'_>) -> Edit {
        let attrs = || Ok(vec![attr(1, table.name)?]);
        Edit::new(format!("add table {table}"), NEWTABLE, NlmF::CREATE, table, attrs())
    }

    /// Makes a chain, unless it is there.
    pub fn add_chain(chain: Chain<'_>) -> Edit {
        let attrs = || Ok(vec![attr(1, chain.table.name)?, attr(3, chain.name)?]);
        Edit::new(format!("add chain {chain}"), NEWCHAIN, NlmF::CREATE, chain.table, attrs())
    }

    /// Makes a chain; EEXIST if it is there.
    pub fn new_chain(chain: Chain<'_>) -> Edit {
        let attrs = || Ok(vec![attr(1, chain.table.name)?, attr(3, chain.name)?]);
        Edit::new(format!("make chain {chain}"), NEWCHAIN, NlmF::CREATE | NlmF::EXCL, chain.table, attrs())
    }

    /// Makes a chain that packets come into, unless it is there; it lets pass what no rule decides about.
    pub fn add_base_chain(chain: Chain<'_>, hook: Hook) -> Edit {
        const ACCEPT: u32 = 1;
        let attrs = || {
            let place = vec![attr(1, hook.place.to_be_bytes())?, attr(2, hook.priority.to_be_bytes())?];
            Ok(vec![
                attr(1, chain.table.name)?,
                attr(3, chain.name)?,
                nest(4, place)?,
                attr(5, ACCEPT.to_be_bytes())?,
                attr(7, hook.kind)?,
            ])
        };
        Edit::new(format!("add chain {chain}"), NEWCHAIN, NlmF::CREATE, chain.table, attrs())
    }

    /// Deletes a chain and its rules. No rule elsewhere may lead to it.
    pub fn delete_chain(chain: Chain<'_>) -> Edit {
        let attrs = || Ok(vec![attr(1, chain.table.name)?, attr(3, chain.name)?]);
        Edit::new(format!("delete chain {chain}"), DELCHAIN, NlmF::empty(), chain.table, attrs())
    }

    /// Deletes all rules of a chain.
    pub fn flush(chain: Chain<'_>) -> Edit {
        let attrs = || Ok(vec![attr(1, chain.table.name)?, attr(2, chain.name)?]);
        Edit::new(format!("flush chain {chain}"), DELRULE, NlmF::empty(), chain.table, attrs())
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(chain: Chain<'_>, parts: &[Part<'_>], comment: &str) -> Edit {
        let attrs = || {
            let mut attrs =
                vec![attr(1, chain.table.name)?, attr(2, chain.name)?, rule::expressions(chain.table.family, parts)?];
            if !comment.is_empty() {
                attrs.push(rule::comment(comment)?);
            }
            Ok(attrs)
        };
        Edit::new(format!("add rule to chain {chain}"), NEWRULE, NlmF::CREATE | NlmF::APPEND, chain.table, attrs())
    }

    /// Deletes a rule; ENOENT if somebody else was faster.
    pub fn delete_rule(chain: Chain<'_>, rule: &Rule) -> Edit {
        let attrs = || Ok(vec![attr(1, chain.table.name)?, attr(2, chain.name)?, attr(3, rule.handle.to_be_bytes())?]);
        Edit::new(format!("delete rule {} of chain {chain}", rule.handle), DELRULE, NlmF::empty(), chain.table, attrs())
    }

    fn new(what: String, kind: u16, flags: NlmF, table: Table<'_>, attrs: Result<Attrs<u16>>) -> Edit {
        Edit { what, message: attrs.and_then(|attrs| encode(kind, flags, table.family.number(), attrs)) }
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A socket to nf_tables in one network namespace.
#[derive(Debug)]
pub struct Nftables {
    /// `None` where the kernel has no netfilter over netlink: then nothing is there, and nothing can be made.
    socket: Option<Socket>,
}

impl Nftables {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Nftables> {
        match Socket::netfilter() {
            Err(error) if matches!(error.errno(), Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT)) => {
                Ok(Nftables { socket: None })
            }
            socket => Ok(Nftables { socket: Some(socket.trying(|| "open a netfilter socket")?) }),
        }
    }

    /// The socket, for whoever keeps it open: to close it after something was deleted waits for all processors.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(Socket::fd)
    }

    /// Makes all `edits`, in order, or none of them.
    pub fn apply(&mut self, edits: &[Edit]) -> Result<()> {
        self.send(edits, true)
    }

    /// Finds out whether `edits` could be made, and makes none of them.
    pub fn try_out(&mut self, edits: &[Edit]) -> Result<()> {
        self.send(edits, false)
    }

    fn send(&mut self, edits: &[Edit], commit: bool) -> Result<()> {
        let mut messages = Vec::with_capacity(edits.len());
        for edit in edits {
            debug!("nf_tables{}: {edit:?}", if commit { "" } else { " (trying)" });
            let encoded = edit.message.as_deref().map_err(Clone::clone);
            messages.push(encoded.trying(|| edit.what.as_str())?);
        }
        let (begin, end) = (bound(BATCH_BEGIN)?, bound(BATCH_END)?);
        let Some(socket) = &mut self.socket else {
            return Err(Error::kernel(libc::EPROTONOSUPPORT, "")).trying(|| "nf_tables");
        };
        let refused = socket.transact(&begin, &messages, commit.then_some(end.as_slice()))?;
        match refused {
            None => Ok(()),
            Some((index, error)) => {
                Err(error).trying(|| edits.get(index).map_or("", |edit| &edit.what)).trying(|| "nf_tables")
            }
        }
    }

    /// Has the kernel nf_tables at all? Who may not ask gets an error.
    pub fn is_there(&mut self) -> Result<bool> {
        if self.socket.is_none() {
            return Ok(false);
        }
        let request = encode(GETCHAIN, NlmF::empty(), 0, Vec::new())?;
        match self.list(&request, NEWCHAIN, |_| Ok(None::<()>)) {
            Ok(_) => Ok(true),
            Err(error) => absent(error, false).trying(|| "ask for nf_tables"),
        }
    }

    /// The rules of a chain; none if there is no such chain.
    pub fn rules(&mut self, chain: Chain<'_>) -> Result<Vec<Rule>> {
        self.rules_in(chain.table, Some(chain.name), None).trying(|| format!("list the rules of chain {chain}"))
    }

    /// Those rules of a chain whose comments are `wanted`. Of the others nothing is read: there may be a thousand.
    pub fn rules_about(&mut self, chain: Chain<'_>, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Rule>> {
        let found = self.rules_in(chain.table, Some(chain.name), Some(wanted));
        found.trying(|| format!("list the rules of chain {chain}"))
    }

    /// The rules of all chains of a table; none if there is no such table.
    pub fn table_rules(&mut self, table: Table<'_>) -> Result<Vec<Rule>> {
        self.rules_in(table, None, None).trying(|| format!("list the rules of table {table}"))
    }

    fn rules_in(
        &mut self,
        table: Table<'_>,
        chain: Option<&str>,
        wanted: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<Vec<Rule>> {
        let mut attrs = vec![attr(1, table.name)?];
        if let Some(chain) = chain {
            attrs.push(attr(2, chain)?);
        }
        let request = encode(GETRULE, NlmF::empty(), table.family.number(), attrs)?;
        let listed = self.list(&request, NEWRULE, |payload| {
            if let Some(wanted) = wanted
                && !wanted(&Rule::comment_of(payload)?)
            {
                return Ok(None);
            }
            // Kernels before 4.17 look at neither name and list everything.
            Rule::read(payload).map(|rule| rule.filter(|rule| rule.is_in(table, chain)))
        });
        listed.or_else(|error| absent(error, Vec::new()))
    }

    /// The chains of all tables and families that packets come into.
    pub fn base_chains(&mut self) -> Result<Vec<BaseChain>> {
        const ALL: u8 = 0;
        let request = encode(GETCHAIN, NlmF::empty(), ALL, Vec::new())?;
        let listed = self.list(&request, NEWCHAIN, BaseChain::read);
        listed.or_else(|error| absent(error, Vec::new())).trying(|| "list the chains of all tables")
    }

    fn list<T>(
        &mut self,
        request: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>> + Copy,
    ) -> Result<Vec<T>> {
        let Some(socket) = &mut self.socket else { return Ok(Vec::new()) };
        let mut outcome = Ok(Vec::new());
        for _ in 0..PERSISTENCE {
            outcome = socket.list(request, SUBSYSTEM << 8 | kind, read);
            // Any change of any ruleset spoils a listing, and many may come and go at once.
            if !matches!(&outcome, Err(error) if error.code() == Code::TRY_LATER) {
                break;
            }
        }
        outcome
    }

    /// Is there such a chain?
    pub fn has_chain(&mut self, chain: Chain<'_>) -> Result<bool> {
        self.chain(chain).map(|found| found.is_some())
    }

    /// Is there such a chain, and do packets come into it there?
    pub fn has_base_chain(&mut self, chain: Chain<'_>, hook: Hook) -> Result<bool> {
        Ok(self.chain(chain)?.flatten().is_some_and(|base| base.place == hook.place))
    }

    /// A chain, if it is there: as one that packets come into, or not.
    fn chain(&mut self, chain: Chain<'_>) -> Result<Option<Option<BaseChain>>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let attrs = vec![attr(1, chain.table.name)?, attr(3, chain.name)?];
        let request = encode(GETCHAIN, NlmF::empty(), chain.table.family.number(), attrs)?;
        let found = socket.get(&request, SUBSYSTEM << 8 | NEWCHAIN, &[libc::ENOENT], BaseChain::read);
        found.or_else(|error| absent(error, None)).trying(|| format!("look for chain {chain}"))
    }
}

/// Does this error say that the kernel has no nf_tables, or not the part of it that was asked for?
pub fn is_unavailable(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENOENT))
}

/// Without nf_tables nothing is there, nor is anything whose name is longer than the kernel takes.
fn absent<T>(error: Error, nothing: T) -> Result<T> {
    match error.errno() {
        Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ERANGE) => Ok(nothing),
        _ => Err(error),
    }
}

fn encode(kind: u16, flags: NlmF, family: u8, attrs: Attrs<u16>) -> Result<Vec<u8>> {
    let mut body = Cursor::new(Vec::new());
    head(family, 0).to_bytes(&mut body).map_err(Error::bug)?;
    list(attrs).to_bytes(&mut body).map_err(Error::bug)?;
    message(Rtm::from(SUBSYSTEM << 8 | kind), flags, body.into_inner())
}

/// The message that begins or ends a transaction.
fn bound(kind: u16) -> Result<Vec<u8>> {
    message(Rtm::from(kind), NlmF::empty(), head(0, SUBSYSTEM))
}

/// struct nfgenmsg: family, version, resource
fn head(family: u8, resource: u16) -> [u8; HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// An attribute made of attributes, marked as such.
fn nest(kind: u16, attrs: Attrs<u16>) -> Result<neli::rtnl::Rtattr<u16, neli::types::Buffer>> {
    wire::nest(kind | NESTED, attrs)
}
