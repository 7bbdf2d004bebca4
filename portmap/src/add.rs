//! ADD: publishes the ports of an attachment in one transaction, or reports which attachment has a port already.

use std::fmt;
use std::net::IpAddr;

use cni::{Code, Error, NamedLink, Ownership, Result, SortedSet, Trace};
use linux::log::{debug, warn};
use linux::netlink::nft::{self, Edit, Nftables};
use linux::netlink::{LinkIndex, Netlink};

use crate::clashes::Clashes;
use crate::config::Backend;
use crate::entry::{self, Entry};
use crate::host::Host;
use crate::inventory::Owned;
use crate::iptables::Preparation;
use crate::mapping::{Key, Mapping};
use crate::publication::{PortRemoval, Publication};
use crate::published::{PortOwner, PublishedPort};
use crate::table::{ATTACHMENTS, Frame, INVENTORY};
use crate::{
    flows, inventory, iptables, listener, localnet, node_ports, other_forms, owner, reference, removal, table,
};

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
        let (mut host, mut nft) = (Host::from(Netlink::open()?), Nftables::open()?);
        node_ports::warn_of_services(&mut nft, &mappings);
        let mut has_legacy_rules = false;
        let Err(error) = self.publish(&mappings, &mut host, &mut nft, &mut has_legacy_rules) else { return Ok(()) };
        // What the attachment publishes was published by an earlier ADD, and is still in use.
        if !nft.may_have_changed() && !has_legacy_rules {
            return Err(error);
        }
        // With the same sockets: the process may not be allowed to open more.
        let (removed, outcome) = removal::remove_with(&mut nft, &mut host, &self.removal(&self.ips()), None);
        flows::forget(nft, &removed);
        Err(match outcome {
            Ok(()) => error,
            Err(left) => error.details(format!("not undone: remove the published ports: {left}")),
        })
    }

    /// Publishes the ports. Sets `has_legacy_rules` if legacy tables changed, or may have.
    fn publish(
        &self,
        mappings: &[Mapping],
        host: &mut Host,
        nft: &mut Nftables,
        has_legacy_rules: &mut bool,
    ) -> Result<()> {
        let link = match self.loopback_target() {
            Some(container) => localnet::link_to(host.socket()?, self.result, container.ip())?,
            None => None,
        };
        let mut replaced = Vec::new();
        match self.config.backend {
            Backend::Iptables => self.add_chains(nft, host, has_legacy_rules)?,
            Backend::Nftables | Backend::Auto => match self.add_entries(nft, host, link) {
                Err(error) if self.config.backend == Backend::Auto && nft::is_unavailable(&error) => {
                    debug!("nftables is unavailable, use iptables: {error}");
                    self.add_chains(nft, host, has_legacy_rules)
                        .map_err(|second| second.details(format!("nftables: {error}")))?;
                }
                outcome => replaced = outcome.map_err(|error| error.details_if(nft::is_unavailable, FIX_HINT))?,
            },
        }
        if let Some(link) = link {
            localnet::enable(host.socket()?, link)?;
        }
        flows::redirect(host.socket()?, mappings, &replaced);
        Ok(())
    }

    /// Adds the chains of iptables, and the rules of loopback addresses, if the kernel has nf_tables.
    ///
    /// Nothing excludes two rules for the same port. So the transaction is repeated if any ruleset has changed since
    /// the owners of the ports were listed.
    fn add_chains(&self, nft: &mut Nftables, host: &mut Host, has_legacy_rules: &mut bool) -> Result<()> {
        let entries = self.entries(&self.scopes());
        let ips = iptables::add(nft, self, has_legacy_rules, host, &mut |nft, host| {
            let others = self.compare_other_forms(nft, host)?;
            let Clashes { replaced, .. } = Clashes::find(nft, host, self.owner, &entries, false)?;
            others.remove_gone()?;
            Ok(Preparation { ips: others.ips, edits: removal::edits(nft, &replaced, &[], &[], true)? })
        })?;
        reference::remove(nft, self.owner, &ips)?;
        match self.loopback_target().map(|_| table::add_guard(nft)) {
            Some(Err(error)) if nft::is_unavailable(&error) => Ok(()),
            outcome => outcome.unwrap_or(Ok(())),
        }
    }

    /// Adds the entries in one transaction, and replaces those of an earlier ADD that differ. Returns the mappings that
    /// were replaced. Loopback addresses reach the ports through `link`, if any.
    ///
    /// The transaction fails as a whole if a key of an entry exists, or if what it replaces has changed meanwhile. Then
    /// it is planned again. If ports may be published in other forms, which have no keys, it is repeated if any ruleset
    /// changes after they were read. Only the first ADD with iptables on a host, which creates the table `nat`, may go
    /// unnoticed.
    fn add_entries(&self, nft: &mut Nftables, host: &mut Host, link: Option<LinkIndex>) -> Result<Vec<Mapping>> {
        let scopes = self.scopes();
        let frame = Frame::new(&scopes, self.loopback_target().is_some(), link);
        let entries = self.entries(&scopes);
        let chains = Publication::chains(&scopes, link);
        let has_other_forms = other_forms::may_exist(nft)?;
        let mut is_complete = frame.is_complete(nft)?;
        let (mut is_first, mut removed, mut left) = (true, Vec::new(), Vec::new());
        let mut others = OtherForms::default();
        removal::apply(nft, &mut |nft, deletes_unused| {
            let mut plan = |nft: &mut Nftables, host: &mut Netlink| -> Result<Vec<Edit>> {
                let clashes = Clashes::find(nft, host, self.owner, &entries, std::mem::take(&mut is_first))?;
                let links = clashes.replaced.iter().filter_map(Owned::link);
                left = links.filter(|replaced| Some(*replaced) != link).collect();
                let edits;
                (edits, removed) = self.plan(nft, &entries, &chains, &clashes, deletes_unused)?;
                Ok(edits)
            };
            let mut compare = |nft: &mut Nftables, host: &mut Netlink| -> Result<()> {
                others = self.compare_other_forms(nft, host)?;
                others.remove_gone()
            };
            let host = host.socket()?;
            if std::mem::take(&mut is_complete) {
                let edits = plan(nft, host)?;
                return Ok(match has_other_forms {
                    true => nft.apply_checked(&edits, |nft| compare(nft, host)),
                    false => nft.apply(&edits).map_err(Into::into),
                });
            }
            // Nothing excludes two rules that are the same.
            nft.apply_guarded(|nft| {
                let planned = plan(nft, host)?;
                if has_other_forms {
                    compare(nft, host)?;
                }
                let mut edits = frame.create(nft)?;
                edits.extend(planned);
                Ok(edits)
            })
            .map(Ok)
        })?;
        left.into_iter().for_each(|link| removal::release(nft, host, Ok(Some(link))));
        if others.is_used {
            reference::remove(nft, self.owner, &others.ips)?;
            let rules = iptables::remove(nft, host, &self.removal(&others.ips))?;
            removal::release_links(nft, host, rules.iter().filter(|_| link.is_none()));
        }
        Ok(removed)
    }

    /// Returns the edits that replace what `clashes` have by `entries`, and the mappings that are replaced. Entries
    /// that exist stay as they are. Without a difference, there is nothing to do.
    fn plan(
        &self,
        nft: &mut Nftables,
        entries: &[Entry],
        chains: &[String],
        clashes: &Clashes,
        deletes_unused: bool,
    ) -> Result<(Vec<Edit>, Vec<Mapping>)> {
        let Clashes { replaced, shared, .. } = clashes;
        let old = || replaced.iter().flat_map(|owned| &owned.entries);
        let is_free = |entry: &&Entry| clashes.is_free(entry);
        let wanted: SortedSet<_> = entries.iter().filter(is_free).map(Entry::identity).collect();
        let have: SortedSet<_> = old().map(Entry::identity).collect();
        let (kept, obsolete): (Vec<&Entry>, Vec<&Entry>) = old().partition(|entry| wanted.contains(&entry.identity()));
        let missing = entries.iter().filter(is_free).filter(|entry| !have.contains(&entry.identity()));
        let missing: Vec<Entry> = missing.cloned().collect();
        let is_unchanged = |owned: &Owned| {
            let head = owned.entries.iter().find(|entry| entry.set == ATTACHMENTS);
            !owned.is_listed && head.is_some_and(|head| head.port() == self.port) && owned.chains().eq(chains)
        };
        let are_records = obsolete.iter().all(|entry| [ATTACHMENTS, INVENTORY].contains(&&*entry.set));
        if missing.is_empty() && shared.is_empty() && are_records && matches!(&replaced[..], [own] if is_unchanged(own))
        {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut edits = removal::edits(nft, replaced, &kept, chains, deletes_unused)?;
        edits.extend(entry::delete(shared));
        edits.extend(entry::create(&shared.iter().map(Entry::shared).collect::<Vec<_>>()));
        edits.extend(clashes.exclude_overlaps(entries, &missing)?);
        edits.extend(entry::create(&missing));
        edits.extend(entry::create(&inventory::create(&self.owner.comment(), self.port, entries, chains)?));
        Ok((edits, obsolete.into_iter().filter_map(Entry::read_mapping).collect()))
    }

    /// Compares the ports with those in forms other than the maps. Returns an error if another live container has one
    /// of them.
    fn compare_other_forms(&self, nft: &mut Nftables, host: &mut Netlink) -> Result<OtherForms> {
        let wanted = self.mappings();
        let ports: SortedSet<_> = wanted.iter().map(|mapping| (mapping.key.protocol, mapping.key.port)).collect();
        let (is_used, others) = other_forms::list_some(nft, &|protocol, port| ports.contains(&(protocol, port)))?;
        let mut found = OtherForms { is_used, ips: self.ips(), gone: Vec::new() };
        for other in others {
            let Mapping { key, target } = other.mapping;
            let clashes = |m: &&Mapping| m.key.overlaps(&key) && m.target.is_ipv4() == target.is_ipv4();
            let Some(clashing) = wanted.iter().find(clashes) else { continue };
            if other.is_of(host, self.owner, &found.ips, self.port)? {
                continue;
            }
            let target = target.ip();
            let link = other.port.as_deref();
            let is_sibling = |host: &mut Netlink| -> Result<bool> {
                let link = &NamedLink::find(host, link.unwrap_or_default())?;
                Ok(Ownership::new(self.owner).judge(Trace::OnNetwork { ip: target, link }).is_others())
            };
            // One container does not publish a port twice: without other evidence, it had another address earlier.
            if other.names_container_of(self.owner) && !is_sibling(host)? {
                found.ips.push(target);
                continue;
            }
            if !owner::is_gone(host, &other.owner, link)? {
                if other.owner.is_container(self.owner.container) {
                    continue;
                }
                return Err(clash(&clashing.key, &other.mapping, &owner::describe(host, &other)?));
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
    gone: Vec<PublishedPort>,
}

impl OtherForms {
    /// Removes the published ports of attachments that are gone. That is not a change of this attachment, so it uses a
    /// socket of its own.
    fn remove_gone(&self) -> Result<()> {
        for other in &self.gone {
            // Only these rules name the network, so that their owner can be known to be gone.
            if let PortOwner::OnNetwork { network, container } = &other.owner {
                warn!("remove the published ports of an attachment that is gone: {}", other.owner);
                let (ips, link) = ([other.mapping.target.ip()], other.port.as_deref());
                // Only a lost link is known to be gone, not the other links of the container.
                let ips = if link.is_some() { &ips[..] } else { &[] };
                let removal = PortRemoval { ips, link, ..PortRemoval::of_container(network, container) };
                iptables::remove(&mut Nftables::open()?, &mut Host::default(), &removal)?;
            }
        }
        Ok(())
    }
}

/// Returns the error for a port that another attachment has `taken`.
pub(crate) fn clash(wanted: &Key, taken: &Mapping, owner: &dyn fmt::Display) -> Error {
    let Mapping { key, target } = taken;
    let key = if key == wanted { "it".to_owned() } else { key.to_string() };
    let what = format!("publish {wanted}: {key} is already published, and leads to {target} ({owner})");
    Error::new(Code::PORT_IN_USE, what)
        .details("use another host port or \"hostIP\", or remove that container; if it is gone, run `cnitool prune`")
}
