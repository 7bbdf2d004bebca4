//! The socket: sends requests, reads their answers, and validates everything it reads.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};
use nix::sys::socket::{SetSockOpt, setsockopt};

use super::answer::{Answers, Listing, NLMSG_ERROR, refusal};
use super::wire::{self, Message, malformed};
use crate::detached::DetachedChild;
use crate::error::{Context, Error, Kind, Result};
use crate::ip::MacAddr;
use crate::log::debug;
use crate::sys;
use crate::wait::Deadline;

/// The kernel usually answers before `send` returns. This is the timeout if it does not.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a detached child keeps a socket open for a process that does not exit.
const PARENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of attempts if an answer did not fit, or changed while it was read.
const ATTEMPTS: u32 = 10;
/// The same for rules: any change of any ruleset interrupts a listing, and many may happen at the same time.
const RULE_ATTEMPTS: u32 = 500;
/// The most questions in one datagram. Their answers need less than a quarter of the default receive buffer.
const QUESTIONS: usize = 32;
/// The kernel's port ID as a sender.
const KERNEL: u32 = 0;
/// Initial buffer size, sufficient for known answers; grows if necessary. A small buffer touches fewer pages.
const BUFFER: usize = 8 << 10;
/// The largest request whose errors fit into the default receive buffer: each error message repeats a part of it.
const SMALL_REQUEST: usize = 32 << 10;

/// A socket for requests. It subscribes to no groups, so that everything it receives is an answer.
pub(super) struct Socket {
    socket: NlSocket,
    seq: u32,
    buffer: Vec<u8>,
    /// Maximum number of attempts for a list that changes while it is read.
    attempts: u32,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket for links, addresses and routes.
    pub(super) fn route() -> Result<Socket> {
        // The kernel assigns an address with the first message.
        let socket = NlSocket::new(NlFamily::Route)?;
        socket.enable_ext_ack(true)?;
        // Makes the kernel apply the filters of list requests. Kernels before 4.20 do not support it; we filter as
        // well.
        match socket.enable_strict_checking(true) {
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => {
                return Err(error.into());
            }
            _ => {}
        }
        Ok(Socket { socket, seq: 0, buffer: vec![0; BUFFER], attempts: ATTEMPTS })
    }

    /// Opens a socket for nf_tables and connection tracking.
    pub(super) fn netfilter() -> Result<Socket> {
        let socket = NlSocket::new(NlFamily::Netfilter)?;
        socket.enable_ext_ack(true)?;
        Ok(Socket { socket, seq: 0, buffer: vec![0; BUFFER], attempts: RULE_ATTEMPTS })
    }

    /// Sends `messages` in one datagram and reads until the last one is acknowledged. Calls `each` with echoed
    /// messages.
    ///
    /// The inner result is the first error, with the position of the message that the kernel rejected.
    pub(super) fn change(
        &mut self,
        messages: &[&[u8]],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        // The kernel always reports errors. One acknowledgement, for the last message, confirms all that had no error.
        self.batch(messages, NlmF::ACK, &[], each)
    }

    /// As [`Socket::change`] without echoed messages. The errors in `ignored` do not count.
    pub(super) fn change_ignoring(&mut self, messages: &[&[u8]], ignored: &[i32]) -> Result<Option<(usize, Error)>> {
        self.batch(messages, NlmF::ACK, ignored, |_| Ok(()))
    }

    /// Sends `messages` in one datagram; the last one requests a list. Calls `each` with echoed messages, queried
    /// objects and the items of the list.
    pub(super) fn change_and_list(
        &mut self,
        messages: &[&[u8]],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        self.batch(messages, NlmF::DUMP, &[], each)
    }

