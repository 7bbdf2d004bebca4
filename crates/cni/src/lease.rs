//! Leases: the format of their files, where they are, and how IPAM plugins manage them. Other plugins only read them,
//! as evidence of [`Ownership`](crate::Ownership).
//!
//! `store` is a locked lease directory, with one file per lease that names its owner. `index` finds leases and free
//! addresses without reading all files. `earlier` knows the leases of earlier boots.

mod bitmap;
mod boot;
mod digest;
mod directory;
mod earlier;
mod index;
mod lock;
mod span;
mod store;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use linux::dir::Dir;
use linux::log::debug;
use serde::Deserialize;

use crate::error::{Context, Error, Result};
use crate::json::{Fault, Raw};
use crate::plugin::{Attachment, Call};

pub use directory::{
    collect, has_lease_in, held_by, in_use, lease, missing, release, reserve_all, status_of, usable, with_hint,
};
pub(crate) use directory::{nearest, writable};
pub(crate) use earlier::EarlierLeases;
pub use index::{Broken, Index};
pub(crate) use lock::{NAME as LOCK, holder_in as lock_holder};
pub use span::{Span, bits, like};
pub use store::{Held, LeaseFile, Store};

/// The default of `ipam.dataDir`, the parent of the lease directories.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// The directory of the indexes: one for each lease directory that was used since the last boot.
pub const INDEX_ROOT: &str = "/run/cni0/host-local";

/// The file of an index that contains the path of its lease directory.
pub const OWNER_FILE: &str = "of";

/// The attachment that a lease belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseOwner {
    /// The container ID.
    pub container: String,
    /// The interface; `None` in records of old versions of the reference, which name only the container.
    pub ifname: Option<String>,
}

impl LeaseOwner {
    /// Returns the owner with this container and this interface.
    pub fn new(container: &str, ifname: &str) -> LeaseOwner {
        LeaseOwner { container: container.to_owned(), ifname: Some(ifname.to_owned()) }
    }

    /// Returns the attachment as the owner of a lease.
    pub fn of(at: &Attachment) -> LeaseOwner {
        LeaseOwner::new(at.container.as_str(), at.ifname.as_str())
    }

    /// Returns the owner as a record of an old version of the reference names it.
    pub fn without_ifname(&self) -> LeaseOwner {
        LeaseOwner { container: self.container.clone(), ifname: None }
    }

    /// Parses the content of a lease file. Returns `None` if it is empty or garbled, as after a crash during writing.
    pub fn parse(content: &[u8]) -> Option<LeaseOwner> {
        let mut lines = std::str::from_utf8(content).ok()?.trim().split('\n').map(|line| {
            // The reference ends the first line with CR LF; other implementations write LF.
            let line = line.strip_suffix('\r').unwrap_or(line);
            let bad = |c: char| c.is_control() || c.is_whitespace();
            Some(line).filter(|line| !line.is_empty() && !line.contains(bad)).map(str::to_owned)
        });
        let owner = LeaseOwner { container: lines.next()??, ifname: lines.next().map_or(Some(None), |l| l.map(Some))? };
        lines.next().is_none().then_some(owner)
    }

    /// Returns the content of the lease file, byte for byte as the reference writes it.
    pub fn record(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}\r\n{ifname}", self.container),
            None => self.container.clone(),
        }
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {:?}", self.container)?;
        self.ifname.as_ref().map_or(Ok(()), |ifname| write!(f, " interface {ifname:?}"))
    }
}

/// The content of a lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The address is leased.
    Owner(LeaseOwner),
    /// The file is empty or garbled: the address is free, and the next ADD that takes it removes the file.
    Garbled,
    /// The entry is not a regular file. The address is not leased, because another program may use the entry.
    Unknown,
}

/// Parses the name of a lease file: an address in its canonical form. A file with any other name is not a lease.
pub fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

