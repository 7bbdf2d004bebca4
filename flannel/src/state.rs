//! State files: the configuration that the delegate got at ADD, for the DEL of the same attachment.
//!
//! The reference names the file after the container, so that the second interface of a container overwrites the file of the
//! first. So each attachment has a file of its own, `CONTAINER:INTERFACE`; neither part can contain a colon. The name of
//! the reference is a second hard link to the file of the container's first attachment. With it the reference can delete
//! what this plugin added; and a file with that name alone is one that the reference wrote.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use cni::{Attachment, ContainerId, Context, IfName, Keep, Result};
use linux::dir::{Dir, is_file};
use log::{debug, warn};

use crate::delegate::DelegateConfig;

/// Mode of a new directory, as the reference creates it.
const MODE: u32 = 0o700;

/// The names of the files of an attachment.
#[derive(Debug)]
struct Names {
    own: String,
    /// The name of the reference, which all attachments of the container share.
    shared: String,
}

impl Names {
    fn of(at: &Attachment) -> Names {
        let container = at.container.as_str();
        Names { own: format!("{container}:{}", at.ifname), shared: container.to_owned() }
    }

    /// Returns the name of the temporary file. Its second colon distinguishes it from all state files.
    fn temporary(&self) -> String {
        format!("{}:{}", self.own, std::process::id())
    }
}

/// The state files of an attachment.
#[derive(Debug)]
pub(crate) struct State {
    dir: Option<Dir>,
    names: Names,
    /// The files that exist, in the order in which they are removed.
    found: Vec<String>,
    /// The configuration at ADD; `None` if there is no file, or its content is not one.
    pub(crate) config: Option<(DelegateConfig, String)>,
}

impl State {
    /// Finds the state files of an attachment.
    pub(crate) fn find(data_dir: &Path, network: &str, at: &Attachment) -> State {
        let dir = Dir::open(data_dir).unwrap_or_else(|error| {
            warn!("open {data_dir:?}: {error}");
            None
        });
        let mut state = State { dir, names: Names::of(at), found: Vec::new(), config: None };
        let found = state.dir.as_ref().map_or_else(|| Ok(Vec::new()), |dir| files(dir, &state.names));
        state.found = found.unwrap_or_else(|error| {
            warn!("look for state files in {data_dir:?}: {error}");
            Vec::new()
        });
        let first = state.dir.as_ref().zip(state.found.first());
        let text = first.and_then(|(dir, name)| read(dir, name));
        state.config = text.as_ref().and_then(|text| Some((DelegateConfig::parse(text, network)?, text.clone())));
        // A container can have interfaces on several networks. A file that only the reference's name leads to, and which
        // names another network, is theirs.
        let is_foreign = text.and_then(|text| network_of(&text)).is_some_and(|other| other != network);
        if state.config.is_none() && is_foreign && state.found.first() == Some(&state.names.shared) {
            state.found.clear();
        }
        state
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

/// Returns the existing files of an attachment: its own, and that with the shared name if it is the same file, or if there is
/// no own one and no other attachment has the shared one.
fn files(dir: &Dir, names: &Names) -> io::Result<Vec<String>> {
    let own = dir.stat_of(&names.own)?;
    let shared = dir.stat_of(&names.shared)?;
    let is_shared_ours = match (&own, &shared) {
        (Some(own), Some(shared)) => own.st_ino == shared.st_ino,
        (None, Some(shared)) => shared.st_nlink == 1,
        (_, None) => false,
    };
    let own = own.map(|_| names.own.clone());
    Ok(own.into_iter().chain(is_shared_ours.then(|| names.shared.clone())).collect())
}

/// Reads a state file; `None` if that fails: DEL must not depend on it.
fn read(dir: &Dir, name: &str) -> Option<String> {
    match dir.read(name) {
        Ok(bytes) => bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            warn!("read the state file {:?}: {error}", dir.path().join(name));
            None
        }
    }
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
    let temporary = names.temporary();
    let replace = || dir.replace_through(&temporary, &names.own, config);
    match replace() {
        // A GC has removed the temporary file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace()?,
        outcome => outcome?,
    }
    if earlier.len() == 2 {
        dir.remove(&names.shared)?;
    }
    if !dir.link(&names.own, &names.shared)? {
        debug!("{:?} has the state of another interface, or of an earlier container", dir.path().join(&names.shared));
    }
    Ok(())
}

/// GC: removes the state files of attachments of this network that are not kept.
pub(crate) fn collect(data_dir: &Path, keep: &Keep<'_>) -> Result<()> {
    let collected = Dir::open(data_dir).and_then(|dir| dir.map_or(Ok(()), |dir| try_collect(&dir, keep)));
    collected.context(|| format!("remove state files in {data_dir:?}"))
}

fn try_collect(dir: &Dir, keep: &Keep<'_>) -> io::Result<()> {
    let mut names: Vec<String> = dir.names()?.collect::<io::Result<_>>()?;
    // Own names first: then a shared name that is left has no own one.
    names.sort_by_key(|name| !name.contains(':'));
    for name in names {
        if is_stale(dir, &name, keep)? {
            debug!("state file {:?} is stale", dir.path().join(&name));
            dir.remove(&name)?;
        }
    }
    Ok(())
}

fn is_stale(dir: &Dir, name: &str, keep: &Keep<'_>) -> io::Result<bool> {
    let Some(stat) = dir.stat_of(name)?.filter(is_file) else { return Ok(false) };
    let (is_kept, is_own) = match parse_name(name) {
        Some(Name::Own(container, ifname)) => (keep.has_attachment(container, ifname), true),
        Some(Name::Shared(container)) => (keep.has_container(container) || stat.st_nlink > 1, false),
        Some(Name::Temporary) => return Ok(true),
        None => return Ok(false),
    };
    if is_kept {
        return Ok(false);
    }
    let Some(text) = read(dir, name) else { return Ok(false) };
    if DelegateConfig::parse(&text, keep.network).is_some() {
        return Ok(true);
    }
    // A file that a crash has cut off: no DEL needs it. Other files in the directory are not ours.
    let is_cut =
        text.is_empty() || (text.starts_with("{\"") && serde_json::from_str::<serde_json::Value>(&text).is_err());
    Ok(is_cut && (is_own || stat.st_size < 4096))
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
    let listed = Dir::open(data_dir).and_then(|dir| dir.map_or_else(|| Ok(Vec::new()), |dir| try_list(&dir)));
    listed.context(|| format!("list the state files in {data_dir:?}"))
}

fn try_list(dir: &Dir) -> io::Result<Vec<StateFile>> {
    let mut files = Vec::new();
    for name in dir.names()? {
        let name = name?;
        let Some(stat) = dir.stat_of(&name)?.filter(is_file) else { continue };
        let (container, ifname) = match parse_name(&name) {
            Some(Name::Own(container, ifname)) => (container.to_owned(), Some(ifname.to_owned())),
            Some(Name::Shared(container)) if stat.st_nlink == 1 => (container.to_owned(), None),
            _ => continue,
        };
        if let Some(network) = read(dir, &name).and_then(|text| network_of(&text)) {
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
        (Some(ifname), Some(pid), None) if IfName::from_config(ifname).is_ok() => {
            pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(Name::Temporary)
        }
        _ => None,
    }
}
