//! Acceptance of container traffic by rules in the table `filter` of iptables. The chains are those of the reference.
//!
//! ```text
//! -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
//! -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
//! -A CNI-FORWARD -m comment --comment "accepted by table inet cni_firewall" -m mark --mark 0x1000/0x1000 -j ACCEPT
//! ```
//!
//! The last rule accepts what the plugin's own table has marked: see [`accepted`]. That table alone could not accept
//! traffic: each base chain of a hook can drop a packet that another has accepted.
//!
//! The reference adds rules for each address instead, and so did earlier versions, which DEL, GC and a repeated ADD
//! remove:
//!
//! ```text
//! -A CNI-FORWARD -d 10.9.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//! -A CNI-FORWARD -s 10.9.0.2/32 -j ACCEPT
//! -A CNI-FORWARD -d 10.9.0.2/32 -m conntrack --ctstate DNAT -j ACCEPT
//! ```
//!
//! In nf_tables, those of earlier versions have a mark, which the tools do not show: the comment of the attachment's
//! other objects. Those of the reference, and all rules in legacy tables, have no owner. A kernel without nf_tables
//! still needs them.

use std::net::IpAddr;

use cni::key::mark_in;
use cni::{AttachmentKey, Ownership, Result, Trace};
use linux::ip::Cidr;
use linux::iptables::{ConnectionState, ListedRule, Match, Rule, Step, Target, Tools, View, words};
use linux::netlink::nft::Hook;

use crate::accepted;

/// The name of the table.
pub(crate) const FILTER: &str = "filter";
/// The chain of all packets that are not addressed to this host.
pub(crate) const FORWARD: &str = "FORWARD";
/// The chain with the rules of all containers.
pub(crate) const CONTAINERS: &str = "CNI-FORWARD";

/// The comment of the rule that accepts marked packets.
const MARK_COMMENT: &str = "accepted by table inet cni_firewall";

/// Returns the rules for an address, in the order of the reference.
///
/// Unlike the reference, the last one accepts new connections to published ports.
pub(crate) fn address_rules(ip: IpAddr, mark: Option<&str>) -> [Rule<'_>; 3] {
    let state = |state| vec![Match::destination(ip), Match::Connection(state)];
    [state(ConnectionState::Established), vec![Match::source(Cidr::host(ip))], state(ConnectionState::Translated)]
        .map(|matches| Rule { mark, ..Rule::new(CONTAINERS, matches, Target::Accept) })
}

/// Returns the rule that leads to the rules of containers.
pub(crate) fn entry() -> Rule<'static> {
    Rule::new(FORWARD, vec![Match::Comment("CNI firewall plugin rules")], Target::Jump(CONTAINERS))
}

/// Returns the rule that leads to the administrator's rules.
pub(crate) fn admin_entry(chain: &str) -> Rule<'_> {
    Rule::new(CONTAINERS, vec![Match::Comment("CNI firewall plugin admin overrides")], Target::Jump(chain))
}

/// Returns the rule that accepts packets with this bit of the packet mark.
pub(crate) fn mark_rule(bit: u32) -> Rule<'static> {
    Rule::new(CONTAINERS, vec![Match::Comment(MARK_COMMENT), Match::PacketMark(bit)], Target::Accept)
}

/// Returns whether rules of [`CONTAINERS`] accept packets with this bit of the packet mark.
pub(crate) fn accept_mark(rules: &[ListedRule], tools: &Tools, bit: u32) -> bool {
    rules.iter().any(|rule| rule.has_effect_of(&mark_rule(bit), tools.family))
}

/// Returns whether a rule belongs to the attachment whose mark `mark` begins with.
pub(crate) fn is_of(mark: &str, rule: &ListedRule) -> bool {
    is_marked(rule.mark(), mark)
}

/// Returns whether the mark of a rule is that of the attachment whose mark `mark` begins with. A rule without one has
/// no owner.
fn is_marked(found: &str, mark: &str) -> bool {
    mark_in(found).is_some_and(|found| mark.starts_with(found))
}

/// Returns whether the mark of a rule is that of the attachment whose mark `mark` begins with, or the rule has no
/// owner.
pub(crate) fn is_own_or_ownerless(found: &str, mark: &str) -> bool {
    found.is_empty() || is_marked(found, mark)
}

