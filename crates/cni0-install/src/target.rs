//! The directory of plugins, which one process changes at a time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::process;
use std::time::Duration;

use fs2::FileExt;
use linux::{Context, Deadline, Error, Kind, Result};

use crate::disk;

/// How long a command waits for another one in the same directory.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns an error in a container, whose first process this is, unless the directory is mounted from the host: what is
/// installed elsewhere vanishes with the container.
pub(crate) fn require_mount(path: &Path) -> Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    // Without /proc, the mounts are unknown.
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // The directory may not exist yet, and a symbolic link may lead to the mount.
    let place = absolute(path).ok().and_then(|path| path.ancestors().find_map(|dir| dir.canonicalize().ok()));
    let place = place.as_deref().unwrap_or(path);
    // The file writes a space in octal.
    if points.any(|point| point != "/" && place.starts_with(point.replace("\\040", " "))) {
        return Ok(());
    }
    let hint = "mount the host's directory there, as with `podman run -v /opt/cni/bin:/opt/cni/bin`";
    Err(Error::new(Kind::Other, format!("{path:?} is only in this container")).details(hint))
}

/// The locked directory of plugins. The kernel releases the lock when the process ends.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    _lock: File,
}

impl Target {
    /// Creates the directory if necessary, and locks it. Also returns the directories that did not exist.
    pub(crate) fn create(path: &Path) -> Result<(Target, Vec<PathBuf>)> {
        let mut made = Vec::new();
        loop {
            made.extend(disk::create_dirs(path)?);
            // An uninstall that ends at this moment can remove the directory again.
            if let Some(target) = Target::open(path)? {
                disk::check_writable(path)?;
                return Ok((target, made));
            }
        }
    }

    /// Locks the directory. Returns `None` if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<Target>> {
        let Some(dir) = disk::open_dir(path)? else { return Ok(None) };
        let what = || format!("lock {path:?}");
        match dir.try_lock_exclusive() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let locked = Deadline::after(TIMEOUT).run_interruptible(|| dir.lock_exclusive()).context(what)?;
                locked.ok_or_else(|| {
                    let held = format!("another process held it for {} seconds", TIMEOUT.as_secs());
                    Error::new(Kind::Transient, held).context(what()).details("lslocks shows it: if it hangs, kill it")
                })?;
            }
            outcome => outcome.context(what)?,
        }
        // The directory may have been removed while this process waited.
        let inode = dir.metadata().context(what)?;
        match fs::metadata(path) {
            Ok(now) if (now.dev(), now.ino()) == (inode.dev(), inode.ino()) => {
                Ok(Some(Target { path: path.to_owned(), _lock: dir }))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
