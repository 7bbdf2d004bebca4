//! The backup file of an attachment: the attributes of its interface before ADD.
//!
//! Name and content are those of the reference, so that either implementation can restore what the other changed. In
//! addition, the key `attachment`, which the reference ignores, says whose file it is: the name is ambiguous, and
//! container IDs and interface names are used again.

use std::io;
use std::path::Path;

use cni::json::{self, Fault};
use cni::{AttachmentKey, Context, Result};
use linux::dir::{Dir, TEMP_SUFFIX};
use linux::log::debug;
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::interface::{Identity, Interface};

/// The indentation of the file.
const INDENTATION: &[u8] = b" ";
/// The end of the name.
pub(crate) const SUFFIX: &str = ".json";
/// The longest name of a file.
const MAX_NAME: usize = 255;

/// The content of a backup file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backup {
    /// The attributes before ADD.
    pub(crate) before: Attributes,
    /// Whose file it is; `None` if the reference wrote it.
    pub(crate) owner: Option<BackupOwner>,
}

/// Whose file it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackupOwner {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    pub(crate) interface: Identity,
    /// The attributes after ADD.
    pub(crate) tuned: Attributes,
    /// The MTU of the host veth before ADD, if ADD raised it.
    pub(crate) host_mtu: Option<u32>,
}

/// The attributes as in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Values {
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue: Option<u32>,
}

/// The owner as in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct OwnerRecord {
    network: String,
    container: String,
    ifname: String,
    interface: Identity,
    tuned: Values,
    #[serde(rename = "hostMtu", skip_serializing_if = "Option::is_none")]
    host_mtu: Option<u32>,
}

/// The part of the file that the reference ignores.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extra {
    attachment: Option<OwnerRecord>,
}

/// The whole file.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    before: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment: Option<OwnerRecord>,
}

impl From<Attributes> for Values {
    fn from(attributes: Attributes) -> Values {
        let Attributes { mac, promiscuous, mtu, all_multicast, tx_queue } = attributes;
        let mac = mac.map(|mac| mac.to_string());
        Values { mac, promisc: promiscuous, mtu, allmulti: all_multicast, tx_queue }
    }
}

impl TryFrom<Values> for Attributes {
    type Error = Fault;

    fn try_from(values: Values) -> Result<Attributes, Fault> {
        let Values { mac, promisc, mtu, allmulti, tx_queue } = values;
        let mac = mac.filter(|text| !text.is_empty()).map(|text| text.parse()).transpose();
        Ok(Attributes {
            mac: mac.map_err(|why| Fault::value(why).under("mac"))?,
            promiscuous: promisc,
            mtu: mtu.filter(|mtu| *mtu != 0),
            all_multicast: allmulti,
            tx_queue,
        })
    }
}

impl Backup {
    /// Parses a file.
    pub(crate) fn parse(content: &[u8]) -> Result<Backup, Fault> {
        let text = std::str::from_utf8(content).map_err(Fault::value)?;
        let before: Values = json::parse(text)?;
        let Extra { attachment } = json::parse(text)?;
        let owner = attachment.map(|record| {
            let OwnerRecord { network, container, ifname, interface, tuned, host_mtu } = record;
            Ok::<_, Fault>(BackupOwner { network, container, ifname, interface, tuned: tuned.try_into()?, host_mtu })
        });
        Ok(Backup { before: before.try_into()?, owner: owner.transpose()? })
    }

    /// Returns the content of the file.
    pub(crate) fn print(&self) -> Result<Vec<u8>> {
        let attachment = self.owner.clone().map(|owner| {
            let BackupOwner { network, container, ifname, interface, tuned, host_mtu } = owner;
            OwnerRecord { network, container, ifname, interface, tuned: tuned.into(), host_mtu }
        });
        json::print_indented(&Whole { before: self.before.into(), attachment }, INDENTATION)
    }
}

impl BackupOwner {
    pub(crate) fn key(&self) -> AttachmentKey<'_> {
        AttachmentKey { network: &self.network, container: &self.container, ifname: &self.ifname }
    }

    /// Returns whether this is another interface than that of `key`, although their names make the same file name.
    fn has_same_name_as(&self, key: AttachmentKey<'_>) -> bool {
        let own = self.key();
        (own.container, own.ifname) != (key.container, key.ifname) && shared_name(own) == shared_name(key)
    }
}

