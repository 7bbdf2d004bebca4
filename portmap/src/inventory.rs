//! The inventory: what each attachment has in the [table](crate::table), recorded in the table itself, so that DEL and
//! a repeated ADD look up the entries of their attachment, and need not list those of all.
//!
//! ```text
//! set attachments { "0123456789abcde" comment "MARK, net: net1, if: eth0, id: c1" }  the note is "3fa91c0b77e 1"
//! map inventory   { "3fa91c0b77e0000" comment "MARK" : goto attached }               the note is a page, see [`write`]
//! ```
//!
//! The keys of the pages begin with a random number, which is new with every ADD. A transaction that deletes pages
//! fails if the attachment has others meanwhile, whatever else changed on the host. It can only delete what belongs to
//! the pages it read.

use std::net::{IpAddr, Ipv4Addr};

use cni::key::mark_in;
use cni::{Context, Result, SortedSet};
use linux::ip::Protocol;
use linux::netlink::LinkIndex;
use linux::netlink::nft::{Data, Element, Nftables, Value, Verdict};

use crate::entry::{self, Entry, EntryKey, Listing};
use crate::mapping::Key;
use crate::table::{ATTACHMENTS, INVENTORY, MapName, Scope, is_masquerade, read_attached};

/// The most bytes of a page. The comment has 33, and both need three more: less than the kernel accepts.
const PAGE: usize = 200;
/// The digits of the random number in the keys of pages. Four digits follow, and a key has 15.
const DIGITS: usize = 11;

/// Returns the entry of an attachment and its inventory, which lists `entries` and leads to `chains`. `port` is the
/// link of the attachment on this host, if known: without the link it is gone.
pub(crate) fn create(comment: &str, port: Option<&str>, entries: &[Entry], chains: &[String]) -> Result<Vec<Entry>> {
    let number = u64::from_ne_bytes(linux::random().context(|| "generate a random number")?) >> (64 - 4 * DIGITS);
    let texts = write(entries);
    let count = texts.len().max(chains.len());
    let head = entry::head(comment).note(format!("{number:011x} {count}")).mark(port.unwrap_or_default());
    let mut all = vec![Entry { set: ATTACHMENTS.to_owned(), element: head }];
    let (mut texts, mut chains) = (texts.into_iter(), chains.iter());
    all.extend((0..count).map(|place| {
        let verdict = chains.next().map_or(Verdict::Return, |chain| Verdict::Goto(chain.clone()));
        let element = Element::new(&[page_key(number, place)]).verdict(verdict);
        let element = element.comment(mark_in(comment).unwrap_or_default()).note(texts.next().unwrap_or_default());
        Entry { set: INVENTORY.to_owned(), element }
    }));
    Ok(all)
}

fn page_key(number: u64, place: usize) -> Value {
    Value::LinkName(format!("{number:011x}{place:04x}"))
}

/// Returns keys of entries that an attachment may have.
pub(crate) type Hints<'a> = &'a dyn Fn() -> Vec<EntryKey>;

/// What an attachment has in the table.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// All entries: that of the attachment, the inventory, and what it lists, as far as it exists.
    pub(crate) entries: Vec<Entry>,
    /// Whether the attachment may have used any scope: its inventory is incomplete, or an earlier version added it.
    pub(crate) is_listed: bool,
}

impl Owned {
    /// Finds what the attachment with this mark has. Lists the entries of all attachments only if it has no complete
    /// inventory, but something else: an earlier version added it, or another program has deleted a part. Without an
    /// entry of its own, it has something if one of `hints` is its.
    pub(crate) fn find(nft: &mut Nftables, mark: &str, hints: Hints<'_>) -> Result<Owned> {
        let head = entry::look_up(nft, &[EntryKey::of_attachment(mark)])?.pop().flatten();
        Owned::of_head(nft, mark, head, hints)
    }

