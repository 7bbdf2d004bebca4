//! Read-only access to the ranges of a network and to the leases in its lease directory. Takes no lock, writes no index,
//! and needs only the permission to read the files.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni::{Call, Context, Result};
use linux::ip::Cidr;

use crate::config::{self, Config};
use crate::dir::Dir;
use crate::earlier::EarlierLeases;
use crate::lease;
use crate::range;
use crate::status;
use crate::store::{self, Holder};

/// The default of `dataDir`.
pub use crate::config::DATA_DIR;

/// A range of addresses from which a network leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(range::Range);

impl Range {
    /// Returns whether the range contains this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(ip)
    }

    /// Returns the number of addresses that can be leased.
    pub fn size(&self) -> u128 {
        self.0.size()
    }

    /// Returns whether the range covers its whole subnet.
    pub fn is_whole(&self) -> bool {
        self.0.is_whole()
    }

    /// Returns the gateway of the range.
    pub fn gateway(&self) -> IpAddr {
        self.0.gateway()
    }

    /// Returns the subnet that the range is a part of.
    pub fn subnet(&self) -> Cidr {
        self.0.subnet()
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the ranges of a network, as one list per range set.
pub fn ranges(call: &Call<'_>) -> Result<Vec<Vec<Range>>> {
    let sets = Config::read(call)?.sets;
    Ok(sets.iter().map(|set| set.ranges().iter().cloned().map(Range).collect()).collect())
}

/// Returns the lease directory of a network, even if its ranges are invalid.
pub fn lease_dir(call: &Call<'_>) -> Result<PathBuf> {
    config::directory(call)
}

/// Fails if an ADD could not write a lease. Leaves no file behind.
pub fn check_writable(directory: &Path) -> Result<()> {
    status::writable(&status::nearest(directory)?)
}

/// The owner of an address according to its lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseHolder {
    /// A container, and its interface unless the record is an old one.
    Container(String, Option<String>),
    /// No owner: the file is empty or garbled, and the next ADD that needs the address takes it.
    Garbled,
    /// The entry cannot be read, or is not a regular file.
    Unknown,
}

/// A lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// Its owner.
    pub owner: LeaseHolder,
    /// The later one of mtime and ctime.
    pub since: SystemTime,
}

/// Returns the leases in a directory, ordered by address. Returns `None` if the directory does not exist.
pub fn leases(directory: &Path) -> Result<Option<Vec<Lease>>> {
    let Some(dir) = Dir::open(directory).context(|| format!("open the directory {directory:?}"))? else {
        return Ok(None);
    };
    let what = || format!("read the directory {directory:?}");
    let mut leases = Vec::new();
    for name in dir.names().context(what)? {
        let name = name.context(what)?;
        let Some(ip) = lease::address(&name) else { continue };
        let (owner, since) = match store::read_lease(&dir, &name, true) {
            Ok(None) => continue,
            Ok(Some((Holder::Owner(owner), since))) => (LeaseHolder::Container(owner.container, owner.ifname), since),
            Ok(Some((Holder::Garbled, since))) => (LeaseHolder::Garbled, since),
            Ok(Some((Holder::Unknown, since))) => (LeaseHolder::Unknown, since),
            // The name of the file is enough for a user without permission to read it.
            Err(error) if error.errno() == Some(libc::EACCES) => (LeaseHolder::Unknown, SystemTime::now()),
            Err(error) => return Err(error),
        };
        leases.push(Lease { ip, owner, since });
    }
    leases.sort_by_key(|lease| lease.ip);
    Ok(Some(leases))
}

/// Returns the addresses whose leases are from an earlier boot, so that their containers are gone: those in the record,
/// or if there is none, those that the next call would record.
pub fn leases_of_earlier_boots(directory: &Path) -> Result<Vec<IpAddr>> {
    let Some(dir) = Dir::open(directory).context(|| format!("open the directory {directory:?}"))? else {
        return Ok(Vec::new());
    };
    let earlier = match EarlierLeases::read(&dir)? {
        Some(earlier) => earlier,
        None => EarlierLeases::scan(&dir)?,
    };
    earlier.present(&dir)
}

/// Returns whether any network in `data_dir` has a lease file for an address of `subnet`, even an empty or garbled one.
pub(crate) fn has_lease_in(data_dir: &Path, subnet: Cidr) -> Result<bool> {
    let what = || format!("look for leases in {data_dir:?}");
    let Some(all) = Dir::open(data_dir).context(what)? else { return Ok(false) };
    for network in all.names().context(what)? {
        let dir = match Dir::open(&data_dir.join(network.context(what)?)) {
            Ok(Some(dir)) => dir,
            Ok(None) => continue,
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => continue,
            Err(error) => return Err(error).context(what),
        };
        for name in dir.names().context(what)? {
            if lease::address(&name.context(what)?).is_some_and(|ip| subnet.contains(ip)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    #[cfg_attr(miri, ignore = "it opens no file in a directory")]
    fn leases_are_listed_among_other_entries() {
        let dir = std::env::temp_dir().join(format!("host-local-inspect-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let put = |name: &str, content: &str| fs::write(dir.join(name), content).unwrap();
        put("10.1.0.10", "c1\r\neth0");
        put("10.1.0.9", "c2");
        put("10.1.0.11", "");
        put("lock", "");
        put("last_reserved_ip.0", "10.1.0.10");
        fs::create_dir(dir.join("10.1.0.12")).unwrap();
        let found = leases(&dir).unwrap().unwrap();
        let found: Vec<_> = found.into_iter().map(|lease| (lease.ip.to_string(), lease.owner)).collect();
        assert_eq!(
            found,
            [
                ("10.1.0.9".to_owned(), LeaseHolder::Container("c2".to_owned(), None)),
                ("10.1.0.10".to_owned(), LeaseHolder::Container("c1".to_owned(), Some("eth0".to_owned()))),
                ("10.1.0.11".to_owned(), LeaseHolder::Garbled),
                ("10.1.0.12".to_owned(), LeaseHolder::Unknown),
            ]
        );
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 6, "no file was added");
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(leases(&dir).unwrap(), None);
    }
}
