//! Waiting: always for something the kernel tells, and never without an end, but for whoever called us.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use crate::sys;

/// The moment when waiting ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    length: Duration,
}

impl Deadline {
    /// The moment after `length` from now.
    pub fn after(length: Duration) -> Deadline {
        Deadline { end: Instant::now() + length, length }
    }

    /// Has it come?
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// The sooner of this moment and the one after `length` from now.
    #[must_use]
    pub fn within(&self, length: Duration) -> Deadline {
        let slice = Deadline::after(length);
        if slice.end < self.end { slice } else { *self }
    }

    /// How long the wait was meant to be, for an error that tells it.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Waits until `fd` can be read; `false` if the deadline came first.
    pub fn readable(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        self.poll(&mut [PollFd::new(fd, PollFlags::POLLIN)])
    }

    /// Waits until one of `fds` is ready; `false` if the deadline came first.
    pub(crate) fn poll(&self, fds: &mut [PollFd<'_>]) -> io::Result<bool> {
        loop {
            // Rounded up, so that the last wait is not a busy one.
            let left = self.end.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            match poll(fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Err(nix::Error::EINTR) => {}
                Ok(0) if Instant::now() < self.end => {}
                outcome => return Ok(outcome? > 0),
            }
        }
    }

    /// Runs a system call that blocks and that `poll` knows nothing of, such as `flock`; `None` if the deadline came
    /// first. `call` must fail with EINTR when a signal comes.
    ///
    /// It takes SIGALRM, which the kernel gives to the first thread of a process before all others: that must be this one.
    pub fn interrupt<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
        sys::let_alarm_interrupt()?;
        // Whoever started this process may have blocked it.
        SigSet::from(Signal::SIGALRM).thread_unblock()?;
        let signal = SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(signal))?;
        let left = self.end.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        // It repeats, because the first signal may come just before the call begins to wait.
        let again = Duration::from_millis(50);
        let times = Expiration::IntervalDelayed(left.into(), again.into());
        timer.set(times, TimerSetTimeFlags::empty())?;
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if Instant::now() >= self.end {
                        return Ok(None);
                    }
                }
                outcome => return outcome.map(Some),
            }
        }
    }
}

/// Waits until one of the streams is ready that whoever called us has given us. He may take his time, as he could if it
/// blocked.
pub(crate) fn ready(stream: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(stream, what)], PollTimeout::NONE) {
            Err(nix::Error::EINTR) => {}
            outcome => return Ok(outcome.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_deadline_ends_a_wait_and_data_ends_it_sooner() {
        let (reader, mut writer) = pipe().unwrap();
        let deadline = Deadline::after(Duration::from_millis(20));
        assert!(!deadline.readable(reader.as_fd()).unwrap());
        assert!(Instant::now() >= deadline.end);
        writer.write_all(b"x").unwrap();
        assert!(Deadline::after(Duration::from_secs(60)).readable(reader.as_fd()).unwrap());
        assert!(deadline.readable(reader.as_fd()).unwrap(), "what is there is seen even after the deadline");
    }
}
