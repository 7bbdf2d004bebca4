//! STATUS: would an ADD find an address, and could it write it down?

use std::path::Path;

use cni::{Code, Context, Error, Result};

use crate::add::exhausted;
use crate::boot;
use crate::config::Config;
use crate::dir::Dir;
use crate::range::RangeSet;
use crate::store::{self, Store};

/// Succeeds if an ADD would. Runtimes ask every few seconds, so it looks without the lock as long as that is enough.
pub(crate) fn status(config: &Config, network: &str) -> Result<()> {
    let unavailable = |error: Error| error.code_is(Code::NOT_AVAILABLE);
    let nearest = nearest(&config.dir).map_err(unavailable)?;
    writable(&nearest).map_err(unavailable)?;
    if nearest.path() != config.dir {
        return Ok(());
    }
    let has_room = |number, set: &RangeSet| store::has_room(&nearest, number, |last| set.round(last)).unwrap_or(false);
    if config.sets.iter().enumerate().all(|(number, set)| has_room(number, set)) {
        return Ok(());
    }
    let Some(mut store) = Store::open(&config.dir)? else { return Ok(()) };
    for (number, set) in config.sets.iter().enumerate() {
        let full = store.first_free(&set.round(None))?.is_none();
        if full && !(config.reclaim && can_reclaim(&store)?) {
            return Err(unavailable(exhausted(&store, network, number, set)));
        }
    }
    Ok(())
}

/// The directory, or the one above it that exists: there it would be made.
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

fn can_reclaim(store: &Store) -> Result<bool> {
    let boot = boot::time()?;
    let mut found = false;
    store.each(|lease| found |= lease.is_older(boot))?;
    Ok(found)
}
