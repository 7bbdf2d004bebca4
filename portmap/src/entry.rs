//! The entries of the [table](crate::table): elements of its maps and sets. Every entry has the comment of its attachment, by
//! which DEL and GC find it.

use std::net::SocketAddr;

use cni::{Result, SortedSet, key};
use linux::ip::{self, Cidr, Protocol};
use linux::netlink::nft::{Data, DataType, Edit, Element, Family, Nftables, Set, Value};

use crate::config::Masquerade;
use crate::mapping::{Key, Mapping};
use crate::table::{ATTACHMENTS, MapName, Names, Scope, TABLE, address_type, loopback, set};

/// An element of one of the sets and maps, with the name of its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) set: String,
    pub(crate) element: Element,
}

impl Entry {
    /// Returns the entry of a mapping.
    pub(crate) fn mapping(scope: &Scope, mapping: &Mapping, comment: &str) -> Entry {
        let Key { host_ip, protocol, port } = mapping.key;
        let mut key: Vec<Value> = host_ip.into_iter().map(Value::Ip).collect();
        key.extend([Value::Protocol(protocol.number()), Value::Port(port)]);
        let to = [Value::Ip(mapping.target.ip()), Value::Port(mapping.target.port())];
        Entry { set: scope.map(&mapping.key).to_owned(), element: Element::new(&key).to(&to).comment(comment) }
    }

    /// Returns the entries of the connections to a container's address that are masqueraded.
    pub(crate) fn masquerade(scope: &Scope, address: Cidr, how: Masquerade, comment: &str) -> Vec<Entry> {
        let loopback = loopback().filter(|_| address.ip().is_ipv4());
        let sources = match (how, loopback) {
            (Masquerade::Never, _) => vec![],
            (Masquerade::Always, _) => vec![Cidr::default_route(address.ip())],
            // Ranges must not overlap.
            (Masquerade::Local, Some(loopback)) if loopback.overlaps(&address) => {
                vec![if address.prefix() < loopback.prefix() { address.network() } else { loopback }]
            }
            (Masquerade::Local, loopback) => [Some(address.network()), loopback].into_iter().flatten().collect(),
        };
        let entry = |source: Cidr| {
            let pair = |source| [Value::Ip(source), Value::Ip(address.ip())];
            let element = Element::range(&pair(source.network().ip()), &pair(source.last()));
            Entry { set: scope.masquerade().to_owned(), element: element.comment(comment) }
        };
        sources.into_iter().map(entry).collect()
    }

    /// Returns the entry of an attachment. `port` is its link on this host, if known: without the link it is gone.
    pub(crate) fn attachment(comment: &str, port: Option<&str>) -> Entry {
        // A key of this type is text that `nft` shows, of at most 15 bytes.
        let key = Value::LinkName(key::mark_in(comment).map(short).unwrap_or_default());
        let element = Element::new(&[key]).comment(comment).mark(port.unwrap_or_default());
        Entry { set: ATTACHMENTS.to_owned(), element }
    }

    /// Returns the comment, which names the attachment that the entry belongs to.
    pub(crate) fn comment(&self) -> &str {
        &self.element.userdata.comment
    }

    /// Returns the link of the attachment on this host, if this is the entry of an attachment that names one.
    pub(crate) fn port(&self) -> Option<&str> {
        Some(self.element.userdata.mark.as_str()).filter(|port| self.set == ATTACHMENTS && !port.is_empty())
    }

    /// Returns the mapping; `None` if this is another kind of entry.
    pub(crate) fn read_mapping(&self) -> Option<Mapping> {
        let map = MapName::parse(&self.set)?;
        let ip = address_type(map.family);
        let Some(Data::Value(value)) = &self.element.data else { return None };
        let mut key = vec![DataType::Protocol, DataType::Port];
        if map.has_addresses {
            key.insert(0, ip);
        }
        let mut key = Value::split(&key, &self.element.key)?;
        let (Some(Value::Port(port)), Some(Value::Protocol(protocol))) = (key.pop(), key.pop()) else { return None };
        let host_ip = match key.pop() {
            Some(Value::Ip(ip)) => Some(ip),
            _ => None,
        };
        let [Value::Ip(ip), Value::Port(target)] = Value::split(&[ip, DataType::Port], value)?[..] else {
            return None;
        };
        let key = Key { host_ip, protocol: Protocol::numbered(protocol)?, port };
        Some(Mapping { key, target: SocketAddr::new(ip, target) })
    }

    /// Returns whether both have the same key, so that only one of them can exist. Ranges exclude each other if they
    /// overlap.
    pub(crate) fn excludes(&self, other: &Entry) -> bool {
        let (a, b) = (&self.element, &other.element);
        self.set == other.set
            && match (&a.key_end, &b.key_end) {
                // A range is one of sources, followed by the container's address.
                (Some(a_end), Some(b_end)) => {
                    let half = a.key.len() / 2;
                    a.key.get(half..) == b.key.get(half..)
                        && a.key.get(..half) <= b_end.get(..half)
                        && b.key.get(..half) <= a_end.get(..half)
                }
                _ => a.key == b.key,
            }
    }
}

/// Combines both halves of a mark to 15 digits.
fn short(mark: &str) -> String {
    let halves = mark.split('-').filter_map(|half| u64::from_str_radix(half, 16).ok());
    format!("{:015x}", halves.fold(0_u64, |all, half| all.rotate_left(1) ^ half) >> 4)
}

