//! Evidence whether the owner of a published port still exists. A port whose owner is gone can be given to another
//! container; in doubt the owner exists.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use cni::key::{AliasOwner, mark_in};
use cni::{AddResult, Attachment, AttachmentKey, IfName, Result};
use linux::netlink::Netlink;

use crate::published::PortOwner;

/// Where the reference's `host-local` keeps leases, unless the configuration names another directory.
const LEASES: &str = "/var/lib/cni/networks";

/// Returns the name of the attachment's link on this host, as far as the previous result names it: the last one without a
/// namespace before the container's own interface, or else the first.
pub(crate) fn host_link<'a>(result: &'a AddResult, at: &Attachment) -> Option<&'a str> {
    let guest =
        result.interfaces.iter().position(|found| found.name == at.ifname.as_str() && !found.sandbox.is_empty());
    let on_host = |found: &&'a cni::Interface| found.sandbox.is_empty() && IfName::from_config(&found.name).is_ok();
    let before = result.interfaces.iter().take(guest.unwrap_or_default()).rfind(on_host);
    before.or_else(|| result.interfaces.iter().find(on_host)).map(|found| found.name.as_str())
}

/// Returns whether the owner of a published port is provably gone. `port` is its link on this host, if known.
pub(crate) fn is_gone(host: &mut Netlink, owner: &PortOwner, port: Option<&str>) -> Result<bool> {
    match (owner, port) {
        (_, Some(port)) => Ok(match host.link(port)? {
            None => true,
            // The name may be that of a later attachment.
            Some(link) => belongs_to_other(&link.alias, owner),
        }),
        (PortOwner::OnNetwork { network, container }, None) => {
            let is_its = |alias: &str| names(alias, network, container);
            Ok(has_lease(network, container) == Some(false) && host.find_links_by_alias(&is_its)?.is_empty())
        }
        (PortOwner::Attachment(_) | PortOwner::Container(_), None) => Ok(false),
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

/// Returns whether an alias may name an attachment of this container to this network.
fn names(alias: &str, network: &str, container: &str) -> bool {
    AliasOwner::parse(alias)
        .is_some_and(|owner| owner.network == network && owner.attachment.is_none_or(|(id, _)| id == container))
}

/// Returns whether a container has a lease of a network; `None` if the network has no leases in the default directory, or
/// they cannot be read.
fn has_lease(network: &str, container: &str) -> Option<bool> {
    Some(read_leases(network)?.iter().any(|lease| lease.container == container))
}

/// Returns whether a port that leads to this address belongs to another attachment of the same container to the same
/// network; `None` without evidence. `link` is the link on this host that the port names; it may be empty.
pub(crate) fn is_sibling(host: &mut Netlink, owner: AttachmentKey<'_>, ip: IpAddr, link: &str) -> Result<Option<bool>> {
    if let Some(is_sibling) = is_sibling_address(owner, ip) {
        return Ok(Some(is_sibling));
    }
    if link.is_empty() {
        return Ok(None);
    }
    Ok(match host.link(link)? {
        None => Some(false),
        Some(found) if owner.is_sibling_alias(&found.alias) => Some(true),
        Some(found) if owner.aliases().contains(&found.alias) => Some(false),
        Some(_) => None,
    })
}

/// Returns whether an address belongs to another attachment of the same container to the same network, as far as leases
/// prove it.
fn is_sibling_address(owner: AttachmentKey<'_>, ip: IpAddr) -> Option<bool> {
    let leases = read_leases(owner.network)?;
    let ours = || leases.iter().filter(|lease| lease.container == owner.container);
    match ours().find(|lease| lease.ip == ip) {
        Some(lease) => Some(lease.ifname.as_deref()? != owner.ifname),
        // The addresses of the container are leased, but this one is not: it had it earlier.
        None => ours().next().map(|_| false),
    }
}

/// Returns the leases of a container in all networks.
pub(crate) fn leases_of(container: &str) -> Vec<Lease> {
    let networks = fs::read_dir(LEASES).into_iter().flatten().flatten();
    let names = networks.filter_map(|network| network.file_name().into_string().ok());
    let leases = names.filter_map(|network| read_leases(&network)).flatten();
    leases.filter(|lease| lease.container == container).collect()
}

/// A lease of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) network: String,
    pub(crate) ip: IpAddr,
    container: String,
    /// The interface; `None` if an early version wrote the lease.
    pub(crate) ifname: Option<String>,
}

/// Reads the leases of a network; `None` if it has no directory, or they cannot be read.
fn read_leases(network: &str) -> Option<Vec<Lease>> {
    let mut leases = Vec::new();
    for file in fs::read_dir(Path::new(LEASES).join(network)).ok()? {
        let file = file.ok()?;
        // The files of addresses, not the lock and the last address.
        let Some(ip) = file.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let text = match fs::read_to_string(file.path()) {
            // The lease ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            text => text.ok()?,
        };
        let mut lines = text.lines().map(|line| line.trim().to_owned());
        leases.push(Lease {
            network: network.to_owned(),
            ip,
            container: lines.next().unwrap_or_default(),
            ifname: lines.next().filter(|name| !name.is_empty()),
        });
    }
    Some(leases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::{ContainerId, Interface};

    #[test]
    fn the_link_of_an_attachment_is_found_in_the_results_of_different_plugins() {
        let at = Attachment {
            container: ContainerId::parse("c1".as_ref()).unwrap(),
            ifname: IfName::from_config("eth0").unwrap(),
            netns: None,
        };
        type Interfaces<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Interfaces<'_>, Option<&str>); 7] = [
            (&[("cni0", ""), ("veth1", ""), ("eth0", "/n")], Some("veth1")),
            (&[("veth1", ""), ("eth0", "/n")], Some("veth1")),
            (&[("cali1", "")], Some("cali1")),
            (&[("eth0", "/n")], None),
            (&[], None),
            (&[("a name too long for a link", ""), ("eth0", "/n")], None),
            (&[("cni0", ""), ("veth1", ""), ("eth0", "/n"), ("bwp1", "")], Some("veth1")),
        ];
        for (interfaces, want) in cases {
            let interfaces = interfaces.iter().map(|(name, sandbox)| Interface::new(*name, None, *sandbox)).collect();
            let result = AddResult { interfaces, ..AddResult::default() };
            assert_eq!(host_link(&result, &at), want, "{result:?}");
        }
    }
}
