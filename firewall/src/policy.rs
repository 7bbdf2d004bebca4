//! Ingress policies: rules that drop connections to the containers of a bridge, in the form of the reference.
//!
//! ```text
//! -A FORWARD -m comment --comment "… (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
//! -A CNI-ISOLATION-STAGE-1 -m conntrack --ctstate DNAT -j RETURN
//! -A CNI-ISOLATION-STAGE-1 -i br0 -o br0 -m comment --comment "… (ingressPolicy: isolated)" -j DROP
//! -A CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 -m comment --comment "… (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
//! -A CNI-ISOLATION-STAGE-1 -m comment --comment "… (ingressPolicy: same-bridge|isolated)" -j RETURN
//! -A CNI-ISOLATION-STAGE-2 -o br0 -m comment --comment "… (ingressPolicy: same-bridge|isolated)" -j DROP
//! -A CNI-ISOLATION-STAGE-2 -m comment --comment "… (ingressPolicy: same-bridge|isolated)" -j RETURN
//! ```
//!
//! Unlike the reference, the first rule lets connections to published ports pass, as it lets those from outside pass.
//! Also unlike the reference, whose rules see the packets within a bridge only if `bridge-nf-call-iptables` is 1,
//! `isolated` isolates the port of the container: see [`isolation`](crate::isolation).
//!
//! The rules are in the tables of both families: a container can give itself an address of a family that its network
//! does not have.
//!
//! The rules belong to a network, not to an attachment: other containers may be on the bridge. In nf_tables, the rules
//! of a bridge have a mark that names both. An ADD with another policy replaces them; the DEL of the last attachment
//! that needs them removes them, and so does GC, also when the bridge is gone.

use cni::key::network_mark;
use cni::{AddResult, Attachment, Code, Error, IfName, Result};
use linux::ip::MacAddr;
use linux::iptables::{
    ConnectionState, FAMILIES, Links, ListedRule, Match, Rule, Step, TablePlan, Target, Tools, View,
};
use linux::netlink::nft::{Comparison, Edit, Nftables};
use linux::netlink::{Link, Netlink};

use crate::config::IngressPolicy;
use crate::filter::{CONTAINERS, FILTER, FORWARD, create_forward};
use crate::isolation::IsolatedPort;

/// The chain that sees all forwarded packets.
pub(crate) const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// The chain that sees the packets from bridges with a policy to other links.
pub(crate) const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
/// The beginning of all comments.
const COMMENT: &str = "CNI firewall plugin rules (ingressPolicy: ";
const SHARED: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
const SAME_BRIDGE: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge)";
const ISOLATED: &str = "CNI firewall plugin rules (ingressPolicy: isolated)";
/// The first word of a mark.
const MARK: &str = "policy";
/// The longest mark.
const MAX_MARK: usize = 128;

/// The policy of a bridge.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) is_isolated: bool,
    /// The bridge, or without one the link of the container on this host.
    bridge: String,
    /// The mark of the rules.
    mark: String,
    /// The link of the container on this host.
    link: Option<Link>,
    /// The MAC address of the bridge, if it filters VLANs.
    bridge_mac: Option<MacAddr>,
}

