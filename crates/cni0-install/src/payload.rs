//! The programs to install: the executable files of a directory, each under its own name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linux::{Context, Error, Kind, Result};

/// A program to install.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Lists the programs of a directory, or of the directory of this program, except this program itself.
pub(crate) fn list(from: Option<&Path>) -> Result<Vec<Program>> {
    let own = fs::read_link("/proc/self/exe").context(|| "read \"/proc/self/exe\"")?;
    let itself = fs::metadata(&own).context(|| format!("read {own:?}"))?;
    let from = from.or_else(|| own.parent()).unwrap_or_else(|| Path::new("/"));
    let what = || format!("list {from:?}");
    let mut programs = Vec::new();
    for entry in fs::read_dir(from).context(what)? {
        let path = entry.context(what)?.path();
        let inode = fs::metadata(&path).context(|| format!("read {path:?}"))?;
        let is_itself = (inode.dev(), inode.ino()) == (itself.dev(), itself.ino());
        if !inode.is_file() || inode.mode() & 0o111 == 0 || is_itself {
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_valid(name));
        let Some(name) = name else {
            let what = format!("{path:?} has characters that no plugin name has");
            return Err(
                Error::new(Kind::Other, what).details("remove the file, or choose another directory with --from")
            );
        };
        programs.push(Program { name: name.to_owned(), path });
    }
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    if programs.is_empty() {
        let what = format!("{from:?} has no programs to install");
        return Err(Error::new(Kind::Other, what).details("ci/build --tool builds them; --from names their directory"));
    }
    Ok(programs)
}

/// Returns whether the name can be a plugin's, and a line of the record.
fn is_valid(name: &str) -> bool {
    !name.starts_with('.') && name.chars().all(|c| c.is_ascii_alphanumeric() || ['-', '_', '.', '+'].contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_plugins() {
        assert!(["bridge", "host-local", "v1.2_x+y"].iter().all(|name| is_valid(name)));
        assert!([".cni0", "a b", "a\nb", "ä"].iter().all(|name| !is_valid(name)));
    }
}
