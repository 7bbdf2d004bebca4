//! Names that both implementations must agree on, so that each removes what the other made; and those of our own.

use cni::ip::MacAddr;
use cni::{Attachment, Call, Context, Result, sha512};

/// The longest comment that the reference writes, in bytes.
const COMMENT: usize = 128;
/// The longest alias that the kernel keeps, in bytes (IFALIASZ less the final NUL).
const ALIAS: usize = 255;

/// Whom host-side state belongs to: an attachment of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner<'a> {
    pub(crate) network: &'a str,
    pub(crate) container: &'a str,
    pub(crate) ifname: &'a str,
}

impl<'a> Owner<'a> {
    pub(crate) fn new(call: &'a Call<'_>, at: &'a Attachment) -> Owner<'a> {
        Owner { network: call.network.as_str(), container: at.container.as_str(), ifname: at.ifname.as_str() }
    }

    /// The alias of the host's end of the pair, by which people and GC recognise it.
    pub(crate) fn alias(&self) -> String {
        let alias = format!("{}{} {}", alias_prefix(self.network), self.container, self.ifname);
        if alias.len() <= ALIAS {
            return alias;
        }
        // Two that begin alike must not be taken for each other.
        let digest = sha512::hex(16, &alias);
        format!("{} {digest}", cut(alias, ALIAS - 1 - digest.len()))
    }

    /// What an nftables rule's comment begins with.
    pub(crate) fn mark(&self) -> String {
        let attachment = sha512::hex(16, &format!("{}:{}", self.ifname, self.container));
        format!("{}{attachment}", network_mark(self.network))
    }

    /// The comment of an nftables masquerade rule.
    pub(crate) fn comment(&self) -> String {
        let Owner { network, container, ifname } = self;
        cut(format!("{}, net: {network}, if: {ifname}, id: {container}", self.mark()), COMMENT)
    }

    /// The iptables chain, which all attachments of a container to a network share.
    pub(crate) fn chain(&self) -> String {
        format!("CNI-{}", sha512::hex(24, &format!("{}{}", self.network, self.container)))
    }

    /// The comment of all iptables rules.
    pub(crate) fn iptables_comment(&self) -> String {
        format!("{}{}\"", iptables_prefix(self.network), self.container)
    }

    /// What the names of the spoof check end in.
    pub(crate) fn reference(&self) -> String {
        format!("{}-{}", self.container, self.ifname)
    }
}

/// What the alias of every port of a network begins with.
pub(crate) fn alias_prefix(network: &str) -> String {
    format!("cni0 {network} ")
}

/// What the comments of a network's nftables rules begin with.
pub(crate) fn network_mark(network: &str) -> String {
    format!("{}-", sha512::hex(16, network))
}

/// What the comments of a network's iptables rules begin with; the container's id and a quote follow.
pub(crate) fn iptables_prefix(network: &str) -> String {
    format!("name: \"{network}\" id: \"")
}

/// What a new pair is called by: the name of the host's end, as the reference makes them, and a hardware address for each.
pub(crate) fn random_pair() -> Result<(String, MacAddr, MacAddr)> {
    let [n0, n1, n2, n3, a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5] = random()?;
    let name = format!("veth{:08x}", u32::from_be_bytes([n0, n1, n2, n3]));
    Ok((name, unassigned([a0, a1, a2, a3, a4, a5]), unassigned([b0, b1, b2, b3, b4, b5])))
}

/// A hardware address for a bridge.
pub(crate) fn random_mac() -> Result<MacAddr> {
    random().map(unassigned)
}

/// One that no vendor gave out, and that is nobody's group.
fn unassigned([first, rest @ ..]: [u8; 6]) -> MacAddr {
    let [b, c, d, e, f] = rest;
    MacAddr([first & 0xfc | 0x02, b, c, d, e, f])
}

fn random<const N: usize>() -> Result<[u8; N]> {
    cni::random().trying(|| "get randomness from the kernel")
}

/// At most `max` bytes. What comes here is ASCII, but for the name of an interface.
fn cut(mut text: String, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'_> = Owner { network: "net1", container: "cid1", ifname: "eth0" };

    #[test]
    fn names_are_those_of_the_reference() {
        assert_eq!(OWNER.chain(), "CNI-e8f6f419596f7f47b3468487");
        assert_eq!(OWNER.iptables_comment(), "name: \"net1\" id: \"cid1\"");
        assert_eq!(OWNER.comment(), "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1");
        assert!(OWNER.comment().starts_with(&network_mark("net1")));
        assert_eq!(OWNER.reference(), "cid1-eth0");
    }

    #[test]
    fn long_names_are_cut() {
        let container = "c".repeat(300);
        let owner = Owner { container: &container, ..OWNER };
        assert_eq!(owner.comment().len(), 128);
        assert_eq!(owner.alias().len(), 255);
        assert!(owner.alias().starts_with(&alias_prefix("net1")));
        assert_eq!(owner.chain().len(), 28, "as long as iptables allows");
    }

    #[test]
    fn random_things_differ_and_are_valid() {
        for _ in 0..100 {
            let (name, first, second) = random_pair().unwrap();
            assert_eq!(name.len(), 12);
            assert_ne!(first, second);
            assert_ne!(name, random_pair().unwrap().0);
            for mac in [first, second, random_mac().unwrap()] {
                assert_eq!(mac.0[0] & 3, 2, "local, and no group");
            }
        }
    }
}
