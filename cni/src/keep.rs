//! The attachments that GC keeps.

use crate::config::ValidAttachment;
use crate::key::{self, AliasOwner, AttachmentKey};
use crate::sorted::SortedSet;

/// The valid attachments of a network, as sets of the marks that they have on the host.
///
/// A node may list 100,000 of them, so each mark is computed once, and marks found on the host are looked up.
#[derive(Debug)]
pub struct Keep<'a> {
    /// The name of the network.
    pub network: &'a str,
    /// Container and interface of each attachment.
    attachments: SortedSet<(&'a str, &'a str)>,
    /// The aliases of attachments that they cannot name in full.
    cut_aliases: SortedSet<String>,
    network_mark: String,
    digests: SortedSet<String>,
    containers: SortedSet<&'a str>,
}

impl<'a> Keep<'a> {
    /// Returns the marks of the `valid` attachments of a network.
    pub fn new(network: &'a str, valid: &'a [ValidAttachment]) -> Keep<'a> {
        let keys =
            || valid.iter().map(|valid| AttachmentKey { network, container: &valid.container, ifname: &valid.ifname });
        Keep {
            network,
            attachments: keys().map(|key| (key.container, key.ifname)).collect(),
            cut_aliases: keys().filter(|key| key.has_cut_alias()).flat_map(|key| key.aliases()).collect(),
            network_mark: key::network_mark(network),
            digests: keys().map(|key| key.digest()).collect(),
            containers: keys().map(|key| key.container).collect(),
        }
    }

    /// Returns whether a link with this alias belongs to an attachment of this network that is not kept.
    pub fn is_stale_alias(&self, alias: &str) -> bool {
        let Some(owner) = AliasOwner::parse(alias) else { return false };
        let is_kept = match &owner.attachment {
            Some((container, ifname)) => self.attachments.contains(&(container.as_str(), ifname.as_str())),
            // Without a part of the container ID, the name of the network may be cut, too.
            None => self.cut_aliases.contains(alias) || alias.split(' ').count() < 4,
        };
        owner.network == self.network && !is_kept
    }

    /// Returns whether an nftables rule with this comment belongs to an attachment of this network that is not kept.
    pub fn is_stale_comment(&self, comment: &str) -> bool {
        comment.starts_with(&self.network_mark)
            && !key::digest_in(comment).is_some_and(|digest| self.digests.contains(digest))
    }

    /// Returns whether no attachment of the network is kept.
    pub fn is_empty(&self) -> bool {
        self.attachments.is_empty()
    }

    /// Returns whether an attachment belongs to this network and is not kept.
    pub fn is_stale(&self, attachment: AttachmentKey<'_>) -> bool {
        attachment.network == self.network && !self.attachments.contains(&(attachment.container, attachment.ifname))
    }

    /// Returns the interfaces of a container that are kept.
    pub fn interfaces_of(&self, id: &str) -> impl Iterator<Item = &'a str> {
        self.attachments.iter().filter(move |(container, _)| *container == id).map(|(_, ifname)| *ifname)
    }

    /// Returns whether a container has an attachment that is kept.
    pub fn has_container(&self, id: &str) -> bool {
        self.containers.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attachments_of_the_network_that_are_not_listed_are_stale() {
        // Longer than an alias can be, so that aliases differ only in the digest at their end.
        let long = "c".repeat(300);
        let valid = ["a", "b", &long].map(|id| ValidAttachment { container: id.to_owned(), ifname: "eth0".to_owned() });
        let keep = Keep::new("net1", &valid);
        let stale = |network: &str, container: &str, ifname: &str| {
            let key = AttachmentKey { network, container, ifname };
            let stale = keep.is_stale_comment(&key.comment());
            assert_eq!(keep.is_stale(key), stale, "{key:?}");
            for alias in key.aliases() {
                assert_eq!(keep.is_stale_alias(&alias), stale, "{key:?}");
            }
            stale
        };
        for id in ["a", "b", &long] {
            assert!(!stale("net1", id, "eth0"), "{id} is listed");
            assert!(stale("net1", id, "eth1"), "{id} has another interface");
            assert!(!stale("net2", id, "eth1"), "{id} is in another network");
            assert!(keep.has_container(id));
        }
        for id in ["", "aa", "c", &"c".repeat(299), &"c".repeat(301)] {
            assert!(stale("net1", id, "eth0"), "{id} is not listed");
            assert!(!keep.has_container(id));
        }
        for other in ["", "uplink", "8e48f37d5de60467"] {
            assert!(!keep.is_stale_comment(other) && !keep.is_stale_alias(other), "{other:?}");
        }
    }

    /// The alias of a network with a long name does not name the network in full.
    #[test]
    fn a_network_whose_name_is_the_beginning_of_another_one_removes_nothing() {
        let network = "n".repeat(300);
        let alias = AttachmentKey { network: &network, container: "c1", ifname: "eth0" }.alias();
        for len in 1..network.len() {
            assert!(!Keep::new(&network[..len], &[]).is_stale_alias(&alias), "{len}");
        }
    }
}
