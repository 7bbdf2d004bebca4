//! Evidence about other attachments on this host: the leases of `host-local`, aliases, and the links that results name. Chained
//! plugins need it for objects that do not say whose they are.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use linux::dir::Dir;
use linux::log::debug;
use linux::netlink::Netlink;

use crate::error::Result;
use crate::key::{AliasOwner, AttachmentKey, network_mark};
use crate::lease::{self, Holder, LeaseOwner};
use crate::name::IfName;
use crate::plugin::{Attachment, Call};
use crate::result::{AddResult, Interface};

/// Returns the name of the attachment's [`host_interface`].
pub fn host_link<'a>(result: &'a AddResult, at: &Attachment) -> Option<&'a str> {
    host_interface(result, at).map(|found| found.name.as_str())
}

/// Returns the attachment's link on this host, as far as the previous result names it: the last one without a namespace
/// before the container's own interface, or else the first.
pub fn host_interface<'a>(result: &'a AddResult, at: &Attachment) -> Option<&'a Interface> {
    let guest =
        result.interfaces.iter().position(|found| found.name == at.ifname.as_str() && !found.sandbox.is_empty());
    let on_host = |found: &&'a Interface| found.sandbox.is_empty() && IfName::from_config(&found.name).is_ok();
    let before = result.interfaces.iter().take(guest.unwrap_or_default()).rfind(on_host);
    before.or_else(|| result.interfaces.iter().find(on_host))
}

/// Returns whether an alias may name an attachment of this container to this network.
pub fn may_name(alias: &str, network: &str, container: &str) -> bool {
    AliasOwner::parse(alias)
        .is_some_and(|owner| owner.network == network && owner.attachment.is_none_or(|(id, _)| id == container))
}

/// Returns whether a container has a lease of a network; `None` if the network has no known lease directory, or its leases
/// cannot be read.
pub fn has_lease(network: &str, container: &str) -> Option<bool> {
    Some(read_leases(&lease_dirs(network))?.iter().any(|lease| lease.container == container))
}

/// Returns whether an object for this address belongs to another attachment of the same container to the same network;
/// `None` without evidence. `link` is the link on this host that the object names; it may be empty.
pub fn is_sibling(host: &mut Netlink, owner: AttachmentKey<'_>, ip: IpAddr, link: &str) -> Result<Option<bool>> {
    let mut leases = leases_in(owner.network);
    // Another IPAM plugin may be responsible for the other family.
    leases.retain(|lease| lease.container == owner.container && lease.ip.is_ipv4() == ip.is_ipv4());
    let lease = leases.iter().find(|lease| lease.ip == ip);
    if let Some(ifname) = lease.and_then(|lease| lease.ifname.as_deref()) {
        return Ok(Some(ifname != owner.ifname));
    }
    let found = if link.is_empty() { None } else { host.link(link)? };
    Ok(match found {
        Some(found) if owner.is_sibling_alias(&found.alias) => Some(true),
        Some(found) if owner.aliases().contains(&found.alias) => Some(false),
        Some(_) => None,
        // Without the link, or if the container has leases of other addresses, but not of this one: it had it earlier.
        None => (!link.is_empty() || (lease.is_none() && !leases.is_empty())).then_some(false),
    })
}

/// Returns the leases of a container in all networks.
pub fn leases_of(container: &str) -> Vec<Lease> {
    let leases = lease::directories().into_iter().filter_map(|dir| read_leases(&[dir])).flatten();
    leases.filter(|lease| lease.container == container).collect()
}

/// Returns the leases of a network; none if they cannot be read.
pub fn leases_in(network: &str) -> Vec<Lease> {
    read_leases(&lease_dirs(network)).unwrap_or_default()
}

/// Returns the addresses that are leased to an attachment. Its call may have the `dataDir` of its network.
pub fn leased_addresses(call: &Call<'_>, owner: AttachmentKey<'_>) -> Vec<IpAddr> {
    let mut dirs = lease_dirs(owner.network);
    let data_dir = lease::data_dir(call).ok().filter(|data_dir| !data_dir.is_empty());
    let configured = data_dir.map(|data_dir| Path::new(&data_dir).join(owner.network));
    dirs.extend(configured.filter(|dir| !dirs.contains(dir)));
    let leases = read_leases(&dirs).unwrap_or_default();
    leases.iter().filter(|lease| lease.is_of(owner)).map(|lease| lease.ip).collect()
}

/// Returns whether a lease of any network gives an address to another attachment.
pub fn is_leased_to_other(owner: AttachmentKey<'_>, ip: IpAddr) -> bool {
    lease::directories().iter().filter_map(|dir| find_lease(dir, ip)).any(|lease| !lease.is_of(owner))
}

