//! Network namespaces on the command line: a path, or the name of a namespace that `ip netns` created.

use std::fs;
use std::path::{Component, Path, PathBuf};

use cni::{Code, Context, Error, Result};

use crate::hint;

/// The directory of namespaces with a name.
const NAMED: &str = "/run/netns";
/// An error lists at most so many names.
const MOST_LISTED: usize = 10;

/// Returns the sorted names of all namespaces.
pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMED) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns the path of a namespace in the form of the reference, from which the container id is derived: absolute, with
/// `.` and `..` removed lexically. Unlike the reference, a word without a slash is a name in `/run/netns`.
pub(crate) fn path(given: &Path) -> Result<PathBuf> {
    if is_name(given) {
        return Ok(Path::new(NAMED).join(given));
    }
    let path = std::path::absolute(given).context(|| format!("find the namespace {given:?}"))?;
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    Ok(clean)
}

/// Fails if the namespace was given by a name that does not exist.
pub(crate) fn require(given: &Path) -> Result<()> {
    if !is_name(given) || Path::new(NAMED).join(given).symlink_metadata().is_ok() {
        return Ok(());
    }
    Err(unknown(&given.to_string_lossy()))
}

/// Returns whether this is a name, not a path.
fn is_name(given: &Path) -> bool {
    let mut components = given.components();
    let is_single = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    is_single && !given.as_os_str().as_encoded_bytes().contains(&b'/')
}

/// Returns the error for a name that does not exist.
fn unknown(name: &str) -> Error {
    let names = names();
    let error = Error::new(Code::NETNS, format!("there is no namespace {name:?} in {NAMED}"));
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return error.details(format!("for the namespace of process {name}, write /proc/{name}/ns/net"));
    }
    hint::add(error, name, names.iter().map(String::as_str), || match names.len() {
        1..=MOST_LISTED => format!("the namespaces are {}", names.join(", ")),
        _ => format!("create it with `ip netns add`, or write a path such as ./{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_a_slash_is_a_name() {
        let path = |given: &str| path(Path::new(given)).unwrap();
        assert_eq!(path("blue"), Path::new("/run/netns/blue"));
        assert_eq!(path("42"), Path::new("/run/netns/42"));
        assert_eq!(path("/run//netns/./x/../blue/"), Path::new("/run/netns/blue"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(path("./blue"), here.join("blue"));
        assert_eq!(path("blue/"), here.join("blue"));
        assert_eq!(path(".."), here.parent().unwrap());
    }
}
