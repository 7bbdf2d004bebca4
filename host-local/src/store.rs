//! The leases of one network: a file for each address, named after it. Having the store is having its lock.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use cni::{Code, Context, Error, Failures, Result};
use log::{debug, warn};

use crate::dir::{DRAFT, Dir};
use crate::earlier::{self, Earlier};
use crate::index::{Broken, Index};
use crate::lease::{self, Owner};
use crate::lock::Lock;
use crate::range::Span;

/// How the names of files begin that tell the address given last, one for each range set.
const POINTER: &str = "last_reserved_ip.";

/// The open, locked directory. The index is kept when it goes, just before the lock.
#[derive(Debug)]
pub(crate) struct Store {
    dir: Dir,
    /// `None` until somebody asks, if the one that was kept is of no use.
    index: Option<Index>,
    /// The index was made of the files by this very call.
    surveyed: bool,
    _lock: Lock,
}

/// What a lease's file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Owner(Owner),
    /// It is empty or garbled: the address is free, whoever wants it removes the file.
    Nobody,
    /// It is no file: somebody means something by it.
    Unknown,
}

/// A lease as it lies in the directory.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) ip: IpAddr,
    pub(crate) holder: Holder,
    /// When it was last written, renamed or handed over.
    pub(crate) since: SystemTime,
}

/// Adds a remedy to an error about the lease directory `path`, if it says that leases cannot be written there.
pub(crate) fn with_remedy(error: Error, path: &Path) -> Error {
    match error.errno() {
        Some(libc::EACCES | libc::EPERM) => error.details(format!("run as root, or allow writing in {path:?}")),
        Some(libc::EROFS) => error.details(format!(
            "mount the file system of {path:?} read-write, or set \"dataDir\" to a directory that can be written"
        )),
        _ => error,
    }
}

/// What an attachment holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// By records that tell the interface.
    pub(crate) exact: Vec<IpAddr>,
    /// By old records of the container.
    pub(crate) bare: Vec<IpAddr>,
}

impl Held {
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.exact.iter().chain(&self.bare).copied()
    }
}

impl Store {
    /// Opens the directory `path`, which is made if need be.
    pub(crate) fn create(path: &Path) -> Result<Store> {
        let what = || format!("create directory {path:?}");
        let store = Store::lock(path, || Dir::create(path, 0o755).map(Some).trying(what))?;
        store.ok_or_else(|| Error::new(Code::INTERNAL, format!("{path:?} was made and is not there")))
    }

