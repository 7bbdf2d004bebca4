//! DEL: takes the interface out of its VRF, and deletes the VRF with the last one.

use cni::{Attachment, AttachmentKey, Call, Context, Guest, Judgement, Namespaces, Ownership, Result, Trace};
use interface::lock::lock_namespace;
use interface::removal::is_ours;
use linux::log::warn;
use linux::netlink::{Change, Link, LinkIndex};

use crate::{ALIAS, VRF, named};

/// How many VRFs are deleted at most: a container can create any number with the alias, and the kernel waits for each.
const MOST: usize = 8;

/// Removes what provably belongs to the attachment. Succeeds if the namespace, the interface or the VRF is gone.
pub(crate) fn run(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let Some(namespaces) = Namespaces::open_if_exists(call, at)? else { return Ok(()) };
    lock_namespace(&namespaces.guest)?;
    let mut guest = namespaces.open_guest(at)?;
    let links = guest.netlink.links(None)?;
    let is_member = |link: &&Link| vrf_of(&links, link).is_some();
    let aliases = AttachmentKey::new(call, at).aliases();
    // Another interface can have its name by now.
    let marked = links.iter().filter(|link| aliases.contains(&link.alias)).filter(is_member);
    let marked = marked.min_by_key(|link| link.name != at.ifname.as_str());
    let released = match marked.or_else(|| named(&links, at.ifname.as_str()).filter(is_member)) {
        Some(link) if has_proof(call, at, &mut guest, link)? => Some(link),
        Some(link) => {
            let (name, sandbox) = (&link.name, at.sandbox());
            warn!("keep {name:?} in {sandbox:?} in its VRF: cannot prove that it belongs to this attachment");
            None
        }
        None => None,
    };
    let mut changes: Vec<_> = released.iter().map(|link| Change::set_master(link.index, None)).collect();
    changes.extend(unused_vrfs(&links, released).into_iter().map(Change::delete_link));
    let removed = guest.netlink.apply_ignoring(&changes, &[libc::ENODEV, libc::ENXIO]);
    removed.context(|| format!("in {:?}", at.sandbox()))
}

/// Returns the VRF that a link is a member of.
pub(crate) fn vrf_of<'a>(links: &'a [Link], member: &Link) -> Option<&'a Link> {
    links.iter().find(|link| Some(link.index) == member.master && link.kind == VRF)
}

/// Returns the VRFs without members, if `released` is none any more: those that ADD has created, and that of
/// `released`, which the reference may have created. Others belong to the programs of the container.
pub(crate) fn unused_vrfs(links: &[Link], released: Option<&Link>) -> Vec<LinkIndex> {
    let is_member = |link: &Link, vrf: &Link| {
        link.master == Some(vrf.index) && released.is_none_or(|released| released.index != link.index)
    };
    let is_unused = |vrf: &&Link| {
        let may_delete = vrf.alias == ALIAS
            || vrf.alias.is_empty() && released.is_some_and(|released| released.master == Some(vrf.index));
        vrf.kind == VRF && may_delete && !links.iter().any(|link| is_member(link, vrf))
    };
    links.iter().filter(is_unused).map(|vrf| vrf.index).take(MOST).collect()
}

/// Returns whether the interface provably belongs to the attachment: by now the path may lead to the namespace of
/// another container, whose interface has the same name.
fn has_proof(call: &Call<'_>, at: &Attachment, guest: &mut Guest<'_>, link: &Link) -> Result<bool> {
    match Ownership::new(AttachmentKey::new(call, at)).judge(Trace::Alias(&link.alias)) {
        Judgement::Ours(_) => Ok(true),
        Judgement::Others(_) => Ok(false),
        Judgement::Possible(_) | Judgement::Unknown => is_ours(call, at, guest, link, None),
    }
}
