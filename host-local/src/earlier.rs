//! Leases of earlier boots. Their containers are gone, because a network namespace does not survive a reboot.
//!
//! The first call of a boot that opens a lease directory decides which leases these are, and records them in `/run`,
//! which a reboot clears. Later the clock cannot decide it: when it is stepped forward, leases of live containers look
//! older than the boot. A recorded lease is recognized by its address, its inode and the time of the inode's last
//! change. So an address that was released and leased again since, by either implementation, is another lease.
//!
//! A lease that may be younger is not recorded. Other programs may have written leases before the first call: only
//! those older than [`boot::not_after`] count. On a file system that other hosts may share, none does.

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use cni::{Code, Context, Error, Result};
use log::debug;
use nix::fcntl::OFlag;
use nix::sys::stat::FileStat;

use crate::boot;
use crate::digest::{digest, seal, unseal};
use crate::dir::{self, Dir};
use crate::index;
use crate::lease;

/// Beside the index, not in it: the index may be deleted and rebuilt at any time, a record must last until the reboot.
const HOME: &str = "/run/cni0/earlier-boot";

/// The leases of earlier boots in one directory: a digest for each, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Earlier(Vec<u64>);

/// Records the leases of earlier boots in `leases`, unless a call of this boot has done that before. Needs the lock.
/// Without a record no lease is reclaimed, which is not worth failing for.
pub(crate) fn record(leases: &Dir) {
    if let Err(error) = try_record(leases) {
        debug!("leases of earlier boots in {:?} are not recorded: {error}", leases.path());
    }
}

fn try_record(leases: &Dir) -> Result<()> {
    let what = || format!("write the record in {HOME:?}");
    let home = Dir::create_private(Path::new(HOME)).trying(what)?;
    let name = index::name_of(leases).trying(what)?;
    if !home.has(&name).trying(what)? {
        home.place(&name, &Earlier::survey(leases)?.bytes()).trying(what)?;
    }
    Ok(())
}

/// Removes the record about a directory that is gone, given the name of its index.
pub(crate) fn forget(name: &str) -> io::Result<()> {
    match Dir::open_private(Path::new(HOME))? {
        None => Ok(()),
        Some((home, _)) => home.remove(name).map(drop),
    }
}

impl Earlier {
    /// Reads the record about `leases`; `None` if there is none.
    pub(crate) fn read(leases: &Dir) -> Result<Option<Earlier>> {
        let what = || format!("read the record in {HOME:?}");
        let Some((home, _)) = Dir::open_private(Path::new(HOME)).trying(what)? else { return Ok(None) };
        let name = index::name_of(leases).trying(what)?;
        let Some(mut file) = home.file(&name, OFlag::O_RDONLY, 0).trying(what)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).trying(what)?;
        let earlier = Earlier::parse(&bytes);
        earlier.map(Some).ok_or_else(|| Error::new(Code::IO, format!("the record {name:?} in {HOME:?} is damaged")))
    }

    fn parse(bytes: &[u8]) -> Option<Earlier> {
        let (digests, rest) = unseal(bytes)?.as_chunks();
        rest.is_empty().then(|| Earlier(digests.iter().map(|digest| u64::from_le_bytes(*digest)).collect()))
    }

    fn bytes(&self) -> Vec<u8> {
        seal(self.0.iter().flat_map(|digest| digest.to_le_bytes()))
    }

    /// Finds the leases that are older than this boot.
    pub(crate) fn survey(leases: &Dir) -> Result<Earlier> {
        let what = || format!("read the directory {:?}", leases.path());
        if !leases.is_local().trying(what)? {
            return Ok(Earlier::default());
        }
        let boot = (boot::not_after()?, 0);
        let mut digests = Vec::new();
        for file in files(leases).trying(what)? {
            let (ip, stat) = file.trying(what)?;
            // A restored or copied file has an old time of writing; its inode cannot lie.
            if dir::modified(&stat).max(dir::changed(&stat)) < boot {
                digests.push(identity(ip, &stat));
            }
        }
        digests.sort_unstable();
        Ok(Earlier(digests))
    }

    /// Returns the addresses of the leases that are still in `leases`.
    pub(crate) fn present(&self, leases: &Dir) -> Result<Vec<IpAddr>> {
        let what = || format!("read the directory {:?}", leases.path());
        let mut present = Vec::new();
        if !self.0.is_empty() {
            for file in files(leases).trying(what)? {
                let (ip, stat) = file.trying(what)?;
                if self.0.binary_search(&identity(ip, &stat)).is_ok() {
                    present.push(ip);
                }
            }
        }
        Ok(present)
    }
}

/// The files that are named after addresses, with their status.
fn files(leases: &Dir) -> io::Result<impl Iterator<Item = io::Result<(IpAddr, FileStat)>>> {
    let look = |name: io::Result<String>| -> io::Result<Option<(IpAddr, FileStat)>> {
        let name = name?;
        let Some(ip) = lease::address(&name) else { return Ok(None) };
        Ok(leases.stat_of(&name)?.filter(dir::is_file).map(|stat| (ip, stat)))
    };
    Ok(leases.names()?.filter_map(move |name| look(name).transpose()))
}

/// A number that tells a lease from every other one of its address.
fn identity(ip: IpAddr, stat: &FileStat) -> u64 {
    let (seconds, nanoseconds) = dir::changed(stat);
    digest(format!("{ip} {} {seconds} {nanoseconds}", stat.st_ino).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_record_is_read() {
        let good = Earlier(vec![1, 2, 3]).bytes();
        assert_eq!(Earlier::parse(&good).unwrap().0, [1, 2, 3]);
        assert!(Earlier::parse(&Earlier::default().bytes()).unwrap().0.is_empty());
        for length in 0..good.len() {
            assert!(Earlier::parse(&good[..length]).is_none(), "{length} bytes");
        }
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            assert!(Earlier::parse(&bad).is_none(), "byte {byte}");
        }
        assert!(Earlier::parse(&seal([7; 12])).is_none(), "not a whole number of digests");
    }
}