    /// Opens the directory `path`; `None` if there is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Store>> {
        Store::lock(path, || Dir::open(path).trying(|| format!("open the directory {path:?}")))
    }

    fn lock(path: &Path, open: impl Fn() -> Result<Option<Dir>>) -> Result<Option<Store>> {
        // As often as that nobody removes a network, or its lock, while others wait for it.
        for _ in 0..100 {
            let Some(dir) = open()? else { return Ok(None) };
            if let Some(lock) = Lock::acquire(&dir)? {
                let index = Index::open(&dir);
                // An index that is kept was made by a call of this boot, which has seen to the record.
                if index.is_none() {
                    earlier::record(&dir);
                }
                return Ok(Some(Store { dir, index, surveyed: false, _lock: lock }));
            }
        }
        Err(Error::new(Code::TRY_LATER, format!("the lock in {path:?} is removed again and again")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The addresses that `owner` holds. The index tells where to look, the files decide.
    pub(crate) fn held_by(&mut self, owner: &Owner) -> Result<Held> {
        loop {
            let claimed = self.ask(|index| index.held_by(owner))?;
            let mut held = Held::default();
            for ip in &claimed {
                match self.holder(*ip)? {
                    Some(Holder::Owner(found)) if found == *owner => held.exact.push(*ip),
                    Some(Holder::Owner(found)) if found == owner.bare() => held.bare.push(*ip),
                    _ => {}
                }
            }
            if self.surveyed || held.all().count() == claimed.len() {
                return Ok(held);
            }
            debug!("index of {:?} is wrong about {owner}", self.path());
            self.index = None;
        }
    }

    /// The first address in `spans` that nobody holds, by the index.
    pub(crate) fn first_free(&mut self, spans: &[Span]) -> Result<Option<IpAddr>> {
        self.ask(|index| index.first_free(spans))
    }

    /// Gives `ip` to `owner`, unless somebody holds it: then tells who.
    pub(crate) fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<Option<Holder>> {
        let (name, record) = (ip.to_string(), owner.record());
        let what = || format!("write the lease {:?}", self.dir.path().join(&name));
        // Twice is enough under the lock; more often somebody changes it who does not take the lock.
        for _ in 0..3 {
            if self.dir.place(&name, record.as_bytes()).trying(what)? {
                debug!("reserved {ip} for {owner}");
                self.ask(|index| index.insert(ip, Some(owner)))?;
                return Ok(None);
            }
            match self.holder(ip)? {
                None => {}
                Some(Holder::Nobody) => {
                    warn!("lease {:?} is empty or garbled, and so free", self.dir.path().join(&name));
                    self.dir.remove(&name).trying(what)?;
                }
                Some(holder) => {
                    let owner = if let Holder::Owner(owner) = &holder { Some(owner) } else { None };
                    self.ask(|index| index.insert(ip, owner))?;
                    return Ok(Some(holder));
                }
            }
        }
        Err(Error::new(Code::TRY_LATER, format!("{}: it changes all the time", what())))
    }

    /// Makes the lease of `ip` one of this boot, whoever wrote it.
    pub(crate) fn renew(&self, ip: IpAddr) -> Result<()> {
        let name = ip.to_string();
        self.dir.touch(&name).trying(|| format!("renew the lease {:?}", self.dir.path().join(&name)))
    }

    /// Takes `ip` from `owner`; nothing happens if it is not theirs.
    pub(crate) fn release(&mut self, ip: IpAddr, owner: &Owner) -> Result<()> {
        if self.holder(ip)? != Some(Holder::Owner(owner.clone())) {
            return Ok(());
        }
        self.remove(ip)?;
        self.ask(|index| index.remove(ip, owner))
    }

    fn remove(&self, ip: IpAddr) -> Result<()> {
        let path = self.dir.path().join(ip.to_string());
        self.dir.remove(&ip.to_string()).trying(|| format!("remove the lease {path:?}"))?;
        debug!("released {ip}");
        Ok(())
    }

    /// Removes the leases that `stale` tells, past those that cannot be removed; how many it removed, and the first
    /// failure.
    pub(crate) fn sweep(&mut self, stale: impl Fn(&Lease) -> bool) -> Result<usize> {
        let mut doomed = Vec::new();
        self.each(|lease| {
            if stale(&lease) {
                doomed.push(lease.ip);
            }
        })?;
        self.remove_all(doomed)
    }

    /// Removes the leases of earlier boots; returns how many these were.
    pub(crate) fn reclaim(&mut self) -> Result<usize> {
        match Earlier::read(&self.dir) {
            Ok(earlier) => {
                let doomed = earlier.unwrap_or_default().present(&self.dir)?;
                self.remove_all(doomed)
            }
            Err(error) => {
                warn!("leases of earlier boots are not reclaimed: {error}");
                Ok(0)
            }
        }
    }

    fn remove_all(&mut self, doomed: Vec<IpAddr>) -> Result<usize> {
        let (mut removed, mut failures) = (0, Failures::default());
        for ip in doomed {
            failures.note(self.remove(ip).map(|()| removed += 1));
        }
        if removed > 0 {
            self.index = None;
            self.ask(|_| Ok(()))?;
        }
        failures.into_result().map(|()| removed)
    }

    /// Reads all leases from their files, one by one: there may be many.
    pub(crate) fn each(&self, then: impl FnMut(Lease)) -> Result<()> {
        each(&self.dir, then)
    }

    fn holder(&self, ip: IpAddr) -> Result<Option<Holder>> {
        Ok(look(&self.dir, &ip.to_string(), false)?.map(|(holder, _)| holder))
    }

    /// The address that was last given out of range set `set`. What cannot be read counts for nothing.
    pub(crate) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        last_reserved(&self.dir, set).ok().flatten()
    }

    /// Remembers the address that was given out of range set `set`. Without it an address would only be used again
    /// sooner, which is not worth failing for. Unlike upstream, which fails and keeps the lease.
    pub(crate) fn set_last_reserved(&self, set: usize, ip: IpAddr) {
        if let Err(error) = self.dir.replace(&pointer(set), ip.to_string().as_bytes()) {
            warn!("write {:?}: {error}", self.dir.path().join(pointer(set)));
        }
    }

    /// Asks the index, which is made anew if there is none or if it is broken.
    fn ask<T>(&mut self, question: impl Fn(&mut Index) -> Result<T, Broken>) -> Result<T> {
        loop {
            let index = match &mut self.index {
                Some(index) => index,
                None => {
                    let index = self.survey()?;
                    self.surveyed = true;
                    self.index.insert(index)
                }
            };
            match question(index) {
                Ok(answer) => return Ok(answer),
                Err(Broken) => {
                    debug!("index of {:?} is broken", self.path());
                    self.index = None;
                }
            }
        }
    }

    /// Makes an index of what the files say.
    fn survey(&self) -> Result<Index> {
        let what = || format!("read the directory {:?}", self.path());
        let mut index = Index::default();
        let mut count = 0;
        for name in self.dir.names().trying(what)? {
            let name = name.trying(what)?;
            if name.starts_with(POINTER) && name.ends_with(DRAFT) {
                // Left by a call that was killed, like the index that is being made anew. It is in nobody's way.
                let _ = self.dir.remove(&name);
            }
            let Some(ip) = lease::address(&name) else { continue };
            let inserted = match look(&self.dir, &name, false)?.map(|(holder, _)| holder) {
                Some(Holder::Owner(owner)) => index.insert(ip, Some(&owner)),
                Some(Holder::Unknown) => index.insert(ip, None),
                Some(Holder::Nobody) | None => Ok(()),
            };
            // It lies in memory alone, where nothing breaks.
            debug_assert!(inserted.is_ok());
            count += 1;
        }
        debug!("read {count} leases in {:?} for the index", self.path());
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

/// Reads all leases of a directory from their files, with its lock or without.
pub(crate) fn each(dir: &Dir, mut then: impl FnMut(Lease)) -> Result<()> {
    let what = || format!("read the directory {:?}", dir.path());
    for name in dir.names().trying(what)? {
        let name = name.trying(what)?;
        let Some(ip) = lease::address(&name) else { continue };
        if let Some((holder, since)) = look(dir, &name, true)? {
            then(Lease { ip, holder, since });
        }
    }
    Ok(())
}

/// Reads one lease; when it was written only if that is `dated`, for it costs a call.
pub(crate) fn look(dir: &Dir, name: &str, dated: bool) -> Result<Option<(Holder, SystemTime)>> {
    let read = if dated {
        dir.read_dated(name)
    } else {
        dir.read(name).map(|read| read.map(|content| (content, SystemTime::UNIX_EPOCH)))
    };
    match read {
        Ok(read) => {
            Ok(read.map(|(content, since)| (Owner::parse(&content).map_or(Holder::Nobody, Holder::Owner), since)))
        }
        // A link, a directory, a socket.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)) => {
            Ok(Some((Holder::Unknown, SystemTime::now())))
        }
        Err(error) => Err(error).trying(|| format!("read the lease {:?}", dir.path().join(name))),
    }
}

fn pointer(set: usize) -> String {
    format!("{POINTER}{set}")
}

fn last_reserved(dir: &Dir, set: usize) -> io::Result<Option<IpAddr>> {
    let text = dir.read(&pointer(set))?.unwrap_or_default();
    Ok(std::str::from_utf8(&text).ok().and_then(|text| cni::ip::parse_ip(text.trim()).ok()))
}

/// Attachments that are alive, for a sweep. Of their owners only the digests: should two have the same, a stale lease
/// stays.
#[derive(Debug)]
pub(crate) struct Alive(Vec<u64>);

impl Alive {
    pub(crate) fn new(owners: impl Iterator<Item = Owner>) -> Alive {
        // An old record is alive with any interface of its container.
        let mut digests: Vec<u64> = owners.flat_map(|owner| [owner.digest(), owner.bare_digest()]).collect();
        digests.sort_unstable();
        Alive(digests)
    }

    pub(crate) fn has(&self, lease: &Lease) -> bool {
        match &lease.holder {
            Holder::Owner(owner) => self.0.binary_search(&owner.digest()).is_ok(),
            Holder::Nobody => false,
            Holder::Unknown => true,
        }
    }
}
