//! The socket: sends requests, reads until they are answered, and believes nothing that it did not check.

use std::fmt;
use std::io;
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use neli::utils::Groups;

use super::wire::{self, Message, malformed};
use crate::error::{Code, Context, Error, Result};
use crate::sys;
use crate::wait::Deadline;

/// The kernel answers before `send` returns; this is for the case that it does not.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a listing is repeated that changed while it was read.
const ATTEMPTS: u32 = 10;
/// Enough for any answer that was seen; grows when it is not. Kept small because untouched pages are cheap.
const BUFFER: usize = 8 << 10;

// linux/netlink.h; libc has them in another type.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

pub(super) struct Socket {
    socket: NlSocket,
    seq: u32,
    buffer: Vec<u8>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("seq", &self.seq).finish_non_exhaustive()
    }
}

/// How an attempt to read a listing ended.
enum Read {
    Whole,
    /// It changed while it was read.
    Interrupted,
    /// A datagram did not fit; the buffer is larger now.
    CutOff,
}

impl Socket {
    /// For links, addresses, routes.
    pub(super) fn route() -> Result<Socket> {
        let socket = NlSocket::connect(NlFamily::Route, None, Groups::empty())?;
        socket.enable_ext_ack(true)?;
        // Makes the kernel apply the filter of a listing. It does not exist before 4.20, where we filter anyway.
        match socket.enable_strict_checking(true) {
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => {
                return Err(error.into());
            }
            _ => {}
        }
        Ok(Socket { socket, seq: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends `messages` in one datagram and reads until the last is acknowledged. `each` is shown what they echo.
    ///
    /// The inner result is the first refusal, with the place of the message that was refused.
    pub(super) fn change(
        &mut self,
        messages: &[&[u8]],
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Option<(usize, Error)>> {
        let Some((last, others)) = messages.split_last() else { return Ok(None) };
        let first = self.seq.wrapping_add(1);
        let mut datagram = Vec::with_capacity(messages.iter().map(|message| message.len()).sum());
        for message in others {
            self.append(&mut datagram, message, NlmF::empty());
        }
        // Refusals come by themselves; one acknowledgement, at the end, stands for all that was not refused.
        self.append(&mut datagram, last, NlmF::ACK);
        // A refusal repeats the message.
        self.reserve(datagram.len() + BUFFER / 2);
        self.transmit(&datagram)?;

        let mut refused = None;
        let deadline = Deadline::after(PATIENCE);
        loop {
            let Some(mut rest) = self.receive(deadline)? else {
                return Err(malformed("the answer to a change was cut off"));
            };
            while let Some(message) = wire::next_message(&mut rest)? {
                let place = message.seq.wrapping_sub(first) as usize;
                if place >= messages.len() {
                    continue; // A notification, or the answer to a request that was given up.
                }
                if message.kind != NLMSG_ERROR {
                    each(&message)?;
                    continue;
                }
                if let Some(error) = refusal(&message)? {
                    refused.get_or_insert((place, error));
                }
                if place + 1 == messages.len() {
                    return Ok(refused);
                }
            }
        }
    }

    /// Asks for one object; `None` if the kernel says that there is none (`absent` is how it says so).
    pub(super) fn get<T>(
        &mut self,
        message: &[u8],
        absent: &[i32],
        mut read: impl FnMut(&Message<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let mut datagram = Vec::with_capacity(message.len());
            let seq = self.append(&mut datagram, message, NlmF::empty());
            self.transmit(&datagram)?;
            let deadline = Deadline::after(PATIENCE);
            while let Some(mut rest) = self.receive(deadline)? {
                while let Some(message) = wire::next_message(&mut rest)? {
                    if message.seq != seq {
                        continue;
                    }
                    if message.kind != NLMSG_ERROR {
                        return read(&message).map(Some);
                    }
                    match refusal(&message)? {
                        Some(error)
                            if error.errno().is_some_and(|errno| absent.contains(&errno)) =>
                        {
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

    /// Asks for a list, again if it changed meanwhile. `read` may leave out what it does not want.
    pub(super) fn list<T>(
        &mut self,
        message: &[u8],
        mut read: impl FnMut(&Message<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        for _ in 0..ATTEMPTS {
            items.clear();
            match self.list_once(message, |message| {
                items.extend(read(message)?);
                Ok(())
            })? {
                Read::Whole => return Ok(items),
                Read::Interrupted | Read::CutOff => {}
            }
        }
        let error = Error::new(
            Code::TRY_LATER,
            format!("the list changed each of the {ATTEMPTS} times it was read"),
        );
        Err(error.details("many links or addresses come and go at once; try again"))
    }

    fn list_once(
        &mut self,
        message: &[u8],
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<Read> {
        let mut datagram = Vec::with_capacity(message.len());
        let seq = self.append(&mut datagram, message, NlmF::DUMP);
        self.transmit(&datagram)?;
        let deadline = Deadline::after(PATIENCE);
        let mut outcome = Read::Whole;
        loop {
            let Some(mut rest) = self.receive(deadline)? else {
                // The rest must be read all the same, or it would be taken for the next answer: it has another
                // sequence number, so the next attempt passes over it.
                return Ok(Read::CutOff);
            };
            while let Some(message) = wire::next_message(&mut rest)? {
                if message.seq != seq {
                    continue;
                }
                if message.flags & NlmF::DUMP_INTR.bits() != 0 {
                    outcome = Read::Interrupted;
                }
                match message.kind {
                    NLMSG_DONE => {
                        // A listing can fail at its end.
                        let status = wire::number(message.payload, 0).unwrap_or(0).cast_signed();
                        if status < 0 {
                            return Err(Error::kernel(
                                -status,
                                &explanation(message.payload.get(4..)),
                            ));
                        }
                        return Ok(outcome);
                    }
                    NLMSG_ERROR => match refusal(&message)? {
                        // The kernel says so instead of setting the flag, in some places.
                        Some(error) if error.errno() == Some(libc::EINTR) => {
                            return Ok(Read::Interrupted);
                        }
                        Some(error) => return Err(error),
                        None => return Err(malformed("an acknowledgement instead of a list")),
                    },
                    _ => each(&message)?,
                }
            }
        }
    }

    /// Has notifications of `group` sent to this socket.
    pub(super) fn subscribe(&mut self, group: u32) -> Result<()> {
        Ok(self.socket.add_mcast_membership(Groups::new_groups(&[group]))?)
    }

    pub(super) fn unsubscribe(&mut self, group: u32) -> Result<()> {
        Ok(self.socket.drop_mcast_membership(Groups::new_groups(&[group]))?)
    }

    /// Waits for any notification; `false` if the deadline came first. What it says is not looked at: whoever waits
    /// asks for the state then, which is newer.
    pub(super) fn notified(&mut self, deadline: Deadline) -> Result<bool> {
        if !deadline.readable(sys::borrow(&self.socket))? {
            return Ok(false);
        }
        match self.receive(deadline) {
            // Too many came at once and some are lost; that much happened is a notification too.
            Err(error) if error.errno() == Some(libc::ENOBUFS) => Ok(true),
            outcome => outcome.map(|_| true),
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
        let sent =
            retry(|| self.socket.send(datagram, Msg::empty())).trying(|| "send to the kernel")?;
        if sent == datagram.len() { Ok(()) } else { Err(malformed("the request was cut off")) }
    }

    /// One datagram; `None` if it did not fit, and then there is more room the next time.
    fn receive(&mut self, deadline: Deadline) -> Result<Option<&[u8]>> {
        let len = loop {
            // With TRUNC the true length comes back, so that a cut is seen.
            match retry(|| self.socket.recv(&mut self.buffer, Msg::TRUNC | Msg::DONTWAIT)) {
                Ok((len, _)) => break len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !deadline.readable(sys::borrow(&self.socket))? {
                        let what =
                            format!("no answer from the kernel within {:?}", deadline.length());
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

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// What an NLMSG_ERROR says; `None` is an acknowledgement.
fn refusal(message: &Message<'_>) -> Result<Option<Error>> {
    let status = wire::number(message.payload, 0)?.cast_signed();
    if status == 0 {
        return Ok(None);
    }
    // Then the request is repeated, whole unless the flag says otherwise, and the explanation follows.
    let repeated = if message.flags & NlmF::CAPPED.bits() != 0 {
        16
    } else {
        wire::number(message.payload, 4).map_or(0, |len| len as usize)
    };
    let rest = message.payload.get(4 + repeated.next_multiple_of(4)..);
    Ok(Some(Error::kernel(status.saturating_neg(), &explanation(rest))))
}

/// The text of an extended acknowledgement, or nothing.
fn explanation(attributes: Option<&[u8]>) -> String {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let found = wire::attributes(attributes.unwrap_or_default(), 0)
        .map_while(Result::ok)
        .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG);
    found.map_or_else(String::new, |(_, value)| wire::text(value))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    /// An NLMSG_ERROR: status, the request (whole or its header alone), then attributes.
    fn error(status: i32, request: &[u8], flags: u16, attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&status.to_ne_bytes());
        bytes.extend_from_slice(request);
        bytes.extend_from_slice(attributes);
        bytes[0] = u8::try_from(bytes.len()).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Option<Error>> {
        refusal(&wire::next_message(&mut &*bytes).unwrap().unwrap())
    }

    #[test]
    fn a_refusal_is_read_with_its_explanation() {
        let request =
            [&[20, 0, 0, 0, 16, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 3, 4]].concat();
        let text = [&[9, 0, 1, 0][..], b"well\0\0\0\0"].concat();
        let whole = read(&error(-libc::EEXIST, &request, 0, &text)).unwrap().unwrap();
        assert_eq!(format!("{whole:?}"), "[999] File exists (os error 17) (kernel: well)");
        let capped = read(&error(-libc::EEXIST, &request[..16], NlmF::CAPPED.bits(), &text))
            .unwrap()
            .unwrap();
        assert_eq!(capped, whole);
        assert_eq!(read(&error(0, &request, 0, &[])).unwrap(), None, "an acknowledgement");
        let bare = read(&error(i32::MIN, &[], 0, &[])).unwrap().unwrap();
        assert_eq!(bare.errno(), Some(i32::MAX), "cut off, and a number that no kernel sends");
        assert!(
            read(&error(-1, &request, 0, &[255, 255, 1, 0])).unwrap().is_some(),
            "an attribute that lies"
        );
    }
}