/// Returns the rules of the attachment whose mark `mark` begins with, and those without an owner.
pub(crate) fn list(view: &mut View<'_>, mark: &str) -> Result<Vec<ListedRule>> {
    Ok(view.rules_with_mark(CONTAINERS, &|found| is_own_or_ownerless(found, mark))?)
}

/// Returns whether a rule is one of those for an address, with any owner.
pub(crate) fn is_for(tools: &Tools, rule: &ListedRule, ip: IpAddr) -> bool {
    address_rules(ip, None).iter().any(|wanted| rule.is_same_as(wanted, tools.family))
}

/// Returns whether an attachment other than `owner` has an address, as far as the sets, rules or leases prove it.
pub(crate) fn has_other_owner(
    view: &mut View<'_>,
    tools: &Tools,
    owner: AttachmentKey<'_>,
    ip: IpAddr,
) -> Result<bool> {
    if Ownership::new(owner).judge(Trace::Address(ip)).is_others() {
        return Ok(true);
    }
    let mark = owner.mark();
    if let View::Nft(nft, _) = view
        && accepted::owner_of(nft, ip)?.is_some_and(|comment| mark_in(&comment) != Some(&mark))
    {
        return Ok(true);
    }
    let others = view.rules_with_mark(CONTAINERS, &|found| !found.is_empty() && mark_in(found) != Some(&mark))?;
    // The DEL of the reference leaves the last rule.
    let [_, from, _] = address_rules(ip, None);
    Ok(others.iter().any(|rule| rule.is_same_as(&from, tools.family)))
}

