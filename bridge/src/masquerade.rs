//! Masquerade: containers share the host's address outside of their network. With nftables, or with iptables.
//!
//! Names and comments are those of the reference, so that each implementation removes what the other made. Whatever is
//! removed is looked for with both backends: the configuration may have changed since.

use std::net::IpAddr;

use cni::ip::{Cidr, octets};
use cni::netlink::Netlink;
use cni::netlink::nft::{self, Chain, Edit, Family, Hook, Nftables, Part, Rule, Table};
use cni::{AttachmentKey, Code, Context, Error, Result};
use log::debug;

use crate::config::Backend;
use crate::gc::Keep;
use crate::iptables;

const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
/// A rule for each address of each container.
const CHECKS: Chain<'_> = TABLE.chain("masq_checks");
/// Leads to them, except for multicast.
const POSTROUTING: Chain<'_> = TABLE.chain("postrouting");

/// Where nftables cannot serve.
const REMEDY: &str = "load the kernel's nf_tables with nft_masq, or set \"ipMasqBackend\" to \"iptables\"";
/// Where the rules of a container that is attached are missing.
pub const REPAIR_HINT: &str = "something flushed the host's rules; `cnitool repair` restores them";
/// How often rules are looked for again because somebody deleted one meanwhile.
const ATTEMPTS: u32 = 10;

/// A rule that hides a container's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The address that is hidden.
    pub source: Option<IpAddr>,
    /// Is it one of iptables?
    pub iptables: bool,
    /// Whose it is, for people; long ids may be cut.
    pub comment: String,
}

impl Masquerade {
    /// Whose it is, without what is for machines.
    pub fn about(&self) -> &str {
        match self.comment.split_once(", net: ") {
            Some((_, about)) if !self.iptables => about,
            _ => &self.comment,
        }
    }

    /// What tells whose it is: one of [`rule_keys`](crate::inspect::rule_keys).
    pub fn key(&self) -> &str {
        match self.iptables {
            true => &self.comment,
            false => self.comment.split_once(',').map_or(self.comment.as_str(), |(mark, _)| mark),
        }
    }
}

/// Hides `ips` from everybody outside of their networks.
pub(crate) fn add(backend: Backend, owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    match backend {
        Backend::Iptables => iptables::add(owner, ips),
        Backend::Nftables => add_rules(owner, ips).map_err(with_remedy),
        Backend::Auto => match add_rules(owner, ips) {
            Err(error) if nft::is_unavailable(&error) => {
                debug!("iptables instead of nftables: {error}");
                iptables::add(owner, ips).map_err(|second| second.details(format!("nftables: {error}")))
            }
            outcome => outcome,
        },
    }
    .trying(|| "masquerade")
}

/// What to do if it is nftables that is missing.
fn with_remedy(error: Error) -> Error {
    if nft::is_unavailable(&error) { error.details(REMEDY) } else { error }
}

/// Adds the rules, and the chains where the base chain does not lead to them: it is missing, or something flushed it.
///
/// Unlike upstream, which makes the base chain again for every container: that costs the kernel ten times what a rule
/// does, and so does refusing a rule. Asking for the three rules of the base chain first costs next to nothing.
fn add_rules(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    let comment = owner.comment();
    let rules = || {
        ips.iter().map(|ip| {
            let parts = [Part::Source(ip.ip()), Part::DestinationOutside(*ip), Part::Masquerade];
            Edit::add_rule(CHECKS, &parts, &comment)
        })
    };
    let mut nft = Nftables::open()?;
    if is_reached(&mut nft)? {
        match nft.apply(&rules().collect::<Vec<_>>()) {
            // Deleted since.
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            outcome => return outcome,
        }
    }
    nft.apply(&frame().chain(rules()).collect::<Vec<_>>())
}

/// Table and chains. Once more is no harm: the base chain is emptied before it is filled.
fn frame() -> impl Iterator<Item = Edit<'static>> {
    let multicast = |net: IpAddr, prefix| {
        Cidr::new(net, prefix).map(|net| Edit::add_rule(POSTROUTING, &[Part::Destination(net), Part::Return], ""))
    };
    [
        Some(Edit::add_table(TABLE)),
        Some(Edit::add_chain(CHECKS)),
        Some(Edit::add_base_chain(POSTROUTING, Hook::SOURCE_NAT)),
        Some(Edit::flush(POSTROUTING)),
        multicast(IpAddr::from([224, 0, 0, 0]), 4),
        multicast(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
        Some(Edit::add_rule(POSTROUTING, &[Part::Goto(CHECKS.name)], "")),
    ]
    .into_iter()
    .flatten()
}

