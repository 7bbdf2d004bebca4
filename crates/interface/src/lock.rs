//! Locks: that of the links of the host that several containers share, so that an ADD that uses such a link does not
//! lose it to a DEL, and that of a container, for plugins that choose numbers or share objects there.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Error, Result};
use linux::dir::Dir;
use linux::{Deadline, Netns};

/// The directory of the lock.
const HOME: &str = "/run/cni0";
/// The name of the lock file.
const NAME: &str = "links.lock";

/// How long a call waits for the lock. A call holds it for some messages to the kernel, each of which may take tens of
/// milliseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The lock, which is released when this value is dropped, or the process exits or is killed.
#[derive(Debug)]
pub struct HostLock {
    _file: File,
}

impl HostLock {
    /// Waits for the lock.
    pub fn acquire() -> Result<HostLock> {
        let path = Path::new(HOME).join(NAME);
        let what = || format!("lock {path:?}");
        let locked = Dir::create_private(Path::new(HOME)).and_then(|dir| dir.lock(NAME, Deadline::after(TIMEOUT)));
        match locked.context(what)? {
            Some(file) => Ok(HostLock { _file: file }),
            None => Err(held(&path)),
        }
    }
}

/// Waits for the lock of a container's namespace, which is released when the namespace is closed. The namespace itself
/// is locked, so that no file has to exist or could be left.
pub fn lock_namespace(guest: &Netns) -> Result<()> {
    match guest.lock(Deadline::after(TIMEOUT))? {
        true => Ok(()),
        false => Err(held(guest.path())),
    }
}

fn held(path: &Path) -> Error {
    let seconds = TIMEOUT.as_secs();
    let what = format!("lock {path:?}: another process held it for {seconds} seconds");
    Error::new(Code::TRY_LATER, what).details("run `lslocks` on the host to find the process that holds the lock")
}
