//! Addresses whose traffic is accepted: sets in a table of this plugin. A packet looks them up once to three times, however many
//! containers there are.
//!
//! ```text
//! table inet cni_firewall {
//!     chain set_mark  { type filter hook forward priority -1
//!         meta mark and 0x1000 != 0 meta mark set meta mark and 0xffffefff
//!         ip saddr @ipv4 goto accepted
//!         ip daddr @ipv4 ct state established,related goto accepted
//!         ip daddr @ipv4 ct status dnat goto accepted                          the same for ipv6
//!     }
//!     chain accepted  { meta mark set meta mark or 0x1000 }
//!     chain clear_mark { type filter hook forward priority 1
//!         meta mark and 0x1000 != 0 meta mark set meta mark and 0xffffefff
//!     }
//!     set ipv4        { 10.9.0.2 comment "MARK, net: net1, if: eth0, id: c1" }
//!     set ipv6        { fd00::2 comment "MARK, net: net1, if: eth0, id: c1" }
//!     set attachments { "0123456789abcde" comment "MARK, net: net1, …" }       the note is "3fa91c0b77e12ab 10.9.0.2 fd00::2"
//!     set versions    { "3fa91c0b77e12ab" comment "MARK" }
//! }
//! ```
//!
//! No verdict of this table could accept traffic for iptables, whose chain FORWARD runs between both base chains. A single rule
//! there accepts packets with the mark: see [`filter`](crate::filter). No packet keeps the mark, so that other programs do not see it.
//!
//! The comment of an address is that of the attachment that has it. The note of an attachment has its addresses and a random number,
//! which is the key of an element in `versions`, and changes with everything that concerns the attachment. A transaction deletes the
//! number that it has read, so it fails if it was planned from an older state, whatever else changes on the host.
//!
//! Two attachments can have the same address, such as a container and its successor. The last ADD has it then, and the note of the
//! address names those that wait for it: DEL returns the address to one that still exists.

use std::net::IpAddr;

use cni::key::{mark_in, short_mark};
use cni::{AttachmentKey, Context, Result};
use linux::netlink::nft::{
    self, Chain, DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, RuleSpec, Set, SetSpec,
    Table, Value,
};

const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_firewall" };
const MARK: Chain<'_> = TABLE.chain("set_mark");
const ACCEPTED: Chain<'_> = TABLE.chain("accepted");
const UNMARK: Chain<'_> = TABLE.chain("clear_mark");
const IPV4: Set<'_> = TABLE.set("ipv4");
const IPV6: Set<'_> = TABLE.set("ipv6");
const ATTACHMENTS: Set<'_> = TABLE.set("attachments");
const VERSIONS: Set<'_> = TABLE.set("versions");

/// The most bytes of a note: the kernel accepts 254 bytes with the comment, which has at most 128.
const MAX_NOTE: usize = 115;

/// What does not belong to a single attachment: chains, rules and sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The bit of the packet mark that accepted packets have on their way through the hook.
    pub(crate) bit: u32,
}

