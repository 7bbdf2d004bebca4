//! Removes published ports: those of an attachment for DEL, those of all stale attachments for GC.

use cni::{AttachmentKey, ErrorCollector, Keep, Result, evidence};
use linux::netlink::Netlink;
use linux::netlink::nft::{Edit, Nftables};

use crate::entry::{self, Entry, Listing};
use crate::mapping::Mapping;
use crate::publication::Removal;
use crate::published::Form;
use crate::{flows, iptables, other_forms, owner, reference, table};

/// DEL: removes everything of an attachment, in all forms: the configuration, or the implementation, may have changed since
/// ADD.
pub(crate) fn remove(removal: &Removal<'_>) -> Result<()> {
    let Removal { owner, ips, .. } = *removal;
    let mark = owner.mark();
    let mut failures = ErrorCollector::default();
    let mut nft = Nftables::open()?;
    let mut removed =
        failures.keep(remove_entries(&mut nft, &|comment| comment.starts_with(&mark))).unwrap_or_default();
    if failures.keep(other_forms::may_exist(&mut nft)).unwrap_or(true) {
        // An attachment with entries has nothing in chains of iptables, unless a rule leads to its address.
        let removal = Removal { is_del: removal.is_del && removed.is_empty(), ..*removal };
        removed.extend(failures.keep(reference::remove(&mut nft, owner, ips)).into_iter().flatten());
        removed.extend(failures.keep(iptables::remove(&mut nft, &removal)).into_iter().flatten());
    }
    flows::forget(nft, &removed);
    failures.into_result()
}

/// GC: removes everything of a network's attachments that are not in `keep`.
pub(crate) fn collect(keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let mut nft = Nftables::open()?;
    let mut removed =
        failures.keep(remove_entries(&mut nft, &|comment| keep.is_stale_comment(comment))).unwrap_or_default();
    removed.extend(failures.keep(iptables::collect(&mut nft, keep)).into_iter().flatten());
    removed.extend(failures.keep(collect_others(&mut nft, keep)).into_iter().flatten());
    flows::forget(nft, &removed);
    failures.into_result()
}

/// Removes the ports of attachments that are not in `keep` in the forms of the reference. Their rules do not name the
/// interface, and those of nftables not even the network, so a lease or the alias of a link must prove whose they are.
fn collect_others(nft: &mut Nftables, keep: &Keep<'_>) -> Result<Vec<Mapping>> {
    let mut removed = Vec::new();
    let others = other_forms::list(nft)?;
    if others.is_empty() {
        return Ok(removed);
    }
    let (mut host, leases) = (Netlink::open()?, evidence::leases_in(keep.network));
    for other in &others {
        let Some((container, ifname)) = owner::interface_of(&mut host, other, keep.network, &leases)? else { continue };
        let owner = AttachmentKey { network: keep.network, container: &container, ifname: &ifname };
        if !keep.is_stale(owner) {
            continue;
        }
        let ips = [other.mapping.target.ip()];
        removed.extend(match other.form {
            Form::Rules => reference::remove(nft, owner, &ips)?,
            Form::Maps | Form::Iptables => {
                iptables::remove(nft, &Removal { owner, ips: &ips, link: None, is_del: false })?
            }
        });
    }
    Ok(removed)
}

/// Removes the entries with a comment that is `stale`, and scopes that are no longer used. Returns the mappings.
fn remove_entries(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<Vec<Mapping>> {
    let mut removed = Vec::new();
    apply(nft, &mut |nft, deletes_scopes| {
        let listing = Listing::read(nft)?;
        let entries: Vec<Entry> = listing.entries.iter().filter(|entry| stale(entry.comment())).cloned().collect();
        removed = entries.iter().filter_map(Entry::read_mapping).collect();
        edits(nft, &listing, &entries, deletes_scopes)
    })?;
    Ok(removed)
}

/// Applies the edits that `plan` computes. Its argument is whether to delete unused scopes: the kernel refuses that if a rule of
/// another program uses one.
pub(crate) fn apply(nft: &mut Nftables, plan: &mut dyn FnMut(&mut Nftables, bool) -> Result<Vec<Edit>>) -> Result<()> {
    let mut deletes_scopes = true;
    loop {
        match nft.apply_guarded(|nft| plan(nft, deletes_scopes)) {
            Err(error) if deletes_scopes && error.errno() == Some(libc::EBUSY) => deletes_scopes = false,
            outcome => return outcome,
        }
    }
}

/// Returns the edits that remove entries, and what nothing needs without them: scopes only if `deletes_scopes`.
pub(crate) fn edits(
    nft: &mut Nftables,
    listing: &Listing,
    entries: &[Entry],
    deletes_scopes: bool,
) -> Result<Vec<Edit>> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let mut edits = entry::delete(entries);
    edits.extend(entry::create(&listing.inherited(entries)));
    edits.extend(listing.forget_reached(entries));
    for scope in listing.unused_scopes(entries, &[]).iter().filter(|_| deletes_scopes) {
        edits.extend(table::delete_scope(nft, scope)?);
    }
    Ok(edits)
}
