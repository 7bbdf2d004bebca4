//! The socket: sends requests, reads until they are answered, and believes nothing that it did not check.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;

use super::answer::{Answers, Listing, NLMSG_ERROR, refusal};
use super::wire::{self, Message, malformed};
use crate::error::{Code, Context, Error, Result};
use crate::ip::MacAddr;
use crate::sys;
use crate::wait::Deadline;

/// The kernel answers before `send` returns; this is for the case that it does not.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often something is asked for again that did not fit, or changed while it was read.
const ATTEMPTS: u32 = 10;
/// The same for rules: any change of any ruleset spoils a listing, and many may come and go at once.
const ATTEMPTS_AT_RULES: u32 = 500;
/// Who the kernel is among those who send.
const KERNEL: u32 = 0;
/// Enough for any answer that was seen; grows when it is not. Kept small because untouched pages are cheap.
const BUFFER: usize = 8 << 10;

/// A socket for requests. It subscribes to nothing, so that whatever it receives is an answer.
pub(super) struct Socket {
    socket: NlSocket,
    seq: u32,
    buffer: Vec<u8>,
    /// How often a listing is asked for that changes while it is read.
    attempts: u32,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Socket {
    /// For links, addresses, routes.
    pub(super) fn route() -> Result<Socket> {
        // The kernel gives it an address with the first message.
        let socket = NlSocket::new(NlFamily::Route)?;
        socket.enable_ext_ack(true)?;
        // Makes the kernel apply the filter of a listing. It does not exist before 4.20, where we filter anyway.
        match socket.enable_strict_checking(true) {
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => {
                return Err(error.into());
            }
            _ => {}
        }
        Ok(Socket { socket, seq: 0, buffer: vec![0; BUFFER], attempts: ATTEMPTS })
    }

    /// For nf_tables.
    pub(super) fn netfilter() -> Result<Socket> {
        let socket = NlSocket::new(NlFamily::Netfilter)?;
        socket.enable_ext_ack(true)?;
        Ok(Socket { socket, seq: 0, buffer: vec![0; BUFFER], attempts: ATTEMPTS_AT_RULES })
    }

    /// Sends `messages` in one datagram and reads until the last is acknowledged. `each` is shown what they echo.
    ///
    /// The inner result is the first refusal, with the place of the message that was refused.
    pub(super) fn change(
        &mut self,
        messages: &[&[u8]],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        // Refusals come by themselves; one acknowledgement, at the end, stands for all that was not refused.
        self.batch(messages, NlmF::ACK, each)
    }

    /// Sends `messages` in one datagram, the last of which asks for a list. `each` is shown what they echo, what they
    /// ask for, and the list.
    pub(super) fn change_and_list(
        &mut self,
        messages: &[&[u8]],
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        self.batch(messages, NlmF::DUMP, each)
    }

    /// Sends `messages` in one datagram, the last with `flags` that make the kernel answer it.
    fn batch(
        &mut self,
        messages: &[&[u8]],
        flags: NlmF,
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
        self.converse(&datagram, first, messages.len(), ended, each)
    }

    /// Sends `messages` between `begin` and `end`: to nf_tables a transaction, of which all or nothing happens, and
    /// without an end nothing. The inner result is as that of [`Socket::change`].
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
        // What befalls the whole transaction is answered to its beginning.
        let ended = |place, refused| place == messages.len() || (place == 0 && refused);
        let refused = self.converse(&datagram, first, messages.len() + 1, ended, |_| Ok(()))?;
        Ok(refused.map(|(place, error)| (place.saturating_sub(1), error)))
    }

