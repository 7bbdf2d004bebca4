//! ADD: publishes the ports of an attachment in one transaction, or reports which attachment has a port already.

use std::fmt;
use std::net::IpAddr;

use cni::key::mark_in;
use cni::{Code, Error, Result, evidence};
use linux::log::{debug, warn};
use linux::netlink::Netlink;
use linux::netlink::nft::{self, Nftables};

use crate::config::Backend;
use crate::entry::{self, Entry, Listing};
use crate::iptables::Preparation;
use crate::mapping::Mapping;
use crate::publication::{Publication, Removal};
use crate::published::{PortOwner, Published};
use crate::{flows, iptables, listener, localnet, other_forms, owner, reference, removal, table};

/// The remedy if nftables is unavailable.
pub(crate) const FIX_HINT: &str =
    "load the kernel modules nf_tables, nft_nat, nft_masq and nft_fib_inet, or set \"backend\" to \"iptables\"";

impl Publication<'_> {
    /// Publishes the ports. Replaces what an earlier ADD of the same attachment published.
    pub(crate) fn add(&self) -> Result<()> {
        let mappings = self.mappings();
        if mappings.is_empty() {
            debug!("the container has no address to which a port could lead");
            return Ok(());
        }
        listener::warn_of_listeners(&mappings);
        let (mut host, mut nft) = (Netlink::open()?, Nftables::open()?);
        let mut has_legacy_rules = false;
        self.publish(&mappings, &mut host, &mut nft, &mut has_legacy_rules).map_err(|error| {
            // What the attachment publishes was published by an earlier ADD, and is still in use.
            if !nft.may_have_changed() && !has_legacy_rules {
                return error;
            }
            match removal::remove(&self.removal(&self.ips())) {
                Ok(()) => error,
                Err(left) => error.details(format!("not undone: remove the published ports: {left}")),
            }
        })
    }

    /// Publishes the ports. Sets `has_legacy_rules` if legacy tables changed, or may have.
    fn publish(
        &self,
        mappings: &[Mapping],
        host: &mut Netlink,
        nft: &mut Nftables,
        has_legacy_rules: &mut bool,
    ) -> Result<()> {
        let mut replaced = Vec::new();
        let is_guarded = match self.config.backend {
            Backend::Iptables => self.add_chains(nft, host, has_legacy_rules)?,
            Backend::Nftables | Backend::Auto => match self.add_entries(nft, host) {
                Err(error) if self.config.backend == Backend::Auto && nft::is_unavailable(&error) => {
                    debug!("nftables is unavailable, use iptables: {error}");
                    self.add_chains(nft, host, has_legacy_rules)
                        .map_err(|second| second.details(format!("nftables: {error}")))?
                }
                outcome => {
                    replaced = outcome.map_err(with_fix_hint)?;
                    true
                }
            },
        };
        match self.loopback_target() {
            Some(container) if is_guarded => localnet::enable(host, self, container.ip())?,
            Some(_) => {
                warn!(
                    "ports are not reachable from loopback addresses: without nf_tables, it would expose loopback services"
                )
            }
            None => {}
        }
        flows::redirect(host, mappings, &replaced);
        Ok(())
    }

    /// Adds the chains of iptables, and the guard of loopback services, which needs nf_tables. Returns whether it exists.
    ///
    /// Nothing excludes two rules for the same port. So the transaction is repeated if any ruleset has changed since the
    /// owners of the ports were listed.
    fn add_chains(&self, nft: &mut Nftables, host: &mut Netlink, has_legacy_rules: &mut bool) -> Result<bool> {
        let entries = self.entries(&self.scopes());
        let ips = iptables::add(nft, self, has_legacy_rules, &mut |nft| {
            let others = self.compare_other_forms(nft, host)?;
            let listing = Listing::read(nft)?;
            let (replaced, _) = self.partition(host, &listing, &entries)?;
            others.remove_gone()?;
            Ok(Preparation { ips: others.ips, edits: removal::edits(nft, &listing, &replaced, true)? })
        })?;
        reference::remove(nft, self.owner, &ips)?;
        match self.loopback_target().map(|_| table::add_guard(nft)) {
            Some(Err(error)) if nft::is_unavailable(&error) => Ok(false),
            Some(outcome) => outcome.map(|()| true),
            None => Ok(false),
        }
    }

    /// Adds the entries in one transaction. Usually everything else exists, and no key of an entry does: then the
    /// transaction depends on nothing that was read before. Otherwise, or if ports may be published in other forms, it is
    /// repeated if any ruleset changes meanwhile. Only the first ADD with iptables on a host, which creates the table `nat`,
    /// may go unnoticed. Returns the mappings that were replaced.
    fn add_entries(&self, nft: &mut Nftables, host: &mut Netlink) -> Result<Vec<Mapping>> {
        let scopes = self.scopes();
        let (frame, entries) = (self.frame(&scopes), self.entries(&scopes));
        let has_other_forms = other_forms::may_exist(nft)?;
        let mut is_simple = frame.missing(nft)?.is_none();
        if is_simple && !has_other_forms {
            match nft.apply(&entry::create(&entries)) {
                // The key of an entry exists, ranges overlap, or the table was deleted meanwhile.
                Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOENT)) => {
                    is_simple = false;
                }
                outcome => return Ok(outcome.map(|()| Vec::new())?),
            }
        }
        let mut removed = Vec::new();
        let mut others = OtherForms::default();
        removal::apply(nft, &mut |nft, deletes_scopes| {
            if has_other_forms {
                others = self.compare_other_forms(nft, host)?;
            }
            if std::mem::take(&mut is_simple) && others.gone.is_empty() {
                return Ok(entry::create(&entries));
            }
            let listing = Listing::read(nft)?;
            let (replaced, shared) = self.partition(host, &listing, &entries)?;
            others.remove_gone()?;
            // Masquerade entries, which live attachments with the same address share, and ports that another network of the
            // container publishes.
            let is_free = |entry: &&Entry| !shared.iter().any(|other| entry.excludes(other));
            let entries: Vec<Entry> = entries.iter().filter(is_free).cloned().collect();
            let mut edits = frame.create(nft)?;
            edits.extend(entry::delete(&replaced));
            edits.extend(entry::create(&entries));
            for unused in listing.unused_scopes(&replaced, &entries).iter().filter(|_| deletes_scopes) {
                edits.extend(table::delete_scope(nft, unused)?);
            }
            removed = replaced.iter().filter_map(Entry::read_mapping).collect();
            Ok(edits)
        })?;
        if others.is_used {
            reference::remove(nft, self.owner, &others.ips)?;
            iptables::remove(nft, &self.removal(&others.ips))?;
        }
        Ok(removed)
    }

    /// Separates the entries that the new ones replace from those of others. Replaced are those of an earlier ADD of this
    /// attachment, and those of attachments that are gone and have one of the keys. Returns an error if another live
    /// container has one of the ports. The same container may have it, through another network.
    fn partition(&self, host: &mut Netlink, listing: &Listing, new: &[Entry]) -> Result<(Vec<Entry>, Vec<Entry>)> {
        let mut replaced = vec![self.owner.mark()];
        for other in listing.entries.iter().filter(|other| new.iter().any(|entry| entry.excludes(other))) {
            let mark = mark_in(other.comment());
            if mark.is_some_and(|mark| replaced.iter().any(|known| known == mark)) {
                continue;
            }
            let port_owner = PortOwner::Attachment(other.comment().to_owned());
            match mark {
                Some(mark) if owner::is_gone(host, &port_owner, listing.port_of(other.comment()))? => {
                    warn!("replace the published ports of an attachment that is gone: {port_owner}");
                    replaced.push(mark.to_owned());
                }
                // Without a mark, another program added it.
                _ => {
                    if let Some(mapping) =
                        other.read_mapping().filter(|_| !port_owner.is_container(self.owner.container))
                    {
                        return Err(clash(&mapping, &port_owner));
                    }
                }
            }
        }
        let is_replaced =
            |entry: &Entry| mark_in(entry.comment()).is_some_and(|mark| replaced.iter().any(|r| r == mark));
        Ok(listing.entries.iter().cloned().partition(is_replaced))
    }

    /// Compares the ports with those in forms other than the maps. Returns an error if another live container has one of them.
    fn compare_other_forms(&self, nft: &mut Nftables, host: &mut Netlink) -> Result<OtherForms> {
        let wanted = self.mappings();
        let is_wanted = |protocol, port| wanted.iter().any(|m| m.key.protocol == protocol && m.key.port == port);
        let (is_used, others) = other_forms::list_some(nft, &is_wanted)?;
        let mut found = OtherForms { is_used, ips: self.ips(), gone: Vec::new() };
        for other in others {
            let clashes =
                |m: &Mapping| m.key == other.mapping.key && m.target.is_ipv4() == other.mapping.target.is_ipv4();
            if !wanted.iter().any(clashes) || other.is_of(host, self.owner, &found.ips, self.port)? {
                continue;
            }
            let target = other.mapping.target.ip();
            let link = other.port.as_deref();
            // One container does not publish a port twice: without other evidence, it had another address earlier.
            if other.names_container_of(self.owner)
                && evidence::is_sibling(host, self.owner, target, link.unwrap_or_default())? != Some(true)
            {
                found.ips.push(target);
                continue;
            }
            if !owner::is_gone(host, &other.owner, link)? {
                if other.owner.is_container(self.owner.container) {
                    continue;
                }
                return Err(clash(&other.mapping, &owner::describe(host, &other)?));
            }
            found.gone.push(other);
        }
        Ok(found)
    }
}