impl Frame {
    /// Returns the rules of all chains, in the order of [`create`](Frame::create).
    fn rules(self) -> Vec<RuleSpec<'static>> {
        let unmark =
            |chain| RuleSpec::new(chain).matches_any_bit(Field::PACKET_MARK, self.bit).clear_mark_bits(self.bit);
        let mut rules = vec![unmark(MARK)];
        for (set, source, destination) in
            [(IPV4, Field::SOURCE_V4, Field::DESTINATION_V4), (IPV6, Field::SOURCE_V6, Field::DESTINATION_V6)]
        {
            let from = RuleSpec::new(MARK).in_set(&[source], set.name);
            let to = || RuleSpec::new(MARK).in_set(&[destination], set.name);
            let replies = to().matches_any_bit(Field::CONNECTION_STATE, Field::ESTABLISHED);
            let translated = to().matches_any_bit(Field::CONNECTION_STATUS, Field::TRANSLATED);
            rules.extend([from, replies, translated].map(|rule| rule.goto(ACCEPTED.name)));
        }
        rules.extend([RuleSpec::new(ACCEPTED).set_mark_bits(self.bit), unmark(UNMARK)]);
        rules.into_iter().zip(self.comments()).map(|(rule, (_, comment))| rule.comment(comment)).collect()
    }

    /// Returns the chains and comments of the rules.
    fn comments(self) -> [(Chain<'static>, String); 9] {
        let (clear, set) = (format!("clear {:#x}", self.bit), format!("set {:#x}", self.bit));
        [
            (MARK, clear.clone()),
            (MARK, "from IPv4 containers".to_owned()),
            (MARK, "replies to IPv4 containers".to_owned()),
            (MARK, "to published ports of IPv4 containers".to_owned()),
            (MARK, "from IPv6 containers".to_owned()),
            (MARK, "replies to IPv6 containers".to_owned()),
            (MARK, "to published ports of IPv6 containers".to_owned()),
            (ACCEPTED, set),
            (UNMARK, clear),
        ]
    }

    /// Returns whether everything exists. Compares only comments, because this is a part of each ADD.
    pub(crate) fn is_complete(self, nft: &mut Nftables) -> Result<bool> {
        let (present, wanted) = (nft.rule_comments(TABLE)?, self.comments());
        let is_same = |((chain, comment), (of, text)): (&(String, String), &(Chain<'_>, String))| {
            chain == of.name && comment == text
        };
        Ok(present.len() == wanted.len() && present.iter().zip(&wanted).all(is_same))
    }

    /// Returns the edits that create everything, or restore what is missing. Elements stay.
    pub(crate) fn create(self) -> Vec<Edit> {
        let set = |set, key| Edit::add_set(&SetSpec { set, key, maps_to: MapsTo::Nothing, elements: Elements::Keys });
        let mut edits = vec![
            Edit::add_table(TABLE),
            set(IPV4, &[DataType::Ipv4]),
            set(IPV6, &[DataType::Ipv6]),
            set(ATTACHMENTS, &[DataType::LinkName]),
            set(VERSIONS, &[DataType::LinkName]),
            Edit::add_base_chain(MARK, Hook::BEFORE_FORWARD),
            Edit::add_chain(ACCEPTED),
            Edit::add_base_chain(UNMARK, Hook::AFTER_FORWARD),
        ];
        edits.extend([MARK, ACCEPTED, UNMARK].map(Edit::flush));
        edits.extend(self.rules().iter().map(Edit::add_rule));
        edits
    }
}

/// An attachment with accepted addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) comment: String,
    /// The key in [`VERSIONS`].
    version: String,
    /// `None` if there are more than the note can have.
    ips: Option<Vec<IpAddr>>,
}

impl Member {
    fn new(comment: &str, ips: &[IpAddr]) -> Result<Member> {
        let number = u64::from_ne_bytes(linux::random().context(|| "generate a random number")?) >> 4;
        Ok(Member { comment: comment.to_owned(), version: format!("{number:015x}"), ips: Some(ips.to_vec()) })
    }

    /// Returns the attachment with this mark; `None` if it has no accepted address.
    pub(crate) fn find(nft: &mut Nftables, mark: &str) -> Result<Option<Member>> {
        let found = nft.element(ATTACHMENTS, &[key(mark)])?;
        Member::of(nft, mark, found)
    }

    /// Returns the attachment with this mark, whose element in [`ATTACHMENTS`] was looked up.
    fn of(nft: &mut Nftables, mark: &str, found: Option<Element>) -> Result<Option<Member>> {
        let found = found.map(Member::read).filter(|member| mark_in(&member.comment) == Some(mark));
        let Some(mut member) = found else { return Ok(None) };
        if !member.version.is_empty() {
            return Ok(Some(member));
        }
        // `nft` has saved and restored the table, without notes.
        let versions = nft.elements(VERSIONS)?;
        let own = versions.iter().find(|version| version.userdata.comment == mark);
        if let Some(Value::LinkName(version)) = own.and_then(|own| Value::split(&[DataType::LinkName], &own.key)?.pop())
        {
            member.version = version;
        }
        Ok(Some(Member { ips: None, ..member }))
    }

    /// Lists all attachments.
    pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<Member>> {
        Ok(nft.elements(ATTACHMENTS)?.into_iter().map(Member::read).collect())
    }

    fn read(element: Element) -> Member {
        let mut words = element.userdata.note.split(' ');
        let version = words.next().unwrap_or_default().to_owned();
        let ips = words.map(|word| word.parse().ok()).collect();
        Member { comment: element.userdata.comment, version, ips }
    }

    /// Returns the elements in [`ATTACHMENTS`] and [`VERSIONS`].
    fn elements(&self) -> [(Set<'static>, Element); 2] {
        let ips = self.ips.as_ref().map(|ips| ips.iter().map(|ip| format!(" {ip}")).collect::<String>());
        let ips = ips.filter(|ips| self.version.len() + ips.len() <= MAX_NOTE).unwrap_or_else(|| " …".to_owned());
        let mark = mark_in(&self.comment).unwrap_or_default();
        let own = Element::new(&[key(mark)]).comment(&self.comment).note(format!("{}{ips}", self.version));
        [(ATTACHMENTS, own), (VERSIONS, Element::new(&[Value::LinkName(self.version.clone())]).comment(mark))]
    }

    fn create(&self) -> impl Iterator<Item = Edit> {
        self.elements().into_iter().flat_map(|(set, element)| Edit::create_elements(set, &[element]))
    }

    fn delete(&self) -> impl Iterator<Item = Edit> {
        let exist = if self.version.is_empty() { 1 } else { 2 };
        self.elements().into_iter().take(exist).flat_map(|(set, element)| Edit::delete_elements(set, &[element]))
    }

    /// Returns the addresses. Lists those of all attachments if the note does not have them.
    fn ips(&self, nft: &mut Nftables) -> Result<Vec<IpAddr>> {
        match &self.ips {
            Some(ips) => Ok(ips.clone()),
            None => {
                let own = mark_in(&self.comment);
                let all = list(nft)?.into_iter();
                Ok(all.filter(|(_, comment)| mark_in(comment) == own).map(|(ip, _)| ip).collect())
            }
        }
    }
}

/// Returns the key of an attachment.
fn key(mark: &str) -> Value {
    Value::LinkName(short_mark(mark))
}

fn set_of(ip: IpAddr) -> Set<'static> {
    if ip.is_ipv4() { IPV4 } else { IPV6 }
}

