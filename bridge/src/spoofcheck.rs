//! Spoof check: drops frames from a port whose source MAC address is not the container's, in a table of its own.
//!
//! ```text
//! table bridge cni_spoofcheck {
//!     set ports { type ifname; elements = { "veth2fd64ca4" comment "…" } }
//!     set macs { type ifname . ether_addr; elements = { "veth2fd64ca4" . 5e:0b:7c:1f:a2:33 comment "…" } }
//!     set attachments { type ifname; elements = { "0123456789abcde" comment "…" } }
//!     chain prerouting {
//!         type filter hook prerouting priority -300
//!         iifname @ports iifname . ether saddr != @macs drop
//!     }
//! }
//! ```
//!
//! Unlike the reference, which adds a jump for each port, so that every frame passes the jumps of all ports: here a
//! frame costs two lookups, with any number of containers.
//!
//! The key of the third set is derived from the attachment. By it, DEL and a repeated ADD find the port and the MAC
//! address, and need not list the checks of all attachments. The three elements of a check have the same comment, mark
//! (the port) and note (the MAC address). They come and go in one transaction, which fails if one of them does not
//! exist any more: the name of a port is random, so a transaction that removes an old check does not hit a new one.
//!
//! [`chains`] has the checks of the reference and of earlier versions.

mod chains;

use std::collections::BTreeMap;

use cni::key::{mark_in, short_mark};
use cni::{
    AttachmentKey, Code, Context, Error, ErrorCollector, Judgement, Keep, Ownership, Result, SortedSet, Trace,
    try_edits,
};
use linux::ip::MacAddr;
use linux::netlink::Netlink;
use linux::netlink::nft::{
    self, Chain, DataType, Edit, Element, Elements, Family, Field, Hook, MapsTo, Nftables, RuleSpec, Set, SetSpec,
    Table, Value, Verdict,
};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "cni_spoofcheck" };
const PORTS: Set<'_> = TABLE.set("ports");
const MACS: Set<'_> = TABLE.set("macs");
const ATTACHMENTS: Set<'_> = TABLE.set("attachments");
const PREROUTING: Chain<'_> = TABLE.chain("prerouting");

/// The remedy if the kernel refuses the rules.
const FIX_HINT: &str = "key \"macspoofchk\" needs a kernel with nf_tables for bridges";
/// The remedy for a container whose MAC address changes after ADD.
const MAC_HINT: &str = "if \"tuning\" sets the address, set it for \"bridge\" instead, by \"args.cni.mac\" or the capability \"mac\", \
                        or remove \"macspoofchk\"; then attach the container again";

/// A spoof check of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpoofCheck {
    /// The port whose frames are checked.
    pub(crate) port: String,
    /// The MAC address that may pass.
    mac: MacAddr,
    /// The comment of the attachment.
    pub(crate) comment: String,
}

impl SpoofCheck {
    fn new(owner: AttachmentKey<'_>, port: &str, mac: MacAddr) -> SpoofCheck {
        SpoofCheck { port: port.to_owned(), mac, comment: owner.comment() }
    }

    /// Returns the check to which an element belongs; `None` if another program added it.
    fn read(element: &Element) -> Option<SpoofCheck> {
        let data = &element.userdata;
        Some(SpoofCheck { port: data.mark.clone(), mac: data.note.parse().ok()?, comment: data.comment.clone() })
    }

    /// Returns the check of an attachment.
    fn find(nft: &mut Nftables, owner: AttachmentKey<'_>) -> Result<Option<SpoofCheck>> {
        let mark = owner.mark();
        let found = nft.element(ATTACHMENTS, &[Value::LinkName(short_mark(&mark))])?;
        Ok(found.as_ref().and_then(SpoofCheck::read).filter(|check| mark_in(&check.comment) == Some(&mark)))
    }

