//! Reads what other programs wrote, regular files and stdin of limited size, and replaces files atomically.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The largest file that is accepted: far larger than any configuration or result.
const LIMIT: u64 = 1 << 20;

/// Reads a whole regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without O_NONBLOCK, opening a FIFO would block forever. Without O_NOCTTY, a terminal could become the controlling
    // terminal of this process.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    read_limited(file)
}

/// Reads stdin to its end.
pub(crate) fn read_stdin() -> io::Result<Vec<u8>> {
    read_limited(io::stdin().lock())
}

fn read_limited(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// Replaces the file at `path` atomically, so that a reader sees the old content or the new one, also after a power
/// failure. `draft` is a path on the same file system for the new content.
pub(crate) fn replace(path: &Path, draft: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(path, draft, content, mode, || fs::rename(draft, path))
}

/// Creates the file at `path` atomically. Fails if the path exists.
pub(crate) fn create(path: &Path, draft: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(path, draft, content, mode, || fs::hard_link(draft, path).and_then(|()| fs::remove_file(draft)))
}

/// Writes `content` to `draft`, and calls `publish` to move it to `path`.
fn write(
    path: &Path,
    draft: &Path,
    content: &[u8],
    mode: u32,
    publish: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let outcome = (|| {
        // An interrupted call of a process with the same id may have left a draft. A new file is never a link to
        // another.
        match fs::remove_file(draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(draft)?;
        // The umask may have removed permissions.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        publish()?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        File::open(directory)?.sync_all()
    })();
    if outcome.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(draft);
    }
    outcome
}