/// Returns the edits that create entries; EEXIST if the key of one exists.
pub(crate) fn create(entries: &[Entry]) -> Vec<Edit> {
    by_set(entries).flat_map(|(set, elements)| Edit::create_elements(set, &elements)).collect()
}

/// Returns the edits that delete entries.
pub(crate) fn delete(entries: &[Entry]) -> Vec<Edit> {
    by_set(entries).flat_map(|(set, elements)| Edit::delete_elements(set, &elements)).collect()
}

/// Groups entries by their sets, in the order of the first of each set.
fn by_set(entries: &[Entry]) -> impl Iterator<Item = (Set<'_>, Vec<Element>)> {
    let mut names: Vec<&str> = Vec::new();
    for entry in entries {
        if !names.contains(&entry.set.as_str()) {
            names.push(&entry.set);
        }
    }
    names.into_iter().map(|name| {
        let elements = entries.iter().filter(|entry| entry.set == name).map(|entry| entry.element.clone());
        (set(name), elements.collect())
    })
}

/// The entries of all attachments.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<Entry>,
    sets: Vec<String>,
}

impl Listing {
    /// Lists the entries; none if the table does not exist.
    pub(crate) fn read(nft: &mut Nftables) -> Result<Listing> {
        let sets = nft.sets(TABLE)?;
        let mut entries = Vec::new();
        for name in &sets {
            let elements = nft.elements(set(name))?.into_iter();
            entries.extend(elements.map(|element| Entry { set: name.clone(), element }));
        }
        Ok(Listing { entries, sets })
    }

    /// Returns an index for many searches.
    pub(crate) fn index(&self) -> Index<'_> {
        Index { sets: self.entries.chunk_by(|one, next| one.set == next.set).collect() }
    }

    /// Returns the link on this host of the attachment with this comment, if it is known.
    pub(crate) fn port_of(&self, comment: &str) -> Option<&str> {
        let mark = key::mark_in(comment);
        self.entries.iter().filter(|entry| key::mark_in(entry.comment()) == mark).find_map(Entry::port)
    }

    /// Returns the `removed` entries for masquerade that other attachments with the same address need, as entries of
    /// theirs: only one attachment can have them.
    pub(crate) fn inherited(&self, removed: &[Entry]) -> Vec<Entry> {
        let shared: Vec<_> = removed.iter().filter(|entry| entry.element.key_end.is_some()).collect();
        if shared.is_empty() {
            return Vec::new();
        }
        let leaving: SortedSet<_> = removed.iter().map(|entry| (&entry.set, &entry.element.key)).collect();
        let stays = |entry: &&Entry| !leaving.contains(&(&entry.set, &entry.element.key));
        let target = |entry: &Entry| entry.read_mapping().map(|mapping| ip::octets(mapping.target.ip()));
        let others = self.entries.iter().filter(stays);
        let heirs: Vec<_> = others.filter_map(|entry| Some((target(entry)?, entry.comment()))).collect();
        let inherit = |entry: &Entry| {
            let Entry { set, element } = entry.clone();
            let address = element.key.get(element.key.len() / 2..)?;
            let (_, heir) = heirs.iter().find(|(target, _)| target == address)?;
            Some(Entry { set, element: element.comment(*heir) })
        };
        shared.into_iter().filter_map(inherit).collect()
    }

    /// Returns the edits that forget which addresses of this host were reached, if nothing is published once `removed` are
    /// deleted.
    pub(crate) fn forget_reached(&self, removed: &[Entry]) -> Vec<Edit> {
        let is_recorded = |entry: &&Entry| entry.comment().is_empty();
        if self.entries.iter().filter(|entry| !is_recorded(entry)).count() > removed.len() {
            return Vec::new();
        }
        let reached = [Family::Ipv4, Family::Ipv6].map(|family| Names::new(family, "").reached);
        let is_used = |name: &&String| self.entries.iter().any(|entry| is_recorded(&entry) && entry.set == **name);
        reached.iter().filter(is_used).map(|name| Edit::flush_set(set(name))).collect()
    }

    /// Returns the scopes with conditions that have no mappings once `removed` are deleted and `added` created.
    pub(crate) fn unused_scopes(&self, removed: &[Entry], added: &[Entry]) -> Vec<Names> {
        let mut unused: Vec<Names> = Vec::new();
        let maps = self.sets.iter().filter_map(|set| MapName::parse(set));
        for map in maps.filter(|map| !map.suffix.is_empty()) {
            let names = Names::new(map.family, map.suffix);
            let is_in = |entry: &&Entry| entry.set == names.ports || entry.set == names.address_ports;
            let count = |entries: &[Entry]| entries.iter().filter(is_in).count();
            let is_unused = count(added) == 0 && count(&self.entries) == count(removed);
            // A scope has several maps.
            if is_unused && !unused.contains(&names) {
                unused.push(names);
            }
        }
        unused
    }
}

/// The entries of a listing by their sets, each in the order of their keys.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    sets: Vec<&'a [Entry]>,
}

impl Index<'_> {
    /// Returns an entry that excludes this one: with the same key, or with a range that overlaps.
    pub(crate) fn find(&self, entry: &Entry) -> Option<&Entry> {
        let entries = self.sets.iter().find(|entries| entries.first().is_some_and(|first| first.set == entry.set))?;
        if entry.element.key_end.is_some() {
            return entries.iter().find(|range| range.excludes(entry));
        }
        let place = entries.binary_search_by(|other| other.element.key.cmp(&entry.element.key)).ok()?;
        entries.get(place)
    }
}
