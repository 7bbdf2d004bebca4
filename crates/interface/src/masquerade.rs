//! Masquerade: outside of their network, containers use the address of the host. With nftables or iptables.
//!
//! Names and comments are the reference's, so that each implementation can remove the rules of the other. Removal
//! always covers both backends, because the configuration may have changed since ADD.
//!
//! This file has what plugins call, and the rules of nftables. `iptables` has those of iptables, `rule` is a rule that
//! both list, and `inspect` is for `cnitool`.

pub mod inspect;
mod iptables;
mod rule;

use std::net::IpAddr;

use cni::json::invalid;
use cni::{AttachmentKey, Context, Error, ErrorCollector, Keep, Result};
use linux::ip::{Cidr, octets};
use linux::log::debug;
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Chain, Comparison, Edit, Family, Hook, Nftables, Rule, RuleSpec, Table, Verdict};

use crate::attach::Add;
use rule::{ListedMasquerade, Traffic, missing, outdated};

const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
/// The chain with one rule for each address of each container.
const CHECKS: Chain<'_> = TABLE.chain("masq_checks");
/// The base chain, which jumps to `CHECKS` for all packets but multicast.
const POSTROUTING: Chain<'_> = TABLE.chain("postrouting");

/// The remedy if nftables is unavailable.
const FIX_HINT: &str = "load the kernel modules nf_tables and nft_masq, or set \"ipMasqBackend\" to \"iptables\"";

/// The most networks in `ipMasqExclude`: the kernel limits the size of a rule.
const MAX_EXCLUDED: usize = 16;

/// The masquerade of a network, as its configuration says.
#[derive(Debug)]
pub struct Masquerade {
    /// What adds the rules.
    backend: Backend,
    /// Networks to which containers send with their own addresses. Without host bits.
    pub exclude: Vec<Cidr>,
}

/// What adds the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    /// nftables if the kernel supports it, otherwise iptables. Unlike the reference, which prefers iptables.
    Auto,
    /// Only nftables.
    Nftables,
    /// Only iptables.
    Iptables,
}

impl Backend {
    /// Validates the key `ipMasqBackend`.
    fn read(key: Option<&str>) -> Result<Backend> {
        match key {
            None => Ok(Backend::Auto),
            Some("nftables") => Ok(Backend::Nftables),
            Some("iptables") => Ok(Backend::Iptables),
            Some(other) => Err(invalid(
                "ipMasqBackend",
                format_args!("{other:?} is unknown"),
                "use \"nftables\" or \"iptables\", or leave it out",
            )),
        }
    }
}

/// Validates the key `ipMasqExclude`, and removes duplicates.
fn read_excluded(key: &[Cidr]) -> Result<Vec<Cidr>> {
    let mut networks = Vec::new();
    for (index, net) in key.iter().enumerate() {
        let refuse = |what, remedy: &str| Err(invalid(&format!("ipMasqExclude[{index}]"), what, remedy));
        if net.ip() != net.ip().to_canonical() {
            return refuse(format_args!("{net} is IPv4 written as IPv6"), "write it as IPv4");
        }
        if *net != net.network() {
            return refuse(format_args!("{net} has host bits set"), &format!("write {}", net.network()));
        }
        if !networks.contains(net) {
            networks.push(*net);
        }
    }
    if networks.len() > MAX_EXCLUDED {
        let what = format_args!("{} networks are too many", networks.len());
        let remedy = format!("list at most {MAX_EXCLUDED}, and combine neighbouring networks");
        return Err(invalid("ipMasqExclude", what, &remedy));
    }
    Ok(networks)
}

impl Masquerade {
    /// Validates the keys `ipMasq`, `ipMasqBackend` and `ipMasqExclude`. `None` without `ipMasq`.
    pub fn read(enabled: bool, backend: Option<&str>, exclude: &[Cidr]) -> Result<Option<Masquerade>> {
        let masquerade = Masquerade { backend: Backend::read(backend)?, exclude: read_excluded(exclude)? };
        Ok(enabled.then_some(masquerade))
    }

    /// ADD: adds the rules for the addresses of the container, each with the prefix of its network, and their rollback.
    pub fn add(&self, add: &mut Add<'_>, ips: &[Cidr]) -> Result<()> {
        let key = add.key;
        let added = ips.to_vec();
        add.undo.push("remove the masquerade rules", move |_| remove_all(key, &added));
        add_to(self.backend, key, self.traffic(ips))
    }

    /// CHECK: returns an error unless the packets from these addresses, and no others, are masqueraded.
    pub fn check(&self, owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
        let traffic = self.traffic(ips);
        if self.backend == Backend::Iptables {
            return iptables::check(owner, traffic);
        }
        match check_rules(owner, traffic) {
            // The ADD may have used iptables: without nftables, or because the reference prefers it.
            Err(error) if self.backend == Backend::Auto => iptables::check(owner, traffic).map_err(|_| error),
            outcome => outcome,
        }
    }

