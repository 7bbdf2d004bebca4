//! State files: the configuration that the delegate got at ADD, for the DEL of the same attachment.
//!
//! A state file has the name and the place at which the reference looks for it: that of the container. So the reference
//! can delete what this plugin added, and leaves nothing. The key [`IFNAME_KEY`], which delegates ignore, names the
//! interface. An attachment has a name of its own, `CONTAINER:INTERFACE`, only if the other one is taken: by another
//! interface of the container, which the reference would overwrite, or by a file of the reference, which does not say
//! whose it is. Neither part can contain a colon.
//!
//! Earlier versions wrote `CONTAINER:INTERFACE` for every attachment, without the key, and `CONTAINER` was a second
//! hard link to the file of the container's first attachment.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use cni::{Attachment, AttachmentKey, ContainerId, Context, IfName, Keep, Result};
use linux::dir::{Dir, FileStat, is_file, mtime};
use linux::log::debug;
use linux::tolerate;
use serde_json::Value;

use crate::delegate::{DelegateConfig, IFNAME_KEY};

/// Mode of a new directory, as the reference creates it.
const MODE: u32 = 0o700;

/// The suffix of a file that is being written.
const TEMPORARY: &str = "new";

/// The longest name of a file.
const MAX_NAME: usize = 255;

/// The names of the files of an attachment.
#[derive(Debug)]
struct Names {
    /// The name of the reference, which all attachments of the container share.
    shared: String,
    own: String,
    /// The name while the file is written. Its second colon distinguishes it from all state files. If it would be too
    /// long, it is a colon and a digest of the attachment. DEL finds what a killed ADD left, because each attachment
    /// has one such name.
    temporary: String,
}

impl Names {
    fn of(at: &Attachment) -> Names {
        let (container, ifname) = (at.container.as_str(), at.ifname.as_str());
        let own = format!("{container}:{ifname}");
        let temporary = match format!("{own}:{TEMPORARY}") {
            name if name.len() <= MAX_NAME => name,
            _ => format!(":{}", AttachmentKey { network: "", container, ifname }.digest()),
        };
        Names { shared: container.to_owned(), own, temporary }
    }
}

/// A regular file with one of the names.
#[derive(Debug)]
struct Found {
    name: String,
    stat: FileStat,
    /// The text; empty if it cannot be read.
    text: String,
    /// The content; `None` if a crash of the host has cut it.
    content: Option<Value>,
}

impl Found {
    /// Reads a file; `None` if it does not exist, or is not a regular file.
    fn read(dir: &Dir, name: &str) -> linux::Result<Option<Found>> {
        let stat = match dir.stat_of(name) {
            // The interface does not fit into the name, so that there can be no such file.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => None,
            stat => stat?.filter(is_file),
        };
        let Some(stat) = stat else { return Ok(None) };
        let text = read(dir, name)?.unwrap_or_default();
        Ok(Some(Found { name: name.to_owned(), stat, content: serde_json::from_str(&text).ok(), text }))
    }

    fn key(&self, key: &str) -> Option<&str> {
        self.content.as_ref()?.get(key)?.as_str()
    }

    /// Returns the network that the content names.
    fn network(&self) -> Option<&str> {
        self.key("name")
    }

    /// Returns the interface that the content names; `None` if the reference or an earlier version wrote the file.
    fn ifname(&self) -> Option<&str> {
        self.key(IFNAME_KEY)
    }

    /// Returns whether the file is not one of another network. A container can have interfaces on several networks. The
    /// state of another network is left to the DEL of that: a runtime also calls DEL after an ADD that failed because
    /// the other network has an interface of the same name.
    fn may_be_of(&self, network: &str) -> bool {
        self.network().is_none_or(|found| found == network)
    }

    /// Returns whether both names lead to one file.
    fn is_same_as(&self, other: &Found) -> bool {
        (self.stat.st_dev, self.stat.st_ino) == (other.stat.st_dev, other.stat.st_ino)
    }
}

/// The state files of an attachment.
#[derive(Debug)]
pub(crate) struct State {
    dir: Option<Dir>,
    /// The names of the files that exist.
    found: Vec<String>,
    /// The configuration at ADD; `None` if there is no file, or its content is not one.
    pub(crate) config: Option<(DelegateConfig, String)>,
}