/// Returns the steps that add the rule which accepts packets with this bit of the packet mark: after the rules of
/// administrators, and before rules for single addresses, of which there may be thousands.
fn add_mark_rule(view: &mut View<'_>, tools: &Tools, bit: u32) -> Result<Vec<Step<'static>>> {
    let mut steps = replace_mark_rule(view, tools, bit)?;
    if steps.is_empty() {
        let is_for_address = |rule: &ListedRule| mark_in(rule.mark()).is_some() || read_rule(tools, rule).is_some();
        let first = view.rules(CONTAINERS)?.into_iter().find(is_for_address);
        steps.push(match first {
            Some(ListedRule::Nft(first)) => Step::InsertBefore(first.handle, mark_rule(bit)),
            _ => Step::Append(mark_rule(bit)),
        });
    }
    Ok(steps)
}

/// Returns the steps that replace a rule which accepts packets with another bit of the packet mark; none if there is no
/// such rule.
pub(crate) fn replace_mark_rule(view: &mut View<'_>, tools: &Tools, bit: u32) -> Result<Vec<Step<'static>>> {
    let accepts = |rule: &ListedRule, bit: u32| rule.has_effect_of(&mark_rule(bit), tools.family);
    // The comment is lost if `nft` saves and restores the table.
    let is_other = |rule: &ListedRule| (0..u32::BITS).map(|n| 1 << n).any(|other| other != bit && accepts(rule, other));
    let rules = view.rules(CONTAINERS)?;
    let has_own = rules.iter().any(|rule| accepts(rule, bit));
    let mut steps = Vec::new();
    for other in rules.into_iter().filter(is_other) {
        if let (ListedRule::Nft(other), false) = (&other, has_own || !steps.is_empty()) {
            steps.push(Step::InsertBefore(other.handle, mark_rule(bit)));
        } else if !has_own && steps.is_empty() {
            steps.push(Step::Append(mark_rule(bit)));
        }
        steps.push(Step::Delete(CONTAINERS, other));
    }
    Ok(steps)
}

/// Returns the address that a rule of [`CONTAINERS`] is for, and which of the address's rules it is.
pub(crate) fn read_rule(tools: &Tools, rule: &ListedRule) -> Option<(IpAddr, usize)> {
    let candidates: Vec<IpAddr> = match rule {
        ListedRule::Nft(rule) => rule.values.iter().filter_map(|value| address(value)).collect(),
        ListedRule::Legacy(text) => {
            words(text).iter().filter_map(|word| word.split_once('/')?.0.parse().ok()).collect()
        }
    };
    candidates.into_iter().filter(|ip| tools.includes(*ip)).find_map(|ip| {
        let which = address_rules(ip, None).iter().position(|wanted| rule.is_same_as(wanted, tools.family))?;
        Some((ip, which))
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// The rules of an attachment in the table of one address family.
#[derive(Debug)]
pub(crate) struct Acceptance<'a> {
    pub(crate) tools: &'static Tools,
    pub(crate) owner: AttachmentKey<'a>,
    /// The mark of rules that an earlier version added.
    pub(crate) mark: &'a str,
    /// The bit of the packet mark that accepted packets have; `None` on a kernel without nf_tables, where each address
    /// needs rules.
    pub(crate) bit: Option<u32>,
    /// The addresses of the family; none if another backend accepts their traffic.
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) admin_chain: &'a str,
}

impl<'a> Acceptance<'a> {
    /// Returns the steps that add the rules, and that remove those of an earlier ADD. `forward` are the rules of
    /// [`FORWARD`].
    pub(crate) fn plan(&self, view: &mut View<'_>, forward: &[ListedRule]) -> Result<Vec<Step<'a>>> {
        let listed = list(view, self.mark)?;
        let mut steps = Vec::new();
        if !self.ips.is_empty() {
            steps.extend(self.create_chains(view, forward, &listed)?);
        }
        let (own, ownerless): (Vec<ListedRule>, Vec<ListedRule>) =
            listed.into_iter().partition(|rule| is_of(self.mark, rule));
        steps.extend(own.into_iter().map(|rule| Step::Delete(CONTAINERS, rule)));
        if let View::Legacy(_) = view {
            let wanted = self.ips.iter().filter(|_| self.bit.is_none()).flat_map(|ip| address_rules(*ip, None));
            let exists = |wanted: &Rule<'a>| ownerless.iter().any(|rule| rule.is_same_as(wanted, self.tools.family));
            steps.extend(wanted.filter(|wanted| !exists(wanted)).map(Step::Append));
            return Ok(steps);
        }
        // The reference has added them, or a save and restore has lost their marks.
        for ip in &self.ips {
            let mut adopted: Vec<ListedRule> =
                ownerless.iter().filter(|rule| is_for(self.tools, rule, *ip)).cloned().collect();
            if !adopted.is_empty() && has_other_owner(view, self.tools, self.owner, *ip)? {
                adopted.clear();
            }
            steps.extend(adopted.into_iter().map(|rule| Step::Delete(CONTAINERS, rule)));
        }
        Ok(steps)
    }

    /// Returns the steps that create missing chains and the rules that lead to them.
    fn create_chains(
        &self,
        view: &mut View<'_>,
        forward: &[ListedRule],
        listed: &[ListedRule],
    ) -> Result<Vec<Step<'a>>> {
        let mut steps = Vec::new();
        let has_entry = forward.iter().any(|rule| rule.is_jump_to(CONTAINERS));
        let has_admin_entry = listed.iter().any(|rule| rule.is_jump_to(self.admin_chain));
        if !has_entry {
            steps.extend(create_forward(view, forward)?);
        }
        for (chain, is_known) in [(CONTAINERS, has_entry), (self.admin_chain, has_admin_entry)] {
            // A rule leads to it.
            if !is_known && !view.has_chain(chain)? {
                steps.push(Step::CreateChain(chain));
            }
        }
        if !has_entry {
            steps.push(Step::Prepend(entry()));
        }
        if !has_admin_entry {
            steps.push(Step::Prepend(admin_entry(self.admin_chain)));
        }
        if let Some(bit) = self.bit.filter(|bit| !accept_mark(listed, self.tools, *bit)) {
            steps.extend(add_mark_rule(view, self.tools, bit)?);
        }
        Ok(steps)
    }
}

/// Returns the step that creates the chain [`FORWARD`] as `iptables` would, if it does not exist. `forward` are its
/// rules.
pub(crate) fn create_forward(view: &mut View<'_>, forward: &[ListedRule]) -> Result<Option<Step<'static>>> {
    let exists = !forward.is_empty() || view.has_chain(FORWARD)?;
    Ok((!exists).then_some(Step::CreateBaseChain(FORWARD, Hook::FORWARD)))
}
