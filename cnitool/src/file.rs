//! Reads files that other programs wrote: only regular files of limited size.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
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
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}
