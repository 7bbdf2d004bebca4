//! Installs programs, in steps that a later call can complete or revert.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linux::sha2::sha256;
use linux::{Context, Error, Kind, Result};

use crate::cli::Options;
use crate::payload::{self, Program};
use crate::record::{self, Record};
use crate::target::{self, Target};
use crate::{disk, network, say, verify};

/// Installs all programs, then the first network if it is wanted.
pub(crate) fn run(options: &Options) -> Result<()> {
    let programs = payload::list(options.from.as_deref())?;
    target::require_mount(&options.prefix)?;
    let (target, mut made) = Target::create(&options.prefix)?;
    let dir = target.path();
    if options.conf.is_none() && is_installed(dir, &programs)? {
        say(&format!("{} is unchanged: these programs are installed", dir.display()));
        return Ok(());
    }
    made.extend(record::discard_removed(dir)?);
    let mut record = match Record::create(dir) {
        Ok(record) => record,
        Err(error) => {
            // As before, without the record and the directories.
            let _ = Record::open(dir).and_then(|record| record.map_or(Ok(()), Record::abandon));
            disk::remove_empty(&made);
            return Err(error);
        }
    };
    // Nothing is replaced yet: after a failure, the directory is as before.
    let files = match record.add_made(made).and_then(|()| prepare(&mut record, dir, &programs)) {
        Ok(files) => files,
        Err(error) => {
            if let Err(left) = record.abandon() {
                say(&format!("after the failure: {left}"));
            }
            return Err(error);
        }
    };
    activate(&record, dir, &files)?;
    if let Some(conf) = &options.conf {
        network::install(&mut record, conf)?;
    }
    record.finish()?;
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    say(&format!("installed in {}: {}", dir.display(), names.join(", ")));
    Ok(())
}

/// Returns whether an earlier installation of the same programs is complete.
fn is_installed(dir: &Path, programs: &[Program]) -> Result<bool> {
    let Some(record) = Record::open(dir)? else { return Ok(false) };
    for Program { name, path } in programs {
        let (source, place) = (disk::sum(path)?, dir.join(name));
        let is_executable = fs::metadata(&place).is_ok_and(|inode| inode.mode() & 0o111 == 0o111);
        if !is_executable || source.is_none() || source != disk::sum(&place)? || !record.is_ours(&place)? {
            return Ok(false);
        }
    }
    Ok(record.is_complete())
}

/// Writes and tests all programs, keeps what they will replace, and records both. Returns the places of the programs.
fn prepare(record: &mut Record, dir: &Path, programs: &[Program]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for Program { name, path } in programs {
        let place = dir.join(name);
        if disk::is_same(path, &place) {
            let error = Error::new(Kind::Other, format!("{path:?} is already in {dir:?}"));
            return Err(error.details("choose another directory with --from or --prefix"));
        }
        if fs::symlink_metadata(&place).is_ok_and(|inode| inode.is_dir()) {
            return Err(Error::new(Kind::Io, format!("{place:?} is a directory")).details("move it away"));
        }
        files.push((stage(record, name, path)?, place));
    }
    for Program { name, .. } in programs {
        verify::answers(name, &record.staged(name))?;
    }
    record.keep_installer()?;
    for (_, place) in &files {
        record.keep(place)?;
    }
    let places = files.iter().map(|(_, place)| place.clone()).collect();
    record.add_files(files)?;
    Ok(places)
}

/// Copies a program next to its place, and compares the copy. Returns its checksum.
fn stage(record: &Record, name: &str, path: &Path) -> Result<String> {
    let bytes = fs::read(path).context(|| format!("read {path:?}"))?;
    let staged = record.staged(name);
    disk::write(&staged, &bytes, 0o755)?;
    let sum = sha256(&bytes);
    if disk::sum(&staged)?.as_ref() != Some(&sum) {
        return Err(Error::new(Kind::Io, format!("{staged:?} differs from {path:?} after it was written")));
    }
    Ok(sum)
}

/// Moves all staged programs to their places.
fn activate(record: &Record, dir: &Path, places: &[PathBuf]) -> Result<()> {
    for place in places {
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        disk::rename(&record.staged(name), place)
            .map_err(|error| error.details("some programs are replaced: install again, or uninstall"))?;
    }
    disk::sync_dir(dir)
}
