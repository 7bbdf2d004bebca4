//! Lease files: one for each attachment and family, in a directory for each network. The daemon writes them; plugins
//! and tools read them, also without the daemon.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni::{Attachment, AttachmentKey, Call, Context, Result, json};
use linux::dir::Dir;
use linux::log::debug;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::client::{Grant, Moment};
use crate::settings::Settings;

/// The directory of the directories of networks. The kernel's memory has it: at a boot, all containers are gone.
pub(crate) const ROOT: &str = "/run/cni0/dhcp";
/// The end of the name of a lease file.
const SUFFIX: &str = ".json";

/// The family of the address of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Family {
    #[default]
    V4,
    V6,
}

/// The attachment that a lease belongs to. It can have one of each family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    #[serde(default)]
    pub(crate) family: Family,
}

impl Key {
    /// Returns the key of the IPv4 lease.
    pub(crate) fn new(call: &Call<'_>, at: &Attachment) -> Key {
        let text = str::to_owned;
        Key {
            network: text(call.network.as_str()),
            container: text(at.container.as_str()),
            ifname: text(at.ifname.as_str()),
            family: Family::V4,
        }
    }

    /// Returns the key of the lease of this family.
    pub(crate) fn of(&self, family: Family) -> Key {
        Key { family, ..self.clone() }
    }

    /// Returns the keys of both families.
    pub(crate) fn both(&self) -> [Key; 2] {
        [self.of(Family::V4), self.of(Family::V6)]
    }

    pub(crate) fn attachment(&self) -> AttachmentKey<'_> {
        AttachmentKey { network: &self.network, container: &self.container, ifname: &self.ifname }
    }

    fn file(&self) -> String {
        let family = match self.family {
            Family::V4 => "",
            Family::V6 => ".v6",
        };
        format!("{}{family}{SUFFIX}", self.attachment().digest())
    }

    /// Returns the name of what becomes the file. A daemon that is killed meanwhile leaves it.
    fn draft(&self) -> String {
        self.file() + ".draft"
    }
}

/// The interface that a lease is for. A path can lead to another namespace later, and a name to another interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The path of the namespace, as the plugin got it.
    pub(crate) netns: PathBuf,
    /// The cookie of the namespace, or before Linux 5.14 its inode number.
    pub(crate) namespace: u64,
    /// The index of the link.
    pub(crate) link: u32,
    pub(crate) mac: [u8; 6],
    /// Whether servers must answer by broadcast.
    pub(crate) broadcast: bool,
}

/// The content of a lease file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) key: Key,
    /// The socket of the daemon that follows the lease.
    pub(crate) socket: PathBuf,
    pub(crate) place: Place,
    pub(crate) settings: Settings,
    /// The lease; `None` if it was lost, and the daemon looks for another one.
    pub(crate) grant: Option<Grant>,
    /// What the client has asked for, for a plugin that waits for its first address. The server may have granted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offer: Option<Grant>,
}

impl Record {
    /// Returns whether the time of the lease is over: no daemon has renewed it, or removed its address.
    pub(crate) fn has_ended(&self, now: Moment) -> bool {
        self.grant.as_ref().and_then(Grant::end).is_some_and(|end| end <= now)
    }
}

/// Returns the directory of a network.
pub(crate) fn directory(network: &str) -> PathBuf {
    Path::new(ROOT).join(network)
}

/// Writes the file of a lease atomically.
pub(crate) fn write(record: &Record) -> Result<()> {
    let path = directory(&record.key.network);
    let what = || format!("write the lease of {} in {path:?}", record.key.attachment().alias());
    let content = json::compact(record)?;
    let (draft, file) = (record.key.draft(), record.key.file());
    Dir::create_private(&path).and_then(|dir| dir.replace_through(&draft, &file, &content)).context(what)
}

/// Removes the file of a lease, and the directory with the last one. Returns whether the file existed.
pub(crate) fn remove(key: &Key) -> Result<bool> {
    let path = directory(&key.network);
    let what = || format!("remove the lease of {} in {path:?}", key.attachment().alias());
    let Some(dir) = Dir::open(&path).context(what)? else { return Ok(false) };
    let existed = dir.remove(&key.file()).context(what)?;
    dir.remove(&key.draft()).context(what)?;
    // Fails while other leases are there.
    let _ = fs::remove_dir(&path);
    Ok(existed)
}

/// Reads the lease of an attachment; `None` if it has none.
pub(crate) fn read(key: &Key) -> Result<Option<Summary>> {
    let path = directory(&key.network);
    let what = || format!("read the lease of {} in {path:?}", key.attachment().alias());
    let Some(dir) = Dir::open(&path).context(what)? else { return Ok(None) };
    let content = dir.read(&key.file()).context(what)?;
    Ok(content.and_then(|content| parse::<Summary>(&content)).filter(|lease| lease.key == *key))
}

/// Returns the leases in a directory, with the time of their last change; `None` if there is no such directory.
pub(crate) fn list<T: Content>(path: &Path) -> Result<Option<Vec<(T, SystemTime)>>> {
    let what = || format!("read the leases in {path:?}");
    let Some(dir) = Dir::open(path).context(what)? else { return Ok(None) };
    let mut found = Vec::new();
    for name in dir.names().context(what)? {
        let name = name.context(what)?;
        if !name.ends_with(SUFFIX) {
            continue;
        }
        let Some((content, since)) = dir.read_with_time(&name).context(what)? else { continue };
        match parse(&content).filter(|record: &T| record.key().file() == name) {
            Some(record) => found.push((record, since)),
            None => debug!("ignore {name:?} in {path:?}, which is not a lease"),
        }
    }
    Ok(Some(found))
}

/// Returns the directories of networks.
pub(crate) fn directories() -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(ROOT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(|| format!("read the directory {ROOT:?}"))?,
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

/// Parses a lease file.
pub(crate) fn parse<T: Content>(content: &[u8]) -> Option<T> {
    json::parse(std::str::from_utf8(content).ok()?).ok()
}

/// What is read of a lease file.
pub(crate) trait Content: DeserializeOwned {
    fn key(&self) -> &Key;
}

impl Content for Record {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// The owner and the address of a lease, for those who do not follow it. The plugin is part of many programs.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    pub(crate) key: Key,
    grant: Option<GrantSummary>,
}

#[derive(Debug, Deserialize)]
struct GrantSummary {
    terms: TermsSummary,
}

#[derive(Debug, Deserialize)]
struct TermsSummary {
    address: IpAddr,
    times: Option<IgnoredAny>,
}

impl Content for Summary {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Summary {
    /// Returns whether the server has granted the address for ever.
    pub(crate) fn never_ends(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.terms.times.is_none())
    }

    /// Returns the address of the lease; `None` if it was lost.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.grant.as_ref().map(|grant| grant.terms.address)
    }
}
