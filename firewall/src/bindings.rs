//! Records of the addresses that this plugin has bound to zones of firewalld.
//!
//! ```text
//! table inet cni_firewalld {
//!     set sources { type ipv6_addr; elements = { ::ffff:10.22.0.2 comment "…" } }
//! }
//! ```
//!
//! firewalld does not know who bound an address. The comment of an element is that of the attachment, and its mark is
//! the zone. ADD records an address before it binds it, and only if the address is not bound yet: GC and DEL find the
//! bindings of this plugin by the records, and never those of another program. firewalld changes only tables of its
//! own. The records of bindings that it has forgotten are harmless.

use std::net::{IpAddr, Ipv6Addr};

use cni::{AttachmentKey, Context, Result};
use linux::netlink::nft::{DataType, Edit, Element, Elements, Family, MapsTo, Nftables, Set, SetSpec, Table, Value};

use crate::config::Zone;

const TABLE: Table<'_> = Table { family: Family::Inet, name: "cni_firewalld" };
const SOURCES: Set<'_> = TABLE.set("sources");
const KEY: [DataType; 1] = [DataType::Ipv6];

/// An address that this plugin has bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) ip: IpAddr,
    pub(crate) zone: Zone,
    /// The comment of the attachment.
    pub(crate) comment: String,
}

/// Returns the recorded bindings with comments for which `wanted` returns true.
pub(crate) fn list(nft: &mut Nftables, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Binding>> {
    let elements = nft.elements(SOURCES)?.into_iter().filter(|found| wanted(&found.userdata.comment));
    let binding = |found: Element| {
        let Value::Ip(ip) = Value::split(&KEY, &found.key)?.pop()? else { return None };
        let zone = Zone::parse(&found.userdata.mark).ok()?;
        Some(Binding { ip: ip.to_canonical(), zone, comment: found.userdata.comment })
    };
    Ok(elements.filter_map(binding).collect())
}

/// Records that an attachment has an address in a zone. Without `is_new`, another program may have bound the address;
/// then the record changes its owner if there is one, and is not created.
pub(crate) fn record(
    nft: &mut Nftables,
    owner: AttachmentKey<'_>,
    zone: &Zone,
    ip: IpAddr,
    is_new: bool,
) -> Result<()> {
    let wanted = Binding { ip: ip.to_canonical(), zone: zone.clone(), comment: owner.comment() };
    let recorded = nft.apply_guarded(|nft| -> Result<Vec<Edit>> {
        let found: Vec<Binding> = list(nft, &|_| true)?.into_iter().filter(|found| found.ip == wanted.ip).collect();
        if found.contains(&wanted) || (found.is_empty() && !is_new) {
            return Ok(Vec::new());
        }
        let spec = SetSpec { set: SOURCES, key: &KEY, maps_to: MapsTo::Nothing, elements: Elements::Keys };
        let mut edits = vec![Edit::add_table(TABLE), Edit::add_set(&spec)];
        edits.extend(delete(&found));
        edits.extend(Edit::create_elements(SOURCES, &[element(&wanted)]));
        Ok(edits)
    });
    recorded.context(|| format!("record that {ip} is bound to firewalld zone {zone}"))
}

/// Deletes records, unless an attachment with another comment has taken them over.
pub(crate) fn forget(nft: &mut Nftables, bindings: &[Binding]) -> Result<()> {
    if bindings.is_empty() {
        return Ok(());
    }
    nft.apply_guarded(|nft| {
        Ok(delete(&list(nft, &|_| true)?.into_iter().filter(|found| bindings.contains(found)).collect::<Vec<_>>()))
    })
}

fn delete(bindings: &[Binding]) -> Vec<Edit> {
    Edit::delete_elements(SOURCES, &bindings.iter().map(element).collect::<Vec<_>>())
}

fn element(binding: &Binding) -> Element {
    let ip: Ipv6Addr = match binding.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Element::new(&[Value::Ip(ip.into())]).comment(binding.comment.clone()).mark(binding.zone.as_str())
}
