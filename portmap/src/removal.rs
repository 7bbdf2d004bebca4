//! Removes published ports: those of an attachment for DEL, those of all stale attachments for GC.

use std::net::IpAddr;

use cni::key::mark_in;
use cni::{AttachmentKey, Error, ErrorCollector, Keep, Result, SortedSet, lease};
use linux::log::warn;
use linux::netlink::LinkIndex;
use linux::netlink::nft::{Edit, Element, Family, Nftables};

use crate::entry::{self, Entry, Listing};
use crate::host::Host;
use crate::inventory::{Hints, Owned};
use crate::mapping::Mapping;
use crate::publication::{PortRemoval, Publication};
use crate::published::Form;
use crate::table::{ATTACHMENTS, MapName, Names, TABLE, VERSIONS};
use crate::{flows, inventory, iptables, localnet, other_forms, owner, reference, table};

/// Attempts to apply edits that depend on what was looked up. Only calls for the same attachment or the same ports make
/// an attempt fail, and then one of them has succeeded.
const ATTEMPTS: usize = 100;

/// DEL: removes everything of an attachment, in all forms: the configuration, or the implementation, may have changed
/// since ADD. `publication` is what the configuration says that the attachment publishes, if it says so.
pub(crate) fn remove(removal: &PortRemoval<'_>, publication: Option<&Publication<'_>>) -> Result<()> {
    let mut nft = Nftables::open()?;
    let (removed, outcome) = remove_with(&mut nft, &mut Host::default(), removal, publication);
    flows::forget(nft, &removed);
    outcome
}

/// Removes everything of an attachment with these sockets, so that no other descriptor is needed for entries. Returns
/// the mappings, and the errors.
pub(crate) fn remove_with(
    nft: &mut Nftables,
    host: &mut Host,
    removal: &PortRemoval<'_>,
    publication: Option<&Publication<'_>>,
) -> (Vec<Mapping>, Result<()>) {
    let PortRemoval { owner, ips, .. } = *removal;
    let mut failures = ErrorCollector::default();
    let hints = || {
        let mut keys = publication.map(Publication::keys).unwrap_or_default();
        keys.extend(ips.iter().copied().flat_map(inventory::masquerade_keys_of));
        keys
    };
    let mut removed = failures.keep(remove_entries(nft, host, &owner.mark(), &hints)).unwrap_or_default();
    let has_entries = !removed.is_empty();
    if failures.keep(other_forms::may_exist(nft)).unwrap_or(true) {
        // An attachment with entries has nothing in chains of iptables, unless a rule leads to its address.
        let removal = PortRemoval { is_del: removal.is_del && !has_entries, ..*removal };
        removed.extend(failures.keep(reference::remove(nft, owner, ips)).into_iter().flatten());
        removed.extend(failures.keep(iptables::remove(nft, host, &removal)).into_iter().flatten());
    }
    if !has_entries {
        // What the configuration says counts if a reload of a firewall has removed the rules.
        let expected = publication.filter(|found| removed.is_empty() && found.loopback_target().is_some());
        let expected = expected.map(Publication::mappings).unwrap_or_default();
        release_links(nft, host, removed.iter().chain(&expected));
    }
    (removed, failures.into_result())
}

/// GC: removes everything of a network's attachments that are not in `keep`.
pub(crate) fn collect(keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let (mut nft, mut host) = (Nftables::open()?, Host::default());
    let mut removed = Vec::new();
    let listing = failures.keep(Listing::read(&mut nft)).map(|listing| listing.entries).unwrap_or_default();
    let is_stale = |entry: &&Entry| keep.is_stale_comment(entry.comment());
    let stale: SortedSet<_> =
        listing.iter().filter(is_stale).filter_map(|entry| Some((mark_in(entry.comment())?, entry.key()))).collect();
    let stale: Vec<_> = stale.iter().collect();
    for of_one in stale.chunk_by(|(mark, _), (next, _)| mark == next) {
        let Some((mark, _)) = of_one.first() else { continue };
        let hints = || of_one.iter().map(|(_, key)| key.clone()).collect();
        removed.extend(failures.keep(remove_entries(&mut nft, &mut host, mark, &hints)).into_iter().flatten());
    }
    let mut others = failures.keep(iptables::collect(&mut nft, &mut host, keep)).unwrap_or_default();
    others.extend(failures.keep(collect_others(&mut nft, &mut host, keep)).into_iter().flatten());
    release_links(&mut nft, &mut host, others.iter());
    removed.extend(others);
    flows::forget(nft, &removed);
    failures.into_result()
}

