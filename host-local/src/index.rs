//! What the lease files say, in a form that answers two questions without reading them all: which addresses does an
//! attachment hold, and which address is free. It is only a hint: files are the truth, and losing it costs time only.
//!
//! It lies in `/run`, where the reference does not look and a reboot clears it, in a directory for each directory of
//! leases. It consists of small pages, each with a digest at its head: buckets of `(owner, address)` pairs, and bitmaps
//! of taken addresses. One more file tells whose it is: when a new index is made, those of deleted directories are
//! removed.
//!
//! Is it current? The kernel stamps a directory with the time when a name comes or goes, but only as finely as its
//! clock ticks. So whoever has brought the index up to date sets the directory's time itself, to a moment that has
//! passed and that the kernel will not give again, and the index's own time to one that lies [`APART`] from it. If
//! that is how the two still stand, nobody has added or removed a lease since, and nobody a page.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::LowerHex;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};

use log::debug;
use nix::sys::stat::FileStat;

use crate::bitmap::{self, Bitmap};
use crate::digest::{HEAD, reseal, unseal};
use crate::dir::{self, Dir, Moment, modified};
use crate::earlier;
use crate::lease::Owner;
use crate::range::Span;

const HOME: &str = "/run/cni0/host-local";

/// The file of an index that tells whose it is: the path of the directory of leases.
const OF: &str = "of";

/// Seconds between the two directories' times: far more than pass between two changes that the kernel stamps.
const APART: i64 = 1 << 20;

/// Few enough that most exist already when they are needed, and enough that each stays small.
const BUCKETS: u64 = 128;

/// A page that is not what this version wrote. The index has to be made anew.
#[derive(Debug)]
pub(crate) struct Broken;

type Result<T> = std::result::Result<T, Broken>;

/// The index of one directory of leases.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Where it is kept; `None` before it is kept anywhere.
    home: Option<Dir>,
    /// What is in `home` counts. Otherwise all there is to know is in `pages`.
    current: bool,
    /// When a page last came to `home` or went.
    seen: Moment,
    pages: BTreeMap<String, Page>,
}

/// A page, as it lies on disk but for the digest at its head.
#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    changed: bool,
    /// Where it was read from, and how long it was.
    kept: Option<(File, usize)>,
}

impl Page {
    fn new() -> Page {
        Page { bytes: vec![0; HEAD], changed: false, kept: None }
    }

    fn read(bytes: Vec<u8>) -> Result<Page> {
        match unseal(&bytes) {
            Some(_) => Ok(Page { bytes, changed: false, kept: None }),
            None => Err(Broken),
        }
    }

    /// Writes it to where it was read from, or to a file in `home`.
    fn save(&mut self, home: &Dir, name: &str) -> io::Result<()> {
        let kept = self.kept.take();
        match &kept {
            Some((file, len)) => dir::write_over(file, *len as u64, self.seal())?,
            None => home.write(name, self.seal())?,
        }
        (self.changed, self.kept) = (false, kept.map(|(file, _)| (file, self.bytes.len())));
        Ok(())
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(HEAD..).unwrap_or_default()
    }

    /// What a bucket holds.
    fn pairs(&self) -> &[[u8; PAIR]] {
        self.body().as_chunks().0
    }

    /// The page with its digest.
    fn seal(&mut self) -> &[u8] {
        reseal(&mut self.bytes);
        &self.bytes
    }
}

/// One pair in a bucket: digest of the owner, and the address, IPv4 as mapped into IPv6.
const PAIR: usize = 8 + 16;

impl Index {
    /// The index of `leases`, if there is one and it is current.
    pub(crate) fn open(leases: &Dir) -> Option<Index> {
        let stat = leases.stat().ok()?;
        let (home, kept) = Dir::open_private(&home(&stat)).ok()??;
        let current = is_apart(modified(&stat), modified(&kept));
        current.then(|| Index { home: Some(home), current, seen: modified(&kept), pages: BTreeMap::new() })
    }

