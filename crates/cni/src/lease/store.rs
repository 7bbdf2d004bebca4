//! The leases of one network: one file per lease, named after its address. A [`Store`] holds the lock of the directory.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use linux::dir::{Dir, TEMP_SUFFIX};
use linux::log::{debug, warn};

use super::digest::{container_digest, owner_digest};
use super::earlier::{self, EarlierLeases};
use super::index::{Broken, Index};
use super::lock::Lock;
use super::span::Span;
use super::{Holder, LeaseOwner, address, read};
use crate::collector::ErrorCollector;
use crate::error::{Code, Context, Error, Result};
use crate::sorted::SortedSet;

/// The prefix of the files that contain the address leased last, one for each range set.
const LAST_RESERVED: &str = "last_reserved_ip.";

/// An open, locked lease directory. Dropping it saves the index, then releases the lock.
#[derive(Debug)]
pub struct Store {
    dir: Dir,
    /// `None` until first use if the saved index is missing or out of date.
    index: Option<Index>,
    /// Whether this call built the index from the lease files.
    index_rebuilt: bool,
    _lock: Lock,
}

/// A lease file.
#[derive(Debug)]
pub struct LeaseFile {
    /// The address.
    pub ip: IpAddr,
    /// The content of the file.
    pub holder: Holder,
    /// The later one of mtime and ctime.
    pub since: SystemTime,
}

/// The addresses leased to an attachment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Leased by records that name the interface.
    pub exact: Vec<IpAddr>,
    /// Leased by old records, which name only the container.
    pub without_ifname: Vec<IpAddr>,
}

impl Held {
    /// Iterates over all of them.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.exact.iter().chain(&self.without_ifname).copied()
    }
}

impl Store {
    /// Opens and locks the lease directory `path`, creating it if it does not exist.
    pub fn create(path: &Path) -> Result<Store> {
        let what = || format!("create directory {path:?}");
        let store = Store::lock(path, || Dir::create(path, 0o755).map(Some).context(what))?;
        store.ok_or_else(|| Error::new(Code::INTERNAL, format!("{path:?} was deleted as soon as it was created")))
    }

