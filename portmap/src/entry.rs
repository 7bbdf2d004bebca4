//! The entries of the [table](crate::table): elements of its maps and sets. Every entry has the comment of its
//! attachment, by which DEL and GC find it.

use std::net::{IpAddr, SocketAddr};

use cni::{Result, SortedSet, key};
use linux::ip::{self, Cidr, Protocol};
use linux::netlink::nft::{Data, DataType, Edit, Element, Family, Nftables, Set, Value};

use crate::config::Masquerade;
use crate::mapping::{Key, Mapping};
use crate::table::{ATTACHMENTS, MapName, Scope, TABLE, address_type, loopback, prefix, set};

/// The note of an entry for masquerade that more attachments need than the one in its comment.
const SHARED: &str = "shared";

/// An element of one of the sets and maps, with the name of its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) set: String,
    pub(crate) element: Element,
}

impl Entry {
    /// Returns the entry of a mapping.
    pub(crate) fn mapping(scope: &Scope, mapping: &Mapping, comment: &str) -> Entry {
        let to = [Value::Ip(mapping.target.ip()), Value::Port(mapping.target.port())];
        let element = Element::new(&values(&mapping.key)).to(&to).comment(comment);
        Entry { set: scope.map(&mapping.key).to_owned(), element }
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

    /// Returns the container's address, if this is an entry for masquerade.
    pub(crate) fn masqueraded(&self) -> Option<IpAddr> {
        let Element { key, key_end, .. } = &self.element;
        key_end.as_ref()?;
        // A range of sources, followed by the container's address.
        match Value::split(&[self.address_type()?; 2], key)?[..] {
            [_, Value::Ip(ip)] => Some(ip),
            _ => None,
        }
    }

    fn address_type(&self) -> Option<DataType> {
        [Family::Ipv4, Family::Ipv6].into_iter().find(|family| self.set.starts_with(prefix(*family))).map(address_type)
    }

    /// Returns the key by which this entry is found, or one that excludes it: with the same key, or a range that
    /// overlaps. All ranges for a container's address include the address itself, or are those of loopback addresses.
    pub(crate) fn key(&self) -> EntryKey {
        let Element { key, key_end, .. } = &self.element;
        let half = key.len() / 2;
        let (first, ip, last) = (key.get(..half), key.get(half..), key_end.as_ref().and_then(|end| end.get(..half)));
        let key = match ip {
            Some(ip) if last.is_some() && first <= Some(ip) && Some(ip) <= last => [ip, ip].concat(),
            _ => key.clone(),
        };
        EntryKey { set: self.set.clone(), key }
    }

    /// Returns everything by which two entries are compared, without the note. The key comes first: entries of one
    /// attachment have the same set and comment, and a comparison ends at the first difference.
    pub(crate) fn identity(&self) -> ([Option<&[u8]>; 3], [&str; 2]) {
        let Element { key, key_end, data, .. } = &self.element;
        let value = match data {
            Some(Data::Value(value)) => Some(value.as_slice()),
            _ => None,
        };
        ([Some(key), key_end.as_deref(), value], [&self.set, self.comment()])
    }

    /// Returns whether this is an entry for masquerade that other attachments need.
    pub(crate) fn is_shared(&self) -> bool {
        self.element.userdata.note == SHARED
    }

    /// Marks an entry for masquerade as needed by other attachments, which have the same address.
    pub(crate) fn shared(&self) -> Entry {
        Entry { set: self.set.clone(), element: self.element.clone().note(SHARED) }
    }
}

/// By what an entry is looked up: the name of its set, and a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryKey {
    pub(crate) set: String,
    pub(crate) key: Vec<u8>,
}

impl EntryKey {
    pub(crate) fn new(set: &str, key: &[Value]) -> EntryKey {
        EntryKey { set: set.to_owned(), key: Value::concatenate(key) }
    }

    /// Returns the key of the attachment with this mark.
    pub(crate) fn of_attachment(mark: &str) -> EntryKey {
        EntryKey { set: ATTACHMENTS.to_owned(), key: head(mark).key }
    }

    /// Returns the key of a mapping in a map.
    pub(crate) fn of(map: &str, key: &Key) -> EntryKey {
        EntryKey::new(map, &values(key))
    }
}

/// Returns the key of a mapping as the kernel compares it.
fn values(Key { host_ip, protocol, port }: &Key) -> Vec<Value> {
    let mut values: Vec<Value> = host_ip.iter().copied().map(Value::Ip).collect();
    values.extend([Value::Protocol(protocol.number()), Value::Port(*port)]);
    values
}

/// Returns the element of an attachment in the set `attachments`, without what it records. The comment may be only the
/// mark.
pub(crate) fn head(comment: &str) -> Element {
    // A key of this type is text that `nft` shows, of at most 15 bytes.
    let key = Value::LinkName(key::mark_in(comment).map(key::short_mark).unwrap_or_default());
    Element::new(&[key]).comment(comment)
}

/// Looks up entries; `None` for those that do not exist.
pub(crate) fn look_up(nft: &mut Nftables, keys: &[EntryKey]) -> Result<Vec<Option<Entry>>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let found = nft.find_elements(keys.iter().map(|key| (set(&key.set), key.key.as_slice())))?;
    let entry = |(key, element): (&EntryKey, Option<Element>)| Some(Entry { set: key.set.clone(), element: element? });
    Ok(keys.iter().zip(found).map(entry).collect())
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
}

impl Listing {
    /// Lists the entries; none if the table does not exist.
    pub(crate) fn read(nft: &mut Nftables) -> Result<Listing> {
        let mut entries = Vec::new();
        for name in nft.sets(TABLE)? {
            let elements = nft.elements(set(&name))?.into_iter();
            entries.extend(elements.map(|element| Entry { set: name.clone(), element }));
        }
        Ok(Listing { entries })
    }

    /// Returns the links on this host of the attachments, by their marks, as far as they are known.
    pub(crate) fn ports(&self) -> SortedSet<(&str, &str)> {
        self.entries.iter().filter_map(|entry| Some((key::mark_in(entry.comment())?, entry.port()?))).collect()
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
}