    /// Adds the rules of an attachment again if [`check`](Self::check) finds them incomplete; `false` if they are
    /// complete. `addresses` returns the addresses of the attachment, and fails if its interface no longer has them: an
    /// address that now belongs to another container gets no rule.
    pub fn repair(&self, owner: AttachmentKey<'_>, addresses: impl Fn() -> Result<Vec<Cidr>>) -> Result<bool> {
        let ips = addresses()?;
        if self.check(owner, &ips).is_ok() {
            return Ok(false);
        }
        // Otherwise the remaining rules would exist twice.
        remove_all(owner, &ips)?;
        add_to(self.backend, owner, self.traffic(&ips))?;
        // DEL removes the interface before the rules. If the interface still exists now, a concurrent DEL also removes
        // these rules; otherwise it may have missed them.
        if let Err(gone) = addresses() {
            remove_all(owner, &ips)?;
            return Err(gone);
        }
        Ok(true)
    }

    /// STATUS: returns an error if an ADD could not add the rules. Missing or flushed chains are not an error: the ADD
    /// restores them.
    pub fn status(&self) -> Result<()> {
        match self.backend {
            Backend::Iptables => iptables::status(),
            Backend::Nftables => try_nftables().map_err(with_fix_hint),
            Backend::Auto => match try_nftables() {
                Err(error) if nft::is_unavailable(&error) => {
                    iptables::status().map_err(|second| second.details(format!("nftables: {error}")))
                }
                outcome => outcome,
            },
        }
    }

    /// Returns the packets from these addresses that are masqueraded.
    fn traffic<'a>(&'a self, ips: &'a [Cidr]) -> Traffic<'a> {
        Traffic { ips, exclude: &self.exclude }
    }
}

/// DEL: removes the rules of an attachment, of both backends. `ips` are its addresses, if known.
pub fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<()> {
    let mut failures = ErrorCollector::default();
    failures.record(remove_of(nft, owner));
    failures.record(iptables::remove(nft, host, owner, ips));
    failures.into_result()
}

/// GC: removes the rules of a network's attachments that are not in `keep`, of both backends.
pub fn collect(nft: &mut Nftables, keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    failures.record(remove_rules(nft, &|comment| keep.is_stale_comment(comment)));
    failures.record(iptables::collect(nft, keep));
    failures.into_result()
}

/// Adds the rules that masquerade `traffic`.
fn add_to(backend: Backend, owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    match backend {
        Backend::Iptables => iptables::add(owner, traffic),
        Backend::Nftables => add_rules(owner, traffic).map_err(with_fix_hint),
        Backend::Auto => match add_rules(owner, traffic) {
            Err(error) if nft::is_unavailable(&error) => {
                debug!("nftables is unavailable, use iptables: {error}");
                iptables::add(owner, traffic).map_err(|second| second.details(format!("nftables: {error}")))
            }
            outcome => outcome,
        },
    }
    .context(|| "add the masquerade rules")
}

/// Adds the remedy to an error if nftables is unavailable.
fn with_fix_hint(error: Error) -> Error {
    if nft::is_unavailable(&error) { error.details(FIX_HINT) } else { error }
}

/// Adds the nftables rules of an attachment. Creates the chains if the base chain is missing or was flushed.
///
/// Unlike the reference, which recreates the base chain for every container: that costs the kernel ten times as much as
/// adding a rule, and so does rejecting a rule. Listing the three rules of the base chain first costs next to nothing.
fn add_rules(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    let comment = owner.comment();
    let rules = || {
        let rule = |ip: &Cidr| rule_for(*ip, traffic.excluded(ip.ip())).comment(&comment);
        traffic.ips.iter().map(move |ip| Edit::add_rule(&rule(ip)))
    };
    let mut nft = Nftables::open()?;
    if !traffic.exclude.is_empty() {
        // A rule that a lost DEL left would masquerade packets that the new one excludes.
        remove_of(&mut nft, owner)?;
    }
    if is_reached(&mut nft)? {
        match nft.apply(&rules().collect::<Vec<_>>()) {
            // Another program has deleted the chain meanwhile.
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            outcome => return Ok(outcome?),
        }
    }
    nft.apply(&create_chains().chain(rules()).collect::<Vec<_>>())?;
    Ok(())
}

/// Returns the rule that masquerades packets from an address to destinations outside of its network and of `excluded`.
fn rule_for(ip: Cidr, excluded: impl Iterator<Item = Cidr>) -> RuleSpec<'static> {
    let rule = RuleSpec::new(CHECKS).source(ip.ip()).destination_outside(ip);
    excluded.fold(rule, RuleSpec::destination_outside).masquerade()
}

