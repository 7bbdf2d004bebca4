//! The spoof checks of the reference and of earlier versions: two chains for each attachment, and a jump to the first
//! one in a chain that all share. ADD adds none, but their containers stay attached when a node is upgraded.
//!
//! The names of the chains do not contain the network: attachments of other networks can have the same ones.

use std::collections::BTreeMap;

use cni::{AttachmentKey, Context, ErrorCollector, Result};
use linux::ip::MacAddr;
use linux::netlink::nft::{self, Chain, Edit, Family, Hook, Nftables, Rule, Table};

use super::{drops_all, missing, receives_nothing};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "nat" };
const PREROUTING: Chain<'_> = TABLE.chain("PREROUTING");
/// The prefix of all comments; the container ID, a hyphen and the interface name follow.
const COMMENT_PREFIX: &str = "macspoofchk-";

/// The names of chains and the comment of one attachment.
#[derive(Debug)]
struct Names {
    /// The chain for frames from the port.
    port: String,
    /// The chain that compares the MAC address.
    mac: String,
    comment: String,
}

impl Names {
    fn new(reference: &str) -> Names {
        Names {
            port: format!("cni-br-iface-{reference}"),
            mac: format!("cni-br-iface-{reference}-mac"),
            comment: format!("{COMMENT_PREFIX}{reference}"),
        }
    }

    fn of(owner: AttachmentKey<'_>) -> Names {
        Names::new(&owner.chain_suffix())
    }
}

/// Returns whether there are chains with the names of an attachment.
pub(super) fn exist(nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<bool> {
    Ok(nft.has_chain(TABLE.chain(&Names::of(owner).port))?)
}

/// Removes the check whose chains are named after `owner`, if `is_ours` returns `true` for its port. Both chains are
/// created in one transaction, and deleted in one.
pub(super) fn remove(
    nft: &mut Nftables,
    owner: AttachmentKey<'_>,
    mut is_ours: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let names = Names::of(owner);
    nft::retry(|| -> Result<()> {
        // The rule in PREROUTING jumps to the first chain, so without chains there is no rule.
        if !exist(nft, owner)? {
            return Ok(());
        }
        let mut edits = Vec::new();
        for chain in [TABLE.chain(&names.port), TABLE.chain(&names.mac)] {
            if nft.has_chain(chain)? {
                edits.push(Edit::delete_chain(chain));
            }
        }
        let mut ours = Vec::new();
        for rule in nft.rules_with_comment(PREROUTING, &|comment| comment == names.comment)? {
            if is_ours(&link_of(&rule).unwrap_or_default())? {
                ours.push(rule);
            } else {
                // Its chains are needed.
                edits.clear();
            }
        }
        edits.splice(0..0, ours.iter().map(|rule| Edit::delete_rule(PREROUTING, rule)));
        Ok(nft.apply(&edits)?)
    })
    .context(|| "remove the spoof check")
}

/// Returns the jumps of all ports.
pub(super) fn rules(nft: &mut Nftables) -> Result<Vec<Rule>> {
    Ok(nft.rules(PREROUTING)?)
}

/// GC: removes the checks of the ports that are `gone`. `rules` were listed before the ports.
pub(super) fn collect(nft: &mut Nftables, rules: &[Rule], gone: impl Fn(&str) -> bool, failures: &mut ErrorCollector) {
    // The number of rules that jump to each chain.
    let mut users: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for rule in rules {
        *users.entry(rule.target()).or_default() += 1;
    }
    let is_gone = |rule: &&Rule| link_of(rule).is_some_and(|link| gone(&link));
    for rule in rules.iter().filter(|rule| rule.comment.starts_with(COMMENT_PREFIX)).filter(is_gone) {
        let others = users.entry(rule.target()).and_modify(|users| *users -= 1).or_default();
        failures.record(remove_stale(nft, rule, *others > 0));
    }
}

/// Removes one rule and, unless other rules share them, its chains, in one transaction. If the rule is gone, another
/// command has removed or replaced it. Then the chains stay: they may belong to a new attachment with the same names.
fn remove_stale(nft: &mut Nftables, rule: &Rule, shared: bool) -> Result<()> {
    let names = Names::new(rule.comment.strip_prefix(COMMENT_PREFIX).unwrap_or_default());
    let mut edits = vec![Edit::delete_rule(PREROUTING, rule)];
    for chain in [TABLE.chain(&names.port), TABLE.chain(&names.mac)] {
        if !shared && nft.has_chain(chain)? {
            edits.push(Edit::delete_chain(chain));
        }
    }
    match nft.apply(&edits) {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        outcome => outcome.context(|| "remove the spoof check"),
    }
}

/// Lists the ports with a check, each with the container ID, a hyphen and the interface name.
pub(super) fn list(nft: &mut Nftables) -> Result<Vec<(String, String)>> {
    let check = |rule: &Rule| Some((link_of(rule)?, rule.comment.strip_prefix(COMMENT_PREFIX)?.to_owned()));
    Ok(rules(nft)?.iter().filter_map(check).collect())
}

/// Returns the name of the link whose frames a rule matches.
fn link_of(rule: &Rule) -> Option<String> {
    let padded = String::from_utf8(rule.values.first()?.clone()).ok()?;
    Some(padded.trim_end_matches('\0').to_owned())
}

/// CHECK: returns an error if a rule for this port and this MAC address is missing.
pub(super) fn check(nft: &mut Nftables, owner: AttachmentKey<'_>, port: &str, mac: MacAddr) -> Result<()> {
    let names = Names::of(owner);
    if !nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
        return Err(receives_nothing(PREROUTING));
    }
    let rules = nft.rules(PREROUTING)?;
    let leads = |rule: &&Rule| rule.target() == Some(&names.port);
    match rules.iter().find(leads).map(link_of) {
        Some(Some(found)) if found == port => {}
        Some(found) => {
            let found = found.unwrap_or_default();
            return Err(missing(format!("the spoof check should be for port {port:?}, but is for {found:?}")));
        }
        None => return Err(missing(format!("no rule in chain {PREROUTING} leads to {}", names.port))),
    }
    let rules = nft.rules(TABLE.chain(&names.mac))?;
    let allowed = || rules.iter().flat_map(|rule| &rule.values).filter_map(|value| value.as_slice().try_into().ok());
    if allowed().any(|allowed| MacAddr(allowed) == mac) {
        return Ok(());
    }
    Err(match allowed().next().map(MacAddr) {
        Some(allowed) => drops_all(mac, allowed),
        None => missing(format!("no rule in chain {} lets {mac} pass", TABLE.chain(&names.mac))),
    })
}
