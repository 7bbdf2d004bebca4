//! The first network of a machine without one.

use std::fs;
use std::path::Path;

use linux::sha2::sha256;
use linux::{Context, Result};

use crate::record::Record;
use crate::{disk, say};

const NAME: &str = "10-cni0.conflist";
const CONTENT: &str = include_str!("../../../docs/example.conflist");

/// The extensions of files that runtimes read.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// Writes the network to the directory, unless it has another one or the file was modified.
pub(crate) fn install(record: &mut Record, dir: &Path) -> Result<()> {
    record.add_made(disk::create_dirs(dir)?)?;
    let path = dir.join(NAME);
    if let Some(other) = other_network(dir)? {
        say(&format!("{dir:?} is unchanged: it contains {other}"));
    } else if disk::exists(&path)? && !record.is_ours(&path)? {
        say(&format!("{path:?} is unchanged: it was modified after the installation"));
    } else {
        record.add_files([(sha256(CONTENT.as_bytes()), path.clone())])?;
        // Runtimes ignore the extension of the temporary file.
        disk::replace(&path, &dir.join(".10-cni0.new"), CONTENT.as_bytes(), 0o644)?;
        say(&format!("network \"pods\" is configured in {path:?}"));
    }
    Ok(())
}

/// Returns the first network in the directory that is not ours.
fn other_network(dir: &Path) -> Result<Option<String>> {
    let what = || format!("list {dir:?}");
    let mut others = Vec::new();
    for entry in fs::read_dir(dir).context(what)? {
        let path = entry.context(what)?.path();
        let is_network = path.extension().is_some_and(|found| EXTENSIONS.iter().any(|wanted| found == *wanted));
        if is_network && !path.ends_with(NAME) {
            others.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(others.into_iter().min())
}
