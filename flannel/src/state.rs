//! State files: the configuration that the delegate got at ADD, for the DEL of the same attachment.
//!
//! The reference names the file after the container, so that the second interface of a container overwrites the file of the
//! first. So each attachment has a file of its own, `CONTAINER:INTERFACE`; neither part can contain a colon. The name of
//! the reference is a second hard link to the file of the container's first attachment. With it the reference can delete
//! what this plugin added; and a file with that name alone is one that the reference wrote.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use cni::{Attachment, AttachmentKey, ContainerId, Context, IfName, Keep, Result};
use linux::dir::{Dir, is_file};
use linux::log::{debug, warn};
use linux::tolerate;

use crate::delegate::DelegateConfig;

/// Mode of a new directory, as the reference creates it.
const MODE: u32 = 0o700;

/// The suffix of a file that is being written.
const TEMPORARY: &str = "new";

/// The names of the files of an attachment.
#[derive(Debug)]
struct Names {
    own: String,
    /// The name of the reference, which all attachments of the container share.
    shared: String,
    /// The name while the file is written. Its second colon distinguishes it from all state files. DEL finds what a killed
    /// ADD left, because each attachment has one such name.
    temporary: String,
}

impl Names {
    fn of(at: &Attachment) -> Names {
        Names::new(at.container.as_str(), at.ifname.as_str())
    }

    fn new(container: &str, ifname: &str) -> Names {
        let own = format!("{container}:{ifname}");
        Names { temporary: format!("{own}:{TEMPORARY}"), own, shared: container.to_owned() }
    }
}

/// The state files of an attachment.
#[derive(Debug)]
pub(crate) struct State {
    dir: Option<Dir>,
    /// The files that exist, in the order in which they are removed.
    found: Vec<String>,
    /// The configuration at ADD; `None` if there is no file, or its content is not one.
    pub(crate) config: Option<(DelegateConfig, String)>,
}

impl State {
    /// Finds the state files of an attachment. A directory that cannot be read has none, so that it does not prevent DEL for
    /// ever; only a lack of resources is an error.
    pub(crate) fn find(data_dir: &Path, network: &str, at: &Attachment) -> Result<State> {
        let tried = || format!("look for state files in {data_dir:?}");
        let without = format_args!("{data_dir:?} counts as a directory without state files");
        let dir = tolerate(without, Dir::open(data_dir)).context(tried)?;
        let found = dir.as_ref().map_or_else(|| Ok(Vec::new()), |dir| files(dir, &Names::of(at)));
        let found = tolerate(without, found).context(tried)?;
        let mut state = State { dir, found, config: None };
        let first = state.dir.as_ref().zip(state.found.first());
        let text = first.map_or(Ok(None), |(dir, name)| read(dir, name))?;
        state.config = text.as_ref().and_then(|text| Some((DelegateConfig::parse(text, network)?, text.clone())));
        // A container can have interfaces on several networks. The state of another network is left to the DEL of that: a
        // runtime also calls DEL after an ADD that failed because the other network has an interface of the same name.
        if text.and_then(|text| network_of(&text)).is_some_and(|other| other != network) {
            state.found.clear();
        }
        Ok(state)
    }

    /// Returns whether there is a state file, even if its content is not valid.
    pub(crate) fn exists(&self) -> bool {
        !self.found.is_empty()
    }

    /// Removes the files.
    pub(crate) fn remove(&self) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        for name in &self.found {
            dir.remove(name).context(|| format!("remove the state file {:?}", dir.path().join(name)))?;
        }
        Ok(())
    }
}

/// Returns the existing files of an attachment: its own; that with the shared name if it is the same file, or if there is no
/// own one and no other attachment has the shared one; and the temporary one. Only regular files can be state files.
fn files(dir: &Dir, names: &Names) -> io::Result<Vec<String>> {
    let file = |name: &str| Ok::<_, io::Error>(dir.stat_of(name)?.filter(is_file));
    let own = file(&names.own)?;
    let shared = file(&names.shared)?;
    let is_shared_ours = match (&own, &shared) {
        (Some(own), Some(shared)) => own.st_ino == shared.st_ino,
        (None, Some(shared)) => shared.st_nlink == 1,
        (_, None) => false,
    };
    let found = [
        (own.is_some(), &names.own),
        (is_shared_ours, &names.shared),
        (file(&names.temporary)?.is_some(), &names.temporary),
    ];
    Ok(found.into_iter().filter(|(exists, _)| *exists).map(|(_, name)| name.clone()).collect())
}