impl Policy {
    /// Returns the policy for an attachment; `None` for [`IngressPolicy::Open`].
    ///
    /// Unlike the reference, which takes the first interface of the result, the bridge is recognised by its kind.
    pub(crate) fn find(
        host: &mut Netlink,
        network: &str,
        ingress: IngressPolicy,
        result: &AddResult,
        at: &Attachment,
    ) -> Result<Option<Policy>> {
        let (name, is_isolated) = match ingress {
            IngressPolicy::Open => return Ok(None),
            IngressPolicy::SameBridge => ("same-bridge", false),
            IngressPolicy::Isolated => ("isolated", true),
        };
        let mut link = None;
        if let Some(name) = result.host_link(at) {
            link = host.link(name)?;
        }
        let policy =
            |bridge, bridge_mac, link| Policy { link, bridge_mac, ..Policy::new(network, is_isolated, bridge) };
        let on_host = result.interfaces.iter().filter(|found| found.sandbox.is_empty());
        let names: Vec<&str> = on_host.map(|found| found.name.as_str()).filter(|name| is_usable(name)).collect();
        let mut missing = None;
        for name in &names {
            match host.link(*name)? {
                Some(found) if found.kind == "bridge" => {
                    return Ok(Some(policy(found.name.clone(), filtering_mac(&found), link)));
                }
                Some(_) => {}
                None => missing = missing.or(Some(name)),
            }
        }
        match (link, missing.or_else(|| names.first())) {
            // Without a bridge in the result. One that was deleted must not be replaced by the container's own link.
            (Some(link), _) if missing.is_none() && is_usable(&link.name) => {
                let bridge = link.master.map(|master| host.link(master)).transpose()?.flatten();
                Ok(Some(policy(link.name.clone(), bridge.as_ref().and_then(filtering_mac), Some(link))))
            }
            (_, Some(link)) => {
                let what = format!("apply ingress policy {name:?}: there is no link {link:?}");
                Err(Error::new(Code::INTERNAL, what)
                    .details("the previous result names it; attach the container again"))
            }
            // The words of the reference, which users may search for.
            (_, None) => {
                let what = format!(
                    "interface needs to be set for ingress policy {name:?}, make sure to chain \"firewall\" plugin with \"bridge\""
                );
                Err(Error::new(Code::CONFIG, what)
                    .details("list this plugin after \"bridge\", or set \"ingressPolicy\" to \"open\""))
            }
        }
    }

    /// Returns the policy of a bridge, for no container.
    pub(crate) fn new(network: &str, is_isolated: bool, bridge: String) -> Policy {
        let mut mark = format!("{MARK} {}{bridge} net: {network}", network_mark(network));
        // Valid names of networks have only ASCII characters.
        mark.truncate(MAX_MARK);
        Policy { is_isolated, bridge, mark, link: None, bridge_mac: None }
    }