    /// Does the same for an attachment whose entry in the set `attachments` was looked up.
    pub(crate) fn of_head(nft: &mut Nftables, mark: &str, head: Option<Entry>, hints: Hints<'_>) -> Result<Owned> {
        let is_its = |entry: &Entry| mark_in(entry.comment()) == Some(mark);
        let Some(head) = head.filter(is_its) else {
            let has_any = entry::look_up(nft, &hints())?.iter().flatten().any(is_its);
            return if has_any { Owned::list(nft, mark) } else { Ok(Owned::default()) };
        };
        let Some((number, count)) = read_note(&head.element.userdata.note) else { return Owned::list(nft, mark) };
        let keys = (0..count).map(|place| EntryKey::new(INVENTORY, &[page_key(number, place)]));
        let pages: Vec<Entry> = entry::look_up(nft, &keys.collect::<Vec<_>>())?.into_iter().flatten().collect();
        if pages.len() < count || !pages.iter().all(is_its) {
            return Owned::list(nft, mark);
        }
        let keys = read(pages.iter().map(|page| page.element.userdata.note.as_str()));
        let found = entry::look_up(nft, &keys)?.into_iter().flatten().filter(is_its);
        // Two keys can be in the same range.
        let mut entries: Vec<Entry> = Vec::with_capacity(keys.len() + pages.len() + 1);
        for entry in found {
            if entries.last() != Some(&entry) {
                entries.push(entry);
            }
        }
        entries.extend(pages);
        entries.push(head);
        Ok(Owned { entries, is_listed: false })
    }

    fn list(nft: &mut Nftables, mark: &str) -> Result<Owned> {
        let mut entries = Listing::read(nft)?.entries;
        entries.retain(|entry| mark_in(entry.comment()) == Some(mark));
        Ok(Owned { entries, is_listed: true })
    }

    /// Returns the link through which loopback addresses reach the ports, if the inventory records one.
    pub(crate) fn link(&self) -> Option<LinkIndex> {
        self.chains().find_map(read_attached).flatten()
    }

    /// Returns the number of entries that lead to a chain.
    pub(crate) fn users_of(&self, chain: &str) -> usize {
        self.chains().filter(|found| *found == chain).count()
    }

    /// Returns the chains to which the inventory leads.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match &entry.element.data {
            Some(Data::Verdict(verdict)) => verdict.target(),
            _ => None,
        })
    }
}

/// Returns whether the element of an attachment names its inventory. Those of earlier versions do not.
pub(crate) fn is_recorded(head: &Element) -> bool {
    read_note(&head.userdata.note).is_some()
}

/// Reads the random number of an inventory and the number of its pages from the note of an attachment's entry.
fn read_note(note: &str) -> Option<(u64, usize)> {
    let (number, count) = note.split_once(' ')?;
    Some((u64::from_str_radix(number, 16).ok()?, count.parse().ok().filter(|count| *count <= 1 << 16)?))
}

/// Entries of one map with consecutive ports, or those of a set for masquerade with a container's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run<'a> {
    set: &'a str,
    ip: Option<IpAddr>,
    protocol: Option<Protocol>,
    first: u16,
    last: u16,
}

impl<'a> Run<'a> {
    /// Returns the run of one entry; `None` if it is a record of an attachment.
    fn of(entry: &'a Entry) -> Option<Run<'a>> {
        let set = entry.set.as_str();
        if let Some(ip) = entry.masqueraded() {
            return Some(Run { set, ip: Some(ip), protocol: None, first: 0, last: 0 });
        }
        let Key { host_ip, protocol, port } = entry.read_mapping()?.key;
        Some(Run { set, ip: host_ip, protocol: Some(protocol), first: port, last: port })
    }

    /// Returns the words for this run on a page, without those that it has in common with the run `before` on the same
    /// page.
    fn words(&self, before: Option<&Run<'_>>) -> String {
        let Run { set, ip, protocol, first, last } = self;
        let before = before.filter(|before| before.set == *set);
        let mut words = if before.is_some() { String::new() } else { format!(" {set}") };
        let before = before.filter(|before| before.ip == *ip);
        if let Some(ip) = ip.filter(|_| before.is_none()) {
            words += &format!(" {ip}");
        }
        if let Some(protocol) = protocol {
            if before.is_none_or(|before| before.protocol != self.protocol) {
                words += &format!(" {protocol}");
            }
            words += &if first == last { format!(" {first}") } else { format!(" {first}-{last}") };
        }
        words
    }
}

/// Writes the keys of entries as pages of words: the name of a set, then, as far as its keys have them, an address, a
/// protocol and ports, each for all ports that follow on the page:
///
/// ```text
/// ipv4_address_ports 10.0.0.1 tcp 80 443 udp 53 ipv4_masquerade 10.1.0.2 ipv4_ports tcp 8000-8100
/// ```
fn write(entries: &[Entry]) -> Vec<String> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for next in &entries.iter().filter_map(Run::of).collect::<SortedSet<_>>() {
        match runs.last_mut() {
            Some(run)
                if run.last.checked_add(1) == Some(next.first)
                    && Run { first: next.first, last: next.last, ..*run } == *next =>
            {
                run.last = next.last;
            }
            _ => runs.push(*next),
        }
    }
    let mut pages: Vec<String> = Vec::new();
    let mut before = None;
    for run in &runs {
        let words = run.words(before);
        match pages.last_mut() {
            Some(page) if page.len() + words.len() <= PAGE => page.push_str(&words),
            _ => pages.push(run.words(None).trim_start().to_owned()),
        }
        before = Some(run);
    }
    pages
}

