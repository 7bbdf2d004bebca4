//! The record of an installation, in the directory `.cni0` of the plugins: enough to revert it at any moment.
//!
//! | entry | content |
//! |---|---|
//! | `files` | checksum and name of each installed file, in the format of `sha256sum` |
//! | `made` | the directories that did not exist |
//! | `before/` | the files that were replaced, as further hard links |
//! | `new/` | files that are not in their places yet |
//! | `cni0-install` | this program, for the uninstallation |
//!
//! `files` is written before the first file is replaced, and has the old and the new files until all are. The removal
//! of the record is the last step of an uninstallation, and atomic: the directory gets another name first.

use std::fs;
use std::path::{Path, PathBuf};

use linux::{Context, Error, Kind, Result};

use crate::disk;

const HOME: &str = ".cni0";
/// The name of a record whose files are uninstalled.
const REMOVED: &str = ".cni0.removed";
const FILES: &str = "files";
const MADE: &str = "made";
const BEFORE: &str = "before";
const NEW: &str = "new";
/// The name of this program in the record.
const INSTALLER: &str = "cni0-install";

/// The record of one directory of plugins.
#[derive(Debug)]
pub(crate) struct Record {
    dir: PathBuf,
    home: PathBuf,
    /// Checksums and absolute paths. A path can have several checksums.
    files: Vec<(String, PathBuf)>,
    made: Vec<PathBuf>,
}

impl Record {
    /// Reads the record of a directory. Returns `None` if nothing is installed there.
    pub(crate) fn open(dir: &Path) -> Result<Option<Record>> {
        let home = dir.join(HOME);
        if !disk::exists(&home)? {
            return Ok(None);
        }
        if !fs::symlink_metadata(&home).is_ok_and(|inode| inode.is_dir()) {
            return Err(Error::new(Kind::Io, format!("{home:?} is not a directory")).details("remove it"));
        }
        let lines_of_files = lines(&home.join(FILES))?;
        let files = lines_of_files.iter().filter_map(|line| line.split_once("  "));
        let files = files.map(|(sum, path)| (sum.to_owned(), dir.join(path))).collect();
        let made = lines(&home.join(MADE))?.iter().map(PathBuf::from).collect();
        Ok(Some(Record { dir: dir.to_owned(), home, files, made }))
    }

    /// Opens the record of a directory, or creates an empty one.
    pub(crate) fn create(dir: &Path) -> Result<Record> {
        let home = dir.join(HOME);
        let record = match Record::open(dir)? {
            Some(record) => record,
            None => Record { dir: dir.to_owned(), home, files: Vec::new(), made: Vec::new() },
        };
        for dir in [record.home.clone(), record.home.join(BEFORE), record.home.join(NEW)] {
            disk::create_dirs(&dir)?;
        }
        Ok(record)
    }

    /// Returns whether no installation was interrupted, and this program can uninstall it.
    pub(crate) fn is_complete(&self) -> bool {
        let read = |path: &Path| fs::read(path).ok();
        disk::exists(&self.home.join(NEW)).is_ok_and(|exists| !exists)
            && read(Path::new("/proc/self/exe")).is_some_and(|own| read(&self.home.join(INSTALLER)) == Some(own))
    }

    /// Returns the place of a file that replaces `name` in the next step.
    pub(crate) fn staged(&self, name: &str) -> PathBuf {
        self.home.join(NEW).join(name)
    }

    /// Returns the absolute paths of all files that may be installed.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.files.iter().map(|(_, path)| path.clone()).collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns whether the file is as an installation left it.
    pub(crate) fn is_ours(&self, path: &Path) -> Result<bool> {
        Ok(disk::sum(path)?.is_some_and(|sum| self.files.iter().any(|(ours, at)| *ours == sum && at == path)))
    }

    /// Returns where the file is kept that an installed file of the plugin directory replaced.
    pub(crate) fn before(&self, path: &Path) -> Option<PathBuf> {
        let name = path.strip_prefix(&self.dir).ok()?;
        Some(self.home.join(BEFORE).join(name))
    }