    /// The addresses that `owner` holds, together with those of old records about the same container.
    pub(crate) fn held_by(&mut self, owner: &Owner) -> Result<Vec<IpAddr>> {
        let wanted = [owner.digest(), owner.bare_digest()];
        let held = self.bucket(owner)?.pairs().iter().filter_map(|pair| {
            let (owner, ip) = pair.split_first_chunk::<8>()?;
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?).to_canonical();
            wanted.contains(&u64::from_le_bytes(*owner)).then_some(ip)
        });
        Ok(held.collect())
    }

    /// The first address in `spans` that is not taken.
    pub(crate) fn first_free(&mut self, spans: &[Span]) -> Result<Option<IpAddr>> {
        for span in spans {
            let free = bitmap::first_free(*span, |base| {
                let page = self.bitmap(base)?;
                Ok(Bitmap::try_from(page.body()).unwrap_or(bitmap::EMPTY))
            })?;
            if free.is_some() {
                return Ok(free);
            }
        }
        Ok(None)
    }

    /// `ip` is taken, by `owner` if that is known.
    pub(crate) fn insert(&mut self, ip: IpAddr, owner: Option<&Owner>) -> Result<()> {
        let new = self.set_taken(ip, true)?;
        let Some(owner) = owner else { return Ok(()) };
        let pair = pair(ip, owner);
        let page = self.bucket(owner)?;
        // An address that was free has no pair that would have to be looked for among many.
        if new || !page.pairs().contains(&pair) {
            page.bytes.extend(pair);
            page.changed = true;
        }
        Ok(())
    }

    /// `ip` is free, and does not belong to `owner` any more.
    pub(crate) fn remove(&mut self, ip: IpAddr, owner: &Owner) -> Result<()> {
        self.set_taken(ip, false)?;
        let pair = pair(ip, owner);
        let page = self.bucket(owner)?;
        if let Some(at) = page.pairs().iter().position(|known| *known == pair) {
            let at = HEAD + at * PAIR;
            page.bytes.drain(at..at + PAIR);
        }
        page.changed = true;
        Ok(())
    }

    /// Keeps what has changed, and vouches for it. It is not worth failing for.
    pub(crate) fn save(&mut self, leases: &Dir) {
        let stale = !self.current || self.pages.values().any(|page| page.changed);
        if stale && let Err(error) = self.try_save(leases) {
            debug!("index of {:?} not kept: {error}", leases.path());
        }
    }

    fn try_save(&mut self, leases: &Dir) -> io::Result<()> {
        let home = match self.home.take() {
            Some(home) => home,
            None => Dir::create_private(&home(&leases.stat()?))?,
        };
        if !self.current {
            home.clear(&[OF])?;
            introduce(&home, leases)?;
        } else if home.changed()? != self.seen {
            return Err(io::Error::other("somebody has removed a page"));
        }
        for (name, page) in self.pages.iter_mut().filter(|(_, page)| page.changed) {
            page.save(&home, name)?;
        }
        // A second before the last change: what the kernel stamps from now on is later.
        leases.mark(before(leases.changed()?, 1)?)?;
        // Read back, because not every file system keeps nanoseconds.
        let apart = before(leases.changed()?, APART)?;
        home.mark(apart)?;
        (self.home, self.current, self.seen) = (Some(home), true, apart);
        Ok(())
    }

    /// Tells whether that was news.
    fn set_taken(&mut self, ip: IpAddr, taken: bool) -> Result<bool> {
        let page = self.bitmap(bitmap::base(ip))?;
        page.bytes.resize(HEAD + bitmap::EMPTY.len(), 0);
        let bitmap = page.bytes.get_mut(HEAD..).unwrap_or_default();
        let new = bitmap::set(bitmap, ip, taken);
        page.changed |= new;
        Ok(new)
    }

    fn bitmap(&mut self, base: IpAddr) -> Result<&mut Page> {
        self.page(taken(base), |len| len == 0 || len == bitmap::EMPTY.len())
    }

    /// The bucket is found by the container alone, so that old records are in it too.
    fn bucket(&mut self, owner: &Owner) -> Result<&mut Page> {
        self.page(held(owner), |len| len.is_multiple_of(PAIR))
    }

    fn page(&mut self, name: String, fits: impl Fn(usize) -> bool) -> Result<&mut Page> {
        let page = match self.pages.entry(name) {
            std::collections::btree_map::Entry::Occupied(page) => page.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let home = self.home.as_ref().filter(|_| self.current);
                let kept = home.map(|home| home.edit(vacant.key())).transpose().map_err(|_| Broken)?.flatten();
                vacant.insert(match kept {
                    None => Page::new(),
                    Some((bytes, file)) => {
                        let len = bytes.len();
                        Page { kept: Some((file, len)), ..Page::read(bytes)? }
                    }
                })
            }
        };
        if fits(page.body().len()) { Ok(page) } else { Err(Broken) }
    }

    /// An index of which the pages about `owner` and `ip` were kept with this in them, `sealed` as they should be or not.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_pages(
        owner: &Owner,
        ip: IpAddr,
        [in_bucket, in_bitmap]: [&[u8]; 2],
        sealed: bool,
    ) -> Result<Index> {
        let page = |content: &[u8]| {
            let mut page = Page::new();
            page.bytes.extend(content);
            Page::read(if sealed { page.seal().to_vec() } else { content.to_vec() })
        };
        let pages = [(held(owner), page(in_bucket)?), (taken(bitmap::base(ip)), page(in_bitmap)?)];
        let mut index = Index { pages: pages.into(), ..Index::default() };
        index.bucket(owner)?;
        index.bitmap(bitmap::base(ip))?;
        Ok(index)
    }
}

