//! Addresses whose traffic is accepted: sets in a table of this plugin. A packet looks them up once to three times,
//! however many containers there are.
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
//!     set waiting     { ::ffff:10.9.0.2 . "fedcba987654321" comment "MARK, net: net1, if: eth0, id: c0" }
//!     set attachments { "0123456789abcde" comment "MARK, …" }        the note is "3fa91c0b77e12ab 10.9.0.2 fd00::2"
//!     set versions    { "3fa91c0b77e12ab" comment "MARK" }
//! }
//! ```
//!
//! No verdict of this table could accept traffic for iptables, whose chain FORWARD runs between both base chains. A
//! single rule there accepts packets with the mark: see [`filter`](crate::filter). No packet keeps the mark, so that
//! other programs do not see it.
//!
//! The comment of an address is that of the attachment that has it. The note of an attachment has its addresses and a
//! random number, which is the key of an element in `versions`, and changes with everything that concerns the
//! attachment. A transaction deletes the number that it has read, so it fails if it was planned from an older state,
//! whatever else changes on the host.
//!
//! Two attachments can have the same address, such as a container and its successor. The last ADD has it then, and the
//! others are in the set `waiting`: DEL gives the address to one of them.

use std::net::{IpAddr, Ipv6Addr};

use cni::key::{mark_in, short_mark};
use cni::{AttachmentKey, Context, Error, Result};
use linux::netlink::nft::{Chain, DataType, Edit, Element, Family, Nftables, Set, Table, Value};

mod frame;

pub(crate) use frame::Frame;

const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_firewall" };
const MARK: Chain<'_> = TABLE.chain("set_mark");
const ACCEPTED: Chain<'_> = TABLE.chain("accepted");
const UNMARK: Chain<'_> = TABLE.chain("clear_mark");
const IPV4: Set<'_> = TABLE.set("ipv4");
const IPV6: Set<'_> = TABLE.set("ipv6");
/// The attachments that have an address, beside the one in the set of addresses.
const WAITING: Set<'_> = TABLE.set("waiting");
const WAITING_KEY: [DataType; 2] = [DataType::Ipv6, DataType::LinkName];
const ATTACHMENTS: Set<'_> = TABLE.set("attachments");
const VERSIONS: Set<'_> = TABLE.set("versions");