/// Returns the comment of the attachment that has an address.
pub(crate) fn owner_of(nft: &mut Nftables, ip: IpAddr) -> Result<Option<String>> {
    Ok(nft.element(set_of(ip), &[Value::Ip(ip)])?.map(|found| found.userdata.comment))
}

/// Lists the accepted addresses with the comments of their attachments.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<(IpAddr, String)>> {
    let mut all = Vec::new();
    for (set, kind) in [(IPV4, DataType::Ipv4), (IPV6, DataType::Ipv6)] {
        all.extend(nft.elements(set)?.into_iter().filter_map(
            |found| match Value::split(&[kind], &found.key)?.pop()? {
                Value::Ip(ip) => Some((ip, found.userdata.comment)),
                _ => None,
            },
        ));
    }
    Ok(all)
}

/// Returns the edits that accept exactly these addresses of an attachment; none if that is so already.
pub(crate) fn accept(nft: &mut Nftables, owner: AttachmentKey<'_>, ips: &[IpAddr]) -> Result<Vec<Edit>> {
    let (mark, comment) = (owner.mark(), owner.comment());
    let (before, mut draft) = Draft::new(nft, &mark, ips)?;
    let recorded = before.as_ref().map(|member| member.ips(draft.nft)).transpose()?.unwrap_or_default();
    for ip in recorded.iter().filter(|ip| !ips.contains(ip)) {
        draft.leave(*ip, &mark)?;
    }
    for ip in ips {
        draft.take(*ip, &comment, &mark)?;
    }
    let is_recorded = before.is_some() != ips.is_empty() && recorded == ips;
    if draft.edits.is_empty() && is_recorded {
        return Ok(Vec::new());
    }
    draft.edits.extend(before.iter().flat_map(Member::delete));
    if !ips.is_empty() {
        draft.edits.extend(Member::new(&comment, ips)?.create());
    }
    Ok(draft.edits)
}

/// Returns the edits that end the acceptance of the addresses of the attachment with this mark, which are probably `ips`.
pub(crate) fn release(nft: &mut Nftables, mark: &str, ips: &[IpAddr]) -> Result<Vec<Edit>> {
    let (member, mut draft) = Draft::new(nft, mark, ips)?;
    let Some(member) = member else { return Ok(Vec::new()) };
    draft.edits.extend(member.delete());
    for ip in member.ips(draft.nft)? {
        draft.leave(ip, mark)?;
    }
    Ok(draft.edits)
}

/// GC: ends the acceptance of the addresses of attachments whose comments are `stale`. Returns whether there were any.
pub(crate) fn collect(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut has_removed = false;
    for member in Member::list(nft)?.into_iter().filter(|member| stale(&member.comment)) {
        let Some(mark) = mark_in(&member.comment) else { continue };
        nft::retry(|| -> Result<()> {
            let edits = release(nft, mark, member.ips.as_deref().unwrap_or_default())?;
            Ok(nft.apply(&edits)?)
        })?;
        has_removed = true;
    }
    // Another program has deleted the element of the attachment.
    if list(nft)?.iter().any(|(_, comment)| stale(comment)) {
        nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
            let stale = list(nft)?.into_iter().filter(|(_, comment)| stale(comment));
            Ok(stale.flat_map(|(ip, _)| Edit::delete_elements(set_of(ip), &[Element::new(&[Value::Ip(ip)])])).collect())
        })?;
        has_removed = true;
    }
    Ok(has_removed)
}

/// Edits that change the owners of addresses, in one transaction.
struct Draft<'n> {
    nft: &'n mut Nftables,
    edits: Vec<Edit>,
    /// The marks of attachments with a new number.
    renewed: Vec<String>,
    /// Addresses that were looked up, with their elements.
    known: Vec<(IpAddr, Option<Element>)>,
}