    /// Queries several objects with few datagrams, each returned as a message of type `kind`; `None` for those for
    /// which the kernel answers with one of the errors in `absent`.
    ///
    /// The kernel answers before `send` returns, each question with a datagram, and fails if too many are not received
    /// yet: see [`QUESTIONS`].
    pub(super) fn get_each<T>(
        &mut self,
        questions: &[Vec<u8>],
        kind: u16,
        absent: &[i32],
        read: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<Vec<Option<T>>> {
        let mut found = Vec::with_capacity(questions.len());
        for questions in questions.chunks(QUESTIONS) {
            let (begin, first) = (found.len(), self.seq.wrapping_add(1));
            found.resize_with(begin + questions.len(), || None);
            let questions: Vec<_> = questions.iter().map(Vec::as_slice).collect();
            let refused = self.batch(&questions, NlmF::ACK, absent, |message| {
                if message.kind != kind {
                    return Err(malformed("an answer of another type"));
                }
                if let Some(place) = found.get_mut(begin + message.seq.wrapping_sub(first) as usize) {
                    *place = Some(read(message.payload)?);
                }
                Ok(())
            })?;
            if let Some((_, error)) = refused {
                return Err(error);
            }
        }
        Ok(found)
    }

    /// Sends `messages` in one datagram; the last one gets `flags` that make the kernel answer it. The errors in
    /// `absent` do not count.
    fn batch(
        &mut self,
        messages: &[&[u8]],
        flags: NlmF,
        absent: &[i32],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        let Some((last, others)) = messages.split_last() else { return Ok(None) };
        let first = self.seq.wrapping_add(1);
        let mut datagram = Vec::with_capacity(messages.iter().map(|message| message.len()).sum());
        for message in others {
            self.append(&mut datagram, message, NlmF::empty());
        }
        self.append(&mut datagram, last, flags);
        let ended = |place, _| place + 1 == messages.len();
        let answers = Answers { first, count: messages.len(), absent, refused: None };
        self.exchange(&datagram, answers, ended, each)
    }

    /// Sends `messages` between `begin` and `end`. nf_tables treats them as a transaction, which is applied completely
    /// or not at all; without `end` it is only validated. The inner result is as for [`Socket::change`].
    pub(super) fn transact(
        &mut self,
        begin: &[u8],
        messages: &[&[u8]],
        end: Option<&[u8]>,
    ) -> Result<Option<(usize, Error)>> {
        let Some((last, others)) = messages.split_last() else { return Ok(None) };
        let mut datagram = Vec::new();
        let first = self.append(&mut datagram, begin, NlmF::empty());
        for message in others {
            self.append(&mut datagram, message, NlmF::empty());
        }
        self.append(&mut datagram, last, NlmF::ACK);
        if let Some(end) = end {
            self.append(&mut datagram, end, NlmF::empty());
        }
        // An error of the whole transaction is the answer to its first message.
        let ended = |place, refused| place == messages.len() || (place == 0 && refused);
        let answers = Answers { first, count: messages.len() + 1, absent: &[], refused: None };
        let refused = self.exchange(&datagram, answers, ended, |_| Ok(()))?;
        Ok(refused.map(|(place, error)| (place.saturating_sub(1), error)))
    }

    /// Sends a datagram and reads its `answers` until `ended`, called with the position of an answer and whether it is
    /// an error, returns `true`.
    fn exchange(
        &mut self,
        datagram: &[u8],
        mut answers: Answers<'_>,
        ended: impl Fn(usize, bool) -> bool,
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        // An error message repeats the request.
        self.reserve(datagram.len() + BUFFER / 2);
        if datagram.len() > SMALL_REQUEST {
            // The kernel doubles the number, and counts memory in powers of two.
            let size = datagram.len().saturating_mul(2);
            self.enlarge(RcvBufForce, RcvBuf, size).context(|| "enlarge the receive buffer")?;
        }
        self.transmit(datagram)?;
        let mut deadline = None;
        loop {
            match self.receive(&mut deadline)? {
                Some(datagram) if answers.take(datagram, &ended, &mut each)? => return Ok(answers.refused),
                Some(_) => {}
                None => return Err(malformed("the answer to a change was cut off")),
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        sys::borrow(&self.socket)
    }

    /// Closes the socket without waiting. When a netfilter socket is closed after a deletion, the kernel first waits
    /// until no processor uses what was deleted. A detached child process keeps the socket open until this process has
    /// closed it, and then waits instead. If no child can be started, this process waits.
    ///
    /// While a close waits, the kernel holds the lock that every change of rules needs, and every deletion of a link:
    /// the next plugin of a list would wait, too. So the child calls `settle` before it closes the socket, which waits
    /// without a lock.
    pub(super) fn close_detached(self, settle: impl FnOnce()) {
        let parent = std::process::id();
        let wait = || {
            drop(sys::pidfd(parent).map(|parent| Deadline::after(PARENT_TIMEOUT).readable(parent.as_fd())));
            settle();
        };
        if let Err(error) = DetachedChild::start(Some(self.fd()), wait) {
            debug!("close the netfilter socket without a child: {error}");
        }
    }

    /// Returns the index of the link called `name` by an ioctl; `None` if there is none.
    pub(super) fn link_index(&self, name: &str) -> Result<Option<u32>> {
        match sys::link_index(self.fd(), name) {
            Ok(index) => Ok(Some(index)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the name of the link with this index by an ioctl; `None` if there is none.
    pub(super) fn link_name(&self, index: u32) -> Result<Option<String>> {
        match sys::link_name(self.fd(), index) {
            Ok(name) => Ok(Some(wire::text(&name))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the MAC address of the link called `name` by an ioctl; `None` if there is none.
    pub(super) fn mac_of(&self, name: &str) -> Option<MacAddr> {
        sys::link_mac(self.fd(), name).ok().flatten().map(MacAddr)
    }

    /// Returns the MTU of the link called `name` by an ioctl; `None` if there is none.
    pub(super) fn mtu_of(&self, name: &str) -> Option<u32> {
        sys::link_mtu(self.fd(), name).ok()
    }

    /// Returns whether the link called `name` is up and has a carrier, by an ioctl; `false` if there is none. Since
    /// Linux 6.8, the kernel processes pending changes of the carrier first.
    pub(super) fn has_carrier(&self, name: &str) -> bool {
        sys::link_has_carrier(self.fd(), name).unwrap_or(false)
    }

    /// Queries one object, which is returned as a message of type `kind`. Returns `None` if the kernel answers with one
    /// of the errors in `absent`.
    pub(super) fn get<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        absent: &[i32],
        read: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let mut datagram = Vec::with_capacity(question.len());
            let seq = self.append(&mut datagram, question, NlmF::empty());
            self.transmit(&datagram)?;
            let mut deadline = None;
            while let Some(mut rest) = self.receive(&mut deadline)? {
                while let Some(message) = wire::next_message(&mut rest)? {
                    if message.seq != seq {
                        continue;
                    }
                    if message.kind == kind {
                        return read(message.payload).map(Some);
                    }
                    if message.kind != NLMSG_ERROR {
                        return Err(malformed("an answer of another type"));
                    }
                    match refusal(&message)? {
                        Some(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => {
                            return Ok(None);
                        }
                        Some(error) => return Err(error),
                        None => return Err(malformed("an acknowledgement instead of an object")),
                    }
                }
            }
        }
        Err(malformed("the answer never fits"))
    }

    /// Requests a list of messages of type `kind`, and again if it changed meanwhile. `read` may skip items.
    pub(super) fn list<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let attempts = self.attempts;
        self.list_until(question, kind, read, |_, interrupted| !interrupted)?.ok_or_else(|| {
            let what = format!("the list changed each of the {attempts} times it was read");
            Error::new(Kind::Transient, what).details("many links, addresses or rules come and go at once; try again")
        })
    }

    /// Searches a list for items that `read` returns. A list that changed while it was read may lack items, but the
    /// items that it has are valid. So it is requested again only while nothing is found. An item that exists all the
    /// time is not missing ten times in a row.
    pub(super) fn find<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let enough = |found: &[T], interrupted: bool| !interrupted || !found.is_empty();
        Ok(self.list_until(question, kind, read, enough)?.unwrap_or_default())
    }

    /// Requests a list until its items, and whether it changed while it was read, are `good`; `None` if they never
    /// were.
    pub(super) fn list_until<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>>,
        mut good: impl FnMut(&[T], bool) -> bool,
    ) -> Result<Option<Vec<T>>> {
        for _ in 0..self.attempts {
            let mut items = Vec::new();
            let interrupted =
                self.list_once(question, kind, &mut |payload| read(payload).map(|found| items.extend(found)))?;
            if good(&items, interrupted) {
                return Ok(Some(items));
            }
        }
        Ok(None)
    }

    /// Requests a list once. Returns whether it changed while it was read, or is incomplete.
    fn list_once(&mut self, question: &[u8], kind: u16, read: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let mut datagram = Vec::with_capacity(question.len());
        let seq = self.append(&mut datagram, question, NlmF::DUMP);
        self.transmit(&datagram)?;
        let mut listing = Listing { seq, kind, interrupted: false };
        let mut deadline = None;
        loop {
            match self.receive(&mut deadline)? {
                Some(datagram) if !listing.take(datagram, read)? => {}
                Some(_) => return Ok(listing.interrupted),
                None => {
                    self.drain(&mut listing)?;
                    return Ok(true);
                }
            }
        }
    }

    /// Reads the rest of a list after a truncated datagram: the kernel rejects another list request until the list has
    /// ended. It continues a list on each read, so if there is nothing to read the list has ended as well.
    fn drain(&mut self, listing: &mut Listing) -> Result<()> {
        loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(len) if listing.take(self.buffer.get(..len).unwrap_or_default(), &mut |_| Ok(()))? => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context(|| "receive from the kernel"),
            }
        }
    }

    /// Appends `message` to `datagram` and returns its sequence number.
    fn append(&mut self, datagram: &mut Vec<u8>, message: &[u8], flags: NlmF) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        let start = datagram.len();
        datagram.extend_from_slice(message);
        if let Some([low, high]) = datagram.get_mut(start + 6..start + 8) {
            [*low, *high] = (u16::from_ne_bytes([*low, *high]) | flags.bits()).to_ne_bytes();
        }
        if let Some(seq) = datagram.get_mut(start + 8..start + 12) {
            seq.copy_from_slice(&self.seq.to_ne_bytes());
        }
        datagram.resize(datagram.len().next_multiple_of(4), 0);
        self.seq
    }

    fn reserve(&mut self, size: usize) {
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
    }

    /// Enlarges a buffer of the socket. Root of a user namespace may not force the size; without force, the kernel
    /// silently limits it to the sysctl `net.core.rmem_max` or `net.core.wmem_max`.
    fn enlarge<F, L>(&self, forced: F, limited: L, size: usize) -> nix::Result<()>
    where
        F: SetSockOpt<Val = usize>,
        L: SetSockOpt<Val = usize>,
    {
        match setsockopt(&self.fd(), forced, &size) {
            Err(Errno::EPERM) => setsockopt(&self.fd(), limited, &size),
            outcome => outcome,
        }
    }

    fn transmit(&mut self, datagram: &[u8]) -> Result<()> {
        let mut sent = retry(|| self.socket.send(datagram, Msg::empty()));
        if sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE)) {
            // A transaction with some thousand elements does not fit into the default buffer.
            self.enlarge(SndBufForce, SndBuf, datagram.len()).context(|| "enlarge the send buffer")?;
            sent = retry(|| self.socket.send(datagram, Msg::empty()));
        }
        let sent = sent.context(|| "send to the kernel")?;
        if sent == datagram.len() { Ok(()) } else { Err(malformed("the request was cut off")) }
    }

    /// Receives one datagram; `None` if it did not fit, after enlarging the buffer. The deadline starts with the first
    /// wait, because most answers are available at once, and the first clock query touches two pages of memory.
    fn receive(&mut self, deadline: &mut Option<Deadline>) -> Result<Option<&[u8]>> {
        let len = loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let deadline = deadline.get_or_insert_with(|| Deadline::after(TIMEOUT));
                    if !deadline.readable(self.fd())? {
                        let what = format!("no answer from the kernel within {TIMEOUT:?}");
                        return Err(Error::new(Kind::Transient, what));
                    }
                }
                Err(error) => return Err(error).context(|| "receive from the kernel"),
            }
        };
        if len > self.buffer.len() {
            self.reserve(len);
            return Ok(None);
        }
        Ok(self.buffer.get(..len))
    }
}

/// Receives one datagram without waiting. Returns its real length, so that truncation is detected. Does not use neli,
/// which also allocates a list of the sender's groups.
pub(super) fn receive(socket: &NlSocket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let (len, sender) = retry(|| sys::receive(sys::borrow(socket), buffer))?;
        // Any process with CAP_NET_ADMIN in the namespace can send to this socket.
        if sender == KERNEL {
            return Ok(len);
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}
