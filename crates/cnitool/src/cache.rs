//! The cache of results: one entry per attachment, with its configuration and the result of ADD.
//!
//! Location and format are those of the reference's library, which podman, containerd and others use as well. So each
//! of them can remove what another one added. Unlike the reference, entries are written atomically, and an entry of
//! another attachment is never used. File names are ambiguous, because they join with '-' names that may contain '-'.

mod base64;

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::json::{self, Raw};
use cni::{Code, Context, Error, Result};
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::file;

/// The directory of the cache, shared with other runtimes.
const CACHE_DIR: &str = "/var/lib/cni/results";
/// The only existing kind of entry.
const KIND: &str = "cniCacheV1";

/// A file of the cache that cannot be read, and the error.
pub(crate) type Unreadable = (PathBuf, Error);

/// An attachment in the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The namespace. If the entry has none, as those of libcni before 1.2, it is the one in the result.
    pub(crate) netns: Option<PathBuf>,
    /// `CNI_ARGS`
    pub(crate) args: Vec<(String, String)>,
    /// The arguments for plugins that declare the capability.
    pub(crate) capabilities: Map<String, Value>,
    /// The text of the network's list.
    pub(crate) config: Vec<u8>,
    /// The result of ADD.
    pub(crate) result: Option<Value>,
}

impl Entry {
    /// Returns whether both entries are for the same interface of the same container. Does not compare networks.
    pub(crate) fn is_same(&self, other: &Entry) -> bool {
        (&self.container, &self.ifname) == (&other.container, &other.ifname)
    }

    /// Returns the content of its file.
    pub(crate) fn print(&self) -> Result<Vec<u8>> {
        json::compact(&WrittenEntry {
            kind: KIND,
            container_id: &self.container,
            config: base64::encode(&self.config),
            if_name: &self.ifname,
            network_name: &self.network,
            netns: self.netns.as_deref(),
            cni_args: &self.args,
            capability_args: &self.capabilities,
            result: self.result.as_ref(),
        })
    }

    /// Parses the content of a file. The error is the reason why it is corrupt.
    pub(crate) fn parse(text: &str) -> Result<Entry, String> {
        let found: ReadEntry<'_> = json::parse(text).map_err(|fault| fault.to_string())?;
        let value = |raw: Raw<'_>| serde_json::from_str::<Value>(raw.text()).map_err(|error| error.to_string());
        if found.kind.is_empty() {
            if !json::has_key(text, "cniVersion").unwrap_or(false) {
                return Err("it has neither \"kind\" nor \"cniVersion\"".to_owned());
            }
            let result = serde_json::from_str(text).map_err(|error| error.to_string())?;
            return Ok(Entry { result: Some(result), ..Entry::default() });
        }
        if found.kind != KIND {
            return Err(format!("its kind is {:?}, not {KIND:?}", found.kind));
        }
        if found.container_id.is_empty() || found.if_name.is_empty() || found.network_name.is_empty() {
            return Err("\"containerId\", \"ifName\" or \"networkName\" is missing".to_owned());
        }
        let pair = |pair: Vec<String>| match <[String; 2]>::try_from(pair) {
            Ok([key, value]) => Ok((key, value)),
            Err(_) => Err("key \"cniArgs\": expected pairs".to_owned()),
        };
        let capabilities = match found.capability_args.map(value).transpose()? {
            None => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => return Err("key \"capabilityArgs\": expected an object".to_owned()),
        };
        let result = found.result.map(value).transpose()?;
        let stored = found.netns.filter(|path| !path.as_os_str().is_empty());
        Ok(Entry {
            netns: stored.or_else(|| sandbox(result.as_ref()?, &found.if_name)),
            network: found.network_name,
            container: found.container_id,
            ifname: found.if_name,
            args: found.cni_args.into_iter().map(pair).collect::<Result<_, _>>()?,
            capabilities,
            config: base64::decode(&found.config).ok_or("key \"config\": it is not Base64")?,
            result,
        })
    }
}

/// Returns the namespace of an interface in a result. Versions of CNI before 0.3.0 do not have it.
fn sandbox(result: &Value, ifname: &str) -> Option<PathBuf> {
    let interfaces = result.get("interfaces")?.as_array()?.iter().filter(|interface| interface["name"] == ifname);
    let mut paths = interfaces.filter_map(|interface| Some(PathBuf::from(interface.get("sandbox")?.as_str()?)));
    paths.find(|path| path.is_absolute())
}

/// The format for writing an entry. The fields are in the order of the reference.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenEntry<'a> {
    kind: &'a str,
    container_id: &'a str,
    config: String,
    if_name: &'a str,
    network_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<&'a Path>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cni_args: &'a [(String, String)],
    #[serde(skip_serializing_if = "Map::is_empty")]
    capability_args: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
}

/// The format for reading an entry.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReadEntry<'a> {
    kind: String,
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    netns: Option<PathBuf>,
    cni_args: Vec<Vec<String>>,
    #[serde(borrow)]
    capability_args: Option<Raw<'a>>,
    #[serde(borrow)]
    result: Option<Raw<'a>>,
}

