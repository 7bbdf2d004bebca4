//! Evidence whether the owner of a published port still exists. A port whose owner is gone can be given to another
//! container; in doubt the owner exists.

use cni::evidence::{self, Lease};
use cni::key::{AliasOwner, mark_in, network_mark};
use cni::{AttachmentKey, Result};
use linux::netlink::Netlink;

use crate::published::{PortOwner, Published};

/// Returns whether the owner of a published port is provably gone: it has no link on this host and no lease. `port` is the
/// name of its link when the port was published, if known. Without it, only the leases of the network prove that.
pub(crate) fn is_gone(host: &mut Netlink, owner: &PortOwner, port: Option<&str>) -> Result<bool> {
    match (port, has_lease(owner)) {
        (_, Some(true)) | (None, None) => Ok(false),
        (None, Some(false)) => Ok(!has_alias(host, owner)?),
        (Some(port), _) => has_lost_link(host, owner, port),
    }
}

/// Returns whether the link that `owner` had does not exist, also not with another name: a link that is renamed keeps its
/// alias.
fn has_lost_link(host: &mut Netlink, owner: &PortOwner, port: &str) -> Result<bool> {
    let is_lost = match host.link(port)? {
        None => true,
        // The name may be that of a later attachment.
        Some(link) => belongs_to_other(&link.alias, owner),
    };
    Ok(is_lost && !has_alias(host, owner)?)
}

/// Returns whether a veth has the alias of the owner.
fn has_alias(host: &mut Netlink, owner: &PortOwner) -> Result<bool> {
    Ok(!host.find_veths_by_alias(&|alias| may_belong_to(alias, owner))?.is_empty())
}

/// Returns the owner of a published port for a reader, with its interface if a lease or an alias names it.
pub(crate) fn describe(host: &mut Netlink, published: &Published) -> Result<String> {
    if let PortOwner::OnNetwork { network, .. } = &published.owner
        && let Some((container, ifname)) = interface_of(host, published, network, &evidence::leases_in(network))?
    {
        return Ok(format!("net: {network}, if: {ifname}, id: {container}"));
    }
    Ok(published.owner.to_string())
}

/// Returns the interface of the attachment to a network that owns a published port, and the container, as far as a lease or
/// the alias of its link prove them. `leases` are those of the network.
pub(crate) fn interface_of(
    host: &mut Netlink,
    published: &Published,
    network: &str,
    leases: &[Lease],
) -> Result<Option<(String, String)>> {
    let container = match &published.owner {
        PortOwner::OnNetwork { network: found, container } if found == network => container,
        PortOwner::Container(container) => container,
        _ => return Ok(None),
    };
    let is_its = |lease: &&Lease| lease.ip == published.mapping.target.ip() && lease.container == *container;
    let found = match (leases.iter().find(is_its), &published.port) {
        (Some(lease), _) => lease.ifname.clone(),
        (None, Some(port)) => host
            .link(port.as_str())?
            .and_then(|link| AliasOwner::parse(&link.alias).filter(|found| found.network == network)?.attachment)
            .filter(|(found, _)| found == container)
            .map(|(_, ifname)| ifname),
        (None, None) => None,
    };
    Ok(found.map(|ifname| (container.clone(), ifname)))
}

/// Returns whether the owner has a lease; `None` if that is unknown.
fn has_lease(owner: &PortOwner) -> Option<bool> {
    match owner {
        PortOwner::Attachment(comment) => Some(evidence::has_lease_with_mark(mark_in(comment)?)).filter(|has| *has),
        PortOwner::OnNetwork { network, container } => evidence::has_lease(network, container),
        PortOwner::Container(id) => Some(!evidence::leases_of(id).is_empty()).filter(|has| *has),
    }
}

/// Returns whether an alias names the owner, or could name it because it is cut.
fn may_belong_to(alias: &str, owner: &PortOwner) -> bool {
    match owner {
        PortOwner::Attachment(comment) => AliasOwner::parse(alias).is_some_and(|found| match &found.attachment {
            Some(_) => !belongs_to_other(alias, owner),
            None => comment.starts_with(&network_mark(&found.network)),
        }),
        PortOwner::OnNetwork { network, container } => evidence::may_name(alias, network, container),
        PortOwner::Container(_) => AliasOwner::parse(alias).is_some() && !belongs_to_other(alias, owner),
    }
}

/// Returns whether an alias names another attachment than `owner`. An alias that is cut could name any.
fn belongs_to_other(alias: &str, owner: &PortOwner) -> bool {
    let Some(AliasOwner { network, attachment: Some((container, ifname)) }) = AliasOwner::parse(alias) else {
        return false;
    };
    match owner {
        PortOwner::Attachment(comment) => {
            let key = AttachmentKey { network: &network, container: &container, ifname: &ifname };
            mark_in(comment) != Some(&key.mark())
        }
        PortOwner::OnNetwork { .. } => {
            !matches!(owner, PortOwner::OnNetwork { network: n, container: c } if *n == network && *c == container)
        }
        PortOwner::Container(id) => *id != container,
    }
}