    /// Returns the elements of the check with their sets.
    fn elements(&self) -> [(Set<'static>, Element); 3] {
        let port = Value::LinkName(self.port.clone());
        let attachment = Value::LinkName(short_mark(mark_in(&self.comment).unwrap_or_default()));
        [(ATTACHMENTS, vec![attachment]), (PORTS, vec![port.clone()]), (MACS, vec![port, Value::Mac(self.mac)])].map(
            |(set, key)| {
                let element = Element::new(&key).comment(&self.comment).mark(&self.port).note(self.mac.to_string());
                (set, element)
            },
        )
    }

    /// Returns the existing elements that have the keys of this check, also those of other checks.
    fn look_up(&self, nft: &mut Nftables) -> Result<Vec<(Set<'static>, Element)>> {
        let elements = self.elements();
        let found = nft.find_elements(elements.iter().map(|(set, element)| (*set, element.key.as_slice())))?;
        Ok(elements.iter().zip(found).filter_map(|((set, _), found)| Some((*set, found?))).collect())
    }

    /// Returns the elements of this check that exist.
    fn existing(&self, nft: &mut Nftables) -> Result<Vec<(Set<'static>, Element)>> {
        let mut found = self.look_up(nft)?;
        found.retain(|(_, element)| SpoofCheck::read(element).as_ref() == Some(self));
        Ok(found)
    }

    /// Returns the edits that create the elements; EEXIST if one of the keys exists.
    fn create(&self) -> impl Iterator<Item = Edit> {
        self.elements().into_iter().flat_map(|(set, element)| Edit::create_elements(set, &[element]))
    }

    /// Deletes the elements of this check that exist.
    fn delete(&self, nft: &mut Nftables) -> Result<()> {
        let edits: Vec<Edit> = self.existing(nft)?.iter().flat_map(delete_element).collect();
        nft.apply(&edits).context(|| "remove the spoof check")
    }
}

fn delete_element((set, element): &(Set<'_>, Element)) -> Vec<Edit> {
    Edit::delete_elements(*set, std::slice::from_ref(element))
}

/// Returns the edits that create the table, or restore what is missing of it. They may be applied several times.
fn create_table() -> Vec<Edit> {
    let set = |set, key| Edit::add_set(&SetSpec { set, key, maps_to: MapsTo::Nothing, elements: Elements::Keys });
    vec![
        Edit::add_table(TABLE),
        set(PORTS, &[DataType::LinkName]),
        set(MACS, &[DataType::LinkName, DataType::Mac]),
        set(ATTACHMENTS, &[DataType::LinkName]),
        Edit::add_base_chain(PREROUTING, Hook::BRIDGE_INPUT),
        Edit::flush(PREROUTING),
        Edit::add_rule(&rule()),
    ]
}

/// Returns the rule that drops frames with another source MAC address.
fn rule() -> RuleSpec<'static> {
    RuleSpec::new(PREROUTING)
        .in_set(&[Field::INPUT_LINK], PORTS.name)
        .not_in_set(&[Field::INPUT_LINK, Field::SOURCE_MAC], MACS.name)
        .verdict(Verdict::Drop)
}

/// Returns whether the table has the rule. Then it has the sets too: the kernel does not delete a set that a rule uses.
fn is_complete(nft: &mut Nftables) -> Result<bool> {
    let rule = rule();
    Ok(nft.rules(PREROUTING)?.iter().any(|found| found.is_same_as(&rule)))
}

/// Lets only frames from `mac` pass the port. Replaces an existing check of the attachment, and one that a lost DEL of
/// another attachment left for a port of this name.
pub(crate) fn add(owner: AttachmentKey<'_>, port: &str, mac: MacAddr) -> Result<()> {
    let check = SpoofCheck::new(owner, port, mac);
    let mut nft = Nftables::open()?;
    let mut add_or_replace = || {
        chains::remove(&mut nft, owner, |old| may_replace(old, port, owner))?;
        let mut edits = if is_complete(&mut nft)? { Vec::new() } else { create_table() };
        edits.extend(check.create());
        match nft.apply(&edits) {
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EEXIST)) => {}
            outcome => return Ok(outcome?),
        }
        // If an existing chain is not the expected base chain, the kernel returns an error that says so.
        nft.apply_guarded(|nft| replace(nft, owner, &check))
    };
    add_or_replace().map_err(|error| error.details(FIX_HINT)).context(|| "set up the spoof check")
}

