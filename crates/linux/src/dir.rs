//! An open directory of small files, with atomic operations on them by name. Independent of what the files contain.

use std::fmt::LowerHex;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
pub use nix::sys::stat::FileStat;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, fstat, fstatat, futimens, utimensat};
use nix::sys::statfs::fstatfs;
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, geteuid, linkat, unlinkat};

use crate::wait::Deadline;

/// The number of bytes that are read of a file at most, more than any valid file has.
const LIMIT: u64 = 256 << 10;

/// The suffix of the temporary file of [`Dir::replace`]. A killed call can leave such a file.
pub const TEMP_SUFFIX: &str = ".new";

/// Flags for every file: do not follow a symbolic link, do not wait for the other end of a pipe, close on exec.
const SAFE_FLAGS: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

/// The mode bits with which group and others may write.
const OTHERS: u32 = 0o022;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Magic numbers of file systems that hosts never share: ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, ZFS,
/// bcachefs.
const LOCAL_FILE_SYSTEMS: [i64; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Seconds and nanoseconds since 1970.
pub type Timestamp = (i64, i64);

/// Returns the key of a directory: its device and inode number. The types of both depend on the architecture.
pub fn key(dev: impl LowerHex, ino: impl LowerHex) -> String {
    key_prefix(dev) + &format!("{ino:x}")
}

/// Returns the prefix of the keys of all directories on a device.
pub fn key_prefix(dev: impl LowerHex) -> String {
    format!("{dev:x}-")
}

impl Dir {
    /// Opens the directory `path`. Returns `None` if it does not exist.
    pub fn open(path: &Path) -> io::Result<Option<Dir>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(AT_FDCWD, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Dir { fd, path: path.to_owned() })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens the directory `path`, creating it and its ancestors if necessary.
    pub fn create(path: &Path, mode: u32) -> io::Result<Dir> {
        if let Some(dir) = Dir::open(path)? {
            return Ok(dir);
        }
        DirBuilder::new().recursive(true).mode(mode).create(path)?;
        Dir::open(path)?.ok_or_else(|| Errno::ENOENT.into())
    }

    /// Opens the directory `path` and returns its status. Fails if users other than root can change it. Returns `None`
    /// if it does not exist.
    pub fn open_private(path: &Path) -> io::Result<Option<(Dir, FileStat)>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = match openat(AT_FDCWD, path, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            fd => fd?,
        };
        let stat = fstat(&fd)?;
        if stat.st_uid != 0 || stat.st_mode & OTHERS != 0 {
            return Err(Errno::EPERM.into());
        }
        Ok(Some((Dir { fd, path: path.to_owned() }, stat)))
    }

    /// Opens `path` like [`Dir::open_private`], creating it and its ancestors if necessary.
    pub fn create_private(path: &Path) -> io::Result<Dir> {
        if let Some((dir, _)) = Dir::open_private(path)? {
            return Ok(dir);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Dir::open_private(path)?.map(|(dir, _)| dir).ok_or_else(|| Errno::ENOENT.into())
    }

    /// Returns the path with which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the status of the directory.
    pub fn stat(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.fd)?)
    }

    /// Returns the key of the directory, as [`key`] does.
    pub fn key(&self) -> io::Result<String> {
        let stat = self.stat()?;
        Ok(key(stat.st_dev, stat.st_ino))
    }

    /// Opens a file. Returns `None` if it does not exist.
    pub fn file(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<Option<File>> {
        match openat(&self.fd, name, flags | SAFE_FLAGS, Mode::from_bits_truncate(mode)) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the lock of a file, which is created if necessary; `None` at the deadline. The kernel releases the
    /// lock when the file is closed. Uses SIGALRM, so the caller must run on the main thread.
    pub fn lock(&self, name: &str, deadline: Deadline) -> io::Result<Option<File>> {
        self.lock_with(name, File::try_lock, |file| deadline.run_interruptible(|| file.lock()))
    }

    /// Waits like [`Dir::lock`] for a lock that several processes can have at the same time.
    pub fn lock_shared(&self, name: &str, deadline: Deadline) -> io::Result<Option<File>> {
        self.lock_with(name, File::try_lock_shared, |file| deadline.run_interruptible(|| file.lock_shared()))
    }

    /// Takes the lock like [`Dir::lock`]; `None` if another process has it, also if several share it.
    pub fn try_lock(&self, name: &str) -> io::Result<Option<File>> {
        self.lock_with(name, File::try_lock, |_| Ok(None))
    }

    fn lock_with(
        &self,
        name: &str,
        try_lock: fn(&File) -> Result<(), TryLockError>,
        wait: impl Fn(&File) -> io::Result<Option<()>>,
    ) -> io::Result<Option<File>> {
        loop {
            let file = self.file(name, OFlag::O_RDWR | OFlag::O_CREAT, 0o600)?.ok_or(Errno::ENOENT)?;
            match try_lock(&file) {
                Err(TryLockError::WouldBlock) => {
                    if wait(&file)?.is_none() {
                        return Ok(None);
                    }
                }
                Err(TryLockError::Error(error)) => return Err(error),
                Ok(()) => {}
            }
            // The lock of a file that was removed meanwhile excludes no other process.
            if file.metadata()?.nlink() > 0 {
                return Ok(Some(file));
            }
        }
    }

    /// Reads a file. Returns `None` if it does not exist. Fails for a named pipe, without waiting for a writer.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.file(name, OFlag::O_RDONLY, 0)?.map(|file| content(&file)).transpose()
    }

    /// Reads a file like [`Dir::read`]. Fails unless it is a regular file that only root and the user of this process
    /// can change.
    pub fn read_private(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name, OFlag::O_RDONLY, 0)? else { return Ok(None) };
        let stat = fstat(&file)?;
        let is_private = is_file(&stat) && stat.st_mode & OTHERS == 0;
        if !is_private || (stat.st_uid != 0 && stat.st_uid != geteuid().as_raw()) {
            return Err(Errno::EPERM.into());
        }
        content(&file).map(Some)
    }

    /// Reads a file and leaves it open for [`write_over`]. Returns `None` if it does not exist.
    pub fn read_for_update(&self, name: &str) -> io::Result<Option<(Vec<u8>, File)>> {
        let Some(file) = self.file(name, OFlag::O_RDWR, 0)? else { return Ok(None) };
        Ok(Some((content(&file)?, file)))
    }

    /// Reads a file, and the later one of its mtime and ctime. Returns `None` if it does not exist.
    pub fn read_with_time(&self, name: &str) -> io::Result<Option<(Vec<u8>, SystemTime)>> {
        let Some(file) = self.file(name, OFlag::O_RDONLY, 0)? else { return Ok(None) };
        let inode = file.metadata()?;
        // A restored or copied file keeps its old mtime, but its ctime is new.
        let since = UNIX_EPOCH + Duration::from_secs(inode.mtime().max(inode.ctime()).try_into().unwrap_or(0));
        Ok(Some((content(&file)?, since)))
    }

    /// Returns the status of an entry, without following a symbolic link. Returns `None` if it does not exist.
    pub fn stat_of(&self, name: &str) -> io::Result<Option<FileStat>> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sets the time stamps of a file to now.
    pub fn touch(&self, name: &str) -> io::Result<()> {
        let now = TimeSpec::UTIME_NOW;
        Ok(utimensat(&self.fd, name, &now, &now, UtimensatFlags::NoFollowSymlink)?)
    }

    /// Returns whether the directory is on a file system that other hosts cannot share. False for unknown file systems.
    pub fn is_local(&self) -> io::Result<bool> {
        #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions, reason = "its type differs")]
        let kind = i64::try_from(fstatfs(&self.fd)?.filesystem_type().0).unwrap_or(0);
        Ok(LOCAL_FILE_SYSTEMS.contains(&(kind & 0xffff_ffff)))
    }

    /// Returns whether an entry of this name exists.
    pub fn exists(&self, name: &str) -> io::Result<bool> {
        match faccessat(&self.fd, name, AccessFlags::F_OK, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Fails if the permissions do not allow creating files in the directory.
    pub fn may_write(&self) -> nix::Result<()> {
        faccessat(&self.fd, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::empty())
    }

    /// Writes a new file, removing an existing entry of that name first, so that the file has no other hard links. Not
    /// atomic: a killed call can leave a partial file.
    fn write_temp(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        let file = self.file(name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, 0o600)?.ok_or(Errno::ENOENT)?;
        (&file).write_all(content)
    }

    /// Overwrites or creates a file in place. Not atomic: a killed call can leave a partial file.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let file = self.file(name, OFlag::O_WRONLY | OFlag::O_CREAT, 0o600)?.ok_or(Errno::ENOENT)?;
        let old = file.metadata()?.len();
        write_over(&file, old, content)
    }

    /// Creates a file with its content atomically: a killed call leaves the complete file or nothing. Returns false if
    /// the name already exists.
    pub fn create_file(&self, name: &str, content: &[u8]) -> io::Result<bool> {
        match self.create_by_link(name, content) {
            Err(Errno::EEXIST) => Ok(false),
            // Unnamed files are not supported by the file system (EOPNOTSUPP) or the kernel (EISDIR), or /proc is
            // missing (ENOENT).
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => self.create_by_temp_file(name, content),
            outcome => Ok(outcome.map(|()| true)?),
        }
    }

    /// Writes an unnamed file, then links it to its name.
    fn create_by_link(&self, name: &str, content: &[u8]) -> nix::Result<()> {
        let file = self.create_unnamed(content)?;
        match linkat(&file, "", &self.fd, name, AtFlags::AT_EMPTY_PATH) {
            // AT_EMPTY_PATH needs root of the host; in a user namespace, the link goes through /proc.
            Err(Errno::ENOENT) => {
                let source = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(AT_FDCWD, source.as_str(), &self.fd, name, AtFlags::AT_SYMLINK_FOLLOW)
            }
            outcome => outcome,
        }
    }

    /// Creates a file without a name, which the kernel deletes when it is closed.
    pub fn create_unnamed(&self, content: &[u8]) -> nix::Result<File> {
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.fd, ".", flags, Mode::from_bits_truncate(0o600))?);
        match file.write_all(content) {
            Ok(()) => Ok(file),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        }
    }

    /// Writes a temporary file, then links it to its name, for file systems without unnamed files. The temporary file
    /// is next to the directory instead of in it, because other programs would treat it as one of the directory's
    /// files. It has a fixed name, so that the next call replaces what a killed call left.
    fn create_by_temp_file(&self, name: &str, content: &[u8]) -> io::Result<bool> {
        let own = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.create_through(&format!("../.{own}.draft"), name, content)
    }

    /// Creates a file with its content atomically: writes the temporary file `temp`, and links it to its name. Returns
    /// false if the name already exists.
    pub fn create_through(&self, temp: &str, name: &str, content: &[u8]) -> io::Result<bool> {
        let linked = self.write_temp(temp, content).and_then(|()| {
            match linkat(&self.fd, temp, &self.fd, name, AtFlags::empty()) {
                Err(Errno::EEXIST) => Ok(false),
                outcome => Ok(outcome.map(|()| true)?),
            }
        });
        self.remove(temp)?;
        linked
    }

    /// Replaces or creates a file atomically: other processes see the old content or the new one.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // Overwriting a few bytes with as many is a single write, so only a change of length needs a new file.
        // A file with a second hard link is not overwritten, because the other name may be outside of the directory.
        if let Some(mut file) = self.file(name, OFlag::O_WRONLY, 0)? {
            let inode = file.metadata()?;
            if inode.len() == content.len() as u64 && inode.nlink() == 1 {
                return file.write_all(content);
            }
        }
        self.replace_through(&format!("{name}{TEMP_SUFFIX}"), name, content)
    }

    /// Replaces or creates a file atomically: writes the temporary file `temp`, and renames it.
    pub fn replace_through(&self, temp: &str, name: &str, content: &[u8]) -> io::Result<()> {
        let written = self.write_temp(temp, content);
        let renamed = written.and_then(|()| self.rename(temp, name));
        if renamed.is_err() {
            let _ = self.remove(temp);
        }
        renamed
    }

    /// Removes a file. Returns false if it does not exist.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes all files except `these`.
    pub fn clear(&self, these: &[&str]) -> io::Result<()> {
        for name in self.names()? {
            let name = name?;
            if !these.contains(&name.as_str()) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Renames a file or a directory. A file replaces another; a directory replaces an empty one.
    pub fn rename(&self, name: &str, other: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &self.fd, other)?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Lists the names of all entries.
    ///
    /// Does not use std, which panics if closing the directory fails: a panic would skip the rollback.
    pub fn names(&self) -> io::Result<impl Iterator<Item = io::Result<String>>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let entries = nix::dir::Dir::openat(&self.fd, ".", flags, Mode::empty())?;
        let names = entries.into_iter().map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        // Skip the entries of the directory itself and of its parent.
        Ok(names.filter(|name| !matches!(name.as_deref(), Ok("." | ".."))))
    }

    /// Returns the mtime: when a name was last added or removed, or the value that [`Dir::set_mtime`] set since.
    pub fn mtime(&self) -> io::Result<Timestamp> {
        Ok(mtime(&self.stat()?))
    }

    /// Sets the mtime of the directory. The kernel overwrites it at the next change.
    pub fn set_mtime(&self, (seconds, nanoseconds): Timestamp) -> io::Result<()> {
        #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
        let moment = match (seconds.try_into(), nanoseconds.try_into()) {
            (Ok(seconds), Ok(nanoseconds)) => TimeSpec::new(seconds, nanoseconds),
            _ => return Err(Errno::EOVERFLOW.into()),
        };
        Ok(futimens(&self.fd, &TimeSpec::UTIME_OMIT, &moment)?)
    }
}

/// Returns the mtime: when the content of a file or directory last changed.
pub fn mtime(stat: &FileStat) -> Timestamp {
    // The types differ between C libraries and architectures.
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
    (stat.st_mtime.into(), stat.st_mtime_nsec.into())
}

/// Returns the ctime: when an inode last changed in any way. Only the kernel sets it.
pub fn ctime(stat: &FileStat) -> Timestamp {
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
    (stat.st_ctime.into(), stat.st_ctime_nsec.into())
}

/// Returns whether the status is that of a regular file.
pub fn is_file(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

/// Overwrites a file that has a length of `old`. Not atomic: a killed call can leave a partial file.
pub fn write_over(file: &File, old: u64, content: &[u8]) -> io::Result<()> {
    file.write_all_at(content, 0)?;
    // Truncating first would release memory that the write allocates again.
    if old > content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    Ok(())
}

/// Reads a whole file. Most files fit into a buffer on the stack, and a read that does not fill it is the last. The
/// kernel refuses to read a pipe at a position.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 1536];
    let length = file.read_at(&mut buffer, 0)?;
    if length < buffer.len() {
        return Ok(buffer.get(..length).unwrap_or_default().to_vec());
    }
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}
