//! The attachments that a garbage collection keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use crate::config::ValidAttachment;
use crate::key::{self, AliasOwner, AttachmentKey};
use crate::sorted::SortedSet;

/// Decides which attachments of a network a garbage collection keeps. The objects of all others are stale.
///
/// GC keeps the attachments that the runtime lists, and nothing else. A tool cannot know what other runtimes attach
/// meanwhile: it removes the attachments that are gone, and keeps everything else.
///
/// A node may list 100,000 attachments, so each mark is computed once, and marks found on the host are looked up.
#[derive(Debug)]
pub struct Keep<'a> {
    /// The name of the network.
    pub network: &'a str,
    network_mark: String,
    rule: Rule<'a>,
    /// The attachments that are known to be kept.
    kept: &'a [ValidAttachment],
    /// The attachments that the rule names, by container and interface, and by their marks on the host.
    attachments: SortedSet<(&'a str, &'a str)>,
    digests: SortedSet<String>,
    containers: SortedSet<&'a str>,
    /// The aliases of attachments that they cannot name in full.
    cut_aliases: SortedSet<String>,
}

/// What is done with the attachments that are named.
#[derive(Debug)]
enum Rule<'a> {
    /// They are kept.
    KeepThese,
    /// They are removed, unless they have come back.
    RemoveThese(Gone<'a>),
}

/// The attachments of a network that are gone.
#[derive(Clone, Copy)]
pub struct Gone<'a> {
    /// Those that are known by name.
    pub attachments: &'a [ValidAttachment],
    /// The [digests](AttachmentKey::digest) of those that are known only by an object that they left.
    pub digests: &'a [String],
    /// Those that are known not to be gone.
    pub kept: &'a [ValidAttachment],
    /// The leases of those that are gone, and leases without an owner, each with the time of its last change.
    pub leases: &'a [(IpAddr, SystemTime)],
    /// Returns whether an attachment exists. It is called at the moment of each removal, under the lock of the object,
    /// because a runtime can attach the same container again.
    pub is_alive: &'a dyn Fn(Suspect<'_>) -> bool,
}

/// An attachment that may be gone, as far as its object identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect<'a> {
    /// The attachment with this [digest](AttachmentKey::digest).
    Digest(&'a str),
    /// Any attachment of this container to the network.
    Container(&'a str),
}

impl fmt::Debug for Gone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gone").field("attachments", &self.attachments).field("digests", &self.digests).finish()
    }
}

