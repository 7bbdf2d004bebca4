//! Reverts an installation.

use std::path::Path;

use linux::Result;

use crate::record::{self, Record};
use crate::target::{self, Target};
use crate::{disk, say};

/// Restores the files that were replaced, and removes all others that were installed. A file that was modified since
/// stays.
pub(crate) fn run(prefix: &Path) -> Result<()> {
    target::require_mount(prefix)?;
    let nothing = || say(&format!("nothing is installed in {}", prefix.display()));
    let Some(target) = Target::open(prefix)? else {
        nothing();
        return Ok(());
    };
    let dir = target.path();
    let made = record::discard_removed(dir)?;
    if Record::open(dir)?.is_none() {
        disk::remove_empty(&made);
        nothing();
        return Ok(());
    }
    disk::check_writable(dir)?;
    // Also creates the directories that the record lacks, after an installation or because it was killed.
    let record = Record::create(dir)?;
    let mut restored = 0;
    for path in record.paths() {
        restored += usize::from(revert(&record, &path)?);
    }
    disk::sync_dir(dir)?;
    record.remove()?;
    say(&format!("removed from {}; files restored: {restored}", dir.display()));
    Ok(())
}

/// Reverts one file. Returns whether there is an earlier one again.
fn revert(record: &Record, path: &Path) -> Result<bool> {
    if !disk::exists(path)? || record.is_ours(path)? {
        record.restore(path)?;
        return disk::exists(path);
    }
    // An uninstallation that was killed has restored it already, or an installation has not replaced it yet.
    if !record.before(path).is_some_and(|before| disk::is_same(&before, path)) {
        say(&format!("{} is unchanged: it was modified after the installation", path.display()));
    }
    Ok(false)
}