/// The page that tells which addresses of a block are taken.
fn taken(base: IpAddr) -> String {
    format!("taken-{base}")
}

/// The page that tells what an owner holds.
fn held(owner: &Owner) -> String {
    format!("held-{:03x}", owner.bare_digest() % BUCKETS)
}

/// Where the index of a directory is kept.
fn home(leases: &FileStat) -> PathBuf {
    Path::new(HOME).join(called(leases.st_dev, leases.st_ino))
}

/// Returns the name of the index of `leases`.
pub(crate) fn name_of(leases: &Dir) -> io::Result<String> {
    let stat = leases.stat()?;
    Ok(called(stat.st_dev, stat.st_ino))
}

/// How the index of a directory is called. The types of both numbers depend on the machine.
fn called(dev: impl LowerHex, ino: impl LowerHex) -> String {
    on_device(dev) + &format!("{ino:x}")
}

/// What the names of all indexes begin with whose directories are on one device.
fn on_device(dev: impl LowerHex) -> String {
    format!("{dev:x}-")
}

/// Lets an index tell whose it is. When a new one comes, those on the same file system go whose directories are gone.
fn introduce(home: &Dir, leases: &Dir) -> io::Result<()> {
    let path = path::absolute(leases.path())?.into_os_string().into_vec();
    if home.read(OF)?.as_ref() == Some(&path) {
        return Ok(());
    }
    home.write(OF, &path)?;
    let Some((all, _)) = Dir::open_private(Path::new(HOME))? else { return Ok(()) };
    // Other file systems may be slow, or not answer at all.
    let device = on_device(leases.stat()?.st_dev);
    for name in all.names()? {
        let name = name?;
        if name.starts_with(&device)
            && let Err(error) = forget_gone(&all, &name)
        {
            debug!("cannot see to index {name:?}: {error}");
        }
    }
    Ok(())
}

/// Removes the index called `name` among `all` if its directory is gone. It gets another name before: whoever should
/// be using it all the same, because its directory was moved, finds it whole or not at all.
fn forget_gone(all: &Dir, name: &str) -> io::Result<()> {
    const DOOMED: &str = "doomed";
    let Some(of) = open(all, name)?.map(|index| index.read(OF)).transpose()?.flatten() else { return Ok(()) };
    if !is_gone(Path::new(OsStr::from_bytes(&of)), name) {
        return Ok(());
    }
    let remove = || match open(all, DOOMED)? {
        None => Ok(()),
        Some(index) => index.clear(&[]).and_then(|()| all.remove_dir(DOOMED)),
    };
    // Somebody may have been killed here before.
    remove()?;
    all.rename(name, DOOMED)?;
    remove()?;
    earlier::forget(name)
}

/// An index by its name.
fn open(all: &Dir, name: &str) -> io::Result<Option<Dir>> {
    Ok(Dir::open_private(&all.path().join(name))?.map(|(index, _)| index))
}

/// Is the directory `leases` gone, whose index is called `name`? If another file system is mounted there, it may only be
/// hidden.
fn is_gone(leases: &Path, name: &str) -> bool {
    let there = fs::metadata(leases).is_ok_and(|stat| called(stat.dev(), stat.ino()) == name);
    let seen = leases.ancestors().find_map(|path| fs::metadata(path).ok());
    !there && seen.is_some_and(|stat| name.starts_with(&on_device(stat.dev())))
}

/// So many seconds before a moment. Anybody can give a directory any time, also the very first.
fn before((seconds, nanoseconds): Moment, by: i64) -> io::Result<Moment> {
    let seconds = seconds.checked_sub(by).ok_or_else(|| io::Error::other("its time is the first there is"))?;
    Ok((seconds, nanoseconds))
}

fn is_apart(leases: Moment, index: Moment) -> bool {
    before(leases, APART).is_ok_and(|apart| apart == index)
}

