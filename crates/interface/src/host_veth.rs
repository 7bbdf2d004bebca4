//! Deletes veth pairs by the end on the host: that of an attachment, if it provably belongs to the attachment, and
//! those of stale attachments.

use std::os::fd::BorrowedFd;

use cni::key::AliasOwner;
use cni::{
    AddResult, Attachment, AttachmentKey, Call, Context, Delegate, ErrorCollector, Guest, Home, IfName, Keep,
    Namespaces, Ownership, Result,
};
use linux::log::{debug, warn};
use linux::netlink::{Link, Netlink};

/// The removal of an attachment's veth pair, with the data that proves which pair it is.
#[derive(Debug)]
pub struct VethRemoval<'a> {
    /// The call.
    pub call: &'a Call<'a>,
    /// The attachment, as marks name it.
    pub key: AttachmentKey<'a>,
    /// The attachment.
    pub at: &'a Attachment,
    /// The result of ADD, or an empty one if the runtime did not pass it. It is a hint: invalid parts are ignored.
    pub prev_result: &'a AddResult,
    /// The IPAM plugin, which may know the attachment's addresses.
    pub ipam: Option<&'a Delegate<'a>>,
    /// The name of the bridge to which the network attaches its containers, if it has one.
    pub bridge: Option<String>,
    /// The nftables socket. It stays open until the kernel has deleted the link, so that the kernel waits only once for
    /// the link and for the rules that DEL deletes through the socket.
    pub keep_open: Option<BorrowedFd<'a>>,
}

impl VethRemoval<'_> {
    /// Deletes the pair by its host veth, which the container cannot change and whose alias names the attachment. Only
    /// a pair that the reference created has no alias; that one is deleted by its container veth.
    pub fn run(&self, mut host: Home) -> Result<()> {
        let mut failures = ErrorCollector::default();
        match self.delete_ports(&mut host.netlink) {
            Ok(true) => return Ok(()),
            outcome => failures.record(outcome.map(drop)),
        }
        failures.record(self.at.open_netns_if_exists().and_then(|netns| match netns {
            Some(guest) => self.delete_unmarked(Namespaces { host, guest }),
            None => Ok(()),
        }));
        failures.into_result()
    }

    /// Deletes the host veth with the attachment's alias; `false` if there is none. The result of ADD names it, which
    /// saves listing all links, of which a host may have thousands.
    fn delete_ports(&self, host: &mut Netlink) -> Result<bool> {
        let aliases = self.key.aliases();
        for name in self.host_interfaces() {
            if let Some(port) = host.link(name)?.filter(|link| link.kind == "veth" && aliases.contains(&link.alias)) {
                host.delete_link_detached(port.index, self.keep_open)?;
                return Ok(true);
            }
        }
        let mut failures = ErrorCollector::default();
        let ports = host.find_veths_by_alias(&|found| aliases.iter().any(|alias| alias == found))?;
        for port in &ports {
            failures.record(host.delete_link_detached(port.index, self.keep_open));
        }
        failures.into_result().map(|()| !ports.is_empty())
    }

    /// Returns the names of the host's interfaces in the result of ADD. Skips invalid names.
    fn host_interfaces(&self) -> impl Iterator<Item = &str> {
        let on_host = self.prev_result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
        on_host.map(|interface| interface.name.as_str()).filter(|name| IfName::from_config(name).is_ok())
    }

    /// Deletes the container veth of a pair without our alias, if the pair provably belongs to this attachment. By now
    /// the path may lead to the namespace of another container, whose interface has the same name.
    fn delete_unmarked(&self, mut namespaces: Namespaces) -> Result<()> {
        let mut guest = namespaces.open_guest(self.at)?;
        let Some(link) = guest.find_interface()? else { return Ok(()) };
        if !self.is_ours(&mut namespaces.host, &mut guest, &link)? {
            warn!("keep {:?} in {:?}: cannot prove that it belongs to this attachment", link.name, self.at.sandbox());
            return Ok(());
        }
        guest.netlink.delete_link(link.index).context(|| format!("in {:?}", self.at.sandbox()))
    }

    /// Returns whether the container veth `link` provably belongs to this attachment.
    ///
    /// A result of ADD that a runtime kept proves it by listing the host veth. Without such a result, or if it lists
    /// another host veth, because it is that of another attachment or of an earlier ADD, the pair must have the
    /// addresses that are leased to this attachment now and no others, and must not be on another bridge than the
    /// network's. Otherwise DEL would release the addresses of an interface that it keeps. (The addresses in the result
    /// prove nothing: after a first DEL they may have been leased again.)
    fn is_ours(&self, host: &mut Home, guest: &mut Guest<'_>, link: &Link) -> Result<bool> {
        // An index counts only in its own namespace.
        if link.lower_netns.is_none() || link.lower_netns != guest.netlink.netns_id(&host.netns)? {
            return Ok(false);
        }
        let host = &mut host.netlink;
        let Some(port) = link.lower.map(|peer| host.link(peer)).transpose()?.flatten() else { return Ok(false) };
        let is_pair = link.kind == "veth" && port.kind == "veth" && port.lower == Some(link.index);
        if !is_pair || AliasOwner::parse(&port.alias).is_some() {
            return Ok(false);
        }
        if self.is_listed() && self.host_interfaces().any(|name| name == port.name) {
            return Ok(true);
        }
        let leased = self.ipam.map(|ipam| ipam.leased_to(self.at)).transpose()?.flatten();
        // An executed IPAM plugin cannot be queried, but may be host-local. A configuration that was edited may lack
        // it.
        let leased = leased.unwrap_or_else(|| Ownership::new(self.key).leased_addresses(self.call));
        let bridge = self.bridge.as_deref().and_then(|name| host.link_index(name).transpose()).transpose()?;
        if leased.is_empty() || port.master.is_some_and(|master| Some(master) != bridge) {
            return Ok(false);
        }
        let addresses = guest.netlink.addresses(link.index)?;
        let mut global = addresses.iter().filter(|address| address.global).map(|address| address.cidr.ip()).peekable();
        Ok(global.peek().is_some() && global.all(|ip| leased.contains(&ip)))
    }

    /// Returns whether the result of ADD is as this plugin and the reference write it: with possible names, among them
    /// the interface in the container.
    fn is_listed(&self) -> bool {
        let interfaces = &self.prev_result.interfaces;
        let in_container = |name: &str, sandbox: &str| name == self.at.ifname.as_str() && !sandbox.is_empty();
        interfaces.iter().all(|interface| IfName::from_config(&interface.name).is_ok())
            && interfaces.iter().any(|interface| in_container(&interface.name, &interface.sandbox))
    }
}

/// GC: deletes the pairs of a network's attachments that are not in `keep`. Deletes as many as possible.
pub fn collect(host: &mut Netlink, keep: &Keep<'_>) -> Result<()> {
    let mut failures = ErrorCollector::default();
    // Other links can have such an alias too: `lo` of a node that is itself a container.
    let links = host.links(None)?;
    for link in links.iter().filter(|link| link.kind == "veth" && keep.is_stale_alias(&link.alias)) {
        debug!("link {:?} is stale: {}", link.name, link.alias);
        failures.record(host.delete_link(link.index));
    }
    failures.into_result()
}
