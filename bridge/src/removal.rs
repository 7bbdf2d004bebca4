//! Deleting a pair, without the kernel's last wait.
//!
//! A link is gone, with both ends and its name, after half a millisecond, and the kernel tells so. Whoever asked for it
//! gets his answer when all processors have forgotten the link, ten to twenty milliseconds later. Nobody needs to wait for
//! that: a child does, which nobody hears of.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cni::key::AliasOwner;
use cni::netlink::{Event, Link, LinkIndex, Netlink, Watch};
use cni::{
    AddResult, Aside, Attachment, AttachmentKey, Context, Deadline, Delegate, Failures, Home, IfName, Netns, Result,
};
use log::{debug, warn};

use crate::attach;

/// How long a link may take to go. It takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pair of an attachment that is detached, and what proves that a pair is this one.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    pub(crate) key: AttachmentKey<'a>,
    pub(crate) at: &'a Attachment,
    /// The result of ADD, if the runtime passed it on. It only helps: what is strange in it is ignored.
    pub(crate) prev_result: &'a AddResult,
    /// The IPAM plugin, which may know the attachment's addresses.
    pub(crate) ipam: Option<&'a Delegate<'a>>,
    /// The name of the network's bridge.
    pub(crate) bridge: Option<String>,
    /// A socket that stays open until the kernel has deleted the link: what is deleted through the socket meanwhile
    /// shares the link's wait.
    pub(crate) keep_open: Option<BorrowedFd<'a>>,
}

impl Removal<'_> {
    /// Deletes the pair by its host veth, which the container cannot change and whose alias names the attachment. Only
    /// a pair that the reference made has no alias; that one is deleted by the container veth.
    pub(crate) fn run(&self, mut home: Home) -> Result<()> {
        let mut failures = Failures::default();
        match self.delete_ports(&mut home.netlink) {
            Ok(true) => return Ok(()),
            outcome => failures.note(outcome.map(drop)),
        }
        failures.note(self.at.open_netns_if_there().and_then(|netns| match netns {
            Some(netns) => self.delete_unmarked(&mut home, &netns),
            None => Ok(()),
        }));
        failures.into_result()
    }

    /// Deletes the host veth with the attachment's alias; `false` if there is none. The result of ADD names it, which
    /// saves a look at all links: a host may have thousands.
    fn delete_ports(&self, host: &mut Netlink) -> Result<bool> {
        let alias = self.key.alias();
        for name in self.host_interfaces() {
            if let Some(port) = host.link(name)?.filter(|link| link.alias == alias) {
                return delete_aside(host, port.index, self.keep_open).map(|()| true);
            }
        }
        let mut failures = Failures::default();
        let ports = host.find_links(&|found| found == alias)?;
        for port in &ports {
            failures.note(delete_aside(host, port.index, self.keep_open));
        }
        failures.into_result().map(|()| !ports.is_empty())
    }

    /// The host's interfaces in the result of ADD. A name that no interface can have is not asked for.
    fn host_interfaces(&self) -> impl Iterator<Item = &str> {
        let on_host = self.prev_result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
        on_host.map(|interface| interface.name.as_str()).filter(|name| IfName::from_config(name).is_ok())
    }

    /// Deletes the container veth of a pair without our alias, if the pair provably belongs to this attachment. The
    /// path may lead to the namespace of another container by now, whose interface has the same name.
    fn delete_unmarked(&self, home: &mut Home, netns: &Netns) -> Result<()> {
        let place = || format!("in {:?}", self.at.sandbox());
        let mut guest = netns.run(&home.netns, Netlink::open)?;
        let Some(link) = guest.link(self.at.ifname.as_str()).trying(place)? else { return Ok(()) };
        if !self.is_ours(home, &mut guest, &link)? {
            warn!(
                "{:?} in {:?} is left alone: nothing proves that it is this attachment's",
                link.name,
                self.at.sandbox()
            );
            return Ok(());
        }
        attach::delete(&mut guest, link.index).trying(place)
    }

    /// Returns whether the container veth `link` provably belongs to this attachment.
    ///
    /// A result of ADD that a runtime kept decides: it lists the host veth, or another one. Without such a result the
    /// pair must be on the network's bridge and have the addresses that are leased to this attachment now, and no
    /// others. (The addresses in the result prove nothing: after a first DEL they may have been leased again.)
    fn is_ours(&self, home: &mut Home, guest: &mut Netlink, link: &Link) -> Result<bool> {
        // An index counts only in its own namespace.
        if link.peer_netns.is_none() || link.peer_netns != guest.netns_id(&home.netns)? {
            return Ok(false);
        }
        let host = &mut home.netlink;
        let Some(port) = link.peer.map(|peer| host.link(peer)).transpose()?.flatten() else { return Ok(false) };
        let is_pair = link.kind == "veth" && port.kind == "veth" && port.peer == Some(link.index);
        if !is_pair || AliasOwner::parse(&port.alias).is_some() {
            return Ok(false);
        }
        if self.is_listed() {
            return Ok(self.host_interfaces().any(|name| name == port.name));
        }
        let leased = self.ipam.map(|ipam| ipam.leased_to(self.at)).transpose()?.flatten().unwrap_or_default();
        let bridge = self.bridge.as_deref().and_then(|name| host.link_index(name).transpose()).transpose()?;
        if leased.is_empty() || bridge.is_none() || port.master.is_some_and(|master| Some(master) != bridge) {
            return Ok(false);
        }
        let addresses = guest.addresses(link.index)?;
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

/// Deletes a link by way of a child, and returns when it is gone.
fn delete_aside(host: &mut Netlink, link: LinkIndex, keep_open: Option<BorrowedFd<'_>>) -> Result<()> {
    let gone = Watch::open(Event::Link).and_then(|mut watch| {
        let delete = || drop(Netlink::open().and_then(|mut host| attach::delete(&mut host, link)));
        let child = Aside::start(keep_open, delete)?;
        watch.await_gone(link, child.as_fd(), Deadline::after(PATIENCE))
    });
    match gone {
        Ok(true) => {
            debug!("link {link} is gone");
            Ok(())
        }
        // It failed, was killed, or could not be had: whatever it was, it is found out here.
        outcome => {
            debug!("delete link {link} without a child: {outcome:?}");
            attach::delete(host, link)
        }
    }
}
