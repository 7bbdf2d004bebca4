//! Evidence whether the owner of a published port still exists. A port whose owner is gone can be given to another
//! container; in doubt the owner exists.

use cni::key::AliasOwner;
use cni::lease::{self, NetworkLease};
use cni::{Judgement, Ownership, Result, Trace};
use linux::netlink::Netlink;

use crate::published::{PortOwner, PublishedPort};

/// Returns whether the owner of a published port is provably gone: it has no link on this host and no lease. `port` is
/// the name of its link when the port was published, if known. Without it, only the leases of the network prove that.
pub(crate) fn is_gone(host: &mut Netlink, owner: &PortOwner, port: Option<&str>) -> Result<bool> {
    let ownership = Ownership::new(owner.as_owner());
    match (port, ownership.has_lease()) {
        (_, Some(true)) | (None, None) => Ok(false),
        (None, Some(false)) => Ok(!has_alias(host, &ownership)?),
        (Some(port), _) => has_lost_link(host, &ownership, port),
    }
}

/// Returns whether the link that the owner had does not exist, also not with another name: a link that is renamed keeps
/// its alias.
fn has_lost_link(host: &mut Netlink, owner: &Ownership<'_>, port: &str) -> Result<bool> {
    let is_lost = match host.link(port)? {
        None => true,
        // The name may be that of a later attachment.
        Some(link) => owner.judge(Trace::Alias(&link.alias)).is_others(),
    };
    Ok(is_lost && !has_alias(host, owner)?)
}

/// Returns whether a veth has the alias of the owner, or one that is cut and may be the owner's.
fn has_alias(host: &mut Netlink, owner: &Ownership<'_>) -> Result<bool> {
    let may_name =
        |alias: &str| matches!(owner.judge(Trace::Alias(alias)), Judgement::Ours(_) | Judgement::Possible(_));
    Ok(!host.find_veths_by_alias(&may_name)?.is_empty())
}

/// Returns the owner of a published port for a reader, with its interface if a lease or an alias names it.
pub(crate) fn describe(host: &mut Netlink, published: &PublishedPort) -> Result<String> {
    if let PortOwner::OnNetwork { network, .. } = &published.owner
        && let Some((container, ifname)) = interface_of(host, published, network, &lease::in_network(network))?
    {
        return Ok(format!("net: {network}, if: {ifname}, id: {container}"));
    }
    Ok(published.owner.to_string())
}

/// Returns the interface of the attachment to a network that owns a published port, and the container, as far as a
/// lease or the alias of its link prove them. `leases` are those of the network.
pub(crate) fn interface_of(
    host: &mut Netlink,
    published: &PublishedPort,
    network: &str,
    leases: &[NetworkLease],
) -> Result<Option<(String, String)>> {
    let container = match &published.owner {
        PortOwner::OnNetwork { network: found, container } if found == network => container,
        PortOwner::Container(container) => container,
        _ => return Ok(None),
    };
    let is_its = |lease: &&NetworkLease| lease.ip == published.mapping.target.ip() && lease.container == *container;
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