    /// Sends a datagram of `count` messages, the first of which has the sequence number `first`, and reads until
    /// `ended` says of an answer, by its place and whether it is a refusal, that it is the last.
    fn converse(
        &mut self,
        datagram: &[u8],
        first: u32,
        count: usize,
        ended: impl Fn(usize, bool) -> bool,
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        // A refusal repeats the message.
        self.reserve(datagram.len() + BUFFER / 2);
        self.transmit(datagram)?;
        let mut answers = Answers { first, count, refused: None };
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

    /// The number of the link called `name`, without a message; `None` if there is none.
    pub(super) fn link_index(&self, name: &str) -> Result<Option<u32>> {
        match sys::link_index(self.fd(), name) {
            Ok(index) => Ok(Some(index)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The Ethernet address of the link called `name`, without a message; `None` if there is none.
    pub(super) fn mac_of(&self, name: &str) -> Option<MacAddr> {
        sys::link_mac(self.fd(), name).ok().flatten().map(MacAddr)
    }

    /// Is the link called `name` up, and does it carry, as far as is known? Nobody knows of one that is not there.
    pub(super) fn link_is_running(&self, name: &str) -> bool {
        sys::link_is_running(self.fd(), name).unwrap_or(false)
    }

    /// Makes the kernel notice now what happened to the carrier of the link called `name`.
    pub(super) fn settle_carrier(&self, name: &str) -> bool {
        sys::settle_carrier(self.fd(), name).is_ok()
    }

    /// Asks for one object, which comes as a message of type `kind`; `None` if the kernel says that there is none
    /// (`absent` is how it says so).
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

    /// Asks for a list of messages of type `kind`, again if it changed meanwhile. `read` may leave out what it does not
    /// want.
    pub(super) fn list<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let attempts = self.attempts;
        self.list_until(question, kind, &read, |listing| !listing.spoiled)?.ok_or_else(|| {
            let what = format!("the list changed each of the {attempts} times it was read");
            Error::new(Code::TRY_LATER, what).details("many links, addresses or rules come and go at once; try again")
        })
    }

    /// Looks in a list for what `read` wants. A list that changed meanwhile may have left something out, and what it
    /// shows was there all the same: so it is asked for again only as long as it shows nothing. What was there all the
    /// time is not left out ten times in a row.
    pub(super) fn find<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let enough = |listing: &Listing<T>| !listing.spoiled || !listing.items.is_empty();
        Ok(self.list_until(question, kind, &read, enough)?.unwrap_or_default())
    }

    /// Asks for a list until it is `good`; `None` if it never was.
    fn list_until<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: &dyn Fn(&[u8]) -> Result<Option<T>>,
        good: impl Fn(&Listing<T>) -> bool,
    ) -> Result<Option<Vec<T>>> {
        for _ in 0..self.attempts {
            let listing = self.list_once(question, kind, read)?;
            if good(&listing) {
                return Ok(Some(listing.items));
            }
        }
        Ok(None)
    }

    fn list_once<T>(
        &mut self,
        question: &[u8],
        kind: u16,
        read: &dyn Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Listing<T>> {
        let mut datagram = Vec::with_capacity(question.len());
        let seq = self.append(&mut datagram, question, NlmF::DUMP);
        self.transmit(&datagram)?;
        let mut listing = Listing { seq, kind, items: Vec::new(), spoiled: false };
        let mut deadline = None;
        loop {
            match self.receive(&mut deadline)? {
                Some(datagram) if !listing.take(datagram, read)? => {}
                Some(_) => return Ok(listing),
                None => {
                    self.drain(&mut listing)?;
                    listing.spoiled = true;
                    return Ok(listing);
                }
            }
        }
    }

    /// Reads what is left of a listing of which a datagram was cut off: until it has ended the kernel would refuse the
    /// next one. It goes on with a listing whenever it is asked for more, so nothing to read is the end as well.
    fn drain<T>(&mut self, listing: &mut Listing<T>) -> Result<()> {
        loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(len) if listing.take(self.buffer.get(..len).unwrap_or_default(), &|_| Ok(None))? => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).trying(|| "receive from the kernel"),
            }
        }
    }

    /// Adds `message` to `datagram` with the next sequence number, which is returned.
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

    fn transmit(&mut self, datagram: &[u8]) -> Result<()> {
        let sent = retry(|| self.socket.send(datagram, Msg::empty())).trying(|| "send to the kernel")?;
        if sent == datagram.len() { Ok(()) } else { Err(malformed("the request was cut off")) }
    }

    /// One datagram; `None` if it did not fit, and then there is more room the next time. The deadline begins with the
    /// first wait, because most answers are there already, and the first look at the clock costs two pages of memory.
    fn receive(&mut self, deadline: &mut Option<Deadline>) -> Result<Option<&[u8]>> {
        let len = loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let deadline = deadline.get_or_insert_with(|| Deadline::after(PATIENCE));
                    if !deadline.readable(self.fd())? {
                        let what = format!("no answer from the kernel within {PATIENCE:?}");
                        return Err(Error::new(Code::TRY_LATER, what));
                    }
                }
                Err(error) => return Err(error).trying(|| "receive from the kernel"),
            }
        };
        if len > self.buffer.len() {
            self.reserve(len);
            return Ok(None);
        }
        Ok(self.buffer.get(..len))
    }
}

/// One datagram, if there is one; its true length comes back, so that a cut is seen. Not by neli, which also reads the
/// sender's groups, into a list.
pub(super) fn receive(socket: &NlSocket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let (len, sender) = retry(|| sys::receive(sys::borrow(socket), buffer))?;
        // Whoever administers the namespace may send to any socket there.
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