fn pair(ip: IpAddr, owner: &Owner) -> [u8; PAIR] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut pair = [0; PAIR];
    let (head, tail) = pair.split_at_mut(8);
    head.copy_from_slice(&owner.digest().to_le_bytes());
    tail.copy_from_slice(&ip.octets());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_and_taken_addresses_come_and_go() {
        let mut index = Index::default();
        let (c1, c2) = (Owner::new("c1", "eth0"), Owner::new("c2", "eth0"));
        let [a, b, c]: [IpAddr; 3] = ["10.0.0.1", "fd00::1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        index.insert(a, Some(&c1)).unwrap();
        index.insert(a, Some(&c1)).unwrap();
        index.insert(b, Some(&c1.bare())).unwrap();
        index.insert(c, Some(&c2)).unwrap();
        assert_eq!(index.held_by(&c1).unwrap(), [a, b]);
        assert_eq!(index.held_by(&Owner::new("c1", "eth1")).unwrap(), [b]);
        let span = Span { first: a, last: "10.0.0.9".parse().unwrap(), gateway: "10.0.0.3".parse().unwrap() };
        assert_eq!(index.first_free(&[span]).unwrap(), Some("10.0.0.4".parse().unwrap()));
        index.remove(a, &c1).unwrap();
        assert_eq!(index.held_by(&c1).unwrap(), [b]);
        assert_eq!(index.first_free(&[span]).unwrap(), Some(a));
    }

    #[test]
    fn a_page_of_others_is_not_read() {
        let mut page = Page::new();
        page.bytes.extend(b"abc");
        let good = page.seal().to_vec();
        assert_eq!(Page::read(good.clone()).unwrap().body(), b"abc");
        let cut = good.get(..good.len() - 1).unwrap().to_vec();
        for bad in [cut, Vec::new(), vec![7; 32], vec![0; 520]] {
            assert!(Page::read(bad).is_err());
        }
    }

    #[test]
    fn a_page_of_a_strange_length_is_broken() {
        let (owner, ip) = (Owner::new("c1", "eth0"), "10.0.0.1".parse().unwrap());
        for (name, wrong) in [(held(&owner), PAIR + 1), (taken(bitmap::base(ip)), 511)] {
            let mut page = Page::new();
            page.bytes.resize(HEAD + wrong, 0);
            let page = Page::read(page.seal().to_vec()).unwrap();
            let mut index = Index { pages: [(name, page)].into(), ..Index::default() };
            assert!(index.insert(ip, Some(&owner)).is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no openat")]
    fn a_page_that_got_shorter_is_read_back() {
        let base = std::env::temp_dir().join(format!("cni0-pages-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let opened = || {
            let home = Dir::create_private(&base.join("home")).unwrap();
            let seen = home.changed().unwrap();
            Index { home: Some(home), current: true, seen, ..Index::default() }
        };
        let owner = Owner::new("c1", "eth0");
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let mut index = opened();
        index.insert(a, Some(&owner)).unwrap();
        index.insert(b, Some(&owner)).unwrap();
        index.try_save(&leases).unwrap();
        let mut index = opened();
        index.remove(a, &owner).unwrap();
        index.try_save(&leases).unwrap();
        assert_eq!(opened().held_by(&owner).unwrap(), [b]);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no openat")]
    fn an_index_that_lost_a_page_meanwhile_is_not_vouched_for() {
        let base = std::env::temp_dir().join(format!("cni0-index-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let (owner, ip, seen) = (Owner::new("c1", "eth0"), "10.0.0.1".parse().unwrap(), (5, 7));
        for lost in [false, true] {
            let home = Dir::create_private(&base.join("home")).unwrap();
            home.write("page", b"").unwrap();
            home.mark(seen).unwrap();
            let mut index = Index { home: Some(home), current: true, seen, ..Index::default() };
            index.insert(ip, Some(&owner)).unwrap();
            if lost {
                fs::remove_file(base.join("home/page")).unwrap();
            }
            assert_eq!(index.try_save(&leases).is_err(), lost);
        }
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no openat")]
    fn a_change_with_the_same_time_stamp_as_the_last_one_is_noticed() {
        let base = std::env::temp_dir().join(format!("cni0-stamps-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let home = base.join("home");
        let mut index = Index { home: Some(Dir::create_private(&home).unwrap()), ..Index::default() };
        leases.place("10.0.0.1", b"c1").unwrap();
        let stamp = leases.changed().unwrap();
        index.try_save(&leases).unwrap();
        let current = || is_apart(leases.changed().unwrap(), Dir::open(&home).unwrap().unwrap().changed().unwrap());
        assert!(current());
        // The clock of the kernel has not ticked since, and another program has added a lease.
        leases.mark(stamp).unwrap();
        assert!(!current());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn only_the_exact_distance_counts() {
        assert!(is_apart((APART + 5, 7), (5, 7)));
        for (leases, index) in
            [((5, 7), (5, 7)), ((APART + 5, 8), (5, 7)), ((APART + 6, 7), (5, 7)), ((i64::MIN, 0), (0, 0))]
        {
            assert!(!is_apart(leases, index), "{leases:?} {index:?}");
        }
    }
}
