//! The ifb links of an attachment: those with its alias, and those that the reference created, which have none.

use cni::{Attachment, AttachmentKey, Call, Interface, Judgement, KnownOwner, Ownership, Result, Trace};
use linux::Netns;
use linux::ip::MacAddr;
use linux::netlink::{Link, LinkIndex, Netlink, Redirect};

/// The kind of link.
pub(crate) const IFB: &str = "ifb";

/// Returns whether a link has the mark of an attachment: its alias, or its unique name if ADD was killed before it set
/// the alias.
pub(crate) fn is_marked(link: &Link, owner: AttachmentKey<'_>) -> bool {
    let [_, unique] = owner.ifb_names();
    Ownership::new(owner).judge(Trace::Alias(&link.alias)).is_ours() || (link.alias.is_empty() && link.name == unique)
}

/// Returns whether a link may be one that the reference created for an attachment. Other attachments have the same
/// name: see [`AttachmentKey::ifb_names`].
pub(crate) fn may_be_of_reference(link: &Link, owner: AttachmentKey<'_>) -> bool {
    let [shared, _] = owner.ifb_names();
    link.name == shared && link.alias.is_empty()
}

/// A veth, and a filter that redirects what it receives.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) veth: Link,
    pub(crate) redirect: Redirect,
}

/// Returns the veths that redirect packets to one of these links. If the link called `hint` does so, or is gone, looks
/// at no other: a host may have a thousand.
pub(crate) fn sources(host: &mut Netlink, hint: Option<&str>, targets: &[LinkIndex]) -> Result<Vec<Source>> {
    if let Some(name) = hint {
        let hinted = host.link(name)?;
        let is_gone = hinted.is_none();
        let found = sources_among(host, hinted.into_iter().filter(|link| link.kind == "veth").collect(), targets)?;
        if is_gone || !found.is_empty() {
            return Ok(found);
        }
    }
    let veths = host.links_of_kind("veth")?;
    sources_among(host, veths, targets)
}

fn sources_among(host: &mut Netlink, veths: Vec<Link>, targets: &[LinkIndex]) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for veth in veths {
        let redirects = match host.redirects(veth.index) {
            // It was deleted meanwhile.
            Err(error) if error.errno() == Some(libc::ENODEV) => continue,
            redirects => redirects?,
        };
        let ours = redirects.into_iter().filter(|redirect| redirect.to.is_some_and(|to| targets.contains(&to)));
        found.extend(ours.map(|redirect| Source { veth: veth.clone(), redirect }));
    }
    Ok(found)
}

/// What DEL knows of the attachment's veth.
pub(crate) struct Evidence<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    /// The host veth in the result of ADD.
    pub(crate) host_veth: Option<&'a Interface>,
    /// The container namespace, if it exists.
    pub(crate) netns: Option<Netns>,
}

impl<'a> Evidence<'a> {
    pub(crate) fn new(
        call: &'a Call<'_>,
        at: &'a Attachment,
        host_veth: Option<&'a Interface>,
    ) -> Result<Evidence<'a>> {
        Ok(Evidence { owner: AttachmentKey::new(call, at), host_veth, netns: at.open_netns_if_exists()? })
    }

    /// Returns whether an ifb link without an alias belongs to the attachment: no veth redirects packets to it any
    /// more, or only the veth of the attachment does.
    pub(crate) fn proves(&self, host: &mut Netlink, ifb: &Link) -> Result<bool> {
        for source in sources(host, None, &[ifb.index])? {
            if !self.is_own(host, &source.veth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a veth is that of the attachment.
    fn is_own(&self, host: &mut Netlink, veth: &Link) -> Result<bool> {
        match Ownership::new(self.owner).judge(Trace::Alias(&veth.alias)) {
            Judgement::Unknown => {}
            judgement => return Ok(judgement.is_ours()),
        }
        if let (Some(id), Some(peer)) = (veth.lower_netns, veth.lower) {
            let may_be_container = match &self.netns {
                Some(netns) => host.netns_id(netns)? == Some(id),
                None => self.host_veth.is_none(),
            };
            if may_be_container {
                let is_its = host.link_in_netns(id, peer)?.is_some_and(|guest| guest.name == self.owner.ifname);
                if self.netns.is_some() || !is_its {
                    return Ok(is_its);
                }
            }
        }
        match self.host_veth {
            // A veth that was renamed keeps its MAC address.
            Some(known) => {
                let has_mac = |mac: MacAddr| veth.mac == Some(mac);
                Ok(known.name == veth.name || known.mac.parse().is_ok_and(has_mac))
            }
            // It leads to another namespace than that of the container.
            None if self.netns.is_some() => Ok(false),
            None => Ok(!self.is_leased_to_namesake()),
        }
    }

    /// Returns whether leases prove that another attachment has an ifb link of the same name. The name is a hash of the
    /// network name with the container ID appended to it, so every other way to split that text has the same name.
    fn is_leased_to_namesake(&self) -> bool {
        let joined = format!("{}{}", self.owner.network, self.owner.container);
        let mut parts = joined.char_indices().map(|(at, _)| joined.split_at(at));
        parts.any(|(network, container)| {
            network != self.owner.network
                && !network.is_empty()
                && Ownership::new(KnownOwner::OnNetwork { network, container }).has_lease() == Some(true)
        })
    }
}