    /// Opens and locks the lease directory `path`. Returns `None` if it does not exist, or cannot exist: an ancestor is
    /// not a directory, the path is too long, or a symbolic link leads to itself. Then there can be no leases.
    pub fn open(path: &Path) -> Result<Option<Store>> {
        Store::lock(path, || match Dir::open(path) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP)) => {
                Ok(None)
            }
            dir => dir.context(|| format!("open the directory {path:?}")),
        })
    }

    fn lock(path: &Path, open: impl Fn() -> Result<Option<Dir>>) -> Result<Option<Store>> {
        // The lock file or its directory can be removed while this call waits, but hardly 100 times in a row.
        for _ in 0..100 {
            let Some(dir) = open()? else { return Ok(None) };
            if let Some(lock) = Lock::acquire(&dir)? {
                let index = Index::open(&dir);
                // A saved index was written by a call of this boot, which also recorded the leases of earlier boots.
                if index.is_none() {
                    earlier::record(&dir);
                }
                return Ok(Some(Store { dir, index, index_rebuilt: false, _lock: lock }));
            }
        }
        Err(Error::new(Code::TRY_LATER, format!("lock {path:?}: another process keeps removing the lock file")))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the addresses leased to `owner`. The index suggests candidates; the lease files decide.
    pub fn held_by(&mut self, owner: &LeaseOwner) -> Result<Held> {
        loop {
            let claimed = self.with_index(|index| index.held_by(owner))?;
            let mut held = Held::default();
            for ip in &claimed {
                match self.holder(*ip)? {
                    Some(Holder::Owner(found)) if found == *owner => held.exact.push(*ip),
                    Some(Holder::Owner(found)) if found == owner.without_ifname() => held.without_ifname.push(*ip),
                    _ => {}
                }
            }
            if self.index_rebuilt || held.all().count() == claimed.len() {
                return Ok(held);
            }
            debug!("index of {:?} has wrong leases for {owner}, rebuilding it", self.path());
            self.index = None;
        }
    }

    /// Returns the first address in `spans` that is free according to the index.
    pub fn first_free(&mut self, spans: &[Span]) -> Result<Option<IpAddr>> {
        self.with_index(|index| index.first_free(spans))
    }

    /// Leases `ip` to `owner`. Returns the holder instead if `ip` is already leased.
    pub fn reserve(&mut self, ip: IpAddr, owner: &LeaseOwner) -> Result<Option<Holder>> {
        let (name, record) = (ip.to_string(), owner.record());
        let what = || format!("write the lease {:?}", self.dir.path().join(&name));
        // Two attempts suffice under the lock. A third is only needed if another program ignores the lock.
        for _ in 0..3 {
            if self.dir.create_file(&name, record.as_bytes()).context(what)? {
                debug!("reserved {ip} for {owner}");
                self.with_index(|index| index.insert(ip, Some(owner)))?;
                return Ok(None);
            }
            match self.holder(ip)? {
                None => {}
                Some(Holder::Garbled) => {
                    warn!("remove the empty or garbled lease {:?}", self.dir.path().join(&name));
                    self.dir.remove(&name).context(what)?;
                }
                Some(holder) => {
                    let owner = if let Holder::Owner(owner) = &holder { Some(owner) } else { None };
                    self.with_index(|index| index.insert(ip, owner))?;
                    return Ok(Some(holder));
                }
            }
        }
        Err(Error::new(Code::TRY_LATER, format!("{}: another process keeps changing it", what())))
    }

    /// Makes the lease of `ip` a lease of this boot by updating its time stamps.
    pub fn renew(&self, ip: IpAddr) -> Result<()> {
        let name = ip.to_string();
        self.dir.touch(&name).context(|| format!("renew the lease {:?}", self.dir.path().join(&name)))
    }

    /// Releases `ip` if it is leased to `owner`; otherwise does nothing.
    pub fn release(&mut self, ip: IpAddr, owner: &LeaseOwner) -> Result<()> {
        if self.holder(ip)? != Some(Holder::Owner(owner.clone())) {
            return Ok(());
        }
        self.remove(ip)?;
        self.with_index(|index| index.remove(ip, owner))
    }

    /// Deletes the lease file of `ip`, without updating the index.
    fn remove(&self, ip: IpAddr) -> Result<()> {
        let path = self.dir.path().join(ip.to_string());
        self.dir.remove(&ip.to_string()).context(|| format!("remove the lease {path:?}"))?;
        debug!("released {ip}");
        Ok(())
    }

    /// Removes the leases for which `stale` returns true, and continues after errors. Returns the number of removed
    /// leases, or the errors.
    pub fn remove_if(&mut self, stale: impl Fn(&LeaseFile) -> bool) -> Result<usize> {
        let mut stale_ips = Vec::new();
        self.for_each(|lease| {
            if stale(&lease) {
                stale_ips.push(lease.ip);
            }
        })?;
        self.remove_all(stale_ips)
    }

    /// Removes the leases of earlier boots. Returns their number.
    pub fn reclaim(&mut self) -> Result<usize> {
        match EarlierLeases::read(&self.dir) {
            Ok(earlier) => {
                let stale_ips = earlier.unwrap_or_default().present(&self.dir)?;
                self.remove_all(stale_ips)
            }
            Err(error) => {
                warn!("cannot reclaim leases of earlier boots: {error}");
                Ok(0)
            }
        }
    }

    fn remove_all(&mut self, stale_ips: Vec<IpAddr>) -> Result<usize> {
        let (mut removed, mut failures) = (0, ErrorCollector::default());
        for ip in stale_ips {
            failures.record(self.remove(ip).map(|()| removed += 1));
        }
        if removed > 0 {
            self.index = None;
            self.with_index(|_| Ok(()))?;
        }
        failures.into_result().map(|()| removed)
    }

    /// Reads all lease files and calls `visit` for each. Does not collect them, because there can be many.
    pub fn for_each(&self, visit: impl FnMut(LeaseFile)) -> Result<()> {
        for_each_lease(&self.dir, visit)
    }

    /// Reads the lease file of `ip`. Returns `None` if it does not exist.
    fn holder(&self, ip: IpAddr) -> Result<Option<Holder>> {
        Ok(read(&self.dir, &ip.to_string(), false)?.map(|(holder, _)| holder))
    }

    /// Returns the address that was leased last from range set `set`, or `None` if it is not recorded or not readable.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        last_reserved(&self.dir, set).ok().flatten()
    }

    /// Records the address that was leased from range set `set`. An error is only logged, because the record merely
    /// delays the reuse of addresses. Unlike the reference, which fails and keeps the lease.
    pub fn set_last_reserved(&self, set: usize, ip: IpAddr) {
        if let Err(error) = self.dir.replace(&last_reserved_name(set), ip.to_string().as_bytes()) {
            warn!("write {:?}: {error}", self.dir.path().join(last_reserved_name(set)));
        }
    }

    /// Runs `operation` on the index. Rebuilds the index first if there is none, and again if it is broken.
    fn with_index<T>(&mut self, operation: impl Fn(&mut Index) -> Result<T, Broken>) -> Result<T> {
        loop {
            let index = match &mut self.index {
                Some(index) => index,
                None => {
                    let index = self.rebuild_index()?;
                    self.index_rebuilt = true;
                    self.index.insert(index)
                }
            };
            match operation(index) {
                Ok(answer) => return Ok(answer),
                Err(Broken) => {
                    debug!("index of {:?} is broken, rebuilding it", self.path());
                    self.index = None;
                }
            }
        }
    }

    /// Builds a new index from the lease files.
    fn rebuild_index(&self) -> Result<Index> {
        let what = || format!("read the directory {:?}", self.path());
        let mut index = Index::default();
        let mut count = 0;
        for name in self.dir.names().context(what)? {
            let name = name.context(what)?;
            if name.starts_with(LAST_RESERVED) && name.ends_with(TEMP_SUFFIX) {
                // A killed call left this temporary file. An error is harmless: no code reads the file.
                let _ = self.dir.remove(&name);
            }
            let Some(ip) = address(&name) else { continue };
            let inserted = match read(&self.dir, &name, false)?.map(|(holder, _)| holder) {
                Some(Holder::Owner(owner)) => index.insert(ip, Some(&owner)),
                Some(Holder::Unknown) => index.insert(ip, None),
                Some(Holder::Garbled) | None => Ok(()),
            };
            // This index is only in memory, where no page can be broken.
            debug_assert!(inserted.is_ok());
            count += 1;
        }
        debug!("read the leases in {:?} for the index: {count}", self.path());
        Ok(index)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(index) = &mut self.index {
            index.save(&self.dir);
        }
    }
}

