//! Reverts an installation.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use linux::{Context, Error, Kind, Result};

use crate::record::{self, Record};
use crate::target::{self, Target};
use crate::{disk, say};

/// Restores the files that were replaced, and removes all others that were installed. A file that was modified since
/// stays.
pub(crate) fn run(prefix: &Path) -> Result<()> {
    revert_all(prefix, true, &mut |_| Ok(())).map(drop)
}

/// Does what [`run`] does, and calls `before` for each file that is going to be replaced or removed. Unless
/// `allow_empty`, fails if no plugin would be left. Returns whether anything was installed.
pub(crate) fn revert_all(
    prefix: &Path,
    allow_empty: bool,
    before: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<bool> {
    target::require_mount(prefix)?;
    let nothing = || say(&format!("nothing is installed in {}", prefix.display()));
    let Some(target) = Target::open(prefix)? else {
        nothing();
        return Ok(false);
    };
    let dir = target.path();
    let made = record::discard_removed(dir)?;
    let Some(record) = Record::open(dir)? else {
        disk::remove_empty(&made);
        nothing();
        return Ok(false);
    };
    disk::check_writable(dir)?;
    if !allow_empty && !leaves_plugins(&record, dir)? {
        let error = Error::new(Kind::Other, format!("{} would have no plugins", dir.display()));
        return Err(error.details("put others there first, or add --allow-empty: new containers could not be attached"));
    }
    // Also creates the directories that the record lacks, after an installation or because it was killed.
    let record = Record::create(dir)?;
    let mut restored = 0;
    for path in record.paths() {
        if record.is_ours(&path)? {
            before(&path)?;
        }
        restored += usize::from(revert(&record, &path)?);
    }
    disk::sync_dir(dir)?;
    record.remove()?;
    say(&format!("removed from {}; files restored: {restored}", dir.display()));
    Ok(true)
}

/// Returns whether a program would be left: one that was replaced, or one of another installation.
fn leaves_plugins(record: &Record, dir: &Path) -> Result<bool> {
    for path in record.paths() {
        if record.before(&path).is_some_and(|before| disk::exists(&before).unwrap_or(false)) {
            return Ok(true);
        }
    }
    let what = || format!("list {dir:?}");
    for entry in fs::read_dir(dir).context(what)? {
        let path = entry.context(what)?.path();
        let is_program = fs::metadata(&path).is_ok_and(|inode| inode.is_file() && inode.mode() & 0o111 != 0);
        if is_program && !record.is_ours(&path)? {
            return Ok(true);
        }
    }
    Ok(false)
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
