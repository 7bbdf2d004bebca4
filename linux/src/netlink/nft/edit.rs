//! Changes of a ruleset, ready to be sent in a transaction.

use std::fmt;

use neli::consts::nl::NlmF;

use super::message::{
    CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE, DELCHAIN, DELRULE, HOOK_PLACE, HOOK_PRIORITY, NEWCHAIN, NEWRULE, NEWTABLE,
    RULE_HANDLE, RULE_POSITION,
};
use super::rule::Rule;
use super::spec::RuleSpec;
use super::table::{Chain, Hook, Table, about, about_chain, about_rule};
use crate::netlink::wire::{NESTED, Request};

/// One change of a ruleset. Each constructor is an operation.
pub struct Edit<'a> {
    /// Describes the change. A closure, because the text is rarely needed.
    pub(super) what: Box<dyn Fn() -> String + 'a>,
    pub(super) message: Vec<u8>,
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

    pub(super) fn new(request: Request, what: impl Fn() -> String + 'a) -> Edit<'a> {
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
