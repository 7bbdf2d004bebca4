//! What excludes the ports of an ADD: an earlier ADD of the same attachment, attachments that are gone, and other
//! containers.
//!
//! Two entries with the same key exclude each other: the kernel refuses the second one. A port of all addresses and the
//! same port of one address have different keys, in different maps, and must not belong to different containers either:
//!
//! - A transaction that adds ports of single addresses creates the keys of all addresses, and deletes them again. The
//!   kernel refuses it if one exists.
//! - Such a transaction also replaces the number in map `versions` by another random one. A transaction that adds ports
//!   of all addresses adds this number as it was before the ports of single addresses were listed. The kernel refuses
//!   it if the number is another one.

use cni::key::mark_in;
use cni::{AttachmentKey, Context, Result, SortedSet};
use linux::log::warn;
use linux::netlink::Netlink;
use linux::netlink::nft::{Data, Edit, Element, Family, Nftables, Value};

use crate::add::clash;
use crate::entry::{self, Entry, EntryKey};
use crate::inventory::Owned;
use crate::mapping::Key;
use crate::owner;
use crate::published::PortOwner;
use crate::table::{MapName, Names, VERSIONS, set};

/// What excludes the entries of an ADD.
#[derive(Debug)]
pub(crate) struct Clashes {
    /// What is replaced: that of the attachment itself comes first, then that of attachments that are gone.
    pub(crate) replaced: Vec<Owned>,
    /// The keys that other attachments of the same container have, or share with this one.
    taken: SortedSet<EntryKey>,
    /// The entries of others for masquerade that are not marked as shared yet.
    pub(crate) shared: Vec<Entry>,
    /// The number in map `versions`, if it exists.
    version: Option<u32>,
    /// Whether there are ports of single addresses.
    has_addresses: bool,
}

impl Clashes {
    /// Finds what excludes `new` entries of an attachment. Returns an error if another live container has one of the
    /// ports. The same container may have it, through another network.
    ///
    /// Usually all keys are free, or those of the attachment itself. With `is_first`, the kernel finds that out.
    pub(crate) fn find(
        nft: &mut Nftables,
        host: &mut Netlink,
        owner: AttachmentKey<'_>,
        new: &[Entry],
        is_first: bool,
    ) -> Result<Clashes> {
        let own = owner.mark();
        let mut found = entry::look_up(nft, &[EntryKey::of_attachment(&own), version_key()])?.into_iter();
        let (head, version) = (found.next().flatten(), found.next().flatten());
        let version = version.as_ref().and_then(read_version);
        let keys = || new.iter().map(Entry::key).collect::<Vec<_>>();
        let hints = || if is_first { Vec::new() } else { keys() };
        let mut replaced = vec![Owned::of_head(nft, &own, head, &hints)?];
        let addresses = if version == Some(0) { Vec::new() } else { list_addresses(nft, new)? };
        let has_addresses = !addresses.is_empty();
        let mut others: Vec<(&Entry, Entry)> = overlaps(new, addresses);
        if !is_first {
            let of_all: Vec<_> = new.iter().filter_map(|entry| Some((entry, of_all_addresses(entry)?))).collect();
            let keys: Vec<_> = keys().into_iter().chain(of_all.iter().map(|(_, key)| key.clone())).collect();
            let entries = new.iter().chain(of_all.iter().map(|(entry, _)| *entry));
            others.extend(entries.zip(entry::look_up(nft, &keys)?).filter_map(|(entry, other)| Some((entry, other?))));
        }
        let (mut taken, mut shared) = (Vec::new(), Vec::new());
        let mut known = vec![(own, true)];
        for (entry, other) in others {
            if is_replaced(nft, host, &mut replaced, &mut known, &other)? {
                continue;
            }
            let port_owner = PortOwner::Attachment(other.comment().to_owned());
            match (entry.read_mapping(), other.read_mapping()) {
                (Some(wanted), Some(found)) if !port_owner.is_container(owner.container) => {
                    return Err(clash(&wanted.key, &found, &port_owner));
                }
                // Live attachments with the same address share the entries for masquerade.
                (_, None) if !other.is_shared() && shared.last() != Some(&other) => shared.push(other.clone()),
                _ => {}
            }
            // The key by which the other one was found.
            taken.push(if other.set == entry.set { entry.key() } else { other.key() });
        }
        Ok(Clashes { replaced, taken: taken.into_iter().collect(), shared, version, has_addresses })
    }

    /// Returns whether a new entry can be created.
    pub(crate) fn is_free(&self, entry: &Entry) -> bool {
        self.taken.is_empty() || !self.taken.contains(&entry.key())
    }