/// Returns the names that an attachment's file can have, the preferred one first.
///
/// The first is that of the reference, unless it is longer than file systems allow, so that the reference fails. It is
/// ambiguous if a part of it has an underscore: `a` with `b_c`, and `a_b` with `c`, have the same. The last one is then
/// for an attachment that finds the file of the other. It has no underscore, so that it differs from all names of the
/// reference.
pub(crate) fn file_names(key: AttachmentKey<'_>) -> Vec<String> {
    let AttachmentKey { container, ifname, .. } = key;
    let shared = shared_name(key);
    match shared.len() {
        ..=MAX_NAME if container.contains('_') || ifname.contains('_') => vec![shared, unique_name(key)],
        ..=MAX_NAME => vec![shared],
        _ => vec![unique_name(key)],
    }
}

/// Returns the name that the reference uses.
fn shared_name(key: AttachmentKey<'_>) -> String {
    format!("{}_{}{SUFFIX}", key.container, key.ifname)
}

fn unique_name(key: AttachmentKey<'_>) -> String {
    format!("{}{SUFFIX}", key.mark())
}

/// Returns the name of the file that ADD writes to replace another. A killed ADD leaves it.
pub(crate) fn temp_name(key: AttachmentKey<'_>) -> String {
    format!("{}{TEMP_SUFFIX}", key.mark())
}

/// The backup file of an attachment, for ADD.
#[derive(Debug)]
pub(crate) struct BackupFile {
    dir: Dir,
    name: String,
    /// The name of a temporary file.
    temp: String,
    /// What the file had before, if that belongs to the same interface.
    earlier: Option<Backup>,
}

impl BackupFile {
    /// Opens the file, which need not exist. An existing file counts only if it belongs to this attachment and this
    /// interface, so that an earlier plugin of the same chain wrote it. A file of the reference does not say that. It
    /// counts if the interface already has the `wanted` attributes that the file has: then an earlier ADD of the
    /// reference set them.
    pub(crate) fn open(
        data_dir: &Path,
        key: AttachmentKey<'_>,
        Interface { identity, link, .. }: &Interface,
        wanted: Attributes,
    ) -> Result<BackupFile> {
        let dir = Dir::create(data_dir, 0o700).context(|| format!("create the directory {data_dir:?}"))?;
        let temp = temp_name(key);
        let mut free = None;
        for name in file_names(key) {
            let found = dir.read_private(&name).map_err(|error| debug!("ignore {name:?}: {error}")).ok().flatten();
            let found = found.and_then(|content| Backup::parse(&content).ok());
            let owner = found.as_ref().and_then(|backup| backup.owner.as_ref());
            let is_tuned =
                |before: Attributes| before == before.of_keys(wanted) && before.of(link) == wanted.of_keys(before);
            let is_ours = match (&found, owner) {
                (_, Some(owner)) => owner.key() == key && owner.interface == *identity,
                (Some(theirs), None) => is_tuned(theirs.before),
                (None, None) => false,
            };
            if is_ours {
                return Ok(BackupFile { dir, name, temp, earlier: found });
            }
            if !owner.is_some_and(|owner| owner.has_same_name_as(key)) {
                free = free.or(Some(name));
            }
        }
        let name = free.unwrap_or_else(|| unique_name(key));
        Ok(BackupFile { dir, name, temp, earlier: None })
    }

    /// Writes the attributes before and after ADD. Of an attribute that was changed before, the first value is kept.
    pub(crate) fn write(&self, before: Attributes, owner: BackupOwner) -> Result<()> {
        let backup = match self.earlier.clone() {
            None => Backup { before, owner: Some(owner) },
            Some(Backup { before: first, owner: earlier }) => {
                let earlier = earlier.unwrap_or_default();
                let tuned = owner.tuned.or(earlier.tuned);
                let host_mtu = earlier.host_mtu.or(owner.host_mtu);
                Backup { before: first.or(before), owner: Some(BackupOwner { tuned, host_mtu, ..owner }) }
            }
        };
        self.replace(&backup)
    }