    /// Keeps a file that is about to be replaced, unless it is one of ours.
    pub(crate) fn keep(&self, path: &Path) -> Result<()> {
        let Some(before) = self.before(path) else { return Ok(()) };
        if !disk::exists(path)? {
            // A killed installation may have kept a file that was deleted before it could be replaced.
            let replaced = self.files.iter().any(|(_, at)| at == path);
            return if replaced { Ok(()) } else { disk::remove(&before) };
        }
        if self.is_ours(path)? { Ok(()) } else { disk::link_over(path, &before, &self.staged("kept")) }
    }

    /// Restores the file that an installed file replaced, or removes the installed file if it replaced none.
    pub(crate) fn restore(&self, path: &Path) -> Result<()> {
        match self.before(path) {
            Some(before) if disk::exists(&before)? => disk::link_over(&before, path, &self.staged("restored")),
            _ => disk::remove(path),
        }
    }

    /// Copies this program into the record.
    pub(crate) fn keep_installer(&self) -> Result<()> {
        let own = Path::new("/proc/self/exe");
        let bytes = fs::read(own).context(|| format!("read {own:?}"))?;
        disk::replace(&self.home.join(INSTALLER), &self.staged(INSTALLER), &bytes, 0o755)
    }

    /// Adds files that will be installed. They are on disk when this returns, as are the kept files.
    pub(crate) fn add_files(&mut self, files: impl IntoIterator<Item = (String, PathBuf)>) -> Result<()> {
        self.files.extend(files);
        disk::sync_dir(&self.home.join(BEFORE))?;
        self.save_files()?;
        disk::sync_dir(&self.dir)
    }

    /// Adds directories that did not exist.
    pub(crate) fn add_made(&mut self, made: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        let known = self.made.len();
        self.made.extend(made);
        if self.made.len() == known {
            return Ok(());
        }
        self.made.sort();
        self.made.dedup();
        let text: String = self.made.iter().map(|dir| format!("{}\n", dir.display())).collect();
        disk::replace(&self.home.join(MADE), &self.staged(MADE), text.as_bytes(), 0o644)
    }

    /// Ends an installation: forgets files that were replaced.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let mut current = Vec::new();
        for path in self.paths() {
            if self.is_ours(&path)?
                && let Some(sum) = disk::sum(&path)?
            {
                current.push((sum, path));
            }
        }
        self.files = current;
        self.save_files()?;
        disk::remove_tree(&self.home.join(NEW))
    }

    fn save_files(&self) -> Result<()> {
        // Files in the directory are recorded by name: in a container, the directory has another path.
        let name = |path: &PathBuf| path.strip_prefix(&self.dir).unwrap_or(path).display().to_string();
        let text: String = self.files.iter().map(|(sum, path)| format!("{sum}  {}\n", name(path))).collect();
        disk::replace(&self.home.join(FILES), &self.staged(FILES), text.as_bytes(), 0o644)
    }

    /// Removes what a failed installation left before it replaced the first file: the staged files, and the whole
    /// record if there was none.
    pub(crate) fn abandon(self) -> Result<()> {
        disk::remove_tree(&self.home.join(NEW))?;
        if disk::exists(&self.home.join(FILES))? {
            return Ok(());
        }
        self.remove()
    }

    /// Removes the record, and the directories that did not exist before the installation if they are empty.
    pub(crate) fn remove(self) -> Result<()> {
        disk::rename(&self.home, &self.dir.join(REMOVED))?;
        disk::sync_dir(&self.dir)?;
        disk::remove_empty(&discard_removed(&self.dir)?);
        Ok(())
    }
}

/// Deletes a removed record, also one that a killed process left. Returns the directories that did not exist before the
/// installation.
pub(crate) fn discard_removed(dir: &Path) -> Result<Vec<PathBuf>> {
    let removed = dir.join(REMOVED);
    let made = lines(&removed.join(MADE))?.iter().map(PathBuf::from).collect();
    disk::remove_tree(&removed)?;
    Ok(made)
}

/// Returns the lines of a file of the record; none if it does not exist.
fn lines(path: &Path) -> Result<Vec<String>> {
    let text = String::from_utf8(disk::read(path)?.unwrap_or_default());
    let text = text.map_err(|_| Error::new(Kind::Io, format!("read {path:?}: the file is not text")))?;
    Ok(text.lines().map(str::to_owned).collect())
}
