//! A directory of small files, kept open: read, placed, replaced and removed by name. Nothing here knows what they mean.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fstat, fstatat, futimens, utimensat};
use nix::sys::statfs::fstatfs;
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, linkat, unlinkat};

/// More than any file here holds.
const LIMIT: u64 = 256 << 10;

/// How the name of a file ends that [`Dir::replace`] is about to rename. Whoever is killed before leaves it.
pub(crate) const DRAFT: &str = ".new";

/// Never through a link, never waiting at a pipe, never into a child.
const CAREFUL: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Numbers of file systems that two hosts never share: ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, ZFS, bcachefs.
const LOCAL: [i64; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Seconds and nanoseconds since 1970.
pub(crate) type Moment = (i64, i64);

impl Dir {
    /// Opens `path`; `None` if there is no such directory.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Dir>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(AT_FDCWD, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Dir { fd, path: path.to_owned() })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens `path`, which is made if need be, with all above it.
    pub(crate) fn create(path: &Path, mode: u32) -> io::Result<Dir> {
        if let Some(dir) = Dir::open(path)? {
            return Ok(dir);
        }
        DirBuilder::new().recursive(true).mode(mode).create(path)?;
        Dir::open(path)?.ok_or_else(|| Errno::ENOENT.into())
    }

    /// Opens `path`, and tells its status, if it is a directory that only root can change; `None` if there is nothing.
    pub(crate) fn open_private(path: &Path) -> io::Result<Option<(Dir, FileStat)>> {
        const OTHERS: u32 = 0o022;
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

    /// The same, and it is made if need be, with all above it.
    pub(crate) fn create_private(path: &Path) -> io::Result<Dir> {
        if let Some((dir, _)) = Dir::open_private(path)? {
            return Ok(dir);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Dir::open_private(path)?.map(|(dir, _)| dir).ok_or_else(|| Errno::ENOENT.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn stat(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.fd)?)
    }

    /// Opens a file; `None` if there is none.
    pub(crate) fn file(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<Option<File>> {
        match openat(&self.fd, name, flags | CAREFUL, Mode::from_bits_truncate(mode)) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads a file; `None` if there is none.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.file(name, OFlag::O_RDONLY, 0)?.map(|file| content(&file)).transpose()
    }

    /// Reads a file for whoever may write over it later, and leaves it open; `None` if there is none.
    pub(crate) fn edit(&self, name: &str) -> io::Result<Option<(Vec<u8>, File)>> {
        let Some(file) = self.file(name, OFlag::O_RDWR, 0)? else { return Ok(None) };
        Ok(Some((content(&file)?, file)))
    }

    /// Reads a file, and tells when it was last written, renamed or handed over; `None` if there is none.
    pub(crate) fn read_dated(&self, name: &str) -> io::Result<Option<(Vec<u8>, SystemTime)>> {
        let Some(file) = self.file(name, OFlag::O_RDONLY, 0)? else { return Ok(None) };
        let inode = file.metadata()?;
        // A restored or copied file has an old time of writing; its inode cannot lie.
        let since = UNIX_EPOCH + Duration::from_secs(inode.mtime().max(inode.ctime()).try_into().unwrap_or(0));
        Ok(Some((content(&file)?, since)))
    }

    /// Returns the status of what has this name, a symbolic link's own; `None` if nothing has.
    pub(crate) fn stat_of(&self, name: &str) -> io::Result<Option<FileStat>> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sets the times of a file to the present.
    pub(crate) fn touch(&self, name: &str) -> io::Result<()> {
        let now = TimeSpec::UTIME_NOW;
        Ok(utimensat(&self.fd, name, &now, &now, UtimensatFlags::NoFollowSymlink)?)
    }

    /// Is it on a file system that belongs to this host alone? Of one that is not known it is not sure.
    pub(crate) fn is_local(&self) -> io::Result<bool> {
        #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions, reason = "its type differs")]
        let kind = i64::try_from(fstatfs(&self.fd)?.filesystem_type().0).unwrap_or(0);
        Ok(LOCAL.contains(&(kind & 0xffff_ffff)))
    }

    /// Is there anything of this name?
    pub(crate) fn has(&self, name: &str) -> io::Result<bool> {
        match faccessat(&self.fd, name, AccessFlags::F_OK, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Fails unless files may be made here.
    pub(crate) fn may_write(&self) -> nix::Result<()> {
        faccessat(&self.fd, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::empty())
    }

    /// Writes a file that is nobody else's by another name: what has the name is removed first. Whoever is killed here
    /// leaves anything.
    fn draft(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        let file = self.file(name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, 0o600)?.ok_or(Errno::ENOENT)?;
        (&file).write_all(content)
    }

    /// Writes a file in place. Whoever is killed here leaves anything.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let file = self.file(name, OFlag::O_WRONLY | OFlag::O_CREAT, 0o600)?.ok_or(Errno::ENOENT)?;
        let old = file.metadata()?.len();
        write_over(&file, old, content)
    }

    /// Makes a file appear with its content; `false` if there is one of this name. Whoever is killed here leaves the
    /// whole file or nothing.
    pub(crate) fn place(&self, name: &str, content: &[u8]) -> io::Result<bool> {
        match self.place_unnamed(name, content) {
            Err(Errno::EEXIST) => Ok(false),
            // No unnamed files: EOPNOTSUPP by the file system, EISDIR by the kernel; ENOENT without /proc.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => self.place_beside(name, content),
            outcome => Ok(outcome.map(|()| true)?),
        }
    }

    fn place_unnamed(&self, name: &str, content: &[u8]) -> nix::Result<()> {
        let file = self.unnamed(content)?;
        match linkat(&file, "", &self.fd, name, AtFlags::AT_EMPTY_PATH) {
            // The direct way is for root of the machine alone; others have to take the one through /proc.
            Err(Errno::ENOENT) => {
                let source = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(AT_FDCWD, source.as_str(), &self.fd, name, AtFlags::AT_SYMLINK_FOLLOW)
            }
            outcome => outcome,
        }
    }

    /// A file without a name, which is gone with its descriptor.
    pub(crate) fn unnamed(&self, content: &[u8]) -> nix::Result<File> {
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.fd, ".", flags, Mode::from_bits_truncate(0o600))?);
        match file.write_all(content) {
            Ok(()) => Ok(file),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        }
    }

    /// The same where files cannot be unnamed. The draft lies beside the directory and not in it, because the reference
    /// would take it for a lease; it has one name, so that the next call clears up after one that was killed.
    fn place_beside(&self, name: &str, content: &[u8]) -> io::Result<bool> {
        let own = self.path.file_name().unwrap_or_default().to_string_lossy();
        let draft = format!("../.{own}.draft");
        let linked = self.draft(&draft, content).and_then(|()| {
            match linkat(&self.fd, draft.as_str(), &self.fd, name, AtFlags::empty()) {
                Err(Errno::EEXIST) => Ok(false),
                outcome => Ok(outcome.map(|()| true)?),
            }
        });
        self.remove(&draft)?;
        linked
    }

    /// Replaces a file, or makes it: at every moment there is the old content or the new.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // A few bytes over as many are written at once; only another length takes another file.
        // Nor is a file written to that has a second name, wherever that is.
        if let Some(mut file) = self.file(name, OFlag::O_WRONLY, 0)? {
            let inode = file.metadata()?;
            if inode.len() == content.len() as u64 && inode.nlink() == 1 {
                return file.write_all(content);
            }
        }
        let draft = format!("{name}{DRAFT}");
        let written = self.draft(&draft, content);
        let renamed = written.and_then(|()| Ok(renameat(&self.fd, draft.as_str(), &self.fd, name)?));
        if renamed.is_err() {
            let _ = self.remove(&draft);
        }
        renamed
    }

    /// Removes a file; `false` if there is none.
    pub(crate) fn remove(&self, name: &str) -> io::Result<bool> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes all files but `these`.
    pub(crate) fn clear(&self, these: &[&str]) -> io::Result<()> {
        for name in self.names()? {
            let name = name?;
            if !these.contains(&name.as_str()) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Gives a file or a directory another name, which nothing has but an empty directory.
    pub(crate) fn rename(&self, name: &str, other: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &self.fd, other)?)
    }

    /// Removes a directory, which must be empty.
    pub(crate) fn remove_dir(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)?)
    }

    /// The names of all files.
    ///
    /// Not by std, which panics when the directory cannot be closed: nothing could be undone then.
    pub(crate) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<String>>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let entries = nix::dir::Dir::openat(&self.fd, ".", flags, Mode::empty())?;
        let names = entries.into_iter().map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        // But not the two of the directory itself.
        Ok(names.filter(|name| !matches!(name.as_deref(), Ok("." | ".."))))
    }

    /// When a name in the directory was last added or removed, or what [`Dir::mark`] said instead.
    pub(crate) fn changed(&self) -> io::Result<Moment> {
        Ok(modified(&self.stat()?))
    }

    /// Sets the time that [`Dir::changed`] tells until something changes.
    pub(crate) fn mark(&self, (seconds, nanoseconds): Moment) -> io::Result<()> {
        #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
        let moment = match (seconds.try_into(), nanoseconds.try_into()) {
            (Ok(seconds), Ok(nanoseconds)) => TimeSpec::new(seconds, nanoseconds),
            _ => return Err(Errno::EOVERFLOW.into()),
        };
        Ok(futimens(&self.fd, &TimeSpec::UTIME_OMIT, &moment)?)
    }
}

/// When the content of a file or directory was last changed: its mtime.
pub(crate) fn modified(stat: &FileStat) -> Moment {
    // The types differ between C libraries and machines.
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
    (stat.st_mtime.into(), stat.st_mtime_nsec.into())
}

/// When an inode was last changed in any way: its ctime, which only the kernel sets.
pub(crate) fn changed(stat: &FileStat) -> Moment {
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
    (stat.st_ctime.into(), stat.st_ctime_nsec.into())
}

/// Is it a regular file?
pub(crate) fn is_file(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

/// Writes a file in place that has a length of `old`. Whoever is killed here leaves anything.
pub(crate) fn write_over(file: &File, old: u64, content: &[u8]) -> io::Result<()> {
    file.write_all_at(content, 0)?;
    // Cutting it off first would give its memory back, only to ask for it again.
    if old > content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    Ok(())
}

/// Most files fit a buffer on the stack, and a read that does not fill it is the last.
fn content(mut file: &File) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 1536];
    let length = file.read(&mut buffer)?;
    let mut bytes = buffer.get(..length).unwrap_or_default().to_vec();
    if length == buffer.len() {
        file.take(LIMIT).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
