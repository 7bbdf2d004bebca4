//! Reading files that anybody may have put there: only regular ones, and no more than makes sense.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Far more than any configuration or result has.
const LIMIT: u64 = 1 << 20;

/// All of a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without O_NONBLOCK a FIFO would hold us for ever, and without O_NOCTTY a terminal would become ours.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    Ok(bytes)
}
