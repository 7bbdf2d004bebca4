//! The kernel's network state over rtnetlink: links, addresses, routes, neighbours, VLANs, traffic control.
//!
//! A [`Netlink`] stays in the network namespace in which it was opened, even if the thread moves: open one for each
//! namespace and keep it. [`Change`]s are sent together in one datagram. Queries are methods. Wire types are private.

mod address;
mod answer;
mod conntrack;
mod delete;
mod link;
mod neighbour;
pub mod nft;
mod route;
mod rule;
mod socket;
mod tc;
mod vlan;
mod watch;
mod wire;

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod golden;

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::RtAddrFamily;

use crate::error::{Context, Error, Kind, Result};
use crate::log::debug;
use crate::netns::Netns;
use crate::sys;

pub use address::{Address, DuplicateDetection};
pub use conntrack::{Conntrack, FlowFilter};
pub use link::{
    FrameRules, IpvlanIsolation, IpvlanMode, Link, LinkChange, LinkIndex, LinkKind, LinkRef, MacvlanMode, NetnsId,
    NewLink, OperState, Port, TapDevice, Upper, VethPeer, VlanProtocol, VlanTag,
};
pub use neighbour::Neighbour;
pub use route::{KernelRoute, ListedRoute, Rejection, Route};
pub use rule::{Rule, SourceRule};
pub use tc::{Classifier, LOOPBACK_REPLY, Qdisc, QdiscPlace, Redirect, TokenBucket};
pub use vlan::{Vlan, VlanRange};
pub use watch::{Event, Watch};

use socket::Socket;
use wire::{Message, Request};

/// One change of the kernel's state, ready to be sent. Each constructor is an operation.
pub struct Change<'a> {
    /// Describes the change. A closure, because the text is rarely needed.
    what: Box<dyn Fn() -> String + 'a>,
    message: Vec<u8>,
    /// The name of the link that the change creates.
    creates: Option<&'a str>,
}

impl<'a> Change<'a> {
    fn new(request: Request, what: impl Fn() -> String + 'a) -> Change<'a> {
        Change { what: Box::new(what), message: request.finish(), creates: None }
    }

    fn creating(self, link: &'a str) -> Change<'a> {
        Change { creates: Some(link), ..self }
    }
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&(self.what)())
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Logs `changes` and returns their messages.
fn encoded<'a>(changes: &'a [Change<'_>]) -> Vec<&'a [u8]> {
    let mut messages = Vec::with_capacity(changes.len() + 2);
    for change in changes {
        debug!("{change}");
        messages.push(change.message.as_slice());
    }
    messages
}

/// Describes the message that the kernel rejected: one of `changes`, or `beyond` if its position is after them.
fn refused(changes: &[Change<'_>], place: usize, beyond: &str) -> String {
    changes.get(place).map_or_else(|| beyond.to_owned(), ToString::to_string)
}

/// A port that was created, and the state of its bridge afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPort {
    /// The port when it was created, before it became a port.
    pub port: Link,
    /// The bridge.
    pub bridge: Link,
    /// The bridge's IPv4 addresses.
    pub addresses: Vec<Address>,
}

/// An rtnetlink socket in one network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Netlink> {
        Ok(Netlink { socket: Socket::route().context(|| "open a netlink socket")? })
    }

    /// Opens a socket in the namespace of the calling thread, and that namespace.
    pub fn open_with_netns() -> Result<(Netlink, Netns)> {
        let netlink = Netlink::open()?;
        let netns = Netns::of_socket(Some(netlink.socket.fd()))?;
        Ok((netlink, netns))
    }

    /// Returns the cookie of the socket's namespace, which no other namespace gets until the next boot, unlike the
    /// inode number; `None` before Linux 5.14.
    pub fn netns_cookie(&self) -> Result<Option<u64>> {
        match sys::netns_cookie(self.socket.fd()) {
            Ok(cookie) => Ok(Some(cookie)),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
            Err(error) => Err(error).context(|| "query the cookie of the network namespace"),
        }
    }

    /// Applies all `changes`, in order, with one message to the kernel.
    ///
    /// The kernel does not stop at a change that fails; the first error is returned.
    pub fn apply(&mut self, changes: &[Change<'_>]) -> Result<()> {
        self.send(changes, |_| Ok(()))
    }

    /// Applies all `changes`, the first of which creates a link, and returns that link as it was when it was created.
    ///
    /// Linux 6.2 and later include it in the answer; on older kernels it is queried afterwards.
    pub fn create(&mut self, changes: &[Change<'_>]) -> Result<Link> {
        let mut made = None;
        self.send(changes, |message| {
            if made.is_none() && message.kind == libc::RTM_NEWLINK {
                made = Some(Link::read(message.payload)?);
            }
            Ok(())
        })?;
        self.or_query(made, changes)
    }

    /// Returns the link that the first of `changes` created: from the echo, or, before Linux 6.2, by a query.
    fn or_query(&mut self, made: Option<Link>, changes: &[Change<'_>]) -> Result<Link> {
        if let Some(link) = made {
            return Ok(link);
        }
        let name = changes.first().and_then(|change| change.creates).unwrap_or_default();
        self.link(name)?.ok_or_else(|| {
            let what = format!("link {name:?} was deleted right after its creation");
            Error::new(Kind::Kernel, what)
        })
    }

    /// Applies all `changes`, the first of which creates a link that becomes a port of `bridge`. Also queries the
    /// bridge and its IPv4 addresses. All with one message.
    pub fn create_port(&mut self, bridge: LinkIndex, changes: &[Change<'_>]) -> Result<NewPort> {
        let (query, list) = (link::get_link(bridge.into()), address::list_addresses(RtAddrFamily::Inet, bridge));
        let mut messages = encoded(changes);
        messages.extend([query.as_slice(), list.as_slice()]);
        let (mut links, mut addresses, mut complete) = (Vec::new(), Vec::new(), true);
        let refusal = self.socket.change_and_list(&messages, |message| {
            complete &= message.flags & NlmF::DUMP_INTR.bits() == 0;
            match message.kind {
                libc::RTM_NEWLINK => links.push(Link::read(message.payload)?),
                libc::RTM_NEWADDR => addresses.extend(Address::read(message.payload, bridge)?),
                _ => {}
            }
            Ok(())
        })?;
        if let Some((place, error)) = refusal {
            return Err(error).context(|| refused(changes, place, "query the bridge"));
        }
        if !complete {
            addresses = self.ipv4_addresses(bridge)?;
        }
        let bridge = links
            .pop_if(|link| link.index == bridge)
            .ok_or_else(|| Error::bug("the kernel did not return the bridge"))?;
        let port = self.or_query(links.into_iter().next(), changes)?;
        Ok(NewPort { port, bridge, addresses })
    }

    /// Applies all `changes`, in order, with one message to the kernel. The errors in `ignored` do not count.
    pub fn apply_ignoring(&mut self, changes: &[Change<'_>], ignored: &[i32]) -> Result<()> {
        match self.socket.change_ignoring(&encoded(changes), ignored)? {
            None => Ok(()),
            Some((place, error)) => Err(error).context(|| refused(changes, place, "")),
        }
    }

    fn send(&mut self, changes: &[Change<'_>], each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<()> {
        match self.socket.change(&encoded(changes), each)? {
            None => Ok(()),
            Some((place, error)) => Err(error).context(|| refused(changes, place, "")),
        }
    }
}
