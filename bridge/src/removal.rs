//! The order of a removal. A link that goes and rules that go each make the kernel wait until all processors have
//! forgotten them, for ten milliseconds and more; side by side it is one wait.

use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use cni::netlink::{Event, Watch};
use cni::{Code, Deadline, Error, Result};

use crate::failures::Failures;
use crate::name::Owner;

/// How long a link may take to go. It takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `delete`, which deletes the pair of `owner`, and does `the_rest` as soon as the kernel tells that its port is
/// gone: long before it answers, and not before, because it would make the kernel wait twice.
pub(crate) fn beside(
    failures: &mut Failures,
    owner: Owner<'_>,
    delete: impl Fn() -> Result<()> + Sync,
    the_rest: impl FnOnce(&mut Failures),
) {
    thread::scope(|scope| {
        let started =
            Watch::open(Event::Link).and_then(|watch| Ok((watch, io::pipe()?))).and_then(|(watch, (until, done))| {
                let delete = &delete;
                // It says by closing the pipe that it has ended.
                let run = move || (delete(), drop(done)).0;
                Ok((watch, until, thread::Builder::new().spawn_scoped(scope, run)?))
            });
        let Ok((mut watch, until, thread)) = started else {
            // Something cannot be had: then one after the other.
            failures.note(delete());
            return the_rest(failures);
        };
        let alias = owner.alias();
        // If it is never told, the thread has ended, and what became of it is told below.
        let _ = watch.await_gone(until.as_fd(), Deadline::after(PATIENCE), |link| link.alias == alias);
        the_rest(failures);
        let lost = || Err(Error::new(Code::INTERNAL, "deleting the pair ended in a panic"));
        failures.note(thread.join().unwrap_or_else(|_| lost()));
    });
}
