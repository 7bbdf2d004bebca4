//! The lock that prevents `gc` and `prune` from removing an attachment that `add` is creating.
//!
//! Only `cnitool` uses it. The kernel releases it when its holder exits or is killed, and plugins do not inherit it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Error, Result};
use fs2::FileExt;
use linux::Deadline;

use crate::out;
use crate::progress::SILENCE;

/// The directory of the lock. Not that of the cache, which other tools list.
const HOME: &str = "/run/cni0";
const NAME: &str = "cnitool.lock";

/// How long a command waits for the lock: enough for a chain of slow plugins.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The lock, which is released when this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock for a change of one attachment. Several such changes can run at the same time.
    pub(crate) fn shared() -> Result<Lock> {
        Lock::take(FileExt::try_lock_shared, FileExt::lock_shared)
    }

    /// Takes the lock to inspect all attachments and act on the result, without changes in between.
    pub(crate) fn exclusive() -> Result<Lock> {
        Lock::take(FileExt::try_lock_exclusive, FileExt::lock_exclusive)
    }

    fn take(attempt: fn(&File) -> io::Result<()>, wait: fn(&File) -> io::Result<()>) -> Result<Lock> {
        let path = Path::new(HOME).join(NAME);
        let what = || format!("lock {}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(HOME).context(what)?;
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK, a FIFO at the path would block forever.
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&path).context(what)?;
        match attempt(&file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let deadline = Deadline::after(TIMEOUT);
                let taken = |until: Deadline| until.run_interruptible(|| wait(&file)).context(what);
                if taken(deadline.within(SILENCE))?.is_none() {
                    out::warn(&format!("waiting for another cnitool, which holds the lock {}", path.display()));
                    taken(deadline)?.ok_or_else(|| busy(&path))?;
                }
            }
            outcome => outcome.context(what)?,
        }
        Ok(Lock { _file: file })
    }
}

/// Returns the error for a lock that another process held for too long.
fn busy(path: &Path) -> Error {
    let what = format!("lock {}: another cnitool held it for {} seconds", path.display(), TIMEOUT.as_secs());
    Error::new(Code::TRY_LATER, what).details("`lslocks` shows the process: if it hangs, kill it")
}
