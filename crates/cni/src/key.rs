//! The key of an attachment, and every mark derived from it. DEL and GC find the objects of an attachment by these
//! marks.
//!
//! Comments and chain names are those of the reference, so that each implementation can remove the objects of the
//! other. The alias exists only in cni0.

use linux::sha2::sha512;

use crate::name::IfName;
use crate::plugin::{Attachment, Call};

/// Maximum length of a comment in the reference, in bytes.
const COMMENT: usize = 128;
/// Number of digits of each of the two digests in a mark.
const DIGEST: usize = 16;
/// Maximum length of an alias in the kernel, in bytes (IFALIASZ less the final NUL).
const ALIAS: usize = 255;
/// The first word of an alias, which says what the other words name.
const ALIAS_WORD: &str = "cni-attachment";
/// The first word of an alias that earlier versions set. Containers that they attached stay attached when a node is
/// upgraded, so DEL and GC recognise it too.
const OLD_ALIAS_WORD: &str = "cni0";

/// Identifies an attachment on this host: network, container and interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentKey<'a> {
    /// The name of the network.
    pub network: &'a str,
    /// The container ID.
    pub container: &'a str,
    /// The interface name in the container.
    pub ifname: &'a str,
}

impl<'a> AttachmentKey<'a> {
    /// Returns the key of the attachment in a call.
    pub fn new(call: &'a Call<'_>, at: &'a Attachment) -> AttachmentKey<'a> {
        AttachmentKey { network: call.network.as_str(), container: at.container.as_str(), ifname: at.ifname.as_str() }
    }

    /// Returns the alias that ADD sets on a link of this attachment, such as the host veth.
    pub fn alias(&self) -> String {
        self.alias_with(ALIAS_WORD)
    }

    /// Returns all aliases by which a link of this attachment is recognised: the one that ADD sets, and the one that
    /// earlier versions set.
    pub fn aliases(&self) -> [String; 2] {
        [self.alias(), self.alias_with(OLD_ALIAS_WORD)]
    }

    /// Returns whether a link with this alias belongs to another attachment of the same container to the same network.
    pub fn is_sibling_alias(&self, alias: &str) -> bool {
        AliasOwner::parse(alias)
            .filter(|owner| owner.network == self.network)
            .and_then(|owner| owner.attachment)
            .is_some_and(|(container, ifname)| container == self.container && ifname != self.ifname)
    }

    /// Returns whether the alias is cut, because it would be too long for the kernel. Then it does not name the
    /// attachment.
    pub fn has_cut_alias(&self) -> bool {
        let words = [ALIAS_WORD, self.network, self.container, self.ifname];
        words.map(|word| word.len() + 1).iter().sum::<usize>() > ALIAS + 1
    }

    fn alias_with(&self, word: &str) -> String {
        let alias = format!("{word} {} {} {}", self.network, self.container, self.ifname);
        if alias.len() <= ALIAS {
            return alias;
        }
        // Two long aliases with the same beginning must stay distinct.
        let digest = sha512(16, &alias);
        format!("{} {digest}", cut(alias, ALIAS - 1 - digest.len()))
    }

    /// Returns the alternative name that ADD gives to a device of the host while the container has it. The alias of
    /// such a device is its name on the host, as the reference sets it.
    pub fn alternative_name(&self) -> String {
        format!("{ALIAS_WORD}-{}", self.mark())
    }

    /// Returns the prefix of the comments of this attachment's nftables rules.
    pub fn mark(&self) -> String {
        format!("{}{}", network_mark(self.network), self.digest())
    }

    /// Returns the second half of the mark, which identifies the attachment within its network.
    pub fn digest(&self) -> String {
        sha512(DIGEST, &format!("{}:{}", self.ifname, self.container))
    }

    /// Returns the comment of an nftables masquerade rule.
    pub fn comment(&self) -> String {
        let AttachmentKey { network, container, ifname } = self;
        cut(format!("{}, net: {network}, if: {ifname}, id: {container}", self.mark()), COMMENT)
    }

    /// Returns the name of the iptables chain, which all attachments of a container to a network share.
    pub fn chain(&self) -> String {
        format!("CNI-{}", sha512(24, &format!("{}{}", self.network, self.container)))
    }

    /// Returns the name of the iptables chain with the published ports, which all attachments of a container to a
    /// network share.
    pub fn port_chain(&self) -> String {
        format!("CNI-DN-{}", sha512(21, &format!("{}{}", self.network, self.container)))
    }

    /// Returns the names of an ifb link. The first is that of the reference, which all attachments of a container to a
    /// network share, and those of other networks and containers whose names are the same if one is appended to the
    /// other. The second, for use if another attachment has the first, is unique.
    pub fn ifb_names(&self) -> [String; 2] {
        let AttachmentKey { network, container, ifname } = self;
        [format!("{network}{container}"), format!("{network} {container} {ifname}")]
            .map(|text| format!("bwp{}", sha512(12, &text)))
    }

    /// Returns the comment of all iptables rules.
    pub fn iptables_comment(&self) -> String {
        format!("{}{}\"", iptables_prefix(self.network), self.container)
    }

    /// Returns the suffix of the names of the spoof check chains of the reference.
    pub fn chain_suffix(&self) -> String {
        format!("{}-{}", self.container, self.ifname)
    }
}

/// Returns the number with which the gateway addresses of a network are marked (IFA_PROTO). Two networks may have the
/// same number. Numbers below 64 are left to the kernel and to other programs.
pub fn address_mark(network: &str) -> u8 {
    let digest = u8::from_str_radix(&sha512(2, network), 16).unwrap_or_default();
    64 + digest % 192
}

/// Returns the prefix of the comments of a network's nftables rules.
pub fn network_mark(network: &str) -> String {
    format!("{}-", sha512(DIGEST, network))
}

/// Returns the mark of the network in the comment of an nftables object; `None` if the comment is too short.
pub fn network_mark_in(comment: &str) -> Option<&str> {
    comment.get(..=DIGEST)
}

/// Returns the mark of the attachment in the comment of an nftables object; `None` if the comment has none.
pub fn mark_in(comment: &str) -> Option<&str> {
    comment.get(..DIGEST + 1 + DIGEST).filter(|mark| mark.as_bytes().get(DIGEST) == Some(&b'-'))
}

/// Returns the mark of the attachment in an alternative name of a link; `None` if it is another name. A container can
/// choose any name, so the mark is validated: it is also the name of a file.
pub fn mark_in_alternative_name(name: &str) -> Option<&str> {
    let mark = name.strip_prefix(ALIAS_WORD)?.strip_prefix('-').filter(|mark| mark_in(mark) == Some(mark))?;
    mark.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-').then_some(mark)
}

/// Combines both halves of an attachment's mark to 15 digits, which fit into the key of a set that `nft` shows as text.
pub fn short_mark(mark: &str) -> String {
    let halves = mark.split('-').filter_map(|half| u64::from_str_radix(half, 16).ok());
    format!("{:015x}", halves.fold(0_u64, |all, half| all.rotate_left(1) ^ half) >> 4)
}

/// Returns the attachment's digest in the comment of an nftables rule; `None` if the comment is too short.
///
/// All marks have the same length, so one lookup finds the owner of a rule, without comparing each attachment.
pub fn digest_in(comment: &str) -> Option<&str> {
    comment.get(DIGEST + 1..DIGEST + 1 + DIGEST)
}

/// Returns the prefix of the comments of a network's iptables rules; the container ID and a quote follow.
pub fn iptables_prefix(network: &str) -> String {
    format!("name: \"{network}\" id: \"")
}

/// Returns the container in the comment of an iptables rule of a network; `None` if it is another comment.
pub fn container_in_iptables_comment<'a>(network: &str, comment: &'a str) -> Option<&'a str> {
    comment.strip_prefix(&iptables_prefix(network))?.strip_suffix('"')
}