/// Returns whether a lease of any network gives an address to an attachment with another [mark](AttachmentKey::mark).
pub fn is_leased_to_other_mark(mark: &str, ip: IpAddr) -> bool {
    lease::directories().iter().filter_map(|dir| find_lease(dir, ip)).any(|lease| lease.mark() != mark)
}

/// Returns whether the attachment with this [mark](AttachmentKey::mark) has a lease, or its leases cannot be read.
pub fn has_lease_with_mark(mark: &str) -> bool {
    let mut dirs = lease::directories();
    dirs.retain(|dir| network_of(dir).is_some_and(|network| mark.starts_with(&network_mark(network))));
    !dirs.is_empty() && read_leases(&dirs).is_none_or(|leases| leases.iter().any(|lease| lease.mark() == mark))
}

/// Returns the known lease directories of a network.
fn lease_dirs(network: &str) -> Vec<PathBuf> {
    let mut dirs = lease::directories();
    dirs.retain(|dir| network_of(dir) == Some(network));
    dirs
}

/// Returns the network of a lease directory.
fn network_of(dir: &Path) -> Option<&str> {
    dir.file_name().and_then(OsStr::to_str)
}

/// A lease of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The network.
    pub network: String,
    /// The address.
    pub ip: IpAddr,
    /// The container.
    pub container: String,
    /// The interface; `None` if an early version wrote the lease.
    pub ifname: Option<String>,
}

impl Lease {
    /// Returns the mark of the attachment, if the lease names its interface.
    fn mark(&self) -> String {
        let ifname = self.ifname.as_deref().unwrap_or_default();
        AttachmentKey { network: &self.network, container: &self.container, ifname }.mark()
    }

    /// Returns whether the lease belongs to this attachment. One without an interface belongs to all of the container.
    fn is_of(&self, owner: AttachmentKey<'_>) -> bool {
        self.network == owner.network
            && self.container == owner.container
            && self.ifname.as_deref().is_none_or(|ifname| ifname == owner.ifname)
    }
}

/// Reads the leases of a network in all of its directories; `None` if none of them exists, or one cannot be read.
fn read_leases(dirs: &[PathBuf]) -> Option<Vec<Lease>> {
    let mut leases = None;
    for path in dirs {
        let Some(dir) = open(path)? else { continue };
        let found = leases.get_or_insert_with(Vec::new);
        for name in dir.names().ok()? {
            // The files of addresses, not the lock and the last address.
            let Some(ip) = lease::address(&name.ok()?) else { continue };
            found.extend(read_lease(&dir, ip)?);
        }
    }
    leases
}

/// Returns the lease of an address in a lease directory; `None` if there is none, or it cannot be read.
fn find_lease(path: &Path, ip: IpAddr) -> Option<Lease> {
    read_lease(&open(path)??, ip)?
}

/// Opens a lease directory. Returns `Some(None)` if it does not exist, and `None` if it cannot be read.
fn open(path: &Path) -> Option<Option<Dir>> {
    Dir::open(path).map_err(|error| debug!("the leases in {path:?} are not known: {error}")).ok()
}

/// Reads a lease. Returns `Some(None)` if the file does not exist or is not a lease: an address with an empty file, or with
/// another entry than a file, is not leased. Returns `None` if it cannot be read.
fn read_lease(dir: &Dir, ip: IpAddr) -> Option<Option<Lease>> {
    match lease::read(dir, &ip.to_string(), false).map_err(|error| debug!("the lease is not known: {error}")).ok()? {
        Some((Holder::Owner(LeaseOwner { container, ifname }), _)) => {
            Some(network_of(dir.path()).map(|network| Lease { network: network.to_owned(), ip, container, ifname }))
        }
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ContainerId;

    #[test]
    fn a_lease_belongs_to_one_attachment() {
        let owner = AttachmentKey { network: "net1", container: "c1", ifname: "eth0" };
        let is_of = |network: &str, container: &str, ifname: Option<&str>| {
            let (network, container) = (network.to_owned(), container.to_owned());
            Lease { network, ip: [10, 1, 0, 2].into(), container, ifname: ifname.map(str::to_owned) }.is_of(owner)
        };
        assert!(is_of("net1", "c1", Some("eth0")) && is_of("net1", "c1", None));
        assert!(!is_of("net1", "c1", Some("eth1")) && !is_of("net1", "c2", Some("eth0")));
        assert!(!is_of("net2", "c1", Some("eth0")));
    }

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