/// Reads a state file; `None` if that fails: DEL must not depend on it. Only a lack of resources is an error.
fn read(dir: &Dir, name: &str) -> Result<Option<String>> {
    let path = dir.path().join(name);
    let bytes = tolerate(format_args!("the state file {path:?} is ignored"), dir.read(name));
    let bytes = bytes.context(|| format!("read the state file {path:?}"))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the network that the content of a state file names.
fn network_of(text: &str) -> Option<String> {
    let content: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(content.get("name")?.as_str()?.to_owned())
}

/// Writes the state file of an attachment.
pub(crate) fn write(data_dir: &Path, at: &Attachment, config: &str) -> Result<()> {
    let names = Names::of(at);
    let written = Dir::create(data_dir, MODE).and_then(|dir| try_write(&dir, &names, config.as_bytes()));
    written.context(|| format!("write the state file {:?}", data_dir.join(&names.own)))
}

fn try_write(dir: &Dir, names: &Names, config: &[u8]) -> io::Result<()> {
    // The shared name of an earlier ADD of the same attachment leads to the file that is replaced here.
    let earlier = files(dir, names)?;
    if earlier.contains(&names.own) && earlier.contains(&names.shared) {
        dir.remove(&names.shared)?;
    }
    let replace = || dir.replace_through(&names.temporary, &names.own, config);
    match replace() {
        // A GC has removed the temporary file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace()?,
        outcome => outcome?,
    }
    let shared = dir.path().join(&names.shared);
    match dir.link(&names.own, &names.shared) {
        Ok(true) => {}
        Ok(false) => debug!("{shared:?} has the state of another interface, or of an earlier container"),
        // Only the reference needs this name. Not all file systems have hard links.
        Err(error) => warn!("link {shared:?}: {error}"),
    }
    Ok(())
}

/// GC: removes the state files of attachments of this network that are not kept.
pub(crate) fn collect(data_dir: &Path, keep: &Keep<'_>) -> Result<()> {
    let dir = Dir::open(data_dir).context(|| format!("open {data_dir:?}"))?;
    let collected = dir.map_or(Ok(()), |dir| try_collect(&dir, keep));
    collected.context(|| format!("remove state files in {data_dir:?}"))
}

fn try_collect(dir: &Dir, keep: &Keep<'_>) -> Result<()> {
    let names: Vec<String> = dir.names()?.collect::<io::Result<_>>()?;
    // Own names first: then a shared name that is left has no own one.
    let (own, shared): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| name.contains(':'));
    for name in own.into_iter().chain(shared) {
        if !is_stale(dir, &name, keep)? {
            continue;
        }
        debug!("state file {:?} is stale", dir.path().join(&name));
        match parse_name(&name) {
            Some(Name::Own(container, ifname)) => {
                for name in files(dir, &Names::new(container, ifname))? {
                    dir.remove(&name)?;
                }
            }
            _ => drop(dir.remove(&name)?),
        }
    }
    Ok(())
}

fn is_stale(dir: &Dir, name: &str, keep: &Keep<'_>) -> Result<bool> {
    let Some(stat) = dir.stat_of(name)?.filter(is_file) else { return Ok(false) };
    let (is_kept, is_own) = match parse_name(name) {
        Some(Name::Own(container, ifname)) => {
            (!keep.is_stale(AttachmentKey { network: keep.network, container, ifname }), true)
        }
        Some(Name::Shared(container)) => (keep.has_container(container) || stat.st_nlink > 1, false),
        Some(Name::Temporary) => return Ok(true),
        None => return Ok(false),
    };
    if is_kept {
        return Ok(false);
    }
    let Some(text) = read(dir, name)? else { return Ok(false) };
    if DelegateConfig::parse(&text, keep.network).is_some() {
        return Ok(true);
    }
    // A crash of the host can leave an incomplete file, which no DEL needs. The name alone does not show that a file is ours,
    // unless it has the colon.
    Ok(is_own && serde_json::from_str::<serde_json::Value>(&text).is_err())
}

/// A state file of any network, for tools.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateFile {
    pub(crate) name: String,
    pub(crate) network: String,
    pub(crate) container: String,
    /// `None` for a file that the reference wrote.
    pub(crate) ifname: Option<String>,
}

/// Lists the state files in a directory, without the second names.
pub(crate) fn list(data_dir: &Path) -> Result<Vec<StateFile>> {
    let dir = Dir::open(data_dir).context(|| format!("open {data_dir:?}"))?;
    let listed = dir.map_or_else(|| Ok(Vec::new()), |dir| try_list(&dir));
    listed.context(|| format!("list the state files in {data_dir:?}"))
}

fn try_list(dir: &Dir) -> Result<Vec<StateFile>> {
    let mut files = Vec::new();
    for name in dir.names()? {
        let name = name?;
        let Some(stat) = dir.stat_of(&name)?.filter(is_file) else { continue };
        let (container, ifname) = match parse_name(&name) {
            Some(Name::Own(container, ifname)) => (container.to_owned(), Some(ifname.to_owned())),
            Some(Name::Shared(container)) if stat.st_nlink == 1 => (container.to_owned(), None),
            _ => continue,
        };
        if let Some(network) = read(dir, &name)?.and_then(|text| network_of(&text)) {
            files.push(StateFile { network, container, ifname, name });
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// What the name of a file in the directory means.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    Own(&'a str, &'a str),
    Shared(&'a str),
    Temporary,
}

fn parse_name(name: &str) -> Option<Name<'_>> {
    let mut parts = name.split(':');
    let container = parts.next().filter(|id| ContainerId::parse(OsStr::new(id)).is_ok())?;
    match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) => Some(Name::Shared(container)),
        (Some(ifname), None, None) if IfName::from_config(ifname).is_ok() => Some(Name::Own(container, ifname)),
        (Some(ifname), Some(TEMPORARY), None) if IfName::from_config(ifname).is_ok() => Some(Name::Temporary),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_shows_what_it_is() {
        let names = Names::new("c1", "eth0");
        for (name, wanted) in [
            (names.own.as_str(), Some(Name::Own("c1", "eth0"))),
            (&names.shared, Some(Name::Shared("c1"))),
            (&names.temporary, Some(Name::Temporary)),
            ("c1.x_y-z:net.100", Some(Name::Own("c1.x_y-z", "net.100"))),
            ("c1:eth0:1234", None),
            ("c1:eth0:new:new", None),
            ("c1:", None),
            (":eth0", None),
            ("c1:eth0 ", None),
            ("c1:a-name-of-16-byt", None),
            (".hidden", None),
            ("", None),
        ] {
            assert_eq!(parse_name(name), wanted, "{name:?}");
        }
    }
}
