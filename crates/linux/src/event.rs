//! What a daemon waits for: descriptors, points in time, and signals that ask it to end. It handles all of them in one
//! loop, without threads.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};

/// The most events of one wait. Those that are left are reported by the next one.
const BATCH: usize = 64;

/// The descriptors that a daemon waits for, each with a number by which it recognises them.
#[derive(Debug)]
pub struct Events {
    epoll: Epoll,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number of the descriptor.
    pub id: u64,
    /// Whether the other side has closed the connection.
    pub closed: bool,
}

impl Events {
    /// Creates an empty set.
    pub fn new() -> io::Result<Events> {
        Ok(Events { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)? })
    }

    /// Waits for a descriptor to become readable, or for the other side to close it. A descriptor that is closed is
    /// removed.
    pub fn add(&self, fd: impl AsFd, id: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, id))?)
    }

    /// Removes a descriptor that stays open.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(self.epoll.delete(fd)?)
    }

    /// Waits until a descriptor is ready. One of them should be an [`Alarm`]: there is no other limit.
    pub fn wait(&self) -> io::Result<Vec<Ready>> {
        let mut found = [EpollEvent::empty(); BATCH];
        loop {
            match self.epoll.wait(&mut found, EpollTimeout::NONE) {
                Err(nix::Error::EINTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(count) => {
                    let closed = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
                    let ready =
                        |event: &EpollEvent| Ready { id: event.data(), closed: event.events().intersects(closed) };
                    return Ok(found.iter().take(count).map(ready).collect());
                }
            }
        }
    }
}

/// Returns the time since the boot, which includes the time that the machine was suspended.
pub fn now() -> io::Result<Duration> {
    Ok(clock_gettime(Clock::CLOCK_BOOTTIME)?.into())
}

/// A descriptor that becomes readable at a point in time.
#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
}

impl Alarm {
    /// Creates an alarm that is not set.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Alarm { timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)? })
    }

    /// Sets the alarm to a time since the boot, as [`now`] returns it. It is no longer readable, unless the time has
    /// passed.
    pub fn set(&self, at: Option<Duration>) -> io::Result<()> {
        let Some(at) = at else { return Ok(self.timer.unset()?) };
        // Zero would turn it off.
        let at = TimeSpec::from_duration(at.max(Duration::from_nanos(1)));
        Ok(self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A descriptor that becomes readable when a signal asks this process to end: SIGTERM, SIGINT, or SIGHUP when its
/// terminal is gone.
#[derive(Debug)]
pub struct EndRequests {
    signals: SignalFd,
}

impl EndRequests {
    /// Blocks the signals, so that only this descriptor reports them.
    pub fn open() -> io::Result<EndRequests> {
        let mut signals = SigSet::empty();
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block()?;
        Ok(EndRequests { signals: SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)? })
    }
}

impl AsFd for EndRequests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "miri has no timerfd")]
    fn an_alarm_rings_at_its_time_and_again_only_when_set_again() {
        let (events, alarm) = (Events::new().unwrap(), Alarm::new().unwrap());
        events.add(&alarm, 7).unwrap();
        let at = now().unwrap() + Duration::from_millis(20);
        alarm.set(Some(at)).unwrap();
        assert_eq!(events.wait().unwrap(), [Ready { id: 7, closed: false }]);
        assert!(now().unwrap() >= at);
        alarm.set(None).unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        events.add(&there, 8).unwrap();
        here.write_all(b"x").unwrap();
        assert_eq!(events.wait().unwrap(), [Ready { id: 8, closed: false }], "the alarm is off");
        alarm.set(Some(Duration::ZERO)).unwrap();
        events.remove(&there).unwrap();
        assert_eq!(events.wait().unwrap(), [Ready { id: 7, closed: false }], "a time that has passed");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no such flags")]
    fn a_closed_connection_is_reported() {
        let events = Events::new().unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        events.add(&there, 1).unwrap();
        drop(here);
        assert_eq!(events.wait().unwrap(), [Ready { id: 1, closed: true }]);
    }
}