/// Disables `route_localnet` on the links to containers whose ports are no longer published, if nothing else needs it.
pub(crate) fn release_links<'a>(nft: &mut Nftables, host: &mut Host, mappings: impl Iterator<Item = &'a Mapping>) {
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in mappings.filter(|mapping| mapping.is_reachable_from_loopback()).map(|mapping| mapping.target.ip()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    for ip in ips {
        let link = host.socket().and_then(|host| Ok(host.route_to(ip)?));
        release(nft, host, link);
    }
}

/// Does the same for one link. Best effort: an error is logged, and the guard stays in any case.
pub(crate) fn release(nft: &mut Nftables, host: &mut Host, link: Result<Option<LinkIndex>>) {
    let released = link.and_then(|link| link.map_or(Ok(()), |link| localnet::release(host, nft, link)));
    if let Err(error) = released {
        warn!("route_localnet may stay enabled: {error:?}");
    }
}

/// Removes the ports of attachments that are not in `keep` in the forms of the reference. Their rules do not name the
/// interface, and those of nftables not even the network, so a lease or the alias of a link must prove whose they are.
fn collect_others(nft: &mut Nftables, host: &mut Host, keep: &Keep<'_>) -> Result<Vec<Mapping>> {
    let mut removed = Vec::new();
    let others = other_forms::list(nft)?;
    if others.is_empty() {
        return Ok(removed);
    }
    let leases = lease::in_network(keep.network);
    for other in &others {
        let found = owner::interface_of(host.socket()?, other, keep.network, &leases)?;
        let Some((container, ifname)) = found else { continue };
        let owner = AttachmentKey { network: keep.network, container: &container, ifname: &ifname };
        if !keep.is_stale(owner) {
            continue;
        }
        let ips = [other.mapping.target.ip()];
        removed.extend(match other.form {
            Form::Rules => reference::remove(nft, owner, &ips)?,
            Form::Maps | Form::Iptables => {
                let removal = PortRemoval { owner, ips: &ips, link: None, is_del: false };
                iptables::remove(nft, host, &removal)?
            }
        });
    }
    Ok(removed)
}

/// Removes the entries of the attachment with this mark, and what is no longer used without them. Returns the mappings.
/// `hints` returns keys of entries that it may have.
fn remove_entries(nft: &mut Nftables, host: &mut Host, mark: &str, hints: Hints<'_>) -> Result<Vec<Mapping>> {
    let (mut removed, mut link) = (Vec::new(), None);
    apply(nft, &mut |nft, deletes_unused| {
        let owned = Owned::find(nft, mark, hints)?;
        removed = owned.entries.iter().filter_map(Entry::read_mapping).collect();
        link = owned.link();
        let mut edits = edits(nft, std::slice::from_ref(&owned), &[], &[], deletes_unused)?;
        if !edits.is_empty() {
            edits.extend(forget_shared(nft, &owned)?);
        }
        Ok(nft.apply(&edits).map_err(Into::into))
    })?;
    release(nft, host, Ok(link));
    Ok(removed)
}

/// Repeats an `attempt` to change entries, if the kernel refuses its transaction because entries were added or removed
/// after it had looked them up. The inner result is that of the transaction; any other error is final. The argument is
/// whether to delete unused chains and scopes: the kernel refuses that if an attachment or a rule of another program
/// uses one meanwhile.
pub(crate) fn apply(
    nft: &mut Nftables,
    attempt: &mut dyn FnMut(&mut Nftables, bool) -> Result<Result<()>>,
) -> Result<()> {
    let mut deletes_unused = true;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = attempt(nft, deletes_unused)?;
        match outcome.as_ref().err().and_then(Error::errno) {
            Some(libc::EBUSY) if deletes_unused => deletes_unused = false,
            Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOENT) => {}
            _ => break,
        }
    }
    outcome
}