/// What an ADD finds in the forms of the reference.
#[derive(Debug, Default)]
struct OtherForms {
    /// Whether anything is published in them.
    is_used: bool,
    /// The addresses of the attachment: those of the previous result, and those to which its earlier rules lead.
    ips: Vec<IpAddr>,
    /// The wanted ports of attachments that are gone.
    gone: Vec<Published>,
}

impl OtherForms {
    /// Removes the published ports of attachments that are gone. That is not a change of this attachment, so it uses a socket
    /// of its own.
    fn remove_gone(&self) -> Result<()> {
        for other in &self.gone {
            // Only these rules name the network, so that their owner can be known to be gone.
            if let PortOwner::OnNetwork { network, container } = &other.owner {
                warn!("remove the published ports of an attachment that is gone: {}", other.owner);
                let (ips, link) = ([other.mapping.target.ip()], other.port.as_deref());
                // Only a lost link is known to be gone, not the other links of the container.
                let ips = if link.is_some() { &ips[..] } else { &[] };
                let removal = Removal { ips, link, ..Removal::of_container(network, container) };
                iptables::remove(&mut Nftables::open()?, &removal)?;
            }
        }
        Ok(())
    }
}

/// Returns the error for a port that another attachment has.
fn clash(taken: &Mapping, owner: &dyn fmt::Display) -> Error {
    let Mapping { key, target } = taken;
    let what = format!("publish {key}: it is already published, and leads to {target} ({owner})");
    Error::new(Code::PORT_IN_USE, what)
        .details("use another host port or \"hostIP\", or remove that container; if it is gone, run `cnitool prune`")
}

/// Adds the remedy to an error if nftables is unavailable.
pub(crate) fn with_fix_hint(error: Error) -> Error {
    if nft::is_unavailable(&error) { error.details(FIX_HINT) } else { error }
}