/// Reads one lease file, and its time only if `dated`, because that costs a system call. Returns `None` if the file
/// does not exist. Never waits, whatever has the name.
pub fn read(dir: &Dir, name: &str, dated: bool) -> Result<Option<(Holder, SystemTime)>> {
    let read = if dated {
        dir.read_with_time(name)
    } else {
        dir.read(name).map(|read| read.map(|content| (content, SystemTime::UNIX_EPOCH)))
    };
    match read {
        Ok(read) => {
            Ok(read.map(|(content, since)| (LeaseOwner::parse(&content).map_or(Holder::Garbled, Holder::Owner), since)))
        }
        // A symbolic link, a directory, a socket or a named pipe.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EISDIR | libc::ENXIO | libc::ESPIPE)) => {
            Ok(Some((Holder::Unknown, SystemTime::now())))
        }
        Err(error) => Err(error).context(|| format!("read the lease {:?}", dir.path().join(name))),
    }
}

/// Returns `ipam.dataDir` of a configuration, without validating other keys; empty if the configuration does not have
/// it.
pub fn data_dir(call: &Call<'_>) -> Result<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Network<'a> {
        #[serde(borrow)]
        ipam: Option<Raw<'a>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Ipam {
        data_dir: String,
    }
    let network: Network<'_> = call.parse()?;
    let ipam: Ipam = match network.ipam {
        Some(raw) if raw.text().starts_with('{') => raw.parse().map_err(|fault: Fault| fault.under("ipam"))?,
        _ => Ipam::default(),
    };
    Ok(ipam.data_dir)
}

/// Returns the lease directory of the network below `data_dir`, the value of `ipam.dataDir`, or below the default if
/// that is empty.
pub fn directory(call: &Call<'_>, data_dir: &str) -> Result<PathBuf> {
    let data_dir = path("ipam.dataDir", data_dir)?;
    Ok(data_dir.as_deref().unwrap_or_else(|| Path::new(DATA_DIR)).join(call.network.as_str()))
}

/// Validates the path at `key`. Returns `None` if it is empty.
pub fn path(key: &str, text: &str) -> Result<Option<PathBuf>> {
    if text.contains('\0') {
        let error = Error::from(Fault::value(format!("{text:?} is not a valid path")).under(key));
        return Err(error.details("remove the NUL character"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()).map(PathBuf::from))
}

/// Returns the lease directories of this host that are known: those in [`DATA_DIR`], and those with an index, which are
/// in any `dataDir`. The name of each is that of its network. A chained plugin does not get the `dataDir` of its
/// network.
pub fn directories() -> Vec<PathBuf> {
    let mut known = Vec::new();
    for found in [add_default(&mut known), add_indexed(&mut known)] {
        if let Err(error) = found {
            debug!("not all lease directories are known: {error}");
        }
    }
    known
}

/// Adds the lease directories in [`DATA_DIR`].
fn add_default(known: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some(data_dir) = Dir::open(Path::new(DATA_DIR))? else { return Ok(()) };
    for name in data_dir.names()? {
        known.push(data_dir.path().join(name?));
    }
    Ok(())
}

/// Adds the lease directories that have an index, unless they are known already.
fn add_indexed(known: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some((root, _)) = Dir::open_private(Path::new(INDEX_ROOT))? else { return Ok(()) };
    for name in root.names()? {
        let index = Dir::open_private(&root.path().join(name?)).ok().flatten();
        let Some(path) = index.and_then(|(index, _)| index.read(OWNER_FILE).ok()?) else { continue };
        if !known.iter().any(|found| found.as_os_str().as_bytes() == path) {
            known.push(PathBuf::from(OsString::from_vec(path)));
        }
    }
    Ok(())
}

/// A lease of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkLease {
    /// The network.
    pub network: String,
    /// The address.
    pub ip: IpAddr,
    /// The container.
    pub container: String,
    /// The interface; `None` if an early version wrote the lease.
    pub ifname: Option<String>,
}

/// Returns the leases of a network; none if they cannot be read.
pub fn in_network(network: &str) -> Vec<NetworkLease> {
    read_all(&directories_of(network)).unwrap_or_default()
}

/// Returns the leases of the network of a call, also those in the `dataDir` of its configuration.
pub(crate) fn of_call(call: &Call<'_>) -> Vec<NetworkLease> {
    let network = call.network.as_str();
    let mut dirs = directories_of(network);
    let data_dir = data_dir(call).ok().filter(|data_dir| !data_dir.is_empty());
    let configured = data_dir.map(|data_dir| Path::new(&data_dir).join(network));
    dirs.extend(configured.filter(|dir| !dirs.contains(dir)));
    read_all(&dirs).unwrap_or_default()
}