/// The most bytes of a note: the kernel accepts 254 bytes with the comment, which has at most 128.
const MAX_NOTE: usize = 115;

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

    /// Returns the attachment with this mark, whose element in [`ATTACHMENTS`] was looked up. Without its number,
    /// another program has changed the table: then the number is empty.
    fn of(nft: &mut Nftables, mark: &str, found: Option<Element>) -> Result<Option<Member>> {
        let read =
            |found: Option<Element>| found.map(Member::read).filter(|found| mark_in(&found.comment) == Some(mark));
        let mut found = read(found);
        while let Some(mut member) = found.take() {
            if member.version.is_empty() {
                // `nft` has saved and restored the table, without notes.
                let versions = nft.elements(VERSIONS)?;
                let own = versions.iter().find(|version| version.userdata.comment == mark);
                let key = own.and_then(|own| Value::split(&[DataType::LinkName], &own.key)?.pop());
                if let Some(Value::LinkName(version)) = key {
                    member.version = version;
                }
                return Ok(Some(Member { ips: None, ..member }));
            }
            if nft.element(VERSIONS, &[Value::LinkName(member.version.clone())])?.is_some() {
                return Ok(Some(member));
            }
            // Another process has changed the attachment meanwhile, or the number was deleted.
            found = read(nft.element(ATTACHMENTS, &[key(mark)])?);
            if found.as_ref().is_some_and(|found| found.version == member.version) {
                return Ok(Some(Member { version: String::new(), ..member }));
            }
        }
        Ok(None)
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
                let all = list(nft)?.into_iter().chain(list_waiting(nft)?);
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

/// Lists the addresses for which attachments wait, with the comments of these attachments.
fn list_waiting(nft: &mut Nftables) -> Result<Vec<(IpAddr, String)>> {
    let read = |found: Element| match Value::split(&WAITING_KEY, &found.key)?.into_iter().next()? {
        Value::Ip(ip) => Some((ip.to_canonical(), found.userdata.comment)),
        _ => None,
    };
    Ok(nft.elements(WAITING)?.into_iter().filter_map(read).collect())
}

/// Returns the element of an attachment that waits for an address.
fn waiting(ip: IpAddr, comment: &str) -> Element {
    let ip: Ipv6Addr = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Element::new(&[Value::Ip(ip.into()), key(mark_in(comment).unwrap_or_default())]).comment(comment)
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
    let is_recorded = before.as_ref().map_or(ips.is_empty(), |member| !member.version.is_empty() && recorded == ips);
    if draft.edits.is_empty() && is_recorded {
        return Ok(Vec::new());
    }
    draft.edits.extend(before.iter().flat_map(Member::delete));
    if before.is_none() && draft.has_own {
        draft.delete_versions(&mark)?;
    }
    if !ips.is_empty() {
        draft.edits.extend(Member::new(&comment, ips)?.create());
    }
    Ok(draft.edits)
}

/// Returns the edits that end the acceptance of the addresses of the attachment with this mark, which are probably
/// `ips`, and whether they include the number of the attachment. Without it, they may be outdated when they are
/// applied.
pub(crate) fn release(nft: &mut Nftables, mark: &str, ips: &[IpAddr]) -> Result<(Vec<Edit>, bool)> {
    let (member, mut draft) = Draft::new(nft, mark, ips)?;
    let Some(member) = member else {
        // Another program has deleted the element of the attachment.
        for ip in ips {
            draft.leave(*ip, mark)?;
        }
        if draft.edits.is_empty() {
            return Ok((Vec::new(), true));
        }
        draft.delete_versions(mark)?;
        return Ok((draft.edits, false));
    };
    draft.edits.extend(member.delete());
    for ip in member.ips(draft.nft)? {
        draft.leave(ip, mark)?;
    }
    Ok((draft.edits, !member.version.is_empty()))
}

/// GC: ends the acceptance of addresses with comments for which `stale` returns true. Returns whether there were any.
pub(crate) fn collect(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut has_removed = false;
    for member in Member::list(nft)?.into_iter().filter(|member| stale(&member.comment)) {
        let Some(mark) = mark_in(&member.comment) else { continue };
        let ips = member.ips.unwrap_or_default();
        nft.apply_guarded(|nft| Ok::<_, Error>(release(nft, mark, &ips)?.0))?;
        has_removed = true;
    }
    // Another program has deleted the elements of attachments, or restored others.
    if !orphans(nft, stale)?.is_empty() {
        nft.apply_guarded(|nft| orphans(nft, stale))?;
        has_removed = true;
    }
    Ok(has_removed)
}

/// Returns the edits that delete what no attachment has, if `stale` returns true for its comment.
fn orphans(nft: &mut Nftables, stale: &dyn Fn(&str) -> bool) -> Result<Vec<Edit>> {
    let members = Member::list(nft)?;
    let is_known = |mark: &str| members.iter().any(|member| mark_in(&member.comment) == Some(mark));
    let is_orphan = |comment: &str| stale(comment) && !mark_in(comment).is_some_and(is_known);
    let mut edits = Vec::new();
    for set in [IPV4, IPV6, WAITING, VERSIONS] {
        let mut elements = nft.elements(set)?;
        elements.retain(|found| {
            let is_used = || members.iter().any(|member| key_of(&member.version) == found.key);
            is_orphan(&found.userdata.comment) || (set == VERSIONS && stale(&found.userdata.comment) && !is_used())
        });
        edits.extend(Edit::delete_elements(set, &elements));
    }
    Ok(edits)
}

/// Returns the key of a number in [`VERSIONS`].
fn key_of(version: &str) -> Vec<u8> {
    Value::concatenate(&[Value::LinkName(version.to_owned())])
}

/// Edits that change the owners of addresses, in one transaction.
struct Draft<'n> {
    nft: &'n mut Nftables,
    edits: Vec<Edit>,
    /// The marks of attachments with a new number.
    renewed: Vec<String>,
    /// Addresses that were looked up, with their elements.
    known: Vec<(IpAddr, Option<Element>)>,
    /// Whether the attachment has an address already.
    has_own: bool,
    /// What waits for addresses, if that was listed.
    waiting: Option<Vec<(IpAddr, String)>>,
}

impl<'n> Draft<'n> {
    /// Looks up an attachment, and addresses that the draft will probably change.
    fn new(nft: &'n mut Nftables, mark: &str, ips: &[IpAddr]) -> Result<(Option<Member>, Draft<'n>)> {
        // The number of the attachment first: whatever changes after it was read makes the transaction fail.
        let keys = [(ATTACHMENTS, key(mark))].into_iter().chain(ips.iter().map(|ip| (set_of(*ip), Value::Ip(*ip))));
        let keys: Vec<_> = keys.map(|(set, key)| (set, Value::concatenate(&[key]))).collect();
        let mut found = nft.find_elements(keys.iter().map(|(set, key)| (*set, key.as_slice())))?.into_iter();
        let head = found.next().flatten();
        let member = Member::of(nft, mark, head.clone())?;
        // Only what was read after the number counts.
        let is_current = member.as_ref().is_none_or(|member| head.map(Member::read).as_ref() == Some(member));
        let known = if is_current { ips.iter().copied().zip(found).collect() } else { Vec::new() };
        Ok((member, Draft { nft, edits: Vec::new(), renewed: Vec::new(), known, has_own: false, waiting: None }))
    }

