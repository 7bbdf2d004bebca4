//! The key of an attachment, and every mark derived from it: by these DEL and GC recognise what belongs to whom.
//!
//! Comments and chain names are those of the reference, so that each implementation removes what the other made. The
//! alias is our own.

use crate::name::IfName;
use crate::plugin::{Attachment, Call};
use crate::sha512;

/// The longest comment that the reference writes, in bytes.
const COMMENT: usize = 128;
/// The digits of each of the two digests that a mark consists of.
const DIGEST: usize = 16;
/// The longest alias that the kernel keeps, in bytes (IFALIASZ less the final NUL).
const ALIAS: usize = 255;

/// Identifies an attachment on this host: network, container and interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentKey<'a> {
    /// Name of the network.
    pub network: &'a str,
    /// The container's id.
    pub container: &'a str,
    /// The interface in the container.
    pub ifname: &'a str,
}

impl<'a> AttachmentKey<'a> {
    /// Returns the key of the attachment that a call is about.
    pub fn new(call: &'a Call<'_>, at: &'a Attachment) -> AttachmentKey<'a> {
        AttachmentKey { network: call.network.as_str(), container: at.container.as_str(), ifname: at.ifname.as_str() }
    }

    /// Returns the alias of a link that belongs to this attachment, such as the host veth.
    pub fn alias(&self) -> String {
        let alias = format!("{}{} {}", alias_prefix(self.network), self.container, self.ifname);
        if alias.len() <= ALIAS {
            return alias;
        }
        // Two long aliases with the same beginning must stay distinct.
        let digest = sha512::hex(16, &alias);
        format!("{} {digest}", cut(alias, ALIAS - 1 - digest.len()))
    }

    /// Returns the beginning of the comments of this attachment's nftables rules.
    pub fn mark(&self) -> String {
        format!("{}{}", network_mark(self.network), self.digest())
    }

    /// Returns the second half of the mark, which identifies the attachment within its network.
    pub fn digest(&self) -> String {
        sha512::hex(DIGEST, &format!("{}:{}", self.ifname, self.container))
    }

    /// Returns the comment of an nftables masquerade rule.
    pub fn comment(&self) -> String {
        let AttachmentKey { network, container, ifname } = self;
        cut(format!("{}, net: {network}, if: {ifname}, id: {container}", self.mark()), COMMENT)
    }

    /// Returns the name of the iptables chain, which all attachments of a container to a network share.
    pub fn chain(&self) -> String {
        format!("CNI-{}", sha512::hex(24, &format!("{}{}", self.network, self.container)))
    }

    /// Returns the comment of all iptables rules.
    pub fn iptables_comment(&self) -> String {
        format!("{}{}\"", iptables_prefix(self.network), self.container)
    }

    /// Returns the end of the names of the spoof check's chains.
    pub fn reference(&self) -> String {
        format!("{}-{}", self.container, self.ifname)
    }
}

/// Returns the beginning of the alias of every link of a network.
pub fn alias_prefix(network: &str) -> String {
    format!("cni0 {network} ")
}

/// Returns the number that the gateway addresses of a network are marked with (IFA_PROTO). Two networks may have the same
/// one. Numbers below 64 are left to the kernel and to other programs.
pub fn address_mark(network: &str) -> u8 {
    let digest = u8::from_str_radix(&sha512::hex(2, network), 16).unwrap_or_default();
    64 + digest % 192
}

/// Returns the beginning of the comments of a network's nftables rules.
pub fn network_mark(network: &str) -> String {
    format!("{}-", sha512::hex(DIGEST, network))
}

/// Returns the digest of the attachment that the comment of an nftables rule names; `None` if the comment is too short.
///
/// All marks have the same length, so the owner of a rule is found by one lookup instead of a comparison per attachment.
pub fn digest_in(comment: &str) -> Option<&str> {
    comment.get(DIGEST + 1..DIGEST + 1 + DIGEST)
}

/// Returns the beginning of the comments of a network's iptables rules; the container's id and a quote follow.
pub fn iptables_prefix(network: &str) -> String {
    format!("name: \"{network}\" id: \"")
}

/// The owner of a link, as its alias names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasOwner {
    /// The network.
    pub network: String,
    /// The container and its interface; `None` if they were too long for the alias.
    pub attachment: Option<(String, String)>,
}

impl AliasOwner {
    /// Reads an alias; `None` if it is not one of ours.
    pub fn parse(alias: &str) -> Option<AliasOwner> {
        let words: Vec<&str> = alias.split(' ').collect();
        let ["cni0", network, rest @ ..] = words.as_slice() else { return None };
        let attachment = match rest {
            // The digest at the end of a long alias is too long for the name of an interface.
            [container, ifname] if IfName::from_config(ifname).is_ok() => {
                Some(((*container).to_owned(), (*ifname).to_owned()))
            }
            _ => None,
        };
        Some(AliasOwner { network: (*network).to_owned(), attachment })
    }
}

/// Returns at most `max` bytes of `text`, which is ASCII but for the name of an interface.
fn cut(mut text: String, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "cid1", ifname: "eth0" };

    #[test]
    fn names_are_those_of_the_reference() {
        assert_eq!(KEY.chain(), "CNI-e8f6f419596f7f47b3468487");
        assert_eq!(KEY.iptables_comment(), "name: \"net1\" id: \"cid1\"");
        assert_eq!(KEY.comment(), "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1");
        assert!(KEY.comment().starts_with(&network_mark("net1")));
        assert_eq!(digest_in(&KEY.comment()), Some(KEY.digest().as_str()));
        assert_eq!(digest_in("8e48f37d5de60467-"), None);
        assert_eq!(KEY.reference(), "cid1-eth0");
    }

    #[test]
    fn an_address_mark_is_no_number_of_the_kernel() {
        assert!((0..1000).all(|n| address_mark(&format!("net{n}")) >= 64));
        assert_eq!(address_mark("net1"), 206);
    }

    #[test]
    fn long_names_are_cut() {
        let container = "c".repeat(300);
        let key = AttachmentKey { container: &container, ..KEY };
        assert_eq!(key.comment().len(), 128);
        assert_eq!(key.alias().len(), 255);
        assert!(key.alias().starts_with(&alias_prefix("net1")));
        assert_eq!(key.chain().len(), 28, "as long as iptables allows");
    }

    #[test]
    fn an_alias_names_the_owner_of_a_link() {
        let owner = AliasOwner::parse(&KEY.alias()).unwrap();
        assert_eq!((owner.network.as_str(), owner.attachment), ("net1", Some(("cid1".to_owned(), "eth0".to_owned()))));
        let cut = AliasOwner::parse(&AttachmentKey { container: &"c".repeat(300), ..KEY }.alias()).unwrap();
        assert_eq!((cut.network.as_str(), cut.attachment), ("net1", None));
        for other in ["", "cni0", "uplink to rack 4", "net1 c1 eth0"] {
            assert_eq!(AliasOwner::parse(other), None, "{other}");
        }
    }
}
