//! The lock that keeps `gc` and `prune` from taking an attachment that is just being made for a leftover.
//!
//! Only this tool knows it. It goes with its holder, however that ends, and plugins do not inherit it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Deadline, Error, Result};
use fs2::FileExt;

/// Not beside the cache, which other tools list.
const HOME: &str = "/run/cni0";
const NAME: &str = "cnitool.lock";

/// Enough for a chain of slow plugins.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// For a change of one attachment: any number of them go on at the same time.
    pub(crate) fn shared() -> Result<Lock> {
        Lock::take(FileExt::try_lock_shared, FileExt::lock_shared)
    }

    /// For a look at all attachments that must stay true until what follows from it is done.
    pub(crate) fn exclusive() -> Result<Lock> {
        Lock::take(FileExt::try_lock_exclusive, FileExt::lock_exclusive)
    }

    fn take(attempt: fn(&File) -> io::Result<()>, wait: fn(&File) -> io::Result<()>) -> Result<Lock> {
        let path = Path::new(HOME).join(NAME);
        let what = || format!("lock {}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(HOME).trying(what)?;
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK a FIFO at the path would hold us for ever.
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&path).trying(what)?;
        match attempt(&file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let taken = Deadline::after(PATIENCE).interrupt(|| wait(&file)).trying(what)?;
                taken.ok_or_else(|| busy(&path))?;
            }
            outcome => outcome.trying(what)?,
        }
        Ok(Lock { _file: file })
    }
}

fn busy(path: &Path) -> Error {
    let what = format!("another cnitool has held {} for {} seconds", path.display(), PATIENCE.as_secs());
    Error::new(Code::TRY_LATER, what).details("`lslocks` shows which; if it hangs, end it")
}
