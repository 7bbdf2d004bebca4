//! A published port as found on this host, in any of the forms that implementations use.

use std::fmt;
use std::net::IpAddr;

use cni::key::mark_in;
use cni::{AttachmentKey, KnownOwner, NamedLink, Ownership, Result, Trace};
use linux::ip::Protocol;
use linux::netlink::Netlink;

use crate::mapping::Mapping;

/// Returns whether the owner of a port matters.
pub(crate) type Wanted<'a> = &'a dyn Fn(Protocol, u16) -> bool;

/// A published port on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedPort {
    pub(crate) mapping: Mapping,
    pub(crate) owner: PortOwner,
    /// The link of the owner on this host, if known.
    pub(crate) port: Option<String>,
    pub(crate) form: Form,
}

impl PublishedPort {
    /// Returns whether the rules name the container and the network of an attachment. The interface may be another.
    pub(crate) fn names_container_of(&self, attachment: AttachmentKey<'_>) -> bool {
        matches!(&self.owner, PortOwner::OnNetwork { network, container }
            if network == attachment.network && container == attachment.container)
    }

    /// Returns whether the port belongs to an attachment with these addresses. `port` is its link on this host, if
    /// known.
    pub(crate) fn is_of(
        &self,
        host: &mut Netlink,
        attachment: AttachmentKey<'_>,
        ips: &[IpAddr],
        port: Option<&str>,
    ) -> Result<bool> {
        let ip = self.mapping.target.ip();
        Ok(match &self.owner {
            PortOwner::Attachment(comment) => mark_in(comment) == Some(&attachment.mark()),
            PortOwner::OnNetwork { .. } if !self.names_container_of(attachment) => false,
            PortOwner::OnNetwork { .. } => {
                let link = self.port.as_deref();
                if ips.contains(&ip) || (link.is_some() && link == port) {
                    return Ok(true);
                }
                let link = &NamedLink::find(host, link.unwrap_or_default())?;
                Ownership::new(attachment).judge(Trace::OnNetwork { ip, link }).is_ours()
            }
            PortOwner::Container(container) => container == attachment.container && ips.contains(&ip),
        })
    }
}

/// Where a port is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In the maps of cni0.
    Maps,
    /// In the nftables rules of the reference.
    Rules,
    /// In chains of iptables.
    Iptables,
}

/// The owner of a published port, as far as the host's rules name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortOwner {
    /// The attachment with this comment: that of [`cni::AttachmentKey::comment`].
    Attachment(String),
    /// A container on a network, with any interface.
    OnNetwork {
        /// The network.
        network: String,
        /// The container.
        container: String,
    },
    /// A container on an unknown network.
    Container(String),
}

impl PortOwner {
    /// Returns the owner for a search of evidence.
    pub(crate) fn as_owner(&self) -> KnownOwner<'_> {
        match self {
            PortOwner::Attachment(comment) => KnownOwner::Mark(mark_in(comment).unwrap_or_default()),
            PortOwner::OnNetwork { network, container } => KnownOwner::OnNetwork { network, container },
            PortOwner::Container(container) => KnownOwner::Container(container),
        }
    }

    /// Returns whether this is provably an attachment of the container, to any network.
    pub(crate) fn is_container(&self, id: &str) -> bool {
        match self {
            // The id at the end of the comment may be cut. The mark is made of the whole id.
            PortOwner::Attachment(comment) => {
                let mut parts = comment.splitn(4, ", ");
                let mark = parts.next();
                let mut part = |prefix| parts.next().and_then(|part| part.strip_prefix(prefix));
                let (Some(network), Some(ifname)) = (part("net: "), part("if: ")) else { return false };
                mark == Some(&AttachmentKey { network, container: id, ifname }.mark())
            }
            PortOwner::OnNetwork { container, .. } | PortOwner::Container(container) => container == id,
        }
    }
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortOwner::Attachment(comment) if comment.is_empty() => f.write_str("unknown owner"),
            // After the mark: `net: …, if: …, id: …`.
            PortOwner::Attachment(comment) => f.write_str(comment.split_once(", ").map_or(comment, |(_, about)| about)),
            PortOwner::OnNetwork { network, container } => write!(f, "net: {network}, id: {container}"),
            PortOwner::Container(container) => write!(f, "id: {container}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_of_a_container_are_recognised_on_all_networks() {
        let long = "c".repeat(200);
        for container in ["c1", "c12", long.as_str()] {
            let comment = AttachmentKey { network: "net-1", container, ifname: "eth0" }.comment();
            let owner = PortOwner::Attachment(comment);
            assert!(owner.is_container(container), "{owner:?}");
            for other in ["c", "c123", &long[1..]] {
                assert!(!owner.is_container(other), "{owner:?}");
            }
        }
        for unknown in ["", "x", "a-b, net: n"] {
            assert!(!PortOwner::Attachment(unknown.to_owned()).is_container("c1"));
        }
    }
}
