//! Whether an attachment that seemed to be gone exists after all, now.

use cni::key::AliasOwner;
use cni::{AttachmentKey, Result, Suspect};
use linux::netlink::Netlink;

use crate::cache::Cache;
use crate::chain::Endpoint;
use crate::node::{Attachment, Place, place};

/// The attachments of a network that an inspection found to be gone.
pub(super) struct Liveness<'a> {
    pub(super) network: &'a str,
    pub(super) dead: &'a [Attachment],
}

impl Liveness<'_> {
    /// Returns whether a link of the host, or the cache, shows that the attachment exists, or that cannot be
    /// determined.
    pub(super) fn is_alive(&self, suspect: Suspect<'_>) -> bool {
        self.look(suspect).unwrap_or(true)
    }

    /// Returns whether an attachment exists.
    pub(super) fn has(&self, at: &Endpoint) -> bool {
        let key = self.key(at.container.as_str(), at.ifname.as_str());
        self.is_alive(Suspect::Digest(&key.digest()))
    }

    fn key<'a>(&'a self, container: &'a str, ifname: &'a str) -> AttachmentKey<'a> {
        AttachmentKey { network: self.network, container, ifname }
    }

    fn look(&self, suspect: Suspect<'_>) -> Result<bool> {
        let is_it = |key: AttachmentKey<'_>| match suspect {
            Suspect::Digest(digest) => key.digest() == digest,
            Suspect::Container(id) => key.container == id,
        };
        let dead = self.dead.iter().map(|at| self.key(&at.container, at.ifname.as_deref().unwrap_or_default()));
        let candidates: Vec<AttachmentKey<'_>> = dead.filter(|key| is_it(*key)).collect();
        for key in &candidates {
            let entry = Cache::of_host().load(key.network, key.container, key.ifname)?;
            if entry.and_then(|entry| entry.netns).is_some_and(|path| place(&path) == Place::Exists) {
                return Ok(true);
            }
        }
        // An ifb link stays when its container is gone; the host veth does not.
        let links = Netlink::open()?.links(None)?;
        let aliases = links.iter().filter(|link| link.kind == "veth").map(|link| &link.alias);
        Ok(aliases.into_iter().any(|alias| match AliasOwner::parse(alias) {
            Some(owner) if owner.network == self.network => match owner.attachment {
                Some((container, ifname)) => is_it(self.key(&container, &ifname)),
                // A cut alias does not say whose it is.
                None => candidates.is_empty() || candidates.iter().any(|key| key.aliases().contains(alias)),
            },
            _ => false,
        }))
    }
}