/// The directory with a file for each attachment.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Returns the cache that runtimes on this host share.
    pub(crate) fn of_host() -> Cache {
        Cache { dir: PathBuf::from(CACHE_DIR) }
    }

    /// Returns the file of an attachment.
    pub(crate) fn path(&self, network: &str, container: &str, ifname: &str) -> PathBuf {
        self.dir.join(format!("{network}-{container}-{ifname}"))
    }

    /// Reads the entry of an attachment. Returns `None` if it does not exist.
    pub(crate) fn load(&self, network: &str, container: &str, ifname: &str) -> Result<Option<Entry>> {
        let path = self.path(network, container, ifname);
        let Some(mut entry) = read(&path)? else { return Ok(None) };
        if entry.container.is_empty() {
            // The oldest format is the plain result. Only the file name identifies the attachment.
            entry = Entry {
                network: network.to_owned(),
                container: container.to_owned(),
                ifname: ifname.to_owned(),
                ..entry
            };
        }
        if (entry.network.as_str(), entry.container.as_str(), entry.ifname.as_str()) != (network, container, ifname) {
            let what = format!(
                "the cache entry {} belongs to another attachment: network {:?}, container {:?}, interface {:?}",
                path.display(),
                entry.network,
                entry.container,
                entry.ifname
            );
            return Err(Error::new(Code::CONFIG, what).details("rename the network, or remove that attachment first"));
        }
        Ok(Some(entry))
    }

    /// Writes the entry atomically.
    pub(crate) fn store(&self, entry: &Entry) -> Result<()> {
        let path = self.path(&entry.network, &entry.container, &entry.ifname);
        self.replace(&path, &entry.print()?).context(|| format!("write the cache entry {}", path.display()))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        // The temporary file is outside of the directory, so that a tool that lists entries does not read it.
        // Each thread has its own.
        let new = self.dir.with_file_name(format!(".new-result-{}", gettid()));
        Ok(file::replace(path, &new, bytes, 0o600)?)
    }

    /// Removes the entry of an attachment, if it exists.
    pub(crate) fn remove(&self, network: &str, container: &str, ifname: &str) -> Result<()> {
        let path = self.path(network, container, ifname);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context(|| format!("remove the cache entry {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns all entries that name their attachment, and the files that cannot be read, each with the error.
    pub(crate) fn all(&self) -> Result<(Vec<Entry>, Vec<Unreadable>)> {
        let (mut entries, mut failures) = (Vec::new(), Vec::new());
        for name in self.names()? {
            let path = self.dir.join(&name);
            match read(&path) {
                Ok(entry) => entries.extend(entry.filter(|entry| !entry.network.is_empty())),
                Err(error) => failures.push((path, error)),
            }
        }
        Ok((entries, failures))
    }

    /// Returns the sorted names of all files.
    fn names(&self) -> Result<Vec<String>> {
        let what = || format!("read the directory {}", self.dir.display());
        let files = match fs::read_dir(&self.dir) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context(what),
        };
        let mut names = Vec::new();
        for file in files {
            names.push(file.context(what)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Returns all attachments to a network, sorted by file name. Fails if an entry that may be of this network cannot
    /// be read, because callers treat attachments that are not listed as stale.
    pub(crate) fn of_network(&self, network: &str) -> Result<Vec<Entry>> {
        let is_of = |name: &String| name.strip_prefix(network).is_some_and(|rest| rest.starts_with('-'));
        let mut entries = Vec::new();
        for name in self.names()?.into_iter().filter(is_of) {
            // Another process may have removed the entry meanwhile.
            let Some(entry) = read(&self.dir.join(&name))? else { continue };
            if entry.network == network {
                entries.push(entry);
            } else if entry.network.is_empty() {
                // The oldest format. This assumes that the interface name does not contain '-'.
                let rest = name.get(network.len() + 1..).unwrap_or_default();
                if let Some((container, ifname)) = rest.rsplit_once('-') {
                    let (network, container) = (network.to_owned(), container.to_owned());
                    entries.push(Entry { network, container, ifname: ifname.to_owned(), ..entry });
                }
            }
        }
        Ok(entries)
    }
}

/// Reads one entry. Returns `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<Entry>> {
    let bytes = match file::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context(|| format!("read the cache entry {}", path.display())),
    };
    let entry = Entry::parse(&String::from_utf8_lossy(&bytes)).map_err(|why| {
        let error = Error::new(Code::DECODE, format!("the cache entry {} is corrupt: {why}", path.display()));
        error.details("remove the file: del works without it")
    })?;
    Ok(Some(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_store_entries_at_the_same_time() {
        let dir = std::env::temp_dir().join(format!("cni0-cache-{}", std::process::id()));
        let cache = Cache { dir: dir.join("results") };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let cache = &cache;
                scope.spawn(move || {
                    for number in 0..50 {
                        let container = format!("c{thread}-{number}");
                        let entry = Entry { container, network: "pods".to_owned(), ..Entry::default() };
                        cache.store(&Entry { ifname: "eth0".to_owned(), ..entry }).unwrap();
                    }
                });
            }
        });
        assert_eq!(cache.of_network("pods").unwrap().len(), 400);
        fs::remove_dir_all(dir).unwrap();
    }
}