/// The owner of a link, parsed from its alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasOwner {
    /// The network.
    pub network: String,
    /// The container ID and interface name; `None` if they were too long for the alias.
    pub attachment: Option<(String, String)>,
}

impl AliasOwner {
    /// Parses an alias; `None` if cni0 did not set it.
    pub fn parse(alias: &str) -> Option<AliasOwner> {
        let words: Vec<&str> = alias.split(' ').collect();
        let [ALIAS_WORD | OLD_ALIAS_WORD, network, rest @ ..] = words.as_slice() else { return None };
        let attachment = match rest {
            // The digest at the end of a long alias is too long for an interface name.
            [container, ifname] if IfName::from_config(ifname).is_ok() => {
                Some(((*container).to_owned(), (*ifname).to_owned()))
            }
            _ => None,
        };
        Some(AliasOwner { network: (*network).to_owned(), attachment })
    }
}

/// Returns at most `max` bytes of `text`, cut at a character boundary: an interface name may contain non-ASCII
/// characters.
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
        let key = AttachmentKey { network: "net1", container: "id1", ifname: "eth0" };
        assert_eq!(key.port_chain(), "CNI-DN-a19237f207ed3fa9670f3");
        assert_eq!(KEY.iptables_comment(), "name: \"net1\" id: \"cid1\"");
        assert_eq!(KEY.comment(), "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1");
        assert_eq!(network_mark_in(&KEY.comment()), Some(network_mark("net1").as_str()));
        assert_eq!(network_mark_in("8e48f37d5de60467"), None);
        assert_eq!(digest_in(&KEY.comment()), Some(KEY.digest().as_str()));
        assert_eq!(digest_in("8e48f37d5de60467-"), None);
        assert_eq!(mark_in(&KEY.comment()), Some(KEY.mark().as_str()));
        for other in
            ["8e48f37d5de60467-", &KEY.comment().replace('-', "0"), "a long text that names no attachment at all"]
        {
            assert_eq!(mark_in(other), None, "{other}");
        }
        assert_eq!(KEY.chain_suffix(), "cid1-eth0");
        assert_eq!(KEY.alternative_name(), "cni-attachment-8e48f37d5de60467-0b65a318f52e521b");
        assert_eq!(mark_in_alternative_name(&KEY.alternative_name()), Some(KEY.mark().as_str()));
        let path = "cni-attachment-../../../../tmp/-/0123456789abcde";
        for other in ["", "enp3s0", "cni-attachment-", "cni-attachment-x", path, &KEY.mark(), &KEY.alias()] {
            assert_eq!(path.len(), KEY.alternative_name().len());
            assert_eq!(mark_in_alternative_name(other), None, "{other}");
        }
    }

    #[test]
    fn ifb_links_have_the_name_of_the_reference_or_a_unique_one() {
        let key = AttachmentKey { network: "net1", container: "id1", ifname: "eth0" };
        let [shared, unique] = key.ifb_names();
        assert_eq!(shared, "bwpa19237f207ed");
        assert_eq!(unique.len(), 15, "as long as the kernel allows");
        for other in [
            AttachmentKey { ifname: "eth1", ..key },
            AttachmentKey { network: "net", container: "1id1", ..key },
            AttachmentKey { network: "net1i", container: "d1", ..key },
        ] {
            assert_eq!(other.ifb_names()[0], shared);
            assert_ne!(other.ifb_names()[1], unique);
        }
    }

    #[test]
    fn address_marks_avoid_numbers_of_the_kernel() {
        assert!((0..1000).all(|n| address_mark(&format!("net{n}")) >= 64));
        assert_eq!(address_mark("net1"), 206);
    }

    #[test]
    fn long_names_are_cut() {
        let container = "c".repeat(300);
        let key = AttachmentKey { container: &container, ..KEY };
        assert_eq!(key.comment().len(), 128);
        for alias in key.aliases() {
            assert_eq!(alias.len(), 255);
        }
        assert!(key.alias().starts_with("cni-attachment net1 ccc"));
        for (len, is_cut) in [(230, false), (231, true)] {
            let key = AttachmentKey { container: &container[..len], ..KEY };
            assert_eq!(key.has_cut_alias(), is_cut);
            assert_eq!(AliasOwner::parse(&key.alias()).unwrap().attachment.is_none(), is_cut);
        }
        assert_eq!(key.chain().len(), 28, "as long as iptables allows");
    }

    #[test]
    fn an_alias_names_the_owner_of_a_link() {
        assert_eq!(KEY.aliases(), ["cni-attachment net1 cid1 eth0", "cni0 net1 cid1 eth0"]);
        assert_eq!(KEY.alias(), KEY.aliases()[0]);
        let attachment = Some(("cid1".to_owned(), "eth0".to_owned()));
        for alias in KEY.aliases() {
            let owner = AliasOwner { network: "net1".to_owned(), attachment: attachment.clone() };
            assert_eq!(AliasOwner::parse(&alias), Some(owner), "{alias}");
        }
        for alias in (AttachmentKey { container: &"c".repeat(300), ..KEY }).aliases() {
            let owner = AliasOwner { network: "net1".to_owned(), attachment: None };
            assert_eq!(AliasOwner::parse(&alias), Some(owner), "{alias}");
        }
        for other in ["", "cni0", "cni-attachment", "cni-attachments net1 c1 eth0", "uplink to rack 4", "net1 c1 eth0"]
        {
            assert_eq!(AliasOwner::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_sibling_is_another_interface_of_the_same_container_in_the_same_network() {
        for (key, is_sibling) in [
            (KEY, false),
            (AttachmentKey { ifname: "eth1", ..KEY }, true),
            (AttachmentKey { ifname: "eth1", container: "cid11", ..KEY }, false),
            (AttachmentKey { ifname: "eth1", network: "net11", ..KEY }, false),
        ] {
            for alias in key.aliases() {
                assert_eq!(KEY.is_sibling_alias(&alias), is_sibling, "{alias}");
            }
        }
        assert!(!KEY.is_sibling_alias("uplink"));
    }
}
