//! ADD: accepts the traffic of an attachment, and applies the ingress policy.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use cni::key::network_mark_in;
use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Error, Result, Undo};
use linux::iptables::{FAMILIES, ListedRule, Match, Step, TablePlan, Tools, View, change, change_legacy};
use linux::log::{debug, warn};
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Edit, Nftables};

use crate::accepted::{self, Frame};
use crate::config::{Backend, Config, IngressPolicy};
use crate::filter::{self, Acceptance, CONTAINERS, FILTER, FORWARD};
use crate::firewalld::{Firewalld, ZoneScope, not_running};
use crate::policy::{self, Policy, STAGE_1};
use crate::{bindings, isolation, removal};

/// The remedy if nf_tables is unavailable.
pub(crate) const FIX_HINT: &str = "load the kernel modules nf_tables, nft_compat, nft_counter and xt_conntrack; ingress policy \"isolated\" \
                                   also needs nf_tables for bridges";

/// The traffic of an attachment, as far as the host's firewall must know of it.
#[derive(Debug)]
pub(crate) struct Traffic<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    pub(crate) config: &'a Config,
    /// The addresses of the container.
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) policy: Option<Policy>,
    /// The mark of the rules.
    pub(crate) mark: String,
    /// Whether firewalld accepts the traffic of the addresses, so that no rule has to.
    uses_firewalld: bool,
}

/// Where rules are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleTable {
    Nft,
    Legacy,
}

