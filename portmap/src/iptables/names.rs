//! The names of chains and the comments by which the rules of a container are found, which are those of the reference.

use cni::AttachmentKey;
use linux::iptables::MAX_COMMENT;
use linux::sha2::sha512;

use crate::published::PortOwner;

/// The chain with the rules that lead to the chains of containers.
pub(super) const ENTRIES: &str = "CNI-HOSTPORT-DNAT";
/// The chain that marks packets to be masqueraded.
pub(super) const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
/// The chain that masquerades marked packets.
pub(super) const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// Before version 0.7.0, the chain with the rules that lead to the masquerade chains of containers.
const OLD_ENTRIES: &str = "CNI-HOSTPORT-SNAT";

/// A chain of one container on one network. All attachments of the container to the network share it.
#[derive(Debug)]
pub(super) struct ContainerChain {
    /// The chain with the rules that lead to this one.
    pub(super) entries: &'static str,
    pub(super) name: String,
    /// The comment of the rules that lead to this chain. Two chains can have the same name, because nothing separates
    /// the parts of which it is the hash.
    pub(super) comment: String,
}

impl ContainerChain {
    /// Returns the chain with the published ports.
    pub(super) fn new(owner: AttachmentKey<'_>) -> ContainerChain {
        ContainerChain { entries: ENTRIES, name: owner.port_chain(), comment: comment("dnat", owner) }
    }

    /// Returns the chain that masquerades, which versions before 0.7.0 added.
    pub(super) fn old(owner: AttachmentKey<'_>) -> ContainerChain {
        let hash = sha512(21, &format!("{}{}", owner.network, owner.container));
        ContainerChain { entries: OLD_ENTRIES, name: format!("CNI-SN-{hash}"), comment: comment("snat", owner) }
    }
}

fn comment(purpose: &str, owner: AttachmentKey<'_>) -> String {
    let mut comment = format!("{purpose} {}", owner.iptables_comment());
    if comment.len() > MAX_COMMENT {
        // The reference appends three dots, of which `iptables` drops the last. Valid names have only ASCII characters.
        comment.truncate(MAX_COMMENT - 2);
        comment.push_str("..");
    }
    comment
}

/// Returns the owner that a comment names; `None` if it is cut, or of another program.
pub(super) fn read_comment(comment: &str) -> Option<PortOwner> {
    let (network, container) = comment.strip_prefix("dnat name: \"")?.strip_suffix('"')?.split_once("\" id: \"")?;
    Some(PortOwner::OnNetwork { network: network.to_owned(), container: container.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: AttachmentKey<'_> = AttachmentKey { network: "net1", container: "id1", ifname: "eth0" };

    #[test]
    fn names_are_those_of_the_reference() {
        let chain = ContainerChain::new(KEY);
        assert_eq!(chain.name, "CNI-DN-a19237f207ed3fa9670f3");
        assert_eq!(chain.comment, "dnat name: \"net1\" id: \"id1\"");
        let chain = ContainerChain::old(KEY);
        assert_eq!(chain.name, "CNI-SN-a19237f207ed3fa9670f3");
        assert_eq!(chain.comment, "snat name: \"net1\" id: \"id1\"");
    }

    #[test]
    fn comments_name_the_owner_unless_they_are_cut() {
        let owner = |container: &str| PortOwner::OnNetwork { network: "net1".into(), container: container.into() };
        assert_eq!(read_comment(&ContainerChain::new(KEY).comment), Some(owner("id1")));
        for (len, is_cut) in [(231, false), (232, true), (300, true)] {
            let container = "c".repeat(len);
            let comment = ContainerChain::new(AttachmentKey { container: &container, ..KEY }).comment;
            assert_eq!(comment.ends_with(".."), is_cut, "{}", comment.len());
            assert_eq!(read_comment(&comment), (!is_cut).then(|| owner(&container)));
            assert!(comment.len() <= 255);
        }
        for other in ["", "dnat name: \"", "dnat name: \"net1\" id: ", "snat name: \"net1\" id: \"id1\""] {
            assert_eq!(read_comment(other), None, "{other}");
        }
    }
}
