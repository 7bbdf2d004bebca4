//! Waiting for events of the kernel, always with a deadline, except for the standard streams.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use crate::sys;

/// The point in time when waiting ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    length: Duration,
}

impl Deadline {
    /// Returns the point in time after `length` from now.
    pub fn after(length: Duration) -> Deadline {
        Deadline { end: Instant::now() + length, length }
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Returns the earlier of this deadline and the one after `length` from now.
    #[must_use]
    pub fn within(&self, length: Duration) -> Deadline {
        let slice = Deadline::after(length);
        if slice.end < self.end { slice } else { *self }
    }

    /// Returns the length of the wait, for error messages.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Returns the time until the deadline; zero after it.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Waits until `fd` is readable; `false` at the deadline.
    pub fn readable(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        self.poll(&mut [PollFd::new(fd, PollFlags::POLLIN)])
    }

    /// Waits until one of `fds` is ready; `false` at the deadline.
    pub(crate) fn poll(&self, fds: &mut [PollFd<'_>]) -> io::Result<bool> {
        loop {
            // Rounded up, so that the last wait does not busy-loop.
            let left = self.left() + Duration::from_micros(999);
            match poll(fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Err(nix::Error::EINTR) => {}
                Ok(0) if Instant::now() < self.end => {}
                outcome => return Ok(outcome? > 0),
            }
        }
    }

    /// Runs a blocking system call that `poll` does not support, such as `flock`; `None` at the deadline. `call` must
    /// fail with EINTR when a signal arrives.
    ///
    /// Uses SIGALRM, which the kernel prefers to deliver to the main thread: the caller must run on it.
    pub fn run_interruptible<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
        sys::let_alarm_interrupt()?;
        // The parent process may have blocked the signal.
        SigSet::from(Signal::SIGALRM).thread_unblock()?;
        let signal = SigevNotify::SigevSignal { signal: Signal::SIGALRM, si_value: 0 };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(signal))?;
        let left = self.left().max(Duration::from_nanos(1));
        // The timer repeats because the first signal may arrive just before the call blocks.
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

/// Waits until a standard stream is ready. There is no timeout, as for a blocking stream: the caller decides how long
/// it takes.
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
        assert!(deadline.readable(reader.as_fd()).unwrap(), "available data is reported even after the deadline");
    }
}
