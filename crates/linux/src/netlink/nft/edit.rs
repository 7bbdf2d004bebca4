//! Changes of a ruleset, ready to be sent in a transaction.

use std::fmt;

use neli::consts::nl::NlmF;

use super::message::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TYPE, DELCHAIN, DELRULE, DELTABLE, HEADER, HOOK_PLACE, HOOK_PRIORITY,
    NEWCHAIN, NEWRULE, NEWTABLE, RULE_CHAIN, RULE_HANDLE, RULE_POSITION, TABLE, TABLE_FLAGS,
};
use super::rule::Rule;
use super::spec::RuleSpec;
use super::table::{Chain, Family, Hook, Table, about, about_chain, about_rule};
use crate::netlink::wire::{self, NESTED, Request};
use crate::sha2::sha512_of_bytes;

/// struct nlmsghdr
const NLMSG_HEADER: usize = 16;

/// One change of a ruleset. Each constructor is an operation.
pub struct Edit {
    /// What happens to the object, whose name is read from the message if it is needed.
    verb: &'static str,
    /// The attribute with the name of the object in its table, if it is not the table itself.
    name: Option<u16>,
    pub(super) message: Vec<u8>,
}

impl Edit {
    /// Creates a table unless it exists.
    pub fn add_table(table: Table<'_>) -> Edit {
        let request = about(NEWTABLE, NlmF::CREATE, table);
        Edit::new(request, "add table", None)
    }

    /// Creates a table that belongs to the socket: only the socket can change it, and the kernel removes it when the
    /// socket is closed. Needs Linux 5.12.
    pub fn add_owned_table(table: Table<'_>) -> Edit {
        // linux/netfilter/nf_tables.h: NFT_TABLE_F_OWNER
        const OWNER: u32 = 1 << 1;
        let mut request = about(NEWTABLE, NlmF::CREATE | NlmF::EXCL, table);
        request.attr(TABLE_FLAGS, &OWNER.to_be_bytes());
        Edit::new(request, "add table", None)
    }

    /// Deletes a table with everything in it.
    pub fn delete_table(table: Table<'_>) -> Edit {
        Edit::new(about(DELTABLE, NlmF::empty(), table), "delete table", None)
    }

    /// Creates a chain unless it exists.
    pub fn add_chain(chain: Chain<'_>) -> Edit {
        let request = about_chain(NEWCHAIN, NlmF::CREATE, chain);
        Edit::new(request, "add chain", Some(CHAIN_NAME))
    }

    /// Creates a chain; EEXIST if it exists.
    pub fn create_chain(chain: Chain<'_>) -> Edit {
        let request = about_chain(NEWCHAIN, NlmF::CREATE | NlmF::EXCL, chain);
        Edit::new(request, "create chain", Some(CHAIN_NAME))
    }

    /// Creates a base chain unless it exists. Its policy is to accept packets.
    pub fn add_base_chain(chain: Chain<'_>, hook: Hook) -> Edit {
        const ACCEPT: u32 = 1;
        let mut request = about_chain(NEWCHAIN, NlmF::CREATE, chain);
        request.nest(NESTED | CHAIN_HOOK, |place| {
            place.attr(HOOK_PLACE, &hook.place.to_be_bytes());
            place.attr(HOOK_PRIORITY, &hook.priority.to_be_bytes());
        });
        request.attr(CHAIN_POLICY, &ACCEPT.to_be_bytes());
        request.text(CHAIN_TYPE, hook.kind);
        Edit::new(request, "add chain", Some(CHAIN_NAME))
    }

    /// Deletes a chain and its rules. No other rule may refer to it.
    pub fn delete_chain(chain: Chain<'_>) -> Edit {
        let request = about_chain(DELCHAIN, NlmF::empty(), chain);
        Edit::new(request, "delete chain", Some(CHAIN_NAME))
    }

    /// Deletes all rules of a chain.
    pub fn flush(chain: Chain<'_>) -> Edit {
        let request = about_rule(DELRULE, NlmF::empty(), chain);
        Edit::new(request, "flush chain", Some(RULE_CHAIN))
    }

    /// Appends a rule to its chain.
    pub fn add_rule(rule: &RuleSpec<'_>) -> Edit {
        let chain = rule.chain;
        let mut request = about_rule(NEWRULE, NlmF::CREATE | NlmF::APPEND, chain);
        rule.write(&mut request);
        Edit::new(request, "add rule to chain", Some(RULE_CHAIN))
    }

    /// Inserts a rule into its chain. ENOENT if the rule that determines the position does not exist.
    pub fn insert_rule(rule: &RuleSpec<'_>, position: Position) -> Edit {
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
        Edit::new(request, "insert rule into chain", Some(RULE_CHAIN))
    }

    /// Replaces a rule at its position; ENOENT if it does not exist. Its handle may change.
    pub fn replace_rule(handle: u64, rule: &RuleSpec<'_>) -> Edit {
        let chain = rule.chain;
        let mut request = about_rule(NEWRULE, NlmF::REPLACE, chain);
        request.attr(RULE_HANDLE, &handle.to_be_bytes());
        rule.write(&mut request);
        Edit::new(request, "replace a rule of chain", Some(RULE_CHAIN))
    }

    /// Deletes a rule; ENOENT if it is already deleted.
    pub fn delete_rule(chain: Chain<'_>, rule: &Rule) -> Edit {
        let handle = rule.handle;
        let mut request = about_rule(DELRULE, NlmF::empty(), chain);
        request.attr(RULE_HANDLE, &handle.to_be_bytes());
        Edit::new(request, "delete a rule of chain", Some(RULE_CHAIN))
    }

    pub(super) fn new(request: Request, verb: &'static str, name: Option<u16>) -> Edit {
        Edit { verb, name, message: request.finish() }
    }
}

/// Returns a digest of edits: two lists of edits with the same one are the same.
pub fn digest(edits: &[Edit]) -> String {
    let messages: Vec<&[u8]> = edits.iter().map(|edit| edit.message.as_slice()).collect();
    sha512_of_bytes(32, &messages.concat())
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

impl fmt::Display for Edit {
    /// Describes the change, such as `add rule to chain inet filter input`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb)?;
        let payload = self.message.get(NLMSG_HEADER..).unwrap_or_default();
        if let Some(family) = payload.first().and_then(|number| Family::numbered(*number)) {
            write!(f, " {family}")?;
        }
        for wanted in [Some(TABLE), self.name].into_iter().flatten() {
            let found = wire::attributes(payload, HEADER).flatten().find(|(kind, _)| *kind == wanted);
            if let Some((_, name)) = found {
                write!(f, " {}", wire::text(name))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