    /// Returns the rules of the bridge in the first chain, in their order.
    fn first_stage(&self) -> Vec<Rule<'_>> {
        let bridge = self.bridge.as_str();
        let comment = Match::Comment(if self.is_isolated { ISOLATED } else { SAME_BRIDGE });
        let within = vec![Match::input_link(bridge), Match::output_link(bridge), comment.clone()];
        let elsewhere = Match::OutputLink(Comparison::NotEqual, Links::Named(bridge.into()));
        let across = vec![Match::input_link(bridge), elsewhere, comment];
        let mut rules = vec![self.rule(STAGE_1, across, Target::Jump(STAGE_2))];
        if self.is_isolated {
            rules.insert(0, self.rule(STAGE_1, within, Target::Drop));
        }
        rules
    }

    /// Returns the rules of the bridge in the second chain.
    fn second_stage(&self) -> Vec<Rule<'_>> {
        let matches = vec![Match::output_link(&self.bridge), Match::Comment(SHARED)];
        vec![self.rule(STAGE_2, matches, Target::Drop)]
    }

    fn rule<'a>(&'a self, chain: &'a str, matches: Vec<Match<'a>>, target: Target<'a>) -> Rule<'a> {
        Rule { mark: Some(&self.mark), ..Rule::new(chain, matches, target) }
    }

    /// Returns the steps that add the policy, and that remove another one of the same network and bridge, and rules of
    /// bridges that are gone. `forward` are the rules of [`FORWARD`].
    pub(crate) fn plan(
        &self,
        view: &mut View<'_>,
        host: &mut Netlink,
        tools: &Tools,
        forward: &[ListedRule],
    ) -> Result<Vec<Step<'_>>> {
        let mut steps: Vec<Step<'_>> = create_forward(view, forward)?.into_iter().collect();
        let (first, second) = (view.rules(STAGE_1)?, view.rules(STAGE_2)?);
        for (chain, listed) in [(STAGE_1, &first), (STAGE_2, &second)] {
            // A chain with rules exists.
            if listed.is_empty() && !view.has_chain(chain)? {
                steps.push(Step::CreateChain(chain));
            }
        }
        let is_shared = first.iter().chain(&second).any(|rule| self.is_of_other_network(rule));
        let mut missing = Vec::new();
        for (chain, listed, wanted) in [(STAGE_1, &first, self.first_stage()), (STAGE_2, &second, self.second_stage())]
        {
            let mut wanted = wanted;
            for rule in listed {
                let is_kept = match self.relation(rule) {
                    _ if is_obsolete(host, rule)? => false,
                    Relation::Own => {
                        let same = wanted.iter().position(|wanted| rule.is_same_as(wanted, tools.family));
                        same.map(|index| wanted.remove(index)).is_some()
                    }
                    Relation::Ownerless => is_shared,
                    Relation::Other => true,
                };
                if !is_kept {
                    steps.push(Step::Delete(chain, rule.clone()));
                }
            }
            missing.push(wanted);
            if !listed.iter().any(ListedRule::is_return) {
                let end = Rule::new(chain, vec![Match::Comment(SHARED)], Target::Return);
                steps.push(Step::Append(end));
            }
        }
        let is_exempt = |rule: &ListedRule| rule.is_same_as(&exemption(), tools.family);
        let is_first = first.first().is_some_and(is_exempt) && missing.first().is_some_and(Vec::is_empty);
        // The last one becomes the first rule of the chain.
        steps.extend(missing.into_iter().flat_map(|rules| rules.into_iter().rev()).map(Step::Prepend));
        if !is_first {
            steps.extend(first.into_iter().filter(is_exempt).map(|rule| Step::Delete(STAGE_1, rule)));
            steps.push(Step::Prepend(exemption()));
        }
        Ok(steps)
    }

    /// CHECK: returns what of the policy does not exist. `is_strict` if it must be as this plugin adds it.
    pub(crate) fn difference(
        &self,
        view: &mut View<'_>,
        tools: &Tools,
        forward: &[ListedRule],
        is_strict: bool,
    ) -> Result<Option<String>> {
        if !leads_first(forward) {
            return Ok(Some(format!("{FORWARD} does not lead to {STAGE_1} before it leads to {CONTAINERS}")));
        }
        let first = self.first_stage().into_iter().chain(is_strict.then(exemption)).collect();
        for (chain, wanted) in [(STAGE_1, first), (STAGE_2, self.second_stage())] {
            let listed = view.rules(chain)?;
            // Versions of the reference have different comments.
            let exists = |rule: &Rule<'_>| listed.iter().any(|listed| listed.has_effect_of(rule, tools.family));
            if let Some(rule) = wanted.iter().find(|rule| !exists(rule)) {
                return Ok(Some(format!("rule \"{}\" in chain {chain} does not exist", rule.text())));
            }
        }
        Ok(None)
    }

    /// Returns whether the network still has rules for the bridge that only a stricter policy has.
    pub(crate) fn is_exceeded(&self, view: &mut View<'_>, tools: &Tools) -> Result<bool> {
        if self.is_isolated {
            // No policy is stricter.
            return Ok(false);
        }
        let wanted = self.first_stage();
        let own = view.rules_with_mark(STAGE_1, &|mark| mark == self.mark)?;
        Ok(own.iter().any(|found| !wanted.iter().any(|rule| found.has_effect_of(rule, tools.family))))
    }

    /// Returns whether the policy of this network was added by this plugin.
    pub(crate) fn is_marked(&self, view: &mut View<'_>) -> Result<bool> {
        Ok(!view.rules_with_mark(STAGE_1, &|mark| mark == self.mark)?.is_empty())
    }

    fn relation(&self, rule: &ListedRule) -> Relation {
        let is_for_bridge = || is_policy(rule) && rule.links().iter().all(|link| *link == self.bridge);
        match rule {
            ListedRule::Nft(found) if found.mark == self.mark => Relation::Own,
            ListedRule::Nft(found) if found.mark.is_empty() && is_for_bridge() => Relation::Ownerless,
            // Legacy rules have no owner; they are kept if they are the wanted ones.
            ListedRule::Legacy(_) if is_for_bridge() => Relation::Own,
            _ => Relation::Other,
        }
    }

    fn is_of_other_network(&self, rule: &ListedRule) -> bool {
        rule.mark() != self.mark && bridge_in(rule.mark()) == Some(&self.bridge)
    }

    /// Returns whether the link of the container exists on this host.
    pub(crate) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the port of the container if it must be isolated. The link of a container without a bridge is not a
    /// port.
    pub(crate) fn isolated_port(&self) -> Option<IsolatedPort<'_>> {
        let link = self.link.as_ref().filter(|link| self.is_isolated && link.port.is_some())?;
        Some(IsolatedPort { name: &link.name, bridge_mac: self.bridge_mac })
    }
}

