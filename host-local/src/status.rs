//! STATUS: checks whether this node can lease addresses.
//!
//! After an error, a runtime reports the node as not ready, and an orchestrator evicts the pods that run there.
//! Therefore STATUS fails only for conditions under which no ADD can succeed. A transient shortage that does not affect
//! running containers, such as a full range set or disk, is only logged; ADD and `cnitool doctor` report it.

use std::io;
use std::path::Path;

use cni::{Code, Context, Error, Result, lease};
use linux::log::{Level, is_enabled, warn};

use crate::add::exhausted;
use crate::config::Config;
use crate::index::Index;
use crate::range::RangeSet;
use crate::resolv;
use crate::store::with_hint;
use linux::dir::Dir;

/// Fails if an ADD could not read a file that the configuration names, or not write leases. Does not take the lock, so it
/// never waits.
pub(crate) fn status(config: &Config, network: &str) -> Result<()> {
    match usable_directory(config) {
        Ok(dir) => {
            if dir.path() == config.dir && is_enabled(Level::Warn) {
                warn_of_full_sets(&dir, config, network);
            }
            Ok(())
        }
        Err(error) if is_transient(&error) => {
            warn!("{error}");
            Ok(())
        }
        // A mistake in the configuration keeps its code.
        Err(error) if error.code() == Code::CONFIG => Err(error),
        Err(error) => Err(error.with_code(Code::NOT_AVAILABLE)),
    }
}

/// Returns the directory, or its nearest existing ancestor, if an ADD could read and write everything that it needs.
fn usable_directory(config: &Config) -> Result<Dir> {
    if let Some(path) = &config.resolv_conf {
        resolv::read(path)?;
    }
    let dir = nearest(&config.dir).and_then(|dir| writable(&dir).map(|()| dir));
    dir.map_err(|error| with_hint(error, &config.dir))
}

/// Opens the directory, or its nearest existing ancestor, in which ADD would create it.
pub(crate) fn nearest(dir: &Path) -> Result<Dir> {
    let above = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    for path in above {
        if let Some(dir) = Dir::open(path).context(|| format!("open the directory {path:?}"))? {
            return Ok(dir);
        }
    }
    Err(Error::new(Code::IO, format!("no ancestor of {dir:?} exists")))
}

/// Fails if no file can be written in `dir`. Writes an unnamed file, because a permission check does not detect a full
/// disk.
pub(crate) fn writable(dir: &Dir) -> Result<()> {
    match dir.create_unnamed(b"status") {
        Ok(_) => Ok(()),
        // The file system does not support unnamed files, so only the permission can be checked.
        Err(nix::Error::EOPNOTSUPP | nix::Error::EISDIR) => dir.may_write().context(|| what(dir)),
        Err(errno) => Err(errno).context(|| what(dir)),
    }
}

fn what(dir: &Dir) -> String {
    format!("write in the directory {:?}", dir.path())
}

/// Returns whether the error is a shortage of disk space, memory or file descriptors, which can end without a repair.
fn is_transient(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
}

/// Logs a warning for each exhausted range set.
fn warn_of_full_sets(dir: &Dir, config: &Config, network: &str) {
    for (number, set) in config.sets.iter().enumerate() {
        match is_full(dir, set) {
            Ok(false) => {}
            Ok(true) => warn!("{}", exhausted(dir.path(), network, number, set)),
            Err(error) => warn!("read directory {:?}: {error}", dir.path()),
        }
    }
}

/// Returns whether every address of `set` has a lease file. Without the lock, the answer may be out of date.
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
