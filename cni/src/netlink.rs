//! The kernel's routing tables by netlink: links, addresses, routes, neighbours, VLANs.
//!
//! A [`Netlink`] belongs to the network namespace in which it was opened, wherever the thread goes later: open one per
//! namespace and keep it. What should change is a list of [`Change`]s, which travel together in one datagram; what is
//! there is asked for by verbs. Wire types stay inside.

mod address;
mod link;
mod neighbour;
mod route;
mod socket;
mod vlan;
mod wire;

#[cfg(test)]
mod golden;

use std::fmt;

use log::debug;

use crate::error::{Code, Context, Error, Result};
use crate::wait::Deadline;

pub use address::{Address, DuplicateDetection};
pub use link::{
    BridgeSpec, Link, LinkChange, LinkIndex, LinkRef, OperState, Port, VethEnd, VethSpec,
};
pub use neighbour::Neighbour;
pub use route::KernelRoute;
pub use vlan::{Vlan, VlanRange};

use socket::{Notifications, Socket};
use wire::Message;

/// One change of the kernel's state, ready to be sent. The constructors are the verbs.
pub struct Change {
    what: String,
    /// Its message; the error of a builder is kept until it is sent.
    message: Result<Vec<u8>>,
    /// The name of the link that it makes.
    makes: Option<String>,
}

impl Change {
    fn new(what: String, message: Result<Vec<u8>>) -> Change {
        Change { what, message, makes: None }
    }

    fn making(self, link: &str) -> Change {
        Change { makes: Some(link.to_owned()), ..self }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the kernel tells unasked to those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link came, went or changed.
    Link,
    /// An IPv6 address came, went or changed, for instance because duplicate detection has finished.
    Ipv6Address,
}

/// Is told of one kind of events, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watch {
    notifications: Notifications,
}

impl Watch {
    /// Begins to listen in the namespace of this thread.
    pub fn open(event: Event) -> Result<Watch> {
        let group = match event {
            Event::Link => libc::RTNLGRP_LINK,
            Event::Ipv6Address => libc::RTNLGRP_IPV6_IFADDR,
        };
        Ok(Watch { notifications: Notifications::route(group).trying(|| "listen to the kernel")? })
    }

    /// Waits until `look` finds what it looks for. It is asked at once, and again after every event.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let mut told = true;
        while told {
            if let Some(found) = look().trying(|| format!("wait for {what}"))? {
                return Ok(found);
            }
            told = self.notifications.wait(deadline).trying(|| format!("wait for {what}"))?;
        }
        // The last change may have come with the deadline.
        look()?.ok_or_else(|| {
            Error::new(Code::TRY_LATER, format!("{what}: not seen within {:?}", deadline.length()))
        })
    }
}

/// A netlink socket in one network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Netlink> {
        Ok(Netlink { socket: Socket::route().trying(|| "open a netlink socket")? })
    }

    /// Makes all `changes`, in order, with one message to the kernel.
    ///
    /// The kernel does not stop at a change that fails; the first failure is returned.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        self.send(changes, |_| Ok(()))
    }

    /// Makes all `changes`, the first of which makes a link, and returns that link.
    ///
    /// A kernel since 6.2 tells it in the answer, as it was when it was made; an older one is asked once more.
    pub fn create(&mut self, changes: &[Change]) -> Result<Link> {
        let mut made = None;
        self.send(changes, |message| {
            if made.is_none() && message.kind == libc::RTM_NEWLINK {
                made = Some(Link::read(message.payload)?);
            }
            Ok(())
        })?;
        if let Some(made) = made {
            return Ok(made);
        }
        let name = changes
            .first()
            .and_then(|change| change.makes.as_deref())
            .ok_or_else(|| Error::bug("no link to make"))?;
        let gone = || {
            Error::new(
                Code::INTERNAL,
                format!("link {name:?} was made, and somebody deleted it at once"),
            )
        };
        self.link(name)?.ok_or_else(gone)
    }

    fn send(
        &mut self,
        changes: &[Change],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut messages = Vec::with_capacity(changes.len());
        for change in changes {
            debug!("{change}");
            messages.push(
                change.message.as_deref().map_err(Clone::clone).trying(|| change.what.as_str())?,
            );
        }
        match self.socket.change(&messages, each)? {
            None => Ok(()),
            Some((index, error)) => {
                Err(error).trying(|| changes.get(index).map_or("", |change| &change.what))
            }
        }
    }
}
