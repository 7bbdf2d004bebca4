//! The lock of a lease directory, shared with the reference. The kernel releases it when its holder exits or is killed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use fs2::FileExt;
use linux::Deadline;
use linux::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

use crate::error::{Code, Context, Error, Result};
use crate::inspect::LockHolder;

/// The name of the lock file.
pub(crate) const NAME: &str = "lock";

/// How long a call waits for the lock: enough for dozens of calls of the reference in a full network, which are slow.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The lock, which is released when this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of `dir`. Returns `None` if the lock file, perhaps with its directory, was removed meanwhile.
    pub(crate) fn acquire(dir: &Dir) -> Result<Option<Lock>> {
        let path = dir.path().join(NAME);
        let what = || format!("lock {path:?}");
        let Some(file) = open(dir).context(what)? else { return Ok(None) };
        match file.try_lock_exclusive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let deadline = Deadline::after(TIMEOUT);
                let taken = deadline.run_interruptible(|| file.lock_exclusive()).context(what)?;
                taken.ok_or_else(|| busy(&path, &file))?;
            }
            outcome => outcome.context(what)?,
        }
        let still_there = file.metadata().context(what)?.nlink() > 0;
        Ok(still_there.then_some(Lock { _file: file }))
    }
}

/// Opens the lock file for writing, because NFS grants an exclusive lock only to such a descriptor. On a read-only file
/// system, DEL and CHECK still need the lock, so the file is opened for reading there.
fn open(dir: &Dir) -> io::Result<Option<File>> {
    match dir.file(NAME, OFlag::O_RDWR, 0) {
        // The reference creates the file with the same mode.
        Ok(None) => dir.file(NAME, OFlag::O_RDWR | OFlag::O_CREAT, 0o750),
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => dir.file(NAME, OFlag::O_RDONLY, 0),
        outcome => outcome,
    }
}

/// Returns the error for a lock that another process held for too long, with that process if it can be found.
fn busy(path: &Path, file: &File) -> Error {
    let seconds = TIMEOUT.as_secs();
    let error = Error::new(Code::TRY_LATER, format!("lock {path:?}: another process held it for {seconds} seconds"));
    match file.metadata().ok().and_then(|inode| holding_process(&inode)) {
        Some((pid, program)) => {
            error.details(format!("process {pid} {program:?} holds the lock: if it hangs, kill it"))
        }
        None => error.details("run `lslocks` on the host to find the process that holds the lock"),
    }
}

/// Returns the process that holds the lock of a directory, with the lock file.
pub(crate) fn holder_in(directory: &Path) -> Option<LockHolder> {
    let file = directory.join(NAME);
    let (pid, program) = holding_process(&fs::metadata(&file).ok()?)?;
    Some(LockHolder { file, pid, program })
}

/// Returns the id and the program of the process that holds the lock of an inode.
fn holding_process(inode: &Metadata) -> Option<(u32, String)> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = holder(&locks, inode.dev(), inode.ino())?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, program.trim().to_owned()))
}

/// Returns the process that holds the lock of an inode, according to the text of `/proc/locks`.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid) = (words.next()?, words.nth(2)?);
        // Waiting processes are listed too, with "->" in front, which shifts their words by one.
        if kind != "FLOCK" || words.next()? != place { None } else { pid.parse().ok() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_distinguished_from_waiting_processes() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 fe:00:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:00:42 0 EOF\n";
        assert_eq!(holder(locks, nix::sys::stat::makedev(0xfe, 0), 42), Some(13));
        assert_eq!(holder(locks, nix::sys::stat::makedev(0xfe, 1), 42), None);
        assert_eq!(holder("", 0, 42), None);
    }
}