/// Reads the keys that pages list. What cannot be read is skipped: the entries decide what they are.
fn read<'a>(pages: impl Iterator<Item = &'a str>) -> Vec<EntryKey> {
    let mut keys = Vec::new();
    for page in pages {
        let (mut set, mut ip, mut protocol) = ("", None, None);
        for word in page.split(' ') {
            if let Ok(address) = word.parse::<IpAddr>() {
                (ip, protocol) = (Some(address), None);
                if is_masquerade(set) {
                    keys.extend(masquerade_keys(set, address));
                }
            } else if let Some(found) = Protocol::named(word) {
                protocol = Some(found);
            } else if let (Some(protocol), Some((first, last))) = (protocol, ports(word)) {
                let has_address = MapName::parse(set).is_some_and(|map| map.has_addresses);
                let host_ip = ip.filter(|_| has_address);
                keys.extend((first..=last).map(|port| EntryKey::of(set, &Key { host_ip, protocol, port })));
            } else {
                (set, ip, protocol) = (word, None, None);
            }
        }
    }
    keys
}

/// Reads a port, or the first and the last of a range.
fn ports(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Returns keys in the ranges for masquerade that a container with this address can have.
pub(crate) fn masquerade_keys_of(ip: IpAddr) -> Vec<EntryKey> {
    masquerade_keys(Scope::new(ip, &[]).masquerade(), ip)
}

/// Returns these keys: from the container's subnet or from everywhere, and from loopback addresses.
fn masquerade_keys(set: &str, ip: IpAddr) -> Vec<EntryKey> {
    let loopback = ip.is_ipv4().then_some(IpAddr::from(Ipv4Addr::LOCALHOST));
    [Some(ip), loopback].into_iter().flatten().map(|source| EntryKey::new(set, &[source, ip].map(Value::Ip))).collect()
}

/// Asserts that the pages of an inventory name every entry, whatever its set is called.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(entries: &[Entry]) {
    let pages = write(entries);
    let keys: SortedSet<_> = read(pages.iter().map(String::as_str)).into_iter().collect();
    for entry in entries.iter().filter(|entry| entry.read_mapping().is_some() && !entry.set.contains(' ')) {
        assert!(keys.contains(&entry.key()), "{pages:?} {entry:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::config::Masquerade;
    use crate::mapping::Mapping;

    /// Returns the entries of ports such as `tcp 80` or `10.0.0.1 tcp 80`, in the scope of the family of `container`.
    fn entries(container: &str, ports: &[String]) -> Vec<Entry> {
        let container: IpAddr = container.parse().unwrap();
        let scope = Scope::new(container, &[]);
        let entry = |text: &String| {
            let words: Vec<&str> = text.split(' ').collect();
            let key = Key {
                host_ip: words[0].parse().ok(),
                protocol: Protocol::named(words[words.len() - 2]).unwrap(),
                port: words[words.len() - 1].parse().unwrap(),
            };
            Entry::mapping(&scope, &Mapping { key, target: SocketAddr::new(container, 80) }, "c")
        };
        ports.iter().map(entry).collect()
    }

    #[test]
    fn pages_list_ranges_and_name_everything_once() {
        let ports = [
            "tcp 8001",
            "udp 53",
            "10.0.0.1 tcp 80",
            "tcp 8000",
            "tcp 8002",
            "tcp 443",
            "10.0.0.1 tcp 443",
            "10.0.0.2 tcp 443",
        ];
        let mut all = entries("10.1.0.2", &ports.map(str::to_owned));
        let scope = Scope::new("10.1.0.2".parse().unwrap(), &[]);
        all.extend(Entry::masquerade(&scope, "10.1.0.2/24".parse().unwrap(), Masquerade::Local, "c"));
        let pages = write(&all);
        assert_eq!(
            pages,
            [
                "ipv4_address_ports 10.0.0.1 tcp 80 443 10.0.0.2 tcp 443 ipv4_masquerade 10.1.0.2 ipv4_ports tcp 443 8000-8002 udp 53"
            ]
        );
        let keys = read(pages.iter().map(String::as_str));
        for entry in all.iter().filter(|entry| entry.read_mapping().is_some()) {
            assert!(keys.contains(&entry.key()), "{entry:?}");
        }
        assert_eq!(keys.len(), ports.len() + 2, "and two for masquerade");
        assert!(write(&[]).is_empty());
    }

    #[test]
    fn any_number_of_ports_fits() {
        let scattered: Vec<String> = (0..16_000).map(|n| format!("tcp {}", 1 + 4 * n)).collect();
        let addresses: Vec<String> = (0..1000).map(|n| format!("10.0.{}.{} udp 65535", n / 250, n % 250)).collect();
        let everything: Vec<String> = (1..=65_535).map(|n| format!("tcp {n}")).collect();
        for (ports, limit) in [(scattered, 600), (addresses, 130), (everything, 1)] {
            let all = entries("10.1.0.2", &ports);
            let pages = write(&all);
            assert!(pages.len() <= limit && pages.iter().all(|page| page.len() <= PAGE), "{} pages", pages.len());
            let keys: SortedSet<_> = read(pages.iter().map(String::as_str)).into_iter().collect();
            assert!(all.iter().all(|entry| keys.contains(&entry.key())));
            assert_eq!(keys.iter().count(), ports.len());
        }
        let v6 = entries("fd00::2", &["fd00::1 tcp 80".to_owned(), "udp 9".to_owned()]);
        assert_eq!(write(&v6), ["ipv6_address_ports fd00::1 tcp 80 ipv6_ports udp 9"]);
        assert!(read(write(&v6).iter().map(String::as_str)) == [v6[0].key(), v6[1].key()]);
    }

    #[test]
    fn pages_of_other_programs_are_read_without_harm() {
        for page in
            ["", " ", "80", "tcp 80", "ipv4_ports 80", "ipv4_ports tcp 9-8", "ipv4_ports tcp 70000", "x 10.0.0.1 tcp"]
        {
            assert!(read([page].into_iter()).iter().all(|key| key.set.is_empty()), "{page:?}");
        }
        for note in ["", "x", "x 1", "1", "1 -1", "1 99999999"] {
            assert_eq!(read_note(note), None, "{note:?}");
        }
        assert_eq!(read_note("00000000abc 2"), Some((0xabc, 2)));
    }

    #[test]
    fn the_entry_of_an_attachment_leads_to_its_pages() {
        let ports: Vec<String> = (0..500).map(|n| format!("tcp {}", 1 + 2 * n)).collect();
        let comment = "0123456789abcdef-0123456789abcdef, net: n, if: eth0, id: c";
        let chains = ["attached_7", "a"].map(str::to_owned);
        let all = create(comment, Some("veth0"), &entries("10.1.0.2", &ports), &chains).unwrap();
        assert_eq!(Owned { entries: all.clone(), is_listed: false }.link().map(LinkIndex::number), Some(7));
        let (head, pages) = all.split_first().unwrap();
        assert_eq!((head.set.as_str(), head.port()), (ATTACHMENTS, Some("veth0")));
        let (number, count) = read_note(&head.element.userdata.note).unwrap();
        assert_eq!(pages.len(), count);
        for (place, page) in pages.iter().enumerate() {
            assert_eq!(page.key(), EntryKey::new(INVENTORY, &[page_key(number, place)]));
            assert_eq!(page.comment(), &comment[..33]);
            let target = chains.get(place).map_or(Verdict::Return, |chain| Verdict::Goto(chain.clone()));
            assert_eq!(page.element.data, Some(Data::Verdict(target)));
        }
        let again = create(comment, None, &[], &["attached".to_owned()]).unwrap();
        assert_eq!(again.len(), 2);
        assert_ne!(again[0].element.userdata.note, head.element.userdata.note);
    }
}