impl<'n> Draft<'n> {
    /// Looks up an attachment, and addresses that the draft will probably change.
    fn new(nft: &'n mut Nftables, mark: &str, ips: &[IpAddr]) -> Result<(Option<Member>, Draft<'n>)> {
        let keys = ips.iter().map(|ip| (set_of(*ip), Value::Ip(*ip)));
        let keys = keys.chain([(ATTACHMENTS, key(mark))]).map(|(set, key)| (set, Value::concatenate(&[key])));
        let keys: Vec<_> = keys.collect();
        let mut found = nft.find_elements(keys.iter().map(|(set, key)| (*set, key.as_slice())))?;
        let member = Member::of(nft, mark, found.pop().flatten())?;
        let known = ips.iter().copied().zip(found).collect();
        Ok((member, Draft { nft, edits: Vec::new(), renewed: Vec::new(), known }))
    }

    fn element(&mut self, ip: IpAddr) -> Result<Option<Element>> {
        match self.known.iter().find(|(known, _)| *known == ip) {
            Some((_, element)) => Ok(element.clone()),
            None => Ok(self.nft.element(set_of(ip), &[Value::Ip(ip)])?),
        }
    }

    /// Gives an address to an attachment. Another one that has it waits for it.
    fn take(&mut self, ip: IpAddr, comment: &str, mark: &str) -> Result<()> {
        let Some(found) = self.element(ip)? else {
            self.create(ip, comment, "");
            return Ok(());
        };
        let before = mark_in(&found.userdata.comment).unwrap_or_default().to_owned();
        if before == mark {
            return Ok(());
        }
        let waiting = found.userdata.note.split(' ').filter(|found| ![mark, &before, ""].contains(found));
        let mut note = before.clone();
        for next in waiting.filter(|_| !before.is_empty()) {
            if note.len() + 1 + next.len() <= MAX_NOTE {
                note = format!("{note} {next}");
            }
        }
        self.edits.extend(Edit::delete_elements(set_of(ip), &[found]));
        self.create(ip, comment, &note);
        self.renew(&before)?;
        Ok(())
    }

    /// Ends the acceptance of an address if the attachment with this mark has it, or gives it to one that waits for it.
    fn leave(&mut self, ip: IpAddr, mark: &str) -> Result<()> {
        let Some(found) = self.element(ip)? else { return Ok(()) };
        if mark_in(&found.userdata.comment) != Some(mark) {
            return Ok(());
        }
        let waiting: Vec<String> = found.userdata.note.split(' ').map(str::to_owned).collect();
        self.edits.extend(Edit::delete_elements(set_of(ip), &[found]));
        for (place, next) in waiting.iter().enumerate() {
            let Some(member) = Member::find(self.nft, next)? else { continue };
            if member.ips.as_ref().is_none_or(|ips| ips.contains(&ip)) {
                let others = waiting.get(place + 1..).unwrap_or_default().join(" ");
                self.create(ip, &member.comment, &others);
                self.renew(next)?;
                break;
            }
        }
        Ok(())
    }

    fn create(&mut self, ip: IpAddr, comment: &str, note: &str) {
        let element = Element::new(&[Value::Ip(ip)]).comment(comment).note(note);
        self.edits.extend(Edit::create_elements(set_of(ip), &[element]));
    }

    /// Gives another attachment a new number, so that a transaction which that attachment has planned fails.
    fn renew(&mut self, mark: &str) -> Result<()> {
        if self.renewed.iter().any(|renewed| renewed == mark) {
            return Ok(());
        }
        if let Some(member) = Member::find(self.nft, mark)? {
            let renewed = Member { ips: member.ips.clone(), ..Member::new(&member.comment, &[])? };
            self.edits.extend(member.delete().chain(renewed.create()));
            self.renewed.push(mark.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_an_attachment_has_its_addresses_if_they_fit() {
        let comment = "0123456789abcdef-0123456789abcdef, net: net1, if: eth0, id: c1";
        let few: Vec<IpAddr> = ["10.9.0.2", "fd00::2"].map(|ip| ip.parse().unwrap()).to_vec();
        let many: Vec<IpAddr> = (0..9_u8).map(|n| IpAddr::from([10, 9, 200, 100 + n])).collect();
        for (ips, recorded) in [(&few, Some(few.clone())), (&many, None)] {
            let member = Member::new(comment, ips).unwrap();
            let [(_, own), (_, version)] = member.elements();
            assert!(own.userdata.note.len() <= MAX_NOTE);
            let read = Member::read(own);
            assert_eq!(read, Member { ips: recorded, ..member.clone() });
            assert_eq!(version.key, Value::concatenate(&[Value::LinkName(member.version)]));
        }
    }

    #[test]
    fn numbers_differ() {
        let version = || Member::new("", &[]).unwrap().version;
        assert_ne!(version(), version());
        assert_eq!(version().len(), 15);
    }
}