/// Removes the rules of an attachment.
pub(crate) fn remove(nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<()> {
    let mark = owner.mark();
    remove_rules(nft, &|comment| comment.starts_with(&mark))
}

/// GC: removes the rules of a network's attachments that are not in `keep`.
pub(crate) fn collect(nft: &mut Nftables, keep: &Keep<'_>) -> Result<()> {
    remove_rules(nft, &|comment| keep.is_stale_comment(comment))
}

/// Removes the rules with a comment that is `stale`.
fn remove_rules(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<()> {
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        let rules = nft.rules_about(CHECKS, stale)?;
        let edits: Vec<_> = rules.iter().map(|rule| Edit::delete_rule(CHECKS, rule)).collect();
        outcome = nft.apply(&edits);
        match &outcome {
            // Somebody else deleted one of them; the transaction changed nothing.
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            _ => break,
        }
    }
    outcome
}

/// All rules of all networks.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<Masquerade>> {
    let rules = nft.rules(CHECKS)?.into_iter().filter(|rule| rule.masquerades);
    Ok(rules.map(|rule| Masquerade { source: source(&rule), iptables: false, comment: rule.comment }).collect())
}

/// The address that a rule is about. Where both protocols pass, the protocol is compared with before.
pub(crate) fn source(rule: &Rule) -> Option<IpAddr> {
    rule.values.iter().find_map(|value| match value.as_slice() {
        octets @ [_, _, _, _] => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        octets => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    })
}

/// CHECK: are all `ips` hidden?
pub(crate) fn check(backend: Backend, owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    if backend == Backend::Iptables {
        return iptables::check(owner, ips);
    }
    match check_rules(owner, ips) {
        // Who added the rules may have had no nftables, or preferred iptables as the reference does.
        Err(error) if backend == Backend::Auto => iptables::check(owner, ips).map_err(|_| error),
        outcome => outcome,
    }
}

fn check_rules(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    let mut nft = Nftables::open()?;
    if is_cut_off(&mut nft)? {
        return Err(missing(format!("no rule in chain {POSTROUTING} leads to {}", CHECKS.name)));
    }
    let mark = owner.mark();
    let mut rules = nft.rules(CHECKS)?;
    rules.retain(|rule| rule.comment.starts_with(&mark) && rule.masquerades);
    for ip in ips {
        let source = octets(ip.ip());
        if !rules.iter().any(|rule| rule.values.contains(&source)) {
            let what = format!("no rule in chain {CHECKS} masquerades {}", ip.ip());
            return Err(missing(what));
        }
    }
    Ok(())
}

/// Restores the rules of an attachment whose masquerade [`check`] finds incomplete; `false` if it is complete.
pub(crate) fn restore(backend: Backend, owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<bool> {
    if check(backend, owner, ips).is_ok() {
        return Ok(false);
    }
    // What is left of them would be doubled.
    remove_all(owner, ips)?;
    add(backend, owner, ips).map(|()| true)
}

/// Removes the rules of an attachment with the addresses `ips`, of either backend.
pub(crate) fn remove_all(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    let ips: Vec<IpAddr> = ips.iter().map(Cidr::ip).collect();
    let mut nft = Nftables::open()?;
    remove(&mut nft, owner)?;
    iptables::remove(&mut nft, &mut Netlink::open()?, owner, &ips)
}

/// Is the chain with the rules there, and nothing leads to it?
pub(crate) fn is_cut_off(nft: &mut Nftables) -> Result<bool> {
    Ok(nft.has_chain(CHECKS)? && !is_reached(nft)?)
}

/// Does the base chain lead to that with the rules? If so both are there: the kernel deletes no chain that a rule leads to.
fn is_reached(nft: &mut Nftables) -> Result<bool> {
    nft.leads_to(POSTROUTING, CHECKS.name)
}

pub(crate) fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what).details(REPAIR_HINT)
}

/// STATUS: could an ADD masquerade? Chains that are missing or flushed are no reason to refuse: the ADD restores them.
pub(crate) fn status(backend: Backend) -> Result<()> {
    let try_nftables = || {
        let ip = Cidr::host(IpAddr::from([192, 0, 2, 1]));
        let parts = [Part::Source(ip.ip()), Part::DestinationOutside(ip), Part::Masquerade];
        let rule = Edit::add_rule(CHECKS, &parts, "");
        let edits: Vec<_> = frame().chain([rule]).collect();
        let mut nft = Nftables::open()?;
        // Where the chains are, they were made with such a rule; and a trial costs the kernel as much as a refusal.
        if is_reached(&mut nft)? { Ok(()) } else { nft.try_out(&edits) }
    };
    match backend {
        Backend::Iptables => iptables::status(),
        Backend::Nftables => try_nftables().map_err(with_remedy),
        Backend::Auto => match try_nftables() {
            Err(error) if nft::is_unavailable(&error) => {
                iptables::status().map_err(|second| second.details(format!("nftables: {error}")))
            }
            outcome => outcome,
        },
    }
}
