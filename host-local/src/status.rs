//! STATUS: checks whether this node can lease addresses.
//!
//! A full range set is only logged, as a full disk is; ADD and `cnitool doctor` report it.

use std::io;

use cni::Result;
use cni::lease::{self, Index};
use linux::log::{Level, is_enabled, warn};

use crate::add::exhausted;
use crate::config::Config;
use crate::range::RangeSet;
use crate::resolv;
use linux::dir::Dir;

/// Fails if an ADD could not read a file that the configuration names, or not write leases. Does not take the lock, so
/// it never waits.
pub(crate) fn status(config: &Config, network: &str) -> Result<()> {
    match usable_directory(config) {
        Ok(dir) => {
            if dir.path() == config.dir && is_enabled(Level::Warn) {
                warn_of_full_sets(&dir, config, network);
            }
            Ok(())
        }
        Err(error) => lease::status_of(error),
    }
}

/// Returns the directory, or its nearest existing ancestor, if an ADD could read and write everything that it needs.
fn usable_directory(config: &Config) -> Result<Dir> {
    if let Some(path) = &config.resolv_conf {
        resolv::read(path)?;
    }
    lease::usable(&config.dir)
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