impl<'a> Traffic<'a> {
    /// Returns the traffic of the attachment with this previous result.
    pub(crate) fn new(
        call: &'a Call<'_>,
        at: &'a Attachment,
        config: &'a Config,
        result: &AddResult,
        host: &mut Netlink,
    ) -> Result<Traffic<'a>> {
        let owner = AttachmentKey::new(call, at);
        let policy = Policy::find(host, owner.network, config.ingress, result, at)?;
        Ok(Traffic { config, ips: addresses(result), policy, mark: owner.comment(), owner, uses_firewalld: false })
    }

    /// Returns traffic that does not exist, to find out what an ADD would do.
    pub(crate) fn imaginary(
        config: &'a Config,
        ip: IpAddr,
        policy: Option<Policy>,
        uses_firewalld: bool,
    ) -> Traffic<'a> {
        let owner = AttachmentKey { network: "", container: "", ifname: "" };
        Traffic { config, ips: vec![ip], policy, mark: owner.comment(), owner, uses_firewalld }
    }

    /// Accepts the traffic. Replaces what an earlier ADD of the same attachment did.
    pub(crate) fn accept(&mut self, host: Netlink) -> Result<()> {
        let firewalld = connect(self.config)?;
        self.uses_firewalld = firewalld.is_some();
        let mut undo = Undo::new(host);
        match self.accept_with(firewalld, &mut undo) {
            Ok(()) => {
                undo.commit();
                Ok(())
            }
            Err(error) => Err(undo.roll_back(error)),
        }
    }

    /// Accepts the traffic by firewalld, if there is one, and by rules. Registers the rollback step of each change in
    /// `undo`.
    fn accept_with<'s>(&'s self, firewalld: Option<Firewalld>, undo: &mut Undo<'s, Netlink>) -> Result<()> {
        let mut nft = Nftables::open()?;
        if let Some(mut firewalld) = firewalld {
            for ip in &self.ips {
                let is_bound = firewalld.query(&self.config.zone, *ip)?;
                if !is_bound {
                    undo.push(format!("remove {ip} from the zone"), |_| self.unbind(*ip));
                }
                self.record(&mut nft, *ip, !is_bound);
                if !is_bound {
                    firewalld.add(&self.config.zone, *ip)?;
                }
            }
        }
        let mut in_nft = Vec::new();
        if FAMILIES.iter().any(Tools::has_legacy_tables) && !self.frame(&mut nft)?.is_empty() {
            self.replace_legacy_bits()?;
        }
        for tools in &FAMILIES {
            for place in self.places(&mut nft, tools)? {
                match place {
                    RuleTable::Nft => in_nft.push(tools),
                    RuleTable::Legacy => {
                        let is_marked = nft.is_available()?;
                        self.add_to_legacy(tools, is_marked, undo)?;
                    }
                }
            }
        }
        undo.push("remove the rules", |_| removal::remove_marked(self.owner, self.config));
        let added = self.add_to_nft(&mut nft, undo.context(), &in_nft);
        // A record of a binding may have changed the ruleset before.
        if added.as_ref().is_err_and(|error| error.as_ref().is_refusal() || !nft.may_have_changed()) {
            // There was no transaction, or it had no effect. So all rules with the mark are those of an earlier ADD.
            undo.pop();
        }
        match added {
            Err(error) if nft::is_unavailable(&error) && self.may_use_tools() => {
                debug!("nf_tables is unavailable, use the tools of iptables: {error}");
                for tools in &FAMILIES {
                    if self.concerns(tools)? {
                        self.add_to_legacy(tools, false, undo)
                            .map_err(|second| second.details(format!("nf_tables: {error}")))?;
                    }
                }
                Ok(())
            }
            outcome => outcome.map_err(|error| error.details_if(nft::is_unavailable, FIX_HINT)),
        }
    }

    /// Returns the edits that replace rules which accept packets with another bit of the packet mark, except where
    /// [`plan`](Traffic::plan) does that.
    fn replace_other_bits(&self, nft: &mut Nftables, families: &[&'static Tools]) -> Result<Vec<Edit>> {
        let bit = self.config.accept_bit;
        let mut edits = Vec::new();
        for tools in &FAMILIES {
            let table = tools.table(FILTER);
            let mut view = View::Nft(nft, table);
            let is_in_plan = families.iter().any(|planned| planned.family == tools.family) && self.has_address(tools);
            if !is_in_plan || filter::accept_mark(&view.rules(CONTAINERS)?, tools, bit) {
                let steps = filter::replace_mark_rule(&mut view, tools, bit)?;
                edits.extend(TablePlan::<()> { steps, removed: vec![] }.edits(table));
            }
        }
        Ok(edits)
    }

    /// Replaces rules of legacy tables that accept packets with another bit of the packet mark, also in a family in
    /// which the container has no address: the chains that set and clear the bit are those of all containers.
    fn replace_legacy_bits(&self) -> Result<()> {
        for tools in &FAMILIES {
            if tools.legacy_table_in_use(FILTER)?.is_some_and(|table| table.has_chain(CONTAINERS)) {
                change_legacy(tools, FILTER, |view| -> Result<TablePlan<'_>> {
                    let steps = filter::replace_mark_rule(view, tools, self.config.accept_bit)?;
                    Ok(TablePlan { steps, removed: vec![] })
                })?;
            }
        }
        Ok(())
    }

    /// Returns whether the tools of iptables can do everything if nf_tables is unavailable.
    pub(crate) fn may_use_tools(&self) -> bool {
        self.config.backend != Backend::Nftables && self.config.ingress != IngressPolicy::Isolated
    }

    /// Records a binding, so that GC finds it. firewalld also works without nf_tables, where there is no place for a
    /// record.
    fn record(&self, nft: &mut Nftables, ip: IpAddr, is_new: bool) {
        if let Err(error) = bindings::record(nft, self.owner, &self.config.zone, ip, is_new) {
            warn!("GC will not find the binding of {ip}: {error:?}");
        }
    }

    fn unbind(&self, ip: IpAddr) -> Result<()> {
        let mut nft = Nftables::open()?;
        if let Some(mut firewalld) = Firewalld::connect()? {
            firewalld.remove(&self.config.zone, ip, ZoneScope::GivenZone)?;
        }
        let own = self.owner.comment();
        let records = bindings::list(&mut nft, &|comment| comment == own)?;
        bindings::forget(&mut nft, &records.into_iter().filter(|found| found.ip == ip).collect::<Vec<_>>())
    }

    /// Returns whether the container has an address of a family.
    pub(crate) fn has_address(&self, tools: &Tools) -> bool {
        self.ips.iter().any(|ip| tools.includes(*ip))
    }

    /// Returns whether there are rules in a family: the container has an address, or a policy. A policy is in effect in
    /// both families, because a container can give itself an address of any.
    pub(crate) fn concerns(&self, tools: &Tools) -> Result<bool> {
        Ok(self.has_address(tools) || (self.policy.is_some() && tools.is_supported()?))
    }

    /// Returns the tables of a family to which rules are added: the legacy table if it is in use, and that in nf_tables
    /// unless only the legacy one is in use. A packet must pass both. In a family that is not concerned, ADD only
    /// removes rules with the mark of an earlier one, and legacy tables have no marks.
    pub(crate) fn places(&self, nft: &mut Nftables, tools: &Tools) -> Result<Vec<RuleTable>> {
        if !self.concerns(tools)?
            || self.config.backend == Backend::Nftables
            || tools.legacy_table_in_use(FILTER)?.is_none()
        {
            return Ok(vec![RuleTable::Nft]);
        }
        let is_in_both = nft.has_chain(tools.table(FILTER).chain(FORWARD))?;
        Ok(if is_in_both { vec![RuleTable::Legacy, RuleTable::Nft] } else { vec![RuleTable::Legacy] })
    }

    /// Returns the addresses that rules accept: none if firewalld does.
    fn accepted_ips(&self) -> &[IpAddr] {
        if self.uses_firewalld { &[] } else { &self.ips }
    }

    /// Adds addresses and rules to the tables in nf_tables, in one transaction. Usually everything shared exists, and
    /// only addresses are added: then the transaction fails if they have changed meanwhile. Otherwise it is repeated if
    /// any ruleset changes, so that ADDs at the same time add the shared rules once.
    fn add_to_nft(&self, nft: &mut Nftables, host: &mut Netlink, families: &[&'static Tools]) -> Result<()> {
        let added = nft::retry(|| match self.independent_edits(nft, host, families)? {
            Some(edits) => Ok::<_, Error>(nft.apply(&edits).map(|()| true)?),
            None => Ok(false),
        });
        match added {
            Ok(false) => {}
            // Something shared was deleted meanwhile, or many ADDs have the same address.
            Err(error) if matches!(error.as_ref().errno(), Some(libc::ENOENT | libc::EEXIST)) => {}
            outcome => return outcome.map(drop),
        }
        nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
            let mut edits = self.isolation(nft)?;
            let frame = self.frame(nft)?;
            if !frame.is_empty() {
                edits.extend(self.replace_other_bits(nft, families)?);
            }
            edits.extend(frame);
            if !self.accepted_ips().is_empty() {
                // No rule needs some of them, so they may be missing.
                edits.extend(Frame::create_sets());
            }
            edits.extend(accepted::accept(nft, self.owner, self.accepted_ips())?);
            let mut ends_policy = false;
            for tools in families {
                let table = tools.table(FILTER);
                let plan = self.plan(tools, &mut View::Nft(nft, table), host, true)?;
                let is_of_policy = |step: &Step<'_>| matches!(step, Step::Delete(STAGE_1, _));
                ends_policy |= self.policy.is_none() && plan.steps.iter().any(is_of_policy);
                edits.extend(plan.edits(table));
            }
            // A policy that ends is also in effect in the family in which the container has no address.
            for tools in families.iter().filter(|tools| ends_policy && !self.has_address(tools)) {
                edits.extend(policy::delete(nft, tools, self.owner.network, &mut |_| Ok(false))?);
            }
            Ok(edits)
        })
    }

    /// Returns the edits of an ADD for which everything shared exists; `None` if it does not, or if there is a policy.
    fn independent_edits(
        &self,
        nft: &mut Nftables,
        host: &mut Netlink,
        families: &[&'static Tools],
    ) -> Result<Option<Vec<Edit>>> {
        if self.policy.is_some() || !self.isolation(nft)?.is_empty() || !self.frame(nft)?.is_empty() {
            return Ok(None);
        }
        let mut edits = accepted::accept(nft, self.owner, self.accepted_ips())?;
        for tools in families {
            let table = tools.table(FILTER);
            let plan = self.plan(tools, &mut View::Nft(nft, table), host, true)?;
            // Handles are unique. Only rules for single addresses are deleted without another step.
            if !plan.steps.iter().all(|step| matches!(step, Step::Delete(CONTAINERS, _))) {
                return Ok(None);
            }
            edits.extend(plan.edits(table));
        }
        Ok(Some(edits))
    }

    /// Returns the edits that create what is missing of the plugin's own table, if an address needs it.
    pub(crate) fn frame(&self, nft: &mut Nftables) -> Result<Vec<Edit>> {
        let frame = Frame { bit: self.config.accept_bit };
        let is_complete = self.accepted_ips().is_empty() || frame.is_complete(nft)?;
        Ok(if is_complete { Vec::new() } else { frame.create() })
    }

    /// Returns the edits that isolate the port of the container if the policy requires it. Otherwise they end the
    /// isolation of the network's containers: the policy of a network is that of the last ADD.
    pub(crate) fn isolation(&self, nft: &mut Nftables) -> Result<Vec<Edit>> {
        if self.config.ingress != IngressPolicy::Isolated {
            let is_of_network =
                |comment: &str| network_mark_in(comment).is_some_and(|found| self.mark.starts_with(found));
            return isolation::release(nft, &is_of_network);
        }
        match self.policy.as_ref().and_then(Policy::isolated_port) {
            Some(port) => port.isolate(nft, self.owner),
            None => Ok(Vec::new()),
        }
    }

    /// Adds rules with the tools of iptables: one for all packets that are marked, if the kernel has nf_tables,
    /// otherwise some for each address.
    fn add_to_legacy<'s>(&'s self, tools: &'static Tools, is_marked: bool, undo: &mut Undo<'s, Netlink>) -> Result<()> {
        let added = Rc::new(RefCell::new(Vec::new()));
        let steps = Rc::clone(&added);
        undo.push("remove the rules from the legacy table", move |_| {
            let steps = steps.borrow();
            change_legacy(tools, FILTER, |view| revert(view, tools, &steps))?;
            // Without a legacy table, the tools may have written to nf_tables.
            if tools.legacy_table(FILTER)?.is_none() {
                change(&mut Nftables::open()?, FILTER, &[tools], |_, view| revert(view, tools, &steps))?;
            }
            Ok(())
        });
        let host = undo.context();
        change_legacy(tools, FILTER, |view| -> Result<TablePlan<'_>> {
            let plan = self.plan(tools, view, host, is_marked)?;
            added.replace(plan.steps.clone());
            Ok(plan)
        })
        .map(drop)
    }

    /// Returns the steps that add all rules of a family, and remove those of an earlier ADD. `is_marked` if the
    /// plugin's own table marks the packets of accepted addresses.
    pub(crate) fn plan(
        &self,
        tools: &'static Tools,
        view: &mut View<'_>,
        host: &mut Netlink,
        is_marked: bool,
    ) -> Result<TablePlan<'_>> {
        let ips = self.accepted_ips().iter().copied().filter(|ip| tools.includes(*ip)).collect();
        let is_concerned = self.concerns(tools)?;
        let forward = if is_concerned { view.rules(FORWARD)? } else { Vec::new() };
        let acceptance = Acceptance {
            tools,
            owner: self.owner,
            mark: &self.mark,
            bit: is_marked.then_some(self.config.accept_bit),
            ips,
            admin_chain: &self.config.admin_chain,
        };
        let mut steps = acceptance.plan(view, &forward)?;
        let policy = self.policy.as_ref().filter(|_| is_concerned);
        match (policy, &self.policy) {
            (Some(policy), _) => steps.extend(policy.plan(view, host, tools, &forward)?),
            // Without a jump, an old policy has no effect.
            (None, None) if forward.iter().any(|rule| rule.is_jump_to(STAGE_1)) => {
                steps.extend(policy::remove(view, self.owner.network, &mut |_| Ok(false))?);
            }
            (None, _) => {}
        }
        let is_entry = |step: &Step<'_>| matches!(step, Step::Prepend(rule) if rule.chain == FORWARD);
        let entry_is_new = steps.iter().any(is_entry);
        steps.extend(policy::lead(&forward, policy.is_some(), entry_is_new));
        Ok(TablePlan { steps, removed: vec![] })
    }
}