/// Returns the MAC address of a bridge that filters VLANs.
fn filtering_mac(bridge: &Link) -> Option<MacAddr> {
    bridge.mac.filter(|_| bridge.vlan_filtering == Some(true))
}

/// Whose rule it is, from the point of view of a policy.
enum Relation {
    /// It belongs to the same network and bridge.
    Own,
    /// It belongs to the same bridge, and to an unknown network.
    Ownerless,
    Other,
}

/// Returns the steps that lead to [`STAGE_1`] before [`CONTAINERS`], where packets would be accepted. `is_wanted` if
/// there is a policy; `entry_is_new` if an earlier step has made the rule that leads to [`CONTAINERS`] the first one.
pub(crate) fn lead(forward: &[ListedRule], is_wanted: bool, entry_is_new: bool) -> Vec<Step<'static>> {
    let entries: Vec<&ListedRule> = forward.iter().filter(|rule| rule.is_jump_to(STAGE_1)).collect();
    let is_right = match entries.is_empty() {
        true => !is_wanted,
        false => !entry_is_new && (!is_wanted || leads_first(forward)),
    };
    if is_right {
        return Vec::new();
    }
    let mut steps: Vec<Step<'_>> = entries.into_iter().map(|rule| Step::Delete(FORWARD, rule.clone())).collect();
    let entry = Rule::new(FORWARD, vec![Match::Comment(SHARED)], Target::Jump(STAGE_1));
    steps.push(Step::Prepend(entry));
    steps
}

/// Returns whether packets reach the policies, and before they could be accepted.
fn leads_first(forward: &[ListedRule]) -> bool {
    let first = |chain: &str| forward.iter().position(|rule| rule.is_jump_to(chain));
    first(STAGE_1).is_some_and(|stage| first(CONTAINERS).is_none_or(|containers| stage < containers))
}

/// Returns the rule that exempts connections to published ports from all policies.
fn exemption() -> Rule<'static> {
    Rule::new(STAGE_1, vec![Match::Connection(ConnectionState::Translated)], Target::Return)
}

/// Returns the bridge of the policy whose rules have this mark.
fn bridge_in(mark: &str) -> Option<&str> {
    let (_, bridge) = mark.strip_prefix(MARK)?.split(' ').nth(1)?.split_once('-')?;
    Some(bridge)
}

/// Returns whether a network has policies in nf_tables.
pub(crate) fn exists(nft: &mut Nftables, network: &str) -> Result<bool> {
    let prefix = prefix(network);
    for tools in &FAMILIES {
        let chain = tools.table(FILTER).chain(STAGE_1);
        if !nft.rules_with_mark(chain, &|mark| mark.starts_with(&prefix))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the beginning of the marks of all policies of a network.
fn prefix(network: &str) -> String {
    format!("{MARK} {}", network_mark(network))
}

/// Returns the steps that remove the policies of a network, except those of bridges that are `needed`.
pub(crate) fn remove(
    view: &mut View<'_>,
    network: &str,
    needed: &mut dyn FnMut(&str) -> Result<bool>,
) -> Result<Vec<Step<'static>>> {
    let prefix = prefix(network);
    let mut steps = Vec::new();
    for chain in [STAGE_1, STAGE_2] {
        // Not the rules without a mark.
        let rules = view.rules_with_mark(chain, &|mark| mark.starts_with(&prefix))?;
        if rules.is_empty() {
            // Without rules in the first chain, those in the second have no effect.
            break;
        }
        for rule in rules {
            if !needed(bridge_in(rule.mark()).unwrap_or_default())? {
                steps.push(Step::Delete(chain, rule));
            }
        }
    }
    Ok(steps)
}

/// Returns the edits that remove the policies of a network from the table of a family in nf_tables, as [`remove`] does.
pub(crate) fn delete(
    nft: &mut Nftables,
    tools: &Tools,
    network: &str,
    needed: &mut dyn FnMut(&str) -> Result<bool>,
) -> Result<Vec<Edit>> {
    let table = tools.table(FILTER);
    let steps = remove(&mut View::Nft(nft, table), network, needed)?;
    Ok(TablePlan::<()> { steps, removed: vec![] }.edits(table))
}

/// Returns the steps that remove the policies, of any network, of bridges that are gone or not `needed`.
pub(crate) fn collect(
    view: &mut View<'_>,
    host: &mut Netlink,
    needed: &mut dyn FnMut(&mut Netlink, &str) -> Result<bool>,
) -> Result<Vec<Step<'static>>> {
    let mut steps = Vec::new();
    for chain in [STAGE_1, STAGE_2] {
        for rule in view.rules(chain)?.into_iter().filter(is_policy) {
            let mut is_needed = !is_obsolete(host, &rule)?;
            for link in rule.links() {
                is_needed = is_needed && needed(host, &link)?;
            }
            if !is_needed {
                steps.push(Step::Delete(chain, rule));
            }
        }
    }
    Ok(steps)
}

