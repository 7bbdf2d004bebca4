//! Parses the kernel's answers to changes and list requests. Needs no socket, so that the fuzzer can call it.

use neli::consts::nl::NlmF;

use super::wire::{self, Message, malformed};
use crate::error::{Error, Result};

// linux/netlink.h; libc defines them with another type.
pub(super) const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// The answers to `count` messages; `first` is the sequence number of the first one.
pub(super) struct Answers<'a> {
    pub(super) first: u32,
    pub(super) count: usize,
    /// The errors that do not count, because they mean that a queried object does not exist.
    pub(super) absent: &'a [i32],
    /// The first error, with the position of the message that the kernel rejected.
    pub(super) refused: Option<(usize, Error)>,
}

impl Answers<'_> {
    /// Reads the answers in a datagram. Returns `true` when `ended`, called with the position of an answer and whether
    /// it is an error, returns `true`.
    pub(super) fn take(
        &mut self,
        mut rest: &[u8],
        ended: impl Fn(usize, bool) -> bool,
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<bool> {
        while let Some(message) = wire::next_message(&mut rest)? {
            let place = message.seq.wrapping_sub(self.first) as usize;
            if place >= self.count {
                continue; // The answer to an abandoned request.
            }
            if message.kind != NLMSG_ERROR && message.kind != NLMSG_DONE {
                each(&message)?;
                continue;
            }
            // The end of a list reports errors in the same format.
            let refusal = refusal(&message)?;
            let last = ended(place, refusal.is_some());
            if let Some(error) = refusal
                && !error.errno().is_some_and(|errno| self.absent.contains(&errno))
            {
                self.refused.get_or_insert((place, error));
            }
            if last {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A list that is being read. Not generic: a node's plugins share one file, which should stay small.
pub(super) struct Listing {
    pub(super) seq: u32,
    pub(super) kind: u16,
    /// Whether the list changed while it was read, or is incomplete.
    pub(super) interrupted: bool,
}

impl Listing {
    /// Reads the part of the list in a datagram: calls `read` with each item. Returns `true` at the end of the list.
    pub(super) fn take(&mut self, mut rest: &[u8], read: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        while let Some(message) = wire::next_message(&mut rest)? {
            if message.seq != self.seq {
                continue; // The answer to an abandoned request.
            }
            self.interrupted |= message.flags & NlmF::DUMP_INTR.bits() != 0;
            match message.kind {
                // A list request can fail at its end.
                NLMSG_DONE => {
                    let status = wire::number(message.payload, 0).unwrap_or(0).cast_signed();
                    return self.end(status, message.payload.get(4..));
                }
                NLMSG_ERROR => match refusal(&message)? {
                    Some(error) if error.errno() == Some(libc::EINTR) => {
                        return self.end(-libc::EINTR, None);
                    }
                    Some(error) => return Err(error),
                    None => return Err(malformed("an acknowledgement instead of a list")),
                },
                kind if kind == self.kind => read(message.payload)?,
                _ => return Err(malformed("an answer of another type")),
            }
        }
        Ok(false)
    }

    fn end(&mut self, status: i32, attributes: Option<&[u8]>) -> Result<bool> {
        match status {
            // Some lists report a change by this status instead of the flag.
            status if status == -libc::EINTR => self.interrupted = true,
            status if status < 0 => {
                return Err(Error::kernel(status.saturating_neg(), &explanation(attributes)));
            }
            _ => {}
        }
        Ok(true)
    }
}

/// Parses an NLMSG_ERROR; `None` if it is an acknowledgement.
pub(super) fn refusal(message: &Message<'_>) -> Result<Option<Error>> {
    let status = wire::number(message.payload, 0)?.cast_signed();
    if status == 0 {
        return Ok(None);
    }
    // The message repeats the request, completely unless the CAPPED flag is set. The explanation follows.
    let repeated = if message.flags & NlmF::CAPPED.bits() != 0 {
        16
    } else {
        wire::number(message.payload, 4).map_or(0, |len| len as usize)
    };
    let rest = repeated.checked_next_multiple_of(4).and_then(|len| message.payload.get(len.checked_add(4)?..));
    Ok(Some(Error::kernel(status.saturating_neg(), &explanation(rest))))
}

/// Returns the text of an extended acknowledgement, or an empty text.
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

    const MULTI: u16 = 2;

    /// Returns a message as the kernel sends it.
    fn message(kind: u16, flags: u16, seq: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 0, seq, 0, 0, 0, 0, 0, 0, 0];
        bytes[0] = u8::try_from(16 + payload.len()).unwrap();
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Returns an NLMSG_ERROR: status, the request (complete or only its header), then attributes.
    fn error(status: i32, request: &[u8], flags: u16, attributes: &[u8]) -> Vec<u8> {
        message(NLMSG_ERROR, flags, 7, &[&status.to_ne_bytes(), request, attributes].concat())
    }

    fn read(bytes: &[u8]) -> Result<Option<Error>> {
        refusal(&wire::next_message(&mut &*bytes).unwrap().unwrap())
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has its own error texts")]
    fn an_error_is_read_with_its_explanation() {
        let request = [&[20, 0, 0, 0, 16, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 3, 4]].concat();
        let text = [&[9, 0, 1, 0][..], b"well\0\0\0\0"].concat();
        let whole = read(&error(-libc::EEXIST, &request, 0, &text)).unwrap().unwrap();
        assert_eq!(format!("{whole:?}"), "File exists (os error 17) (kernel: well)");
        let capped = read(&error(-libc::EEXIST, &request[..16], NlmF::CAPPED.bits(), &text)).unwrap().unwrap();
        assert_eq!(capped, whole);
        assert_eq!(read(&error(0, &request, 0, &[])).unwrap(), None, "an acknowledgement");
        let truncated = read(&error(i32::MIN, &[], 0, &[])).unwrap().unwrap();
        assert_eq!(truncated.errno(), Some(i32::MAX), "truncated, with a number that no kernel sends");
        assert!(
            read(&error(-1, &request, 0, &[255, 255, 1, 0])).unwrap().is_some(),
            "an attribute with a wrong length"
        );
    }

    #[test]
    fn the_first_error_counts_unless_it_means_that_an_object_is_absent() {
        let answer = |seq, status: i32| {
            let payload = [&status.to_ne_bytes()[..], &[0; 16]].concat();
            message(NLMSG_ERROR, NlmF::CAPPED.bits(), seq, &payload)
        };
        let datagram = [
            answer(6, -libc::EPERM), // The answer to another request.
            answer(7, -libc::ENOENT),
            answer(8, -libc::EBUSY),
            answer(9, -libc::EPERM),
            answer(10, 0),
        ]
        .concat();
        for (absent, expected) in [
            (&[][..], Some((0, libc::ENOENT))),
            (&[libc::ENOENT][..], Some((1, libc::EBUSY))),
            (&[libc::ENOENT, libc::EBUSY, libc::EPERM][..], None),
        ] {
            let mut answers = Answers { first: 7, count: 4, absent, refused: None };
            assert!(answers.take(&datagram, |place, _| place == 3, |_| Ok(())).unwrap(), "the last one was read");
            let refused = answers.refused.map(|(place, error)| (place, error.errno().unwrap()));
            assert_eq!(refused, expected);
        }
    }

    /// Reads a list of messages of type 16 that was requested with sequence number 7.
    fn listing(datagrams: &[Vec<u8>]) -> Result<(Vec<u8>, bool, bool)> {
        let mut listing = Listing { seq: 7, kind: 16, interrupted: false };
        let (mut items, mut ended) = (Vec::new(), false);
        for datagram in datagrams {
            ended = listing.take(datagram, &mut |payload| Ok(payload.first()).map(|first| items.extend(first)))?;
        }
        Ok((items, listing.interrupted, ended))
    }

    #[test]
    fn a_list_is_read_to_its_end() {
        let item = |n| message(16, MULTI, 7, &[n, 0, 0, 0]);
        let done = message(NLMSG_DONE, MULTI, 7, &[0, 0, 0, 0]);
        let stale = message(16, MULTI, 6, &[9, 0, 0, 0]);
        let all = [[item(1), item(2)].concat(), stale, [item(3), done.clone()].concat()];
        assert_eq!(listing(&all).unwrap(), (vec![1, 2, 3], false, true));
        assert_eq!(listing(&all[..2]).unwrap(), (vec![1, 2], false, false), "not yet");
        assert!(listing(&[message(17, MULTI, 7, &[0; 4])]).is_err(), "another type");
        assert!(listing(&[message(16, MULTI, 7, &[0; 4])[..10].to_vec()]).is_err(), "cut off");
    }

    #[test]
    fn a_list_that_changed_is_detected() {
        let done = message(NLMSG_DONE, MULTI, 7, &[0, 0, 0, 0]);
        let interrupted = message(16, MULTI | NlmF::DUMP_INTR.bits(), 7, &[1, 0, 0, 0]);
        assert_eq!(listing(&[interrupted, done]).unwrap(), (vec![1], true, true));
        let late = message(NLMSG_DONE, MULTI | NlmF::DUMP_INTR.bits(), 7, &[0, 0, 0, 0]);
        assert!(listing(&[late]).unwrap().1);
        let by_status = message(NLMSG_DONE, MULTI, 7, &(-libc::EINTR).to_ne_bytes());
        assert!(listing(&[by_status]).unwrap().1);
        assert!(listing(&[error(-libc::EINTR, &[0; 16], NlmF::CAPPED.bits(), &[])]).unwrap().1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has its own error texts")]
    fn a_list_can_fail_at_its_end() {
        let text = [&(-libc::EPERM).to_ne_bytes()[..], &[8, 0, 1, 0], b"no\0\0"].concat();
        let failed = listing(&[message(NLMSG_DONE, MULTI, 7, &text)]).unwrap_err();
        assert_eq!(format!("{failed:?}"), "Operation not permitted (os error 1) (kernel: no)");
        assert!(listing(&[error(-libc::EPERM, &[0; 16], NlmF::CAPPED.bits(), &[])]).is_err());
        assert!(listing(&[error(0, &[0; 16], NlmF::CAPPED.bits(), &[])]).is_err(), "an acknowledgement is not a list");
    }
}