/// Returns the leases of a container in all networks.
pub(crate) fn of_container(id: &str) -> Vec<NetworkLease> {
    let leases = directories().into_iter().filter_map(|dir| read_all(&[dir])).flatten();
    leases.filter(|lease| lease.container == id).collect()
}

/// Returns the leases of an address in all networks.
pub(crate) fn of_address(ip: IpAddr) -> impl Iterator<Item = NetworkLease> {
    directories().into_iter().filter_map(move |dir| read_known(&open(&dir)??, ip)?)
}

/// Returns the known lease directories of a network.
pub(crate) fn directories_of(network: &str) -> Vec<PathBuf> {
    directories_if(|found| found == network)
}

/// Returns the known lease directories of the networks for which `wanted` returns true.
pub(crate) fn directories_if(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut dirs = directories();
    dirs.retain(|dir| network_of(dir).is_some_and(&wanted));
    dirs
}

/// Returns the network of a lease directory.
fn network_of(dir: &Path) -> Option<&str> {
    dir.file_name().and_then(OsStr::to_str)
}

/// Reads the leases in several directories; `None` if none of them exists, or one cannot be read.
pub(crate) fn read_all(dirs: &[PathBuf]) -> Option<Vec<NetworkLease>> {
    let mut leases = None;
    for path in dirs {
        let Some(dir) = open(path)? else { continue };
        let found = leases.get_or_insert_with(Vec::new);
        for name in dir.names().ok()? {
            // The files of addresses, not the lock and the last address.
            let Some(ip) = address(&name.ok()?) else { continue };
            found.extend(read_known(&dir, ip)?);
        }
    }
    leases
}

/// Opens a lease directory. Returns `Some(None)` if it does not exist, and `None` if it cannot be read.
fn open(path: &Path) -> Option<Option<Dir>> {
    Dir::open(path).map_err(|error| debug!("the leases in {path:?} are not known: {error}")).ok()
}

/// Reads a lease. Returns `Some(None)` if the file does not exist or is not a lease: an address with an empty file, or
/// with another entry than a file, is not leased. Returns `None` if it cannot be read.
fn read_known(dir: &Dir, ip: IpAddr) -> Option<Option<NetworkLease>> {
    match read(dir, &ip.to_string(), false).map_err(|error| debug!("the lease is not known: {error}")).ok()? {
        Some((Holder::Owner(LeaseOwner { container, ifname }), _)) => {
            Some(network_of(dir.path()).map(|network| NetworkLease {
                network: network.to_owned(),
                ip,
                container,
                ifname,
            }))
        }
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_implementations_are_parsed() {
        let whole = Some(LeaseOwner::new("c1", "eth0"));
        for text in ["c1\r\neth0", "c1\neth0", "c1\r\neth0\n", " c1\r\neth0\r\n"] {
            assert_eq!(LeaseOwner::parse(text.as_bytes()), whole, "{text:?}");
        }
        for text in ["c1", "c1\n", "\tc1\r\n"] {
            assert_eq!(LeaseOwner::parse(text.as_bytes()), whole.as_ref().map(LeaseOwner::without_ifname), "{text:?}");
        }
        assert_eq!(whole.map(|owner| owner.record()).as_deref(), Some("c1\r\neth0"));
    }

    #[test]
    fn a_garbled_record_has_no_owner() {
        for bytes in
            [&b""[..], b" \r\n", b"\0\0\0\0", b"c1\r\n\r\neth0", b"c1\r\neth0\r\nx", b"\xff\xfe", b"a b", b"c\x001"]
        {
            assert_eq!(LeaseOwner::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn only_canonical_addresses_are_names_of_leases() {
        for name in ["10.1.0.2", "fd00::a", "::100:2"] {
            assert_eq!(address(name).map(|ip| ip.to_string()).as_deref(), Some(name));
        }
        for name in ["lock", "last_reserved_ip.0", "010.1.0.2", "10.1.0", "FD00::A", "10.1.0.2~", "", "fe80::1%1"] {
            assert_eq!(address(name), None, "{name}");
        }
    }
}
