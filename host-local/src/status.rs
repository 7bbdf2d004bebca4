//! STATUS: can this node give addresses to containers at all?
//!
//! A runtime that gets an error calls the node not ready, and an orchestrator then evicts the pods that run there.
//! So STATUS fails only for what no ADD can survive. What does not hurt running containers, and passes when one of
//! them ends or a disk is cleaned up, is a warning in the log: ADD explains it, and so does `cnitool doctor`.

use std::io;
use std::path::Path;

use cni::{Code, Context, Error, Result};
use log::{Level, log_enabled, warn};

use crate::add::exhausted;
use crate::config::Config;
use crate::dir::Dir;
use crate::index::Index;
use crate::lease;
use crate::range::RangeSet;
use crate::store::with_remedy;

/// Fails if leases cannot be written. Takes no lock, so it never waits.
pub(crate) fn status(config: &Config, network: &str) -> Result<()> {
    match nearest(&config.dir).and_then(|dir| writable(&dir).map(|()| dir)) {
        Ok(dir) => {
            if dir.path() == config.dir && log_enabled!(Level::Warn) {
                warn_of_full_sets(&dir, config, network);
            }
            Ok(())
        }
        Err(error) if is_transient(&error) => {
            warn!("{error}");
            Ok(())
        }
        Err(error) => Err(with_remedy(error, &config.dir).code_is(Code::NOT_AVAILABLE)),
    }
}

/// Returns the directory, or the nearest existing one above it: there it would be created.
pub(crate) fn nearest(dir: &Path) -> Result<Dir> {
    let above = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    for path in above {
        if let Some(dir) = Dir::open(path).trying(|| format!("open the directory {path:?}"))? {
            return Ok(dir);
        }
    }
    Err(Error::new(Code::IO, format!("there is nothing above {dir:?}")))
}

/// Writes a file that nobody sees. Asking for permission would not tell that the disk is full.
pub(crate) fn writable(dir: &Dir) -> Result<()> {
    match dir.unnamed(b"status") {
        Ok(_) => Ok(()),
        // Where files cannot be unnamed, permission is all that can be asked for.
        Err(nix::Error::EOPNOTSUPP | nix::Error::EISDIR) => dir.may_write().trying(|| what(dir)),
        Err(errno) => Err(errno).trying(|| what(dir)),
    }
}

fn what(dir: &Dir) -> String {
    format!("write in the directory {:?}", dir.path())
}

/// Is it a shortage, of disk space, of memory or of file descriptors, that passes without a repair?
fn is_transient(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
}

fn warn_of_full_sets(dir: &Dir, config: &Config, network: &str) {
    for (number, set) in config.sets.iter().enumerate() {
        match is_full(dir, set) {
            Ok(false) => {}
            Ok(true) => warn!("{}", exhausted(dir.path(), network, number, set)),
            Err(error) => warn!("read directory {:?}: {error}", dir.path()),
        }
    }
}

/// Has every address of `set` a file? Without the lock the answer may be out of date.
fn is_full(dir: &Dir, set: &RangeSet) -> io::Result<bool> {
    if let Some(Ok(free)) = Index::open(dir).map(|mut index| index.first_free(&set.round(None))) {
        return Ok(free.is_none());
    }
    let mut taken = 0;
    for name in dir.names()? {
        taken += u128::from(lease::address(&name?).is_some_and(|ip| set.contains(ip)));
    }
    Ok(taken >= set.size())
}
