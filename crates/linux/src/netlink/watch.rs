//! Waits for notifications of the kernel, on a separate socket.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use neli::consts::socket::NlFamily;
use neli::socket::NlSocket;
use neli::utils::Groups;
use nix::poll::{PollFd, PollFlags};

use super::socket::receive;
use super::wire::{self, Message};
use super::{Address, LinkIndex, Netlink, OperState};
use crate::error::{Context, Error, Kind, Result};
use crate::sys;
use crate::wait::Deadline;

/// Size of the buffer for notifications. A larger notification counts as lost.
const BUFFER: usize = 4 << 10;

/// An event that the kernel notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link was created, deleted or changed.
    Link,
    /// An IPv6 address was added, deleted or changed, for example because duplicate address detection has finished.
    Ipv6Address,
    /// A route of IPv4 was added, deleted or changed.
    Ipv4Route,
    /// A route of IPv6 was added, deleted or changed.
    Ipv6Route,
}

/// Receives notifications of one event in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watch {
    notifications: Notifications,
}

impl Watch {
    /// Subscribes in the namespace of the calling thread.
    pub fn open(event: Event) -> Result<Watch> {
        let group = match event {
            Event::Link => libc::RTNLGRP_LINK,
            Event::Ipv6Address => libc::RTNLGRP_IPV6_IFADDR,
            Event::Ipv4Route => libc::RTNLGRP_IPV4_ROUTE,
            Event::Ipv6Route => libc::RTNLGRP_IPV6_ROUTE,
        };
        Ok(Watch {
            notifications: Notifications::open(NlFamily::Route, group)
                .context(|| "subscribe to notifications of the kernel")?,
        })
    }

    /// Discards the notifications that have arrived, without waiting. A caller that waits for the watch itself queries
    /// the current state afterwards.
    pub fn discard(&mut self) -> Result<()> {
        self.notifications.discard()
    }

    /// Waits until `look` returns a value. Calls it at once, and again after every notification.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let mut notified = true;
        while notified {
            if let Some(found) = look().context(|| format!("wait for {what}"))? {
                return Ok(found);
            }
            notified = self.notifications.wait(deadline).context(|| format!("wait for {what}"))?;
        }
        // The last change may have happened at the deadline.
        look()?.ok_or_else(|| Error::new(Kind::Transient, format!("{what}: not seen within {:?}", deadline.length())))
    }

    /// Waits until notifications report each of `ips` on `link` as ready or as a duplicate. The watch must be opened
    /// before the addresses are added.
    ///
    /// The kernel lists a new IPv6 address at once, but drops packets to it until a worker has added its route. The
    /// kernel sends a notification then.
    pub fn await_addresses(
        &mut self,
        link: LinkIndex,
        ips: impl IntoIterator<Item = IpAddr>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut missing: Vec<IpAddr> = ips.into_iter().collect();
        while let Some(ip) = missing.first().copied() {
            let received = self.notifications.next(deadline, |message| {
                if message.kind == libc::RTM_NEWADDR
                    && let Some(address) = Address::read(message.payload, link)?
                    && (address.duplicate || !address.tentative)
                {
                    missing.retain(|ip| *ip != address.cidr.ip());
                }
                Ok(())
            });
            match received.context(|| format!("wait for address {ip} to be ready"))? {
                Some(true) => {}
                // So many events were lost that it must have happened long ago.
                Some(false) => return Ok(()),
                None => {
                    let what = format!("address {ip}: not ready within {:?}", deadline.length());
                    return Err(Error::new(Kind::Transient, what));
                }
            }
        }
        Ok(())
    }

    /// Waits until a notification reports that `link` is gone. Returns `false` if notifications were lost, if the
    /// process `until` that deletes the link has exited, or if the deadline has passed.
    pub fn await_gone(&mut self, link: LinkIndex, until: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
        let mut gone = false;
        loop {
            let received = self.notifications.read(|message| {
                // In another address family, the message only means that the link has left its bridge. Most
                // notifications are about links of others.
                gone |= message.kind == libc::RTM_DELLINK
                    && wire::byte(message.payload, 0)? == 0
                    && wire::number(message.payload, 4)? == link.number();
                Ok(())
            })?;
            match received {
                _ if gone => return Ok(true),
                Some(true) => continue,
                Some(false) => return Ok(false),
                None => {}
            }
            let mut either = [self.notifications.fd(), until].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // The last notification may have arrived at the same time as the exit; the caller then queries the link.
            if !deadline.poll(&mut either)? || either.last().and_then(PollFd::any).unwrap_or(true) {
                return Ok(false);
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.fd()
    }
}

impl Netlink {
    /// Waits until `link`, which is called `name`, is up and [running](super::Link::running); `what` describes the wait
    /// in errors.
    ///
    /// Since Linux 6.8, a query makes the kernel do the work of its worker at once. Otherwise this subscribes to
    /// notifications, and receives those of all links.
    pub fn await_running(
        &mut self,
        link: LinkIndex,
        name: &str,
        timeout: Duration,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        if sys::kernel_is(6, 8) && self.socket.has_carrier(name) {
            return Ok(());
        }
        let mut watch = Watch::open(Event::Link)?;
        watch.wait_for(&what(), Deadline::after(timeout), || match self.link(link)? {
            // Some kernels give a link its queue before its state.
            Some(link) => Ok((link.running && link.state == OperState::Up).then_some(())),
            None => Err(Error::new(Kind::Transient, format!("link {name:?} vanished"))),
        })
    }
}

/// A socket that receives notifications. Separate from the socket for requests, so that no notification is taken for an
/// answer.
pub(super) struct Notifications {
    socket: NlSocket,
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").finish_non_exhaustive()
    }
}

impl Notifications {
    /// Subscribes to a group of a family in the namespace of the calling thread.
    pub(super) fn open(family: NlFamily, group: u32) -> Result<Notifications> {
        let socket = NlSocket::new(family)?;
        socket.bind(None, Groups::new_groups(&[group]))?;
        Ok(Notifications { socket })
    }

    /// Calls `each` with the next notification. Returns `None` at the deadline, `Some(false)` if notifications were
    /// lost because too many arrived at once.
    fn next(&mut self, deadline: Deadline, mut each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<Option<bool>> {
        loop {
            if let Some(whole) = self.read(&mut each)? {
                return Ok(Some(whole));
            }
            if !deadline.readable(self.fd())? {
                return Ok(None);
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        sys::borrow(&self.socket)
    }

    /// Like [`Notifications::next`] without waiting: `None` if there is none.
    pub(super) fn read(&mut self, mut each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<Option<bool>> {
        let mut buffer = [0; BUFFER];
        match receive(&self.socket, &mut buffer) {
            Ok(len) => {
                let Some(mut rest) = buffer.get(..len) else { return Ok(Some(false)) };
                while let Some(message) = wire::next_message(&mut rest)? {
                    each(&message)?;
                }
                Ok(Some(true))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Some(false)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for any notification; `false` at the deadline. The content is ignored: callers query the current state
    /// afterwards.
    fn wait(&mut self, deadline: Deadline) -> Result<bool> {
        if !deadline.readable(self.fd())? {
            return Ok(false);
        }
        self.discard().map(|()| true)
    }

    fn discard(&mut self) -> Result<()> {
        loop {
            // All pending notifications count as one. Truncation of a large datagram does not matter here.
            match receive(&self.socket, &mut [0; 64]) {
                Ok(_) => {}
                // Notifications were lost because too many arrived at once. That counts as a notification too.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
