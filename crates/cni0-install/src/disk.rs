//! Operations on files and directories that are complete on disk when they return.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use linux::sha2::sha256;
use linux::{Context, Error, Kind, Result};
use nix::fcntl::OFlag;

/// Flags for every file that is opened: do not follow a symbolic link, do not wait for the other end of a pipe.
const SAFE_FLAGS: i32 = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).bits();

/// The largest file that is read, far larger than any plugin.
const LIMIT: u64 = 256 << 20;

/// The remedy for a directory that cannot be written.
const WRITE_HINT: &str = "run as root, or choose another directory";

/// Returns whether an entry exists, even if it is a symbolic link that leads nowhere.
pub(crate) fn exists(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        // A component of the path is a file: nothing exists below it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(Error::from(error).context(format!("read {path:?}"))),
    }
}

/// Reads a regular file. Returns `None` if there is none of that name.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let what = || format!("read {path:?}");
    match fs::symlink_metadata(path) {
        Ok(inode) if inode.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from(error).context(what())),
    }
    let file = OpenOptions::new().read(true).custom_flags(SAFE_FLAGS).open(path).context(what)?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).context(what)?;
    if bytes.len() as u64 > LIMIT {
        return Err(Error::new(Kind::Io, format!("it is larger than {} MiB", LIMIT >> 20)).context(what()));
    }
    Ok(Some(bytes))
}

/// Returns the checksum of a regular file. Returns `None` if there is none of that name.
pub(crate) fn sum(path: &Path) -> Result<Option<String>> {
    Ok(read(path)?.map(|bytes| sha256(&bytes)))
}

/// Writes a new file, in place of one that a killed process left.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let what = || format!("write {path:?}");
    remove(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).custom_flags(SAFE_FLAGS).open(path).context(what)?;
    file.write_all(bytes).context(what)?;
    // Independent of the umask.
    file.set_permissions(fs::Permissions::from_mode(mode)).context(what)?;
    file.sync_all().context(what)
}

/// Replaces or creates a file atomically, by way of a second file `temp` on the same file system.
pub(crate) fn replace(path: &Path, temp: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write(temp, bytes, mode)?;
    rename(temp, path)?;
    sync_parent(path)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).context(|| format!("rename {from:?} to {to:?}"))
}

/// Gives `file` the second name `name` atomically, in place of another file, by way of the name `temp`.
pub(crate) fn link_over(file: &Path, name: &Path, temp: &Path) -> Result<()> {
    remove(temp)?;
    fs::hard_link(file, temp).context(|| format!("link {file:?} to {temp:?}"))?;
    rename(temp, name)?;
    // The kernel ignores a rename if both names are the same file.
    remove(temp)
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_file(path)).context(|| format!("remove {path:?}"))
}

/// Removes a directory with everything in it, if it exists.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_dir_all(path)).context(|| format!("remove {path:?}"))
}

fn absent_is_fine(outcome: std::io::Result<()>) -> std::io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Creates a directory and its ancestors. Returns those that did not exist, outermost first.
pub(crate) fn create_dirs(path: &Path) -> Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for dir in path.ancestors() {
        if exists(dir)? {
            break;
        }
        missing.push(dir.to_owned());
    }
    missing.reverse();
    for dir in &missing {
        match fs::create_dir(dir) {
            // Another process creates it at the same time.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            outcome => outcome.context(|| format!("create directory {dir:?}")).map_err(|e| e.details(WRITE_HINT))?,
        }
        sync_parent(dir)?;
    }
    Ok(missing)
}

/// Removes those of the directories that are empty, the innermost first.
pub(crate) fn remove_empty(dirs: &[PathBuf]) {
    let mut dirs = dirs.to_vec();
    dirs.sort();
    for dir in dirs.iter().rev() {
        // A directory in use stays.
        let _ = fs::remove_dir(dir);
    }
}

/// Writes the entries of a directory to disk.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    let open = OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(dir);
    open.and_then(|dir| dir.sync_all()).context(|| format!("sync {dir:?}"))
}

fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

/// Fails unless files can be created in the directory.
pub(crate) fn check_writable(dir: &Path) -> Result<()> {
    use nix::unistd::{AccessFlags, access};
    let access = access(dir, AccessFlags::W_OK | AccessFlags::X_OK);
    access.context(|| format!("write to {dir:?}")).map_err(|error| error.details(WRITE_HINT))
}

/// Returns whether both names lead to the same file, without following symbolic links.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let inode = |path| fs::symlink_metadata(path).map(|inode| (inode.dev(), inode.ino()));
    matches!((inode(one), inode(other)), (Ok(one), Ok(other)) if one == other)
}

/// Opens a directory, to lock it. Returns `None` if it does not exist.
pub(crate) fn open_dir(dir: &Path) -> Result<Option<File>> {
    match File::open(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => {
            let file = outcome.context(|| format!("open {dir:?}"))?;
            match file.metadata().context(|| format!("open {dir:?}"))?.is_dir() {
                true => Ok(Some(file)),
                false => Err(Error::new(Kind::Io, format!("{dir:?} is not a directory"))),
            }
        }
    }
}