    /// Returns the edits by which the kernel refuses ports of single addresses that another container has for all
    /// addresses, and the other way round, for a transaction that creates those of the `new` entries that are
    /// `missing`.
    pub(crate) fn exclude_overlaps(&self, new: &[Entry], missing: &[Entry]) -> Result<Vec<Edit>> {
        let of_all: SortedSet<EntryKey> = missing.iter().filter_map(of_all_addresses).collect();
        if of_all.is_empty() {
            let version = version(self.version.unwrap_or_else(|| self.has_addresses.into()));
            return Ok(Edit::add_elements(set(VERSIONS), &[version]));
        }
        let own: SortedSet<EntryKey> = new.iter().map(Entry::key).collect();
        let others = of_all.iter().filter(|key| !own.contains(*key) && !self.taken.contains(*key));
        let placeholders: Vec<Entry> = others.map(placeholder).collect();
        let mut edits = entry::create(&placeholders);
        edits.extend(entry::delete(&placeholders));
        if let Some(number) = self.version {
            edits.extend(Edit::add_elements(set(VERSIONS), &[version(number)]));
            edits.extend(Edit::delete_elements(set(VERSIONS), &[version(number)]));
        }
        let number = u32::from_ne_bytes(linux::random().context(|| "generate a random number")?);
        edits.extend(Edit::create_elements(set(VERSIONS), &[version(number | 1)]));
        Ok(edits)
    }
}

/// Returns whether an ADD replaces an entry, because its attachment is the same or gone. Adds what such an attachment
/// has to `replaced`. `known` are the marks about which that is known.
fn is_replaced(
    nft: &mut Nftables,
    host: &mut Netlink,
    replaced: &mut Vec<Owned>,
    known: &mut Vec<(String, bool)>,
    other: &Entry,
) -> Result<bool> {
    // Without a mark, another program added it.
    let Some(mark) = mark_in(other.comment()) else { return Ok(false) };
    if let Some((_, is_replaced)) = known.iter().find(|(known, _)| known == mark) {
        return Ok(*is_replaced);
    }
    let head = entry::look_up(nft, &[EntryKey::of_attachment(mark)])?.pop().flatten();
    let owner = PortOwner::Attachment(other.comment().to_owned());
    let is_gone = owner::is_gone(host, &owner, head.as_ref().and_then(Entry::port))?;
    if is_gone {
        warn!("replace the published ports of an attachment that is gone: {owner}");
        replaced.push(Owned::of_head(nft, mark, head, &|| vec![other.key()])?);
    }
    known.push((mark.to_owned(), is_gone));
    Ok(is_gone)
}

/// Returns the key of all addresses with the port of an entry for one address.
fn of_all_addresses(entry: &Entry) -> Option<EntryKey> {
    let map = MapName::parse(&entry.set).filter(|map| map.has_addresses)?;
    let key = Key { host_ip: None, ..entry.read_mapping()?.key };
    Some(EntryKey::of(&Names::new(map.family, map.suffix).ports, &key))
}

/// Lists the entries for single addresses in the scopes of `new` entries for all addresses.
fn list_addresses(nft: &mut Nftables, new: &[Entry]) -> Result<Vec<Entry>> {
    let mut maps: Vec<(Family, &str)> = Vec::new();
    for map in new.iter().filter_map(|entry| MapName::parse(&entry.set)).filter(|map| !map.has_addresses) {
        if !maps.contains(&(map.family, map.suffix)) {
            maps.push((map.family, map.suffix));
        }
    }
    let mut entries = Vec::new();
    for (family, suffix) in maps {
        let map = Names::new(family, suffix).address_ports;
        let elements = nft.elements(set(&map))?.into_iter();
        entries.extend(elements.map(|element| Entry { set: map.clone(), element }));
    }
    Ok(entries)
}

/// Returns the entries of single addresses that have the same port as a new entry for all addresses, each with that
/// one.
fn overlaps(new: &[Entry], addresses: Vec<Entry>) -> Vec<(&Entry, Entry)> {
    if addresses.is_empty() {
        return Vec::new();
    }
    let keys: Vec<EntryKey> = new.iter().map(Entry::key).collect();
    let order: SortedSet<(&EntryKey, usize)> = keys.iter().zip(0..).collect();
    let order: Vec<_> = order.iter().collect();
    let overlapping = |address: Entry| {
        let key = of_all_addresses(&address)?;
        let place = order.binary_search_by(|(known, _)| (*known).cmp(&key)).ok()?;
        Some((new.get(order.get(place)?.1)?, address))
    };
    addresses.into_iter().filter_map(overlapping).collect()
}

/// Returns an entry that only shows that its key is free.
fn placeholder(key: &EntryKey) -> Entry {
    let is_ipv6 = MapName::parse(&key.set).is_some_and(|map| map.family == Family::Ipv6);
    let nowhere = vec![0; if is_ipv6 { 20 } else { 8 }];
    let element = Element { key: key.key.clone(), data: Some(Data::Value(nowhere)), ..Element::new(&[]) };
    Entry { set: key.set.clone(), element }
}

/// Returns the element with the number of the ports of single addresses.
fn version(number: u32) -> Element {
    Element { key: version_key().key, ..Element::new(&[]) }.to(&[Value::PacketMark(number)])
}

fn version_key() -> EntryKey {
    EntryKey::new(VERSIONS, &[Value::LinkName("host-addresses".to_owned())])
}

fn read_version(entry: &Entry) -> Option<u32> {
    match &entry.element.data {
        Some(Data::Value(value)) => Some(u32::from_ne_bytes(value.as_slice().try_into().ok()?)),
        _ => None,
    }
}