/// Returns whether a rule belongs to the policy of a bridge, by either implementation.
pub(crate) fn is_policy(rule: &ListedRule) -> bool {
    rule.comment().starts_with(COMMENT) && !rule.links().is_empty()
}

/// Returns whether a rule belongs to the policy of a bridge that is gone.
fn is_obsolete(host: &mut Netlink, rule: &ListedRule) -> Result<bool> {
    if is_policy(rule) {
        for link in rule.links() {
            if host.link_index(&link)?.is_none() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns whether a link of the previous result can be named in a rule. Quotes would confuse the tools of iptables.
fn is_usable(name: &str) -> bool {
    IfName::from_config(name).is_ok() && !name.contains(['"', '\'', '\\']) && !name.ends_with('+')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(rule: &Rule<'_>) -> ListedRule {
        ListedRule::Legacy(rule.text())
    }

    #[test]
    fn marks_name_network_and_bridge() {
        let policy = Policy::new("net1", true, "br-0".to_owned());
        assert_eq!(policy.mark, "policy 8e48f37d5de60467-br-0 net: net1");
        let long = Policy::new(&"n".repeat(300), true, "br0".to_owned());
        assert_eq!(long.mark.len(), MAX_MARK);
        let marked = |mark: &str| {
            let mut rule = linux::netlink::nft::Rule::default();
            mark.clone_into(&mut rule.mark);
            ListedRule::Nft(Box::new(rule))
        };
        let is_other = |mark: &str| policy.is_of_other_network(&marked(mark));
        assert!(is_other(&Policy::new("net2", false, "br-0".to_owned()).mark));
        assert!(!is_other(&Policy::new("net2", false, "br-1".to_owned()).mark));
        assert!(!is_other(&policy.mark) && !is_other("") && !is_other("policy") && !is_other("policy x"));
    }

    #[test]
    fn policies_are_reached_before_packets_are_accepted() {
        let stage = listed(&Rule::new(FORWARD, vec![Match::Comment(SHARED)], Target::Jump(STAGE_1)));
        let containers = listed(&crate::filter::entry());
        let steps = |forward: &[&ListedRule], is_wanted, entry_is_new| {
            let forward: Vec<ListedRule> = forward.iter().map(|rule| (*rule).clone()).collect();
            let steps = lead(&forward, is_wanted, entry_is_new);
            steps.iter().map(|step| matches!(step, Step::Prepend(_))).collect::<Vec<bool>>()
        };
        let none: [bool; 0] = [];
        assert_eq!(steps(&[], true, true), [true]);
        assert_eq!(steps(&[], false, true), none);
        assert_eq!(steps(&[&containers], true, false), [true]);
        assert_eq!(steps(&[&stage, &containers], true, false), none);
        assert_eq!(steps(&[&containers, &stage], true, false), [false, true], "moved");
        assert_eq!(steps(&[&containers, &stage], false, false), none, "left as it is");
        assert_eq!(steps(&[&stage], false, true), [false, true], "an earlier step makes the other one the first");
    }
}
