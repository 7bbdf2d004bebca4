//! The lock of a network's directory, which the reference takes as well. It goes with its holder, however that ends.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Deadline, Error, Result};
use fs2::FileExt;
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

use crate::dir::Dir;

const NAME: &str = "lock";

/// Enough for dozens of calls of the reference in a full network, and for any number of ours.
const PATIENCE: Duration = Duration::from_secs(20);

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of `dir`; `None` if its file was removed meanwhile, and with it perhaps the directory.
    pub(crate) fn acquire(dir: &Dir) -> Result<Option<Lock>> {
        let path = dir.path().join(NAME);
        let what = || format!("lock {path:?}");
        let Some(file) = open(dir).trying(what)? else { return Ok(None) };
        match file.try_lock_exclusive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let deadline = Deadline::after(PATIENCE);
                let taken = deadline.interrupt(|| file.lock_exclusive()).trying(what)?;
                taken.ok_or_else(|| busy(&path, &file))?;
            }
            outcome => outcome.trying(what)?,
        }
        let still_there = file.metadata().trying(what)?.nlink() > 0;
        Ok(still_there.then_some(Lock { _file: file }))
    }
}

/// Opens the lock file for writing, because NFS grants an exclusive lock to no other descriptor. On a read-only file
/// system DEL and CHECK still need the lock, and a descriptor for reading has to do.
fn open(dir: &Dir) -> io::Result<Option<File>> {
    match dir.file(NAME, OFlag::O_RDWR, 0) {
        // The mode is the reference's.
        Ok(None) => dir.file(NAME, OFlag::O_RDWR | OFlag::O_CREAT, 0o750),
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => dir.file(NAME, OFlag::O_RDONLY, 0),
        outcome => outcome,
    }
}

fn busy(path: &Path, file: &File) -> Error {
    let seconds = PATIENCE.as_secs();
    let error = Error::new(Code::TRY_LATER, format!("{path:?} was locked by another for {seconds} seconds"));
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    match file.metadata().ok().and_then(|inode| holder(&locks, inode.dev(), inode.ino())) {
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            error.details(format!("process {pid} {:?} holds it; if it hangs, end it", name.trim()))
        }
        None => error.details("who holds it cannot be seen from here; `lslocks` on the host may tell"),
    }
}

/// The process that holds the lock of an inode, out of the text of `/proc/locks`.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid) = (words.next()?, words.nth(2)?);
        // Those who wait stand there too, after "->", and shift the words by one.
        if kind != "FLOCK" || words.next()? != place { None } else { pid.parse().ok() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_told_from_those_who_wait() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 fe:00:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:00:42 0 EOF\n";
        assert_eq!(holder(locks, nix::sys::stat::makedev(0xfe, 0), 42), Some(13));
        assert_eq!(holder(locks, nix::sys::stat::makedev(0xfe, 1), 42), None);
        assert_eq!(holder("", 0, 42), None);
    }
}
