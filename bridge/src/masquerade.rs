//! Masquerade: containers share the host's address outside of their network. With nftables, or with iptables.
//!
//! Names and comments are those of the reference, so that each implementation removes what the other made. Whatever is
//! removed is looked for with both backends: the configuration may have changed since.

use std::net::IpAddr;

use cni::ip::{Cidr, octets};
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
/// For a base chain that somebody has emptied. No ADD fills it again while the other chain is there.
pub const WAY_BACK: &str = "somebody emptied chain postrouting: `nft 'add rule inet cni_plugins_masquerade postrouting \
    ip daddr 224.0.0.0/4 return; add rule inet cni_plugins_masquerade postrouting ip6 daddr ff00::/8 return; \
    add rule inet cni_plugins_masquerade postrouting goto masq_checks'` fills it; if the chain is gone, delete the table \
    and attach the containers again";
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

/// Hides `ips` from everybody outside of their networks. `first` is a guess: are the chains missing?
pub(crate) fn add(backend: Backend, owner: AttachmentKey<'_>, ips: &[Cidr], first: bool) -> Result<()> {
    match backend {
        Backend::Iptables => iptables::add(owner, ips),
        Backend::Nftables => add_rules(owner, ips, first).map_err(with_remedy),
        Backend::Auto => match add_rules(owner, ips, first) {
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

/// Unlike upstream, the chains are made only where they are missing: making the base chain again costs the kernel
/// ten times what a rule does. So does refusing a rule, which tells that they are missing; so whoever comes `first`
/// asks before.
fn add_rules(owner: AttachmentKey<'_>, ips: &[Cidr], first: bool) -> Result<()> {
    let comment = owner.comment();
    let rules = || {
        ips.iter().map(|ip| {
            let parts = [Part::Source(ip.ip()), Part::DestinationOutside(*ip), Part::Masquerade];
            Edit::add_rule(CHECKS, &parts, &comment)
        })
    };
    let mut nft = Nftables::open()?;
    if !first || nft.has_chain(CHECKS)? {
        match nft.apply(&rules().collect::<Vec<_>>()) {
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
    look_at_chains(&mut nft)?;
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

/// Are the chains there? An error if they are and one does not lead to the other: then no ADD makes them.
fn look_at_chains(nft: &mut Nftables) -> Result<bool> {
    let there = nft.has_chain(CHECKS)?;
    if there && !is_reached(nft)? {
        let what = format!("no rule in chain {POSTROUTING} leads to {}", CHECKS.name);
        return Err(Error::new(Code::INTERNAL, what).details(WAY_BACK));
    }
    Ok(there)
}

/// Is the chain with the rules there, and nothing leads to it?
pub(crate) fn is_cut_off(nft: &mut Nftables) -> Result<bool> {
    Ok(nft.has_chain(CHECKS)? && !is_reached(nft)?)
}

/// Does the base chain lead to that with the rules?
fn is_reached(nft: &mut Nftables) -> Result<bool> {
    Ok(nft.rules(POSTROUTING)?.iter().any(|rule| rule.target.as_deref() == Some(CHECKS.name)))
}

pub(crate) fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what)
        .details("somebody flushed the host's rules; attaching the container again restores them")
}

/// STATUS: could an ADD masquerade?
pub(crate) fn status(backend: Backend) -> Result<()> {
    let try_nftables = || {
        let ip = Cidr::host(IpAddr::from([192, 0, 2, 1]));
        let parts = [Part::Source(ip.ip()), Part::DestinationOutside(ip), Part::Masquerade];
        let rule = Edit::add_rule(CHECKS, &parts, "");
        let edits: Vec<_> = frame().chain([rule]).collect();
        let mut nft = Nftables::open()?;
        // Where the chains are, they were made with such a rule; and a trial costs the kernel as much as a refusal.
        if look_at_chains(&mut nft)? { Ok(()) } else { nft.try_out(&edits) }
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