impl State {
    /// Finds the state files of an attachment. A directory that cannot be read has none, so that it does not prevent
    /// DEL for ever; only a lack of resources is an error.
    pub(crate) fn find(data_dir: &Path, network: &str, at: &Attachment) -> Result<State> {
        let tried = || format!("look for state files in {data_dir:?}");
        let without = format_args!("{data_dir:?} counts as a directory without state files");
        let dir = tolerate(without, Dir::open(data_dir)).context(tried)?;
        let files = dir.as_ref().map_or_else(|| Ok(Vec::new()), |dir| files(dir, network, at));
        let files = tolerate(without, files).context(tried)?;
        let config = match files.first() {
            Some(first) => DelegateConfig::parse_state(&first.text, network)?,
            None => None,
        };
        let mut found: Vec<String> = files.into_iter().map(|file| file.name).collect();
        if let Some(dir) = &dir {
            let temporary = Names::of(at).temporary;
            let exists = tolerate(without, dir.exists(&temporary)).context(tried)?;
            found.extend(exists.then_some(temporary));
        }
        Ok(State { dir, found, config })
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

/// Returns the files of an attachment; the first one has its state.
///
/// The file with the shared name belongs to the attachment if it names the interface. One that names none is that of
/// the attachment if nothing shows that it is another's:
///
/// - It is a second name of the own file, as an earlier version wrote it, and not that of another interface's file.
/// - There is no own file.
/// - The reference wrote it after the own one. Then the own one, which an earlier version wrote, is stale: the
///   reference has removed the second name of it since, and nothing else.
fn files(dir: &Dir, network: &str, at: &Attachment) -> linux::Result<Vec<Found>> {
    let names = Names::of(at);
    let read = |name: &str| Ok::<_, linux::Error>(Found::read(dir, name)?.filter(|found| found.may_be_of(network)));
    let own = read(&names.own)?;
    let shared = read(&names.shared)?.filter(|shared| match (shared.ifname(), &own) {
        (Some(ifname), _) => ifname == at.ifname.as_str(),
        (None, Some(own)) if shared.is_same_as(own) => true,
        (None, Some(own)) => {
            own.ifname().is_none() && shared.stat.st_nlink == 1 && mtime(&shared.stat) > mtime(&own.stat)
        }
        (None, None) => shared.stat.st_nlink == 1,
    });
    Ok(shared.into_iter().chain(own).collect())
}

/// Reads a state file; `None` if that fails: DEL must not depend on it. Only a lack of resources is an error.
fn read(dir: &Dir, name: &str) -> linux::Result<Option<String>> {
    let path = dir.path().join(name);
    let bytes = tolerate(format_args!("the state file {path:?} is ignored"), dir.read(name));
    let bytes = bytes.map_err(|error| error.context(format!("read the state file {path:?}")))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes the state file of an attachment.
pub(crate) fn write(data_dir: &Path, network: &str, at: &Attachment, state: &str) -> Result<()> {
    let dir = Dir::create(data_dir, MODE).map_err(cni::Error::from);
    let written = dir.and_then(|dir| try_write(&dir, network, at, state.as_bytes()));
    written.context(|| format!("write the state file {:?}", data_dir.join(at.container.as_str())))
}

fn try_write(dir: &Dir, network: &str, at: &Attachment, state: &[u8]) -> Result<()> {
    let names = Names::of(at);
    let (shared, own) = (Found::read(dir, &names.shared)?, Found::read(dir, &names.own)?);
    let replace = |name: &str| match dir.replace_through(&names.temporary, name, state) {
        // A GC has removed the temporary file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => dir.replace_through(&names.temporary, name, state),
        outcome => outcome,
    };
    let is_shared = match &shared {
        Some(shared) => {
            let is_ours = shared.ifname() == Some(at.ifname.as_str()) && shared.may_be_of(network);
            let is_free = is_ours || shared.content.is_none() || own.as_ref().is_some_and(|own| shared.is_same_as(own));
            if is_free {
                replace(&names.shared)?;
            }
            is_free
        }
        // At the same time, another interface of the container may take the name.
        None => match dir.create_through(&names.temporary, &names.shared, state) {
            Err(error) => {
                debug!("replace {:?}, because it cannot be linked: {error}", dir.path().join(&names.shared));
                replace(&names.shared).map(|()| true)?
            }
            outcome => outcome?,
        },
    };
    match is_shared {
        // An earlier ADD of the same attachment wrote it.
        true if own.is_some_and(|own| own.may_be_of(network)) => drop(dir.remove(&names.own)?),
        true => {}
        false => replace(&names.own)?,
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
        let Some(kind) = parse_name(&name) else { continue };
        if let Name::Temporary = kind {
            dir.remove(&name)?;
            continue;
        }
        let Some(found) = Found::read(dir, &name)? else { continue };
        if !is_stale(&kind, &found, keep) {
            continue;
        }
        debug!("state file {:?} is stale", dir.path().join(&name));
        dir.remove(&name)?;
        // Its second name, which an earlier version wrote.
        if let Name::Own(container, _) = kind
            && Found::read(dir, container)?.is_some_and(|shared| shared.is_same_as(&found))
        {
            dir.remove(container)?;
        }
    }
    Ok(())
}

fn is_stale(kind: &Name<'_>, found: &Found, keep: &Keep<'_>) -> bool {
    let is_kept = |container, ifname| !keep.is_stale(AttachmentKey { network: keep.network, container, ifname });
    let is_kept = match (kind, found.ifname()) {
        (Name::Own(container, ifname), _) => is_kept(container, ifname),
        (Name::Shared(container), Some(ifname)) => is_kept(container, ifname),
        (Name::Shared(container), None) => keep.has_container(container) || found.stat.st_nlink > 1,
        (Name::Temporary, _) => false,
    };
    // A crash of the host can leave an incomplete file, which no DEL needs. The name alone does not show that a file is
    // ours, unless it has the colon.
    let is_left = || matches!(kind, Name::Own(..)) && found.content.is_none();
    !is_kept && (DelegateConfig::parse(&found.text, keep.network).is_some() || is_left())
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
        let Some(found) = Found::read(dir, &name)? else { continue };
        let (container, ifname) = match parse_name(&name) {
            Some(Name::Own(container, ifname)) => (container.to_owned(), Some(ifname.to_owned())),
            Some(Name::Shared(container)) if found.ifname().is_some() || found.stat.st_nlink == 1 => {
                (container.to_owned(), found.ifname().map(str::to_owned))
            }
            _ => continue,
        };
        if let Some(network) = found.network().map(str::to_owned) {
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
    let first = parts.next()?;
    let rest = (parts.next(), parts.next(), parts.next());
    if let ("", (Some(digest), None, None)) = (first, rest) {
        let is_digest = digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        return is_digest.then_some(Name::Temporary);
    }
    let container = Some(first).filter(|id| ContainerId::parse(OsStr::new(id)).is_ok())?;
    match rest {
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
        let names = |id: &str| {
            let container = ContainerId::parse(id.as_ref()).unwrap();
            Names::of(&Attachment { container, ifname: IfName::from_config("eth0").unwrap(), netns: None })
        };
        let (short, long) = (names("c1"), names(&"c".repeat(MAX_NAME)));
        assert!(long.temporary.len() <= MAX_NAME && long.temporary != names(&"d".repeat(MAX_NAME)).temporary);
        for (name, wanted) in [
            (short.own.as_str(), Some(Name::Own("c1", "eth0"))),
            (&short.shared, Some(Name::Shared("c1"))),
            (&short.temporary, Some(Name::Temporary)),
            (&long.temporary, Some(Name::Temporary)),
            ("c1.x_y-z:net.100", Some(Name::Own("c1.x_y-z", "net.100"))),
            ("c1:eth0:1234", None),
            ("c1:eth0:new:new", None),
            ("c1:", None),
            (":eth0", None),
            (":", None),
            (":12:34", None),
            ("c1:eth0 ", None),
            ("c1:a-name-of-16-byt", None),
            (".hidden", None),
            ("", None),
        ] {
            assert_eq!(parse_name(name), wanted, "{name:?}");
        }
    }
}
