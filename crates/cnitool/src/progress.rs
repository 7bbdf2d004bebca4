//! Reports on stderr that a command is waiting, so that it does not look as if it had stopped.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::out;

/// How long a command waits silently.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);

/// Runs `work`. Prints `what` if that takes longer than [`SILENCE`].
pub(crate) fn report<T>(what: impl FnOnce() -> String + Send, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, end) = channel::<()>();
        scope.spawn(move || {
            if end.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                out::warn(&what());
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}