/// Returns the steps that remove the rules of addresses that the tools have added with `added`, which have no marks.
/// Another ADD may rely on the others by now.
fn revert<'a>(view: &mut View<'_>, tools: &Tools, added: &[Step<'a>]) -> Result<TablePlan<'a>> {
    let mut steps = Vec::new();
    for step in added {
        let Step::Append(rule) = step else { continue };
        if rule.chain != CONTAINERS || rule.matches.iter().any(|found| matches!(found, Match::PacketMark(_))) {
            continue;
        }
        let is_added = |listed: &ListedRule| listed.mark().is_empty() && listed.is_same_as(rule, tools.family);
        let listed = view.rules(rule.chain)?.into_iter().find(is_added);
        steps.extend(listed.map(|listed| Step::Delete(rule.chain, listed)));
    }
    Ok(TablePlan { steps, removed: vec![] })
}

/// Returns the addresses of a result, each once.
pub(crate) fn addresses(result: &AddResult) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in result.ips.iter().map(|ip| ip.address.ip()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips
}

/// Connects to firewalld if the backend is firewalld; `None` if it is another.
pub(crate) fn connect(config: &Config) -> Result<Option<Firewalld>> {
    match config.backend {
        Backend::Iptables | Backend::Nftables => Ok(None),
        Backend::Firewalld => Firewalld::connect()?.ok_or_else(not_running).map(Some),
        Backend::Auto => match Firewalld::connect() {
            // It may be running.
            Err(error) if error.code() == Code::TRY_LATER => Err(error),
            Err(error) => {
                warn!("cannot find out whether firewalld is running, use iptables: {error:?}");
                Ok(None)
            }
            outcome => outcome,
        },
    }
}
