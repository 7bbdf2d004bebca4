//! Leases of earlier boots. Their containers are gone, because a network namespace does not survive a reboot.
//!
//! The first call of a boot that opens a lease directory determines these leases and records them in `/run`, which a
//! reboot clears. A later call could not rely on the clock: after the clock is stepped forward, leases of running
//! containers look older than the boot. A recorded lease is identified by its address, its inode and the ctime of the
//! inode. If the address is released and leased again, by cni0 or by the reference, the identity differs.
//!
//! A lease that may be from this boot is not recorded, because other programs may write leases before the first call.
//! Only leases older than [`boot::not_after`] are recorded, and none on a file system that other hosts may share.

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use linux::dir::{self, Dir};
use linux::log::debug;
use nix::fcntl::OFlag;
use nix::sys::stat::FileStat;

use super::boot;
use super::digest::{digest, seal, unseal};
use crate::error::{Code, Context, Error, Result};
use crate::sorted::SortedSet;

/// The directory of the records. They are not part of the index, because the index can be deleted and rebuilt at any
/// time, while a record must last until the reboot.
const HOME: &str = "/run/cni0/earlier-boot";

/// The leases of earlier boots in one lease directory: a digest of each.
#[derive(Debug, Default)]
pub(crate) struct EarlierLeases(SortedSet<u64>);

/// Records the leases of earlier boots in `leases`, unless an earlier call of this boot did so. The caller holds the
/// lock. Errors are only logged: without a record, no lease is reclaimed.
pub(crate) fn record(leases: &Dir) {
    if let Err(error) = try_record(leases) {
        debug!("leases of earlier boots in {:?} are not recorded: {error}", leases.path());
    }
}

fn try_record(leases: &Dir) -> Result<()> {
    let what = || format!("write the record in {HOME:?}");
    let home = Dir::create_private(Path::new(HOME)).context(what)?;
    let name = leases.key().context(what)?;
    if !home.exists(&name).context(what)? {
        home.create_file(&name, &EarlierLeases::scan(leases)?.bytes()).context(what)?;
    }
    Ok(())
}

/// Removes the record of a deleted lease directory, given the name of its index.
pub(crate) fn forget(name: &str) -> io::Result<()> {
    match Dir::open_private(Path::new(HOME))? {
        None => Ok(()),
        Some((home, _)) => home.remove(name).map(drop),
    }
}

impl EarlierLeases {
    /// Reads the record of `leases`. Returns `None` if it does not exist.
    pub(crate) fn read(leases: &Dir) -> Result<Option<EarlierLeases>> {
        let what = || format!("read the record in {HOME:?}");
        let Some((home, _)) = Dir::open_private(Path::new(HOME)).context(what)? else { return Ok(None) };
        let name = leases.key().context(what)?;
        let Some(mut file) = home.file(&name, OFlag::O_RDONLY, 0).context(what)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).context(what)?;
        let earlier = EarlierLeases::parse(&bytes);
        earlier.map(Some).ok_or_else(|| Error::new(Code::IO, format!("the record {name:?} in {HOME:?} is damaged")))
    }

    fn parse(bytes: &[u8]) -> Option<EarlierLeases> {
        let (digests, rest) = unseal(bytes)?.as_chunks();
        rest.is_empty().then(|| EarlierLeases(digests.iter().map(|digest| u64::from_le_bytes(*digest)).collect()))
    }

    fn bytes(&self) -> Vec<u8> {
        seal(self.0.iter().flat_map(|digest| digest.to_le_bytes()))
    }

    /// Finds the leases that are older than this boot.
    pub(crate) fn scan(leases: &Dir) -> Result<EarlierLeases> {
        let what = || format!("read the directory {:?}", leases.path());
        if !leases.is_local().context(what)? {
            return Ok(EarlierLeases::default());
        }
        let boot = (boot::not_after()?, 0);
        let mut digests = Vec::new();
        for file in files(leases).context(what)? {
            let (ip, stat) = file.context(what)?;
            // A restored or copied file keeps its old mtime, but its ctime is new.
            if dir::mtime(&stat).max(dir::ctime(&stat)) < boot {
                digests.push(identity(ip, &stat));
            }
        }
        Ok(EarlierLeases(digests.into_iter().collect()))
    }

    /// Returns the addresses of those recorded leases that still exist in `leases`.
    pub(crate) fn present(&self, leases: &Dir) -> Result<Vec<IpAddr>> {
        let what = || format!("read the directory {:?}", leases.path());
        let mut present = Vec::new();
        if !self.0.is_empty() {
            for file in files(leases).context(what)? {
                let (ip, stat) = file.context(what)?;
                if self.0.contains(&identity(ip, &stat)) {
                    present.push(ip);
                }
            }
        }
        Ok(present)
    }
}

/// Lists the regular files that are named after addresses, with their status.
fn files(leases: &Dir) -> io::Result<impl Iterator<Item = io::Result<(IpAddr, FileStat)>>> {
    let look = |name: io::Result<String>| -> io::Result<Option<(IpAddr, FileStat)>> {
        let name = name?;
        let Some(ip) = super::address(&name) else { return Ok(None) };
        Ok(leases.stat_of(&name)?.filter(dir::is_file).map(|stat| (ip, stat)))
    };
    Ok(leases.names()?.filter_map(move |name| look(name).transpose()))
}

/// Returns a digest that distinguishes a lease from earlier and later leases of the same address.
fn identity(ip: IpAddr, stat: &FileStat) -> u64 {
    let (seconds, nanoseconds) = dir::ctime(stat);
    digest(format!("{ip} {} {seconds} {nanoseconds}", stat.st_ino).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_intact_record_is_read() {
        let good = EarlierLeases([1, 2, 3].into_iter().collect()).bytes();
        assert!(EarlierLeases::parse(&good).unwrap().0.iter().eq(&[1, 2, 3]));
        assert!(EarlierLeases::parse(&EarlierLeases::default().bytes()).unwrap().0.is_empty());
        for length in 0..good.len() {
            assert!(EarlierLeases::parse(&good[..length]).is_none(), "{length} bytes");
        }
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            assert!(EarlierLeases::parse(&bad).is_none(), "byte {byte}");
        }
        assert!(EarlierLeases::parse(&seal([7; 12])).is_none(), "not a whole number of digests");
    }
}
