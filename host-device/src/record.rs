//! The record of an attachment: what its device was before ADD, in a file that the next boot removes, as it does the
//! marks.

use std::fmt;
use std::path::Path;

use cni::{AttachmentKey, Context, IfName, Result, json};
use interface::link_state::LinkState;
use linux::dir::Dir;
use linux::log::debug;
use linux::netlink::Link;
use serde::{Deserialize, Serialize};

use crate::give_back::marks;

/// The directory of the records.
pub(crate) const DIR: &str = "/run/cni0/host-device";
/// The end of the name of a file. The mark of the attachment precedes it.
const SUFFIX: &str = ".json";

/// What a device was before ADD, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The name of the device on the host.
    pub(crate) name: String,
    /// The alias that it had there.
    pub(crate) alias: String,
    /// The alternative names that it had there, without marks. A record of an earlier version has none.
    pub(crate) alternative_names: Option<Vec<String>>,
    pub(crate) kind: String,
    /// The name of the hardware on its bus; empty for a virtual device, which the kernel deletes with its namespace.
    pub(crate) hardware: String,
    /// What distinguishes the device from others of the same hardware.
    pub(crate) port: String,
    /// What distinguishes a virtual device from all others; `None` if the kernel does not show it, and in a record of
    /// an earlier version.
    pub(crate) identity: Option<u64>,
    pub(crate) mac: String,
    /// Whether ADD changed the MAC address.
    pub(crate) has_other_mac: bool,
    /// What DEL restores.
    pub(crate) restore: Option<LinkState>,
}

impl Record {
    pub(crate) fn key(&self) -> AttachmentKey<'_> {
        AttachmentKey { network: &self.network, container: &self.container, ifname: &self.ifname }
    }

    /// Returns whether a link can be this device: no container can create a link with hardware. For the others, the
    /// identity decides if it is known.
    pub(crate) fn is_of(&self, link: &Link) -> bool {
        (self.kind.as_str(), self.hardware.as_str()) == (link.kind.as_str(), link.hardware.as_str())
            && self.port == port_of(link)
    }

    /// Returns the records of a device: those of attachments that have, or had, it. Hardware identifies it, whatever a
    /// container did to its marks.
    pub(crate) fn of(link: &Link) -> Result<Vec<Record>> {
        let mut records = if link.hardware.is_empty() {
            marks(link).filter_map(Record::read_by_mark).collect()
        } else {
            Record::all()?
        };
        records.retain(|record| record.is_of(link));
        Ok(records)
    }

    /// Returns whether another attachment has a record of the same hardware.
    pub(crate) fn has_successor(&self) -> bool {
        let records = Record::all().unwrap_or_default();
        let is_same = |other: &Record| (&other.hardware, &other.port) == (&self.hardware, &self.port);
        records.iter().any(|other| is_same(other) && other.key() != self.key())
    }

    /// Returns the record of an attachment. Without a valid one, the marks of the device have to do.
    pub(crate) fn read(key: AttachmentKey<'_>) -> Option<Record> {
        Record::read_by_mark(&key.mark()).filter(|record| record.key() == key)
    }

    pub(crate) fn read_by_mark(mark: &str) -> Option<Record> {
        let (dir, _) = Dir::open_private(Path::new(DIR)).ok()??;
        Record::parse(&dir, &format!("{mark}{SUFFIX}"))
    }

    fn parse(dir: &Dir, name: &str) -> Option<Record> {
        let content = dir.read_private(name).map_err(|error| debug!("ignore the record {name:?}: {error}")).ok()??;
        let record = json::parse::<Record>(&String::from_utf8_lossy(&content));
        let record = record.map_err(|fault| debug!("ignore the record {name:?}: {fault}")).ok()?;
        // The names reach the kernel.
        let is_valid = |name: &str| IfName::from_config(name).is_ok();
        Some(record).filter(|record| is_valid(&record.name) && is_valid(&record.ifname))
    }

    /// Returns all records.
    pub(crate) fn all() -> Result<Vec<Record>> {
        let open = || format!("open the directory {DIR:?}");
        let Some((dir, _)) = Dir::open_private(Path::new(DIR)).context(open)? else { return Ok(Vec::new()) };
        let list = || format!("list the records in {DIR:?}");
        let mut records = Vec::new();
        for name in dir.names().context(list)? {
            let name = name.context(list)?;
            if name.ends_with(SUFFIX) {
                records.extend(Record::parse(&dir, &name));
            }
        }
        Ok(records)
    }

    pub(crate) fn write(&self) -> Result<()> {
        let write = || format!("write the record of {:?} in {DIR:?}", self.name);
        let dir = Dir::create_private(Path::new(DIR)).context(write)?;
        dir.replace(&format!("{}{SUFFIX}", self.key().mark()), &json::print(self)?).context(write)
    }

    pub(crate) fn remove(mark: &str) -> Result<()> {
        let remove = || format!("remove the record {mark:?} in {DIR:?}");
        let Some((dir, _)) = Dir::open_private(Path::new(DIR)).context(remove)? else { return Ok(()) };
        dir.remove(&format!("{mark}{SUFFIX}")).context(remove).map(drop)
    }
}

/// Returns what distinguishes a link from others of the same hardware: no container can change it.
pub(crate) fn port_of(link: &Link) -> String {
    let mac = link.permanent_mac.map(|mac| mac.to_string()).unwrap_or_default();
    format!("{} {mac}", link.port_name).trim().to_owned()
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { network, container, ifname, .. } = self;
        write!(f, "container {container:?} on network {network:?}, as {ifname:?},")
    }
}