/// Returns the edits that replace all checks with keys of the new one.
fn replace(nft: &mut Nftables, owner: AttachmentKey<'_>, new: &SpoofCheck) -> Result<Vec<Edit>> {
    let mut old = new.look_up(nft)?;
    for check in old.iter().filter_map(|(_, element)| SpoofCheck::read(element)).collect::<Vec<_>>() {
        may_replace(&check.port, &new.port, owner)?;
        for element in check.existing(nft)? {
            if !old.contains(&element) {
                old.push(element);
            }
        }
    }
    let mut edits = create_table();
    edits.extend(old.iter().flat_map(delete_element));
    edits.extend(new.create());
    Ok(edits)
}

/// Returns whether an ADD that has created the port `new` may remove the check of the port `old`: `false` if that
/// belongs to another attachment. Fails if it belongs to this attachment, which is attached already.
fn may_replace(old: &str, new: &str, owner: AttachmentKey<'_>) -> Result<bool> {
    if old == new {
        return Ok(true);
    }
    match belongs_to(&mut Netlink::open()?, old, owner)? {
        None => Ok(true),
        Some(false) => Ok(false),
        Some(true) => {
            let what = format!(
                "container {:?} has a spoof check for interface {:?} already, on port {old:?} of network {:?}",
                owner.container, owner.ifname, owner.network
            );
            Err(Error::new(Code::INTERNAL, what).details("detach the container from that network first"))
        }
    }
}

/// Returns whether the port of an attachment belongs to `owner`; `None` if it is gone, or not known to belong to any.
fn belongs_to(host: &mut Netlink, port: &str, owner: AttachmentKey<'_>) -> Result<Option<bool>> {
    // A port that is gone, as after most DELs, takes no message.
    if host.link_index(port)?.is_none() {
        return Ok(None);
    }
    let alias = host.link(port)?.map(|link| link.alias).unwrap_or_default();
    let judgement = Ownership::new(owner).judge(Trace::Alias(&alias));
    Ok((judgement != Judgement::Unknown).then_some(judgement.is_ours()))
}

/// Removes the check of an attachment that is detached, if there is one.
pub(crate) fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>) -> Result<()> {
    remove_if(nft, owner, |_| true)?;
    chains::remove(nft, owner, |port| Ok(belongs_to(host, port, owner)? != Some(false)))
}

/// Removes the check of a port that a failed ADD created. The same attachment may have an older port, whose check
/// stays.
pub(crate) fn roll_back(nft: &mut Nftables, owner: AttachmentKey<'_>, port: &str) -> Result<()> {
    remove_if(nft, owner, |checked| checked == port)
}

/// Removes the check of an attachment if its port is `wanted`.
fn remove_if(nft: &mut Nftables, owner: AttachmentKey<'_>, wanted: impl Fn(&str) -> bool) -> Result<()> {
    nft::retry(|| match SpoofCheck::find(nft, owner)? {
        Some(check) if wanted(&check.port) => check.delete(nft),
        _ => Ok(()),
    })
}