/// Returns the edits that remove the entries of attachments, except those that are `kept`, and what nothing needs
/// without them: chains and scopes only if `deletes_unused`, and not those with one of the `chains` that are still
/// needed.
pub(crate) fn edits(
    nft: &mut Nftables,
    removed: &[Owned],
    kept: &[&Entry],
    chains: &[String],
    deletes_unused: bool,
) -> Result<Vec<Edit>> {
    let kept: SortedSet<_> = kept.iter().map(|entry| (entry.set.as_str(), entry.element.key.as_slice())).collect();
    let is_deleted = |entry: &&Entry| !kept.contains(&(entry.set.as_str(), entry.element.key.as_slice()));
    let entries: Vec<Entry> = removed.iter().flat_map(|owned| &owned.entries).filter(is_deleted).cloned().collect();
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let mut edits = entry::delete(&entries);
    // Entries for masquerade that earlier versions added do not say whether other attachments need them.
    if entries.iter().any(Entry::is_shared) || removed.iter().any(|owned| owned.is_listed) {
        edits.extend(entry::create(&Listing::read(nft)?.inherited(&entries)));
    }
    if !deletes_unused {
        return Ok(edits);
    }
    let users = |chain: &str| removed.iter().map(|owned| owned.users_of(chain)).sum();
    for chain in removed.iter().filter_map(Owned::link).map(|link| table::attached(Some(link))) {
        if !chains.contains(&chain) && table::others_attached(nft, &chain, users(&chain))? == Some(0) {
            let chain = TABLE.chain(&chain);
            edits.extend([Edit::flush(chain), Edit::delete_chain(chain)]);
        }
    }
    let deleted: SortedSet<_> = entries.iter().map(|entry| (&*entry.set, &*entry.element.key)).collect();
    for scope in scopes(nft, removed)?.iter().filter(|scope| !chains.contains(&scope.translate)) {
        let is_deleted = |set: &str, element: &Element| deleted.contains(&(set, element.key.as_slice()));
        edits.extend(table::delete_scope(nft, scope, users(&scope.translate), &is_deleted)?);
    }
    Ok(edits)
}

/// Returns the scopes with conditions that attachments use. Those without a complete inventory may use any.
fn scopes(nft: &mut Nftables, owned: &[Owned]) -> Result<Vec<Names>> {
    let listed = if owned.iter().any(|owned| owned.is_listed) { nft.sets(TABLE)? } else { Vec::new() };
    let mut scopes: Vec<(Family, &str)> = Vec::new();
    let used = owned.iter().flat_map(|owned| &owned.entries).map(|entry| &entry.set);
    for map in listed.iter().chain(used).filter_map(|name| MapName::parse(name)) {
        if !map.suffix.is_empty() && !scopes.contains(&(map.family, map.suffix)) {
            scopes.push((map.family, map.suffix));
        }
    }
    Ok(scopes.into_iter().map(|(family, suffix)| Names::new(family, suffix)).collect())
}

/// Returns the edits that delete what no attachment owns, such as the addresses of this host that were reached, if
/// nothing is published without this attachment.
fn forget_shared(nft: &mut Nftables, removed: &Owned) -> Result<Vec<Edit>> {
    let chain = table::attached(removed.link());
    if table::others_attached(nft, &chain, removed.users_of(&chain))?.is_some_and(|others| others > 0) {
        return Ok(Vec::new());
    }
    let own = removed.entries.iter().find_map(|entry| mark_in(entry.comment()));
    let is_own = |element: &Element| mark_in(&element.userdata.comment) == own;
    if !nft.elements(table::set(ATTACHMENTS))?.iter().all(is_own) {
        return Ok(Vec::new());
    }
    let [v4, v6] = [Family::Ipv4, Family::Ipv6].map(|family| Names::new(family, "").reached);
    let sets = nft.sets(TABLE)?;
    let shared = [v4.as_str(), v6.as_str(), VERSIONS].into_iter().filter(|name| sets.iter().any(|set| set == name));
    Ok(shared.map(|name| Edit::flush_set(table::set(name))).collect())
}
