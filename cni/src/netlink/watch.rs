//! Waiting for what the kernel tells unasked: notifications, on a socket of their own.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use neli::consts::socket::NlFamily;
use neli::socket::NlSocket;
use neli::utils::Groups;
use nix::poll::{PollFd, PollFlags};

use super::socket::receive;
use super::wire::{self, Message};
use super::{Address, LinkIndex, Netlink};
use crate::error::{Code, Context, Error, Result};
use crate::sys;
use crate::wait::Deadline;

/// Enough for what the kernel tells of one link; what does not fit is asked for.
const NEWS: usize = 4 << 10;

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
        look()?.ok_or_else(|| Error::new(Code::TRY_LATER, format!("{what}: not seen within {:?}", deadline.length())))
    }

    /// Waits until the news say of all `ips` of `link` that they are ready, or that somebody else has them. The watch
    /// must have been opened before they were given.
    ///
    /// An IPv6 address that was just given is listed at once, and packets to it are thrown away until a worker of the
    /// kernel has made its route. It tells so.
    pub fn await_addresses(
        &mut self,
        link: LinkIndex,
        ips: impl IntoIterator<Item = IpAddr>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut missing: Vec<IpAddr> = ips.into_iter().collect();
        while let Some(ip) = missing.first().copied() {
            let news = self.notifications.next(deadline, |message| {
                if message.kind == libc::RTM_NEWADDR
                    && let Some(news) = Address::read(message.payload, link)?
                    && (news.duplicate || !news.tentative)
                {
                    missing.retain(|ip| *ip != news.cidr.ip());
                }
                Ok(())
            });
            match news.trying(|| format!("wait for address {ip} to be ready"))? {
                Some(true) => {}
                // So much happened that it must have been long ago.
                Some(false) => return Ok(()),
                None => {
                    let what = format!("address {ip}: not ready within {:?}", deadline.length());
                    return Err(Error::new(Code::TRY_LATER, what));
                }
            }
        }
        Ok(())
    }

    /// Waits until the news say that `link` is gone. `false` if they do not: because some were lost, because the process
    /// `until` that makes them has ended, or because the deadline came first.
    pub fn await_gone(&mut self, link: LinkIndex, until: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
        let mut gone = false;
        loop {
            let news = self.notifications.read(|message| {
                // Of another family it only tells that the link has left its bridge. Most news are about others' links.
                gone |= message.kind == libc::RTM_DELLINK
                    && wire::byte(message.payload, 0)? == 0
                    && wire::number(message.payload, 4)? == link.number();
                Ok(())
            })?;
            match news {
                _ if gone => return Ok(true),
                Some(true) => continue,
                Some(false) => return Ok(false),
                None => {}
            }
            let mut either =
                [sys::borrow(&self.notifications.socket), until].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // Its last words may have come with its end, and are asked for once more by whoever hears nothing.
            if !deadline.poll(&mut either)? || either.last().and_then(PollFd::any).unwrap_or(true) {
                return Ok(false);
            }
        }
    }
}

impl Netlink {
    /// Is the link called `name` up, and does it carry? For whoever has set the other end up: one that was just made counts
    /// as running, for its bridge too, until the kernel has had a look at it; and one that comes up does so before its
    /// bridge is told, under the lock for which the next change waits.
    pub fn seems_running(&self, name: &str) -> bool {
        self.socket.link_is_running(name)
    }

    /// Waits until `link`, which is called `name`, is up and carries; `what` tells an error what was waited for.
    ///
    /// Whoever asks in time need not listen: with a socket that is told of links he would hear of everybody's.
    pub fn await_running(
        &mut self,
        link: LinkIndex,
        name: &str,
        patience: Duration,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        if sys::kernel_is(6, 8) && self.socket.settle_carrier(name) && self.socket.link_is_running(name) {
            return Ok(());
        }
        let mut watch = Watch::open(Event::Link)?;
        watch.wait_for(&what(), Deadline::after(patience), || match self.link(link)? {
            Some(link) => Ok(link.running.then_some(())),
            None => Err(Error::new(Code::TRY_LATER, format!("link {name:?} vanished"))),
        })
    }
}

/// A socket that is told of changes. Apart from that for requests, so that no notification is taken for an answer.
struct Notifications {
    socket: NlSocket,
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").finish_non_exhaustive()
    }
}

impl Notifications {
    fn route(group: u32) -> Result<Notifications> {
        let socket = NlSocket::new(NlFamily::Route)?;
        socket.bind(None, Groups::new_groups(&[group]))?;
        Ok(Notifications { socket })
    }

    /// Shows the next one to `each`; `None` if the deadline came first, `false` if some were lost because too many
    /// came at once.
    fn next(&mut self, deadline: Deadline, mut each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<Option<bool>> {
        loop {
            if let Some(whole) = self.read(&mut each)? {
                return Ok(Some(whole));
            }
            if !deadline.readable(sys::borrow(&self.socket))? {
                return Ok(None);
            }
        }
    }

    /// The same without waiting: `None` if there is none.
    fn read(&mut self, mut each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<Option<bool>> {
        let mut buffer = [0; NEWS];
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

    /// Waits for any; `false` if the deadline came first. What they say is not looked at: whoever waits asks for the
    /// state then, which is newer.
    fn wait(&mut self, deadline: Deadline) -> Result<bool> {
        if !deadline.readable(sys::borrow(&self.socket))? {
            return Ok(false);
        }
        loop {
            // All that is there counts as one. A datagram that does not fit is cut, which does not matter here.
            match receive(&self.socket, &mut [0; 64]) {
                Ok(_) => {}
                // Too many came at once and some are lost; that much happened is a notification too.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