    fn element(&mut self, ip: IpAddr) -> Result<Option<Element>> {
        match self.known.iter().find(|(known, _)| *known == ip) {
            Some((_, element)) => Ok(element.clone()),
            None => Ok(self.nft.element(set_of(ip), &[Value::Ip(ip)])?),
        }
    }

    /// Gives an address to an attachment. Another one that has it waits for it.
    fn take(&mut self, ip: IpAddr, comment: &str, mark: &str) -> Result<()> {
        let mut found = self.element(ip)?;
        loop {
            let Some(owned) = found else {
                self.create(ip, comment);
                return Ok(());
            };
            let Some(before) = mark_in(&owned.userdata.comment).map(str::to_owned) else {
                self.edits.extend(Edit::delete_elements(set_of(ip), &[owned]));
                found = None;
                continue;
            };
            if before == mark {
                self.has_own = true;
                return Ok(());
            }
            let member = Member::find(self.nft, &before)?;
            // The number must be that of an attachment which has the address after it was read.
            let now = self.nft.element(set_of(ip), &[Value::Ip(ip)])?;
            if now.as_ref() != Some(&owned) {
                found = now;
                continue;
            }
            self.stop_waiting(ip, mark)?;
            if let Some(member) = &member {
                let waits = self.waiting()?.iter().any(|(other, of)| *other == ip && *of == member.comment);
                if !waits {
                    self.edits.extend(Edit::create_elements(WAITING, &[waiting(ip, &member.comment)]));
                }
            }
            self.edits.extend(Edit::delete_elements(set_of(ip), &[owned]));
            self.create(ip, comment);
            return self.renew(&before, member);
        }
    }

    /// Ends the acceptance of an address if the attachment with this mark has it, or gives it to one that waits for it.
    fn leave(&mut self, ip: IpAddr, mark: &str) -> Result<()> {
        let Some(found) = self.element(ip)? else { return Ok(()) };
        if mark_in(&found.userdata.comment) != Some(mark) {
            return self.stop_waiting(ip, mark);
        }
        self.edits.extend(Edit::delete_elements(set_of(ip), &[found]));
        for (other, comment) in self.waiting()? {
            let Some(next) = mark_in(&comment).filter(|next| other == ip && *next != mark) else { continue };
            if let Some(member) = Member::find(self.nft, next)? {
                self.edits.extend(Edit::delete_elements(WAITING, &[waiting(ip, &comment)]));
                self.create(ip, &member.comment);
                return self.renew(next, Some(member));
            }
        }
        Ok(())
    }

    /// Deletes the element of an attachment that waits for an address, if it does.
    fn stop_waiting(&mut self, ip: IpAddr, mark: &str) -> Result<()> {
        let own = self.waiting()?.into_iter().find(|(other, of)| *other == ip && mark_in(of) == Some(mark));
        self.edits.extend(own.iter().flat_map(|(_, comment)| Edit::delete_elements(WAITING, &[waiting(ip, comment)])));
        Ok(())
    }

    /// Deletes the numbers of an attachment whose own element another program has deleted.
    fn delete_versions(&mut self, mark: &str) -> Result<()> {
        let mut versions = self.nft.elements(VERSIONS)?;
        versions.retain(|version| version.userdata.comment == mark);
        self.edits.extend(Edit::delete_elements(VERSIONS, &versions));
        Ok(())
    }

    /// Returns what waits for addresses. Usually nothing does.
    fn waiting(&mut self) -> Result<Vec<(IpAddr, String)>> {
        if self.waiting.is_none() {
            self.waiting = Some(list_waiting(self.nft)?);
        }
        Ok(self.waiting.clone().unwrap_or_default())
    }

    fn create(&mut self, ip: IpAddr, comment: &str) {
        let element = Element::new(&[Value::Ip(ip)]).comment(comment);
        self.edits.extend(Edit::create_elements(set_of(ip), &[element]));
    }

    /// Gives another attachment a new number, so that a transaction which that attachment has planned fails.
    fn renew(&mut self, mark: &str, member: Option<Member>) -> Result<()> {
        if self.renewed.iter().any(|renewed| renewed == mark) {
            return Ok(());
        }
        if let Some(member) = member {
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