/// GC: removes the checks of stale attachments, and those of ports that are gone, on any network.
///
/// The checks are listed before the links. ADD creates a port before its check, so a port that is missing from the list
/// of links is gone, even if other networks attach and detach containers meanwhile.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let (checks, rules) = (list_own(nft)?, chains::rules(nft)?);
    let links = host.links(None)?;
    let kept = links.iter().filter(|link| !keep.is_stale_alias(&link.alias));
    let kept: SortedSet<&str> = kept.map(|link| link.name.as_str()).collect();
    let mut failures = ErrorCollector::default();
    for check in
        checks.iter().filter(|check| !kept.contains(check.port.as_str()) || keep.is_stale_comment(&check.comment))
    {
        failures.record(nft::retry(|| check.delete(nft)));
    }
    chains::collect(nft, &rules, |port| !kept.contains(port), &mut failures);
    failures.into_result()
}

/// Lists the ports with a spoof check, on all networks, each with a text that names its attachment.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<(String, String)>> {
    let own = list_own(nft)?.into_iter().map(|check| (check.port, check.comment));
    Ok(own.chain(chains::list(nft)?).collect())
}

/// Lists the checks, also those of which another program has deleted a part.
fn list_own(nft: &mut Nftables) -> Result<Vec<SpoofCheck>> {
    let mut checks = BTreeMap::new();
    for set in [ATTACHMENTS, PORTS, MACS] {
        for check in nft.elements(set)?.iter().filter_map(SpoofCheck::read) {
            checks.insert((check.port.clone(), check.mac.0, check.comment.clone()), check);
        }
    }
    Ok(checks.into_values().collect())
}

/// CHECK: returns an error unless frames from this MAC address, and no others, pass the port.
pub(crate) fn check(owner: AttachmentKey<'_>, port: &str, mac: MacAddr) -> Result<()> {
    let mut nft = Nftables::open()?;
    let wanted = SpoofCheck::new(owner, port, mac);
    let found = wanted.look_up(&mut nft)?;
    let is_own = found.iter().any(|(set, _)| *set == PORTS);
    if !is_own && chains::exist(&mut nft, owner)? {
        return chains::check(&mut nft, owner, port, mac);
    }
    if !nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
        return Err(receives_nothing(PREROUTING));
    }
    if !is_complete(&mut nft)? {
        return Err(missing(format!("no rule in chain {PREROUTING} drops frames")));
    }
    for (set, element) in wanted.elements() {
        let found = found.iter().find(|found| (found.0, &found.1.key) == (set, &element.key));
        match found.map(|(_, found)| SpoofCheck::read(found)) {
            Some(Some(found)) if found == wanted => {}
            Some(Some(found)) if (&found.port, &found.comment) == (&wanted.port, &wanted.comment) => {
                return Err(drops_all(mac, found.mac));
            }
            _ => return Err(missing(format!("set {set} has no element of port {port:?}"))),
        }
    }
    Ok(())
}

/// Returns the error for a part of a check that is missing.
fn missing(what: String) -> Error {
    Error::new(Code::INTERNAL, what)
        .details("another program flushed the host's rules; attach the container again to restore them")
}

/// Returns the error for a chain that is not a base chain.
fn receives_nothing(chain: Chain<'_>) -> Error {
    missing(format!("chain {chain} receives no frames"))
}

/// Returns the error for a MAC address that `tuning` has changed after this plugin. Frames with it are what the check
/// is for.
fn drops_all(mac: MacAddr, allowed: MacAddr) -> Error {
    let what = format!(
        "the spoof check drops all frames of the container: its MAC address is {mac}, but only {allowed} may pass"
    );
    Error::new(Code::INTERNAL, what).details(MAC_HINT)
}

/// STATUS: returns an error if the kernel would not accept a spoof check.
pub(crate) fn status() -> Result<()> {
    let mut nft = Nftables::open()?;
    // If the rule exists, the kernel has accepted it before.
    if is_complete(&mut nft)? {
        return Ok(());
    }
    let example = AttachmentKey { network: "", container: "", ifname: "" };
    let mut edits = create_table();
    edits.extend(SpoofCheck::new(example, "", MacAddr::ZERO).create());
    try_edits(&mut nft, &edits).map_err(|error| error.details(FIX_HINT)).context(|| "try the spoof check")
}