    /// Reverts [`BackupFile::write`].
    pub(crate) fn revert(&self) -> Result<()> {
        match &self.earlier {
            Some(backup) => self.replace(backup),
            None => match self.dir.remove(&self.name) {
                // Nothing can have been written.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EROFS)) => Ok(()),
                removed => removed.map(drop).context(|| self.about("remove")),
            },
        }
    }

    fn replace(&self, backup: &Backup) -> Result<()> {
        let content = backup.print()?;
        let written = match self.earlier {
            Some(_) => self.dir.replace_through(&self.temp, &self.name, &content),
            // Whatever has the name is not a file of this interface.
            None => self.dir.remove(&self.name).and_then(|_| match self.dir.create_file(&self.name, &content)? {
                true => Ok(()),
                false => Err(io::ErrorKind::AlreadyExists.into()),
            }),
        };
        written.context(|| self.about("write")).map_err(|error| match error.errno() {
            Some(libc::EISDIR) => error.details("remove the directory that has this name"),
            _ => error,
        })
    }

    fn about(&self, verb: &str) -> String {
        format!("{verb} the backup file {:?}", self.dir.path().join(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> BackupOwner {
        let interface = Identity { boot: "b".to_owned(), netns: "cookie 7".to_owned(), link: 3 };
        let tuned = Attributes { mtu: Some(1400), ..Attributes::default() };
        let [network, container, ifname] = ["net1", "c1", "eth0"].map(str::to_owned);
        BackupOwner { network, container, ifname, interface, tuned, host_mtu: None }
    }

    #[test]
    fn the_file_is_that_of_the_reference() {
        let before = Attributes {
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            promiscuous: Some(false),
            mtu: Some(1500),
            all_multicast: Some(false),
            tx_queue: Some(1000),
        };
        let printed = Backup { before, owner: None }.print().unwrap();
        let wanted = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \
                      \"txQLen\": 1000\n}";
        assert_eq!(String::from_utf8(printed).unwrap(), wanted);
        assert_eq!(Backup::parse(wanted.as_bytes()).unwrap(), Backup { before, owner: None });
        assert_eq!(file_names(owner().key()), ["c1_eth0.json"]);
    }

    #[test]
    fn names_are_those_of_the_reference_unless_they_are_too_long() {
        let names = |container: &str, ifname: &str| file_names(AttachmentKey { network: "net1", container, ifname });
        let longest = "c".repeat(MAX_NAME - "_eth0.json".len());
        assert_eq!(names(&longest, "eth0"), [format!("{longest}_eth0.json")]);
        let long = names(&format!("{longest}c"), "eth0");
        assert!(long.len() == 1 && long[0].len() < 50, "{long:?}");
        assert_ne!(long, names(&format!("{longest}d"), "eth0"));
        let (one, other) = (names("a", "b_c"), names("a_b", "c"));
        assert_eq!((one[0].as_str(), other[0].as_str()), ("a_b_c.json", "a_b_c.json"));
        assert!(one[1] != other[1] && !one[1].contains('_'), "{one:?} {other:?}");
    }

    #[test]
    fn the_owner_follows_the_attributes() {
        let backup = Backup { before: Attributes { mtu: Some(1500), ..Attributes::default() }, owner: Some(owner()) };
        let printed = backup.print().unwrap();
        assert!(String::from_utf8(printed.clone()).unwrap().starts_with("{\n \"mtu\": 1500,\n \"attachment\": {\n"));
        assert_eq!(Backup::parse(&printed).unwrap(), backup);
    }

    #[test]
    fn other_files_are_refused() {
        for bad in ["", "5", "[]", "{", "{\"mtu\": -1}", "{\"mac\": \"x\"}", "{\"attachment\": 5}", "\u{0}"] {
            assert!(Backup::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(Backup::parse(b"\xff").is_err());
        let empty = Backup { before: Attributes::default(), owner: None };
        assert_eq!(Backup::parse(b"{\"unknown\": [1]}").unwrap(), empty);
    }
}
