//! Deletes the links of an attachment in the container that provably belong to the attachment.

use cni::key::AliasOwner;
use cni::{Attachment, AttachmentKey, Call, Context, Delegate, ErrorCollector, Guest, Namespaces, Ownership, Result};
use linux::log::warn;
use linux::netlink::{Link, LinkIndex, Upper};

use crate::name;

/// How many links are deleted at most: a container can create any number with the alias, and the kernel waits for each.
const MOST: usize = 8;

/// Deletes the links of one of `kinds` that have the alias of the attachment, whatever their names are now. Only a link
/// that the reference created has no alias; that one is deleted by its name.
pub fn delete_container_link(
    call: &Call<'_>,
    at: &Attachment,
    kinds: &[&str],
    ipam: Option<&Delegate<'_>>,
) -> Result<()> {
    let Some(namespaces) = Namespaces::open_if_exists(call, at)? else { return Ok(()) };
    let key = AttachmentKey::new(call, at);
    let aliases = key.aliases();
    let mut guest = namespaces.open_guest(at)?;
    let mut links = guest.netlink.links(None)?;
    links.retain(|link| kinds.contains(&link.kind.as_str()));
    let indexes = name::indexes(key);
    // An ADD that was killed may have left a link without an alias.
    let is_marked =
        |link: &&Link| aliases.contains(&link.alias) || link.alias.is_empty() && indexes.contains(&link.index);
    // A repeated ADD creates another link if the container has renamed the first one.
    let mut marked: Vec<&Link> = links.iter().filter(is_marked).collect();
    // The one that ADD created is among the first, whatever else the container has created.
    marked.sort_by_key(|link| link.name != at.ifname.as_str());
    let mut found: Vec<LinkIndex> = marked.iter().map(|link| link.index).take(MOST).collect();
    if found.is_empty() {
        links.retain(|link| link.name == at.ifname.as_str() && AliasOwner::parse(&link.alias).is_none());
        let Some(link) = links.first() else { return Ok(()) };
        if !is_ours(call, at, &mut guest, link, ipam)? {
            let name = &link.name;
            warn!("keep {name:?} in {:?}: cannot prove that it belongs to this attachment", at.sandbox());
            return Ok(());
        }
        found.push(link.index);
    }
    let mut failures = ErrorCollector::default();
    for index in found {
        // The kernel waits for other processors before it answers, long after the link is gone.
        let delete = || Ok(guest.netlink.delete_link_detached(index, None)?);
        failures.record(namespaces.in_guest(delete).context(|| format!("in {:?}", at.sandbox())));
    }
    failures.into_result()
}

/// Returns whether a link without an alias provably belongs to the attachment: it has the MAC address of the result of
/// ADD, if that was chosen at random and is not that of a master, or only addresses that are leased to the attachment.
/// By now the path may lead to the namespace of another container, whose interface has the same name.
pub fn is_ours(
    call: &Call<'_>,
    at: &Attachment,
    guest: &mut Guest<'_>,
    link: &Link,
    ipam: Option<&Delegate<'_>>,
) -> Result<bool> {
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let prev_result = call.prev_result_to_clean_up();
    let is_listed = |name: &str, sandbox: &str| name == at.ifname.as_str() && !sandbox.is_empty();
    let mut listed = prev_result.interfaces.iter().filter(|listed| is_listed(&listed.name, &listed.sandbox));
    let has_own_mac = !matches!(link.upper, Some(Upper::Ipvlan { .. } | Upper::Vlan(_)));
    if has_own_mac && listed.any(|listed| !mac.is_empty() && listed.mac == mac) {
        return Ok(true);
    }
    let leased = ipam.map(|ipam| ipam.leased_to(at)).transpose()?.flatten();
    let leased = leased.unwrap_or_else(|| Ownership::new(AttachmentKey::new(call, at)).leased_addresses(call));
    let addresses = guest.netlink.addresses(link.index)?;
    let mut global = addresses.iter().filter(|address| address.global).map(|address| address.cidr.ip()).peekable();
    Ok(global.peek().is_some() && global.all(|ip| leased.contains(&ip)))
}
