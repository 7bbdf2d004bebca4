//! Waiting for events of the kernel, always with a deadline, except for the standard streams.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
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

    /// Calls `attempt` until it returns a value, again whenever a file appears or changes in `directory`. Returns
    /// `None` at the deadline, and at once if there is no such directory.
    pub fn retry_on_change_in<T>(
        &self,
        directory: &Path,
        mut attempt: impl FnMut() -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE;
        match watch.add_watch(directory, changes | AddWatchFlags::IN_ONLYDIR) {
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => return Ok(None),
            watched => watched?,
        };
        loop {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            if !self.readable(watch.as_fd())? {
                return Ok(None);
            }
            // What changed does not matter. Another event may arrive before the attempt, which only repeats it.
            watch.read_events()?;
        }
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

    #[test]
    fn an_attempt_is_repeated_when_a_file_appears() {
        let directory = std::env::temp_dir().join(format!("cni0-retry-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("file");
        let read = || match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some),
        };
        assert_eq!(Deadline::after(Duration::from_millis(20)).retry_on_change_in(&directory, read).unwrap(), None);
        let deadline = Deadline::after(Duration::from_secs(60));
        assert_eq!(deadline.retry_on_change_in(&directory.join("missing"), read).unwrap(), None);
        let mut attempts = 0;
        let found = deadline.retry_on_change_in(&directory, || {
            attempts += 1;
            let found = read()?;
            if found.is_none() {
                let draft = directory.join("draft");
                std::fs::write(&draft, "x")?;
                std::fs::rename(draft, &file)?;
            }
            Ok(found)
        });
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((found.unwrap().as_deref(), attempts), (Some("x"), 2));
    }
}