impl<'a> Keep<'a> {
    /// Keeps the `valid` attachments of a network, as GC does.
    pub fn new(network: &'a str, valid: &'a [ValidAttachment]) -> Keep<'a> {
        Keep::of(network, valid, &[], valid, Rule::KeepThese)
    }

    /// Keeps everything but what is gone.
    pub fn all_but(network: &'a str, gone: Gone<'a>) -> Keep<'a> {
        Keep::of(network, gone.attachments, gone.digests, gone.kept, Rule::RemoveThese(gone))
    }

    fn of(
        network: &'a str,
        named: &'a [ValidAttachment],
        digests: &[String],
        kept: &'a [ValidAttachment],
        rule: Rule<'a>,
    ) -> Keep<'a> {
        let keys =
            || named.iter().map(|named| AttachmentKey { network, container: &named.container, ifname: &named.ifname });
        Keep {
            network,
            network_mark: key::network_mark(network),
            rule,
            kept,
            attachments: keys().map(|key| (key.container, key.ifname)).collect(),
            digests: keys().map(|key| key.digest()).chain(digests.iter().cloned()).collect(),
            containers: keys().map(|key| key.container).collect(),
            cut_aliases: keys().filter(|key| key.has_cut_alias()).flat_map(|key| key.aliases()).collect(),
        }
    }

    /// Returns whether an attachment is stale, if the rule names it or not.
    fn decide(&self, is_named: bool, suspect: Suspect<'_>) -> bool {
        match &self.rule {
            Rule::KeepThese => !is_named,
            Rule::RemoveThese(gone) => is_named && !(gone.is_alive)(suspect),
        }
    }

    /// Returns whether a link with this alias belongs to an attachment of this network that is not kept.
    pub fn is_stale_alias(&self, alias: &str) -> bool {
        let Some(owner) = AliasOwner::parse(alias).filter(|owner| owner.network == self.network) else { return false };
        match &owner.attachment {
            Some((container, ifname)) => self.is_stale(AttachmentKey { network: self.network, container, ifname }),
            // Without a part of the container ID, the name of the network may be cut, too.
            None if alias.split(' ').count() < 4 => false,
            None if !self.cut_aliases.contains(alias) => matches!(self.rule, Rule::KeepThese),
            None => {
                let network = self.network;
                let mut named =
                    self.attachments.iter().map(|&(container, ifname)| AttachmentKey { network, container, ifname });
                named.find(|key| key.aliases().iter().any(|own| own == alias)).is_some_and(|key| self.is_stale(key))
            }
        }
    }

    /// Returns whether an nftables rule with this comment belongs to an attachment of this network that is not kept.
    pub fn is_stale_comment(&self, comment: &str) -> bool {
        comment.starts_with(&self.network_mark) && self.is_stale_digest(key::digest_in(comment).unwrap_or_default())
    }

    fn is_stale_digest(&self, digest: &str) -> bool {
        self.decide(self.digests.contains(digest), Suspect::Digest(digest))
    }

    /// Returns whether no attachment of the network is kept.
    pub fn is_empty(&self) -> bool {
        matches!(self.rule, Rule::KeepThese) && self.attachments.is_empty()
    }

    /// Returns whether an attachment belongs to this network and is not kept.
    pub fn is_stale(&self, attachment: AttachmentKey<'_>) -> bool {
        attachment.network == self.network
            && match self.rule {
                // Without computing a digest: there may be many attachments.
                Rule::KeepThese => !self.attachments.contains(&(attachment.container, attachment.ifname)),
                Rule::RemoveThese(_) => self.is_stale_digest(&attachment.digest()),
            }
    }

    /// Returns a function that decides whether what `value` derives from an attachment belongs to one that is not kept:
    /// for objects that only have such a value.
    pub fn stale_by<T: Ord>(&self, value: impl Fn(AttachmentKey<'_>) -> T) -> impl Fn(&T) -> bool {
        let network = self.network;
        let named = self.attachments.iter().map(|&(container, ifname)| AttachmentKey { network, container, ifname });
        let named: BTreeMap<T, AttachmentKey<'_>> = named.map(|key| (value(key), key)).collect();
        move |found| {
            named.get(found).map_or(matches!(self.rule, Rule::KeepThese), |attachment| self.is_stale(*attachment))
        }
    }

    /// Returns whether a container has an attachment that is kept.
    pub fn has_container(&self, id: &str) -> bool {
        !self.decide(self.containers.contains(id), Suspect::Container(id))
    }

    /// Returns whether a lease that was last changed at `since` can be stale: one that is newer belongs to a later
    /// attachment.
    pub fn may_be_stale(&self, ip: IpAddr, since: SystemTime) -> bool {
        match &self.rule {
            Rule::KeepThese => true,
            Rule::RemoveThese(gone) => gone.leases.contains(&(ip, since)),
        }
    }

    /// Returns the interfaces of a container that are known to be kept.
    pub fn interfaces_of(&self, id: &str) -> impl Iterator<Item = &'a str> {
        self.kept.iter().filter(move |kept| kept.container == id).map(|kept| kept.ifname.as_str())
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

    #[test]
    fn only_attachments_that_are_gone_and_have_not_come_back_are_stale() {
        let gone = ["a", "b"].map(|id| ValidAttachment { container: id.to_owned(), ifname: "eth0".to_owned() });
        let key = |container, ifname| AttachmentKey { network: "net1", container, ifname };
        let back = key("b", "eth0").digest();
        let is_alive =
            |suspect: Suspect<'_>| matches!(suspect, Suspect::Container("b")) || suspect == Suspect::Digest(&back);
        let left = [key("left", "eth0").digest()];
        let keep = Keep::all_but(
            "net1",
            Gone { attachments: &gone, digests: &left, kept: &[], leases: &[], is_alive: &is_alive },
        );
        for (id, ifname, stale) in
            [("a", "eth0", true), ("a", "eth1", false), ("b", "eth0", false), ("new", "eth0", false)]
        {
            let key = key(id, ifname);
            assert_eq!(keep.is_stale(key), stale, "{key:?}");
            assert_eq!(keep.is_stale_comment(&key.comment()), stale, "{key:?}");
            assert_eq!(keep.is_stale_alias(&key.alias()), stale, "{key:?}");
        }
        let is_stale = keep.stale_by(|key| format!("{}/{}", key.container, key.ifname));
        assert!(
            is_stale(&"a/eth0".to_owned())
                && !["b/eth0", "a/eth1", "new/eth0"].iter().any(|at| is_stale(&at.to_string()))
        );
        let listed = Keep::new("net1", &gone);
        let is_stale = listed.stale_by(|key| key.container.to_owned());
        assert!(is_stale(&"new".to_owned()) && !is_stale(&"b".to_owned()));
        assert!(keep.is_stale(key("left", "eth0")) && keep.is_stale_comment(&key("left", "eth0").comment()));
        assert!(!keep.is_empty() && Keep::new("net1", &[]).is_empty());
        assert!(!keep.has_container("a") && keep.has_container("b") && keep.has_container("new"));
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