/// Reads all lease files of a directory and calls `visit` for each. Does not need the lock.
fn for_each_lease(dir: &Dir, mut visit: impl FnMut(LeaseFile)) -> Result<()> {
    let what = || format!("read the directory {:?}", dir.path());
    for name in dir.names().context(what)? {
        let name = name.context(what)?;
        let Some(ip) = address(&name) else { continue };
        if let Some((holder, since)) = read(dir, &name, true)? {
            visit(LeaseFile { ip, holder, since });
        }
    }
    Ok(())
}

/// Returns the name of the file with the address leased last from range set `set`.
fn last_reserved_name(set: usize) -> String {
    format!("{LAST_RESERVED}{set}")
}

fn last_reserved(dir: &Dir, set: usize) -> io::Result<Option<IpAddr>> {
    let text = dir.read(&last_reserved_name(set))?.unwrap_or_default();
    Ok(std::str::from_utf8(&text).ok().and_then(|text| linux::ip::parse_ip(text.trim()).ok()))
}

/// The owners whose leases GC keeps, as digests. If two owners have the same digest, a stale lease stays.
#[derive(Debug)]
pub(super) struct LiveOwners(SortedSet<u64>);

impl LiveOwners {
    pub(super) fn new(owners: impl Iterator<Item = LeaseOwner>) -> LiveOwners {
        // An old record names only the container, so it is kept for any interface of the container.
        LiveOwners(owners.flat_map(|owner| [owner_digest(&owner), container_digest(&owner)]).collect())
    }

    pub(super) fn contains(&self, lease: &LeaseFile) -> bool {
        match &lease.holder {
            Holder::Owner(owner) => self.0.contains(&owner_digest(owner)),
            Holder::Garbled => false,
            Holder::Unknown => true,
        }
    }
}