/// Returns the edits that create table and chains. They are idempotent: the base chain is flushed before it is filled.
fn create_chains() -> impl Iterator<Item = Edit> {
    let multicast = |net: IpAddr, prefix| {
        let net = Cidr::new(net, prefix)?;
        Some(Edit::add_rule(&RuleSpec::new(POSTROUTING).destination_in(net).verdict(Verdict::Return)))
    };
    [
        Some(Edit::add_table(TABLE)),
        Some(Edit::add_chain(CHECKS)),
        Some(Edit::add_base_chain(POSTROUTING, Hook::SOURCE_NAT)),
        Some(Edit::flush(POSTROUTING)),
        multicast(IpAddr::from([224, 0, 0, 0]), 4),
        multicast(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
        Some(Edit::add_rule(&RuleSpec::new(POSTROUTING).goto(CHECKS.name))),
    ]
    .into_iter()
    .flatten()
}

/// Removes the nftables rules of an attachment.
fn remove_of(nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<()> {
    let mark = owner.mark();
    remove_rules(nft, &|comment| comment.starts_with(&mark))
}

/// Removes the rules with a comment that is `stale`.
fn remove_rules(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<()> {
    nft::retry(|| {
        let rules = nft.rules_with_comment(CHECKS, stale)?;
        let edits: Vec<_> = rules.iter().map(|rule| Edit::delete_rule(CHECKS, rule)).collect();
        Ok(nft.apply(&edits)?)
    })
}

/// Lists the nftables rules of all networks.
fn list(nft: &mut Nftables) -> Result<Vec<ListedMasquerade>> {
    let rules = nft.rules(CHECKS)?.into_iter().filter(|rule| rule.masquerades);
    let source = |rule: &Rule| rule.source().map(|net| net.ip());
    Ok(rules.map(|rule| ListedMasquerade { source: source(&rule), iptables: false, comment: rule.comment }).collect())
}

/// CHECK for nftables.
fn check_rules(owner: AttachmentKey<'_>, traffic: Traffic<'_>) -> Result<()> {
    let mut nft = Nftables::open()?;
    if is_cut_off(&mut nft)? {
        return Err(missing(format!("no rule in chain {POSTROUTING} leads to {}", CHECKS.name)));
    }
    let mark = owner.mark();
    let mut rules = nft.rules(CHECKS)?;
    rules.retain(|rule| rule.comment.starts_with(&mark) && rule.masquerades);
    for ip in traffic.ips {
        let source = octets(ip.ip());
        let rules = rules.iter().filter(|rule| rule.values.contains(&source));
        let spared: Vec<Vec<Cidr>> = rules.map(|rule| rule.destinations(Comparison::NotEqual)).collect();
        if spared.is_empty() {
            return Err(missing(format!("no rule in chain {CHECKS} masquerades {}", ip.ip())));
        }
        let want: Vec<Cidr> = [ip.network()].into_iter().chain(traffic.excluded(ip.ip())).collect();
        if let Some(net) = want.iter().find(|net| !spared.iter().all(|rule| rule.contains(net))) {
            return Err(outdated(format!("a rule in chain {CHECKS} masquerades {} to {net}", ip.ip())));
        }
        let mut others = spared.iter().flatten().filter(|net| !want.contains(net));
        if let Some(net) = others.find(|net| spared.iter().all(|rule| rule.contains(net))) {
            return Err(outdated(format!("no rule in chain {CHECKS} masquerades {} to {net}", ip.ip())));
        }
    }
    Ok(())
}

/// Removes the rules of an attachment with the addresses `ips`, of both backends.
fn remove_all(owner: AttachmentKey<'_>, ips: &[Cidr]) -> Result<()> {
    let ips: Vec<IpAddr> = ips.iter().map(Cidr::ip).collect();
    remove(&mut Nftables::open()?, &mut Netlink::open()?, owner, &ips)
}

/// Returns whether the chain with the rules exists, but the base chain does not jump to it.
fn is_cut_off(nft: &mut Nftables) -> Result<bool> {
    Ok(nft.has_chain(CHECKS)? && !is_reached(nft)?)
}

/// Returns whether the base chain jumps to the chain with the rules. Then both exist: the kernel does not delete a
/// chain that is the target of a rule.
fn is_reached(nft: &mut Nftables) -> Result<bool> {
    Ok(nft.has_jump_to(POSTROUTING, CHECKS.name)?)
}

/// Returns an error if an ADD could not add rules of nftables.
fn try_nftables() -> Result<()> {
    let rule = Edit::add_rule(&rule_for(Cidr::host(IpAddr::from([192, 0, 2, 1])), std::iter::empty()));
    let edits: Vec<_> = create_chains().chain([rule]).collect();
    let mut nft = Nftables::open()?;
    // If the chains exist, such a rule has worked before. A trial costs the kernel as much as a rejected rule.
    if is_reached(&mut nft)? { Ok(()) } else { Ok(nft.dry_run(&edits)?) }
}
