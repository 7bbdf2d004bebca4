//! The index of a lease directory. It answers two questions without reading all lease files: which addresses are leased
//! to an attachment, and which address is free. It is only a hint: the lease files decide, and a lost index is rebuilt.
//!
//! Each lease directory has an index directory in `/run`, which the reference does not read and a reboot clears. It
//! consists of small pages with a digest at the head: buckets of `(owner, address)` pairs, and bitmaps of taken
//! addresses. One more file contains the path of the lease directory. Creating an index removes the indexes of deleted
//! lease directories.
//!
//! How a call detects that the index is current: the kernel sets the mtime of a directory when a name is added or
//! removed, but only with the resolution of its clock tick. Therefore a call that has updated the index sets the mtime
//! of the lease directory itself, to a time in the past that the kernel will not use again. It then sets the mtime of
//! the index directory to that time minus [`MTIME_OFFSET`]. If the two mtimes still have this distance, no program has
//! added or removed a lease or a page since.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};

use linux::dir::{self, Dir, Timestamp, mtime};
use linux::log::debug;
use nix::sys::stat::FileStat;

use super::bitmap::{self, Bitmap};
use super::digest::{HEAD, container_digest, owner_digest, reseal, unseal};
use super::earlier;
use super::span::Span;
use super::{INDEX_ROOT, LeaseOwner, OWNER_FILE};

/// Seconds between the mtimes of lease directory and index: far more than between two changes that the kernel stamps.
const MTIME_OFFSET: i64 = 1 << 20;

/// The number of buckets: few enough that most files already exist when needed, enough that each stays small.
const BUCKETS: u64 = 128;

/// Error: this version did not write the page in this form. The index must be rebuilt.
#[derive(Debug)]
pub struct Broken;

type Result<T> = std::result::Result<T, Broken>;

/// The index of one lease directory.
#[derive(Debug, Default)]
pub struct Index {
    /// The directory of the pages, or `None` before the index is first saved.
    home: Option<Dir>,
    /// Whether the pages in `home` are valid. Otherwise the index consists only of `pages`.
    current: bool,
    /// The mtime of `home` when the index was opened or saved.
    seen: Timestamp,
    pages: BTreeMap<String, Page>,
}

/// A page as in its file, except that the digest at its head may be out of date.
#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    changed: bool,
    /// The open file of the page, and its length.
    file: Option<(File, usize)>,
}

impl Page {
    fn new() -> Page {
        Page { bytes: vec![0; HEAD], changed: false, file: None }
    }

    fn read(bytes: Vec<u8>) -> Result<Page> {
        match unseal(&bytes) {
            Some(_) => Ok(Page { bytes, changed: false, file: None }),
            None => Err(Broken),
        }
    }

    /// Writes the page to the file it was read from, or to a new file in `home`.
    fn save(&mut self, home: &Dir, name: &str) -> io::Result<()> {
        let old = self.file.take();
        match &old {
            Some((file, len)) => dir::write_over(file, *len as u64, self.seal())?,
            None => home.write(name, self.seal())?,
        }
        (self.changed, self.file) = (false, old.map(|(file, _)| (file, self.bytes.len())));
        Ok(())
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(HEAD..).unwrap_or_default()
    }

    /// Returns the pairs of a bucket.
    fn pairs(&self) -> &[[u8; PAIR_LEN]] {
        self.body().as_chunks().0
    }

    /// Updates the digest and returns the content of the file.
    fn seal(&mut self) -> &[u8] {
        reseal(&mut self.bytes);
        &self.bytes
    }
}

/// The length of a pair in a bucket: the digest of the owner, and the address (IPv4 as IPv4-mapped IPv6).
const PAIR_LEN: usize = 8 + 16;

impl Index {
    /// Opens the index of `leases`. Returns `None` if it does not exist or is not current.
    pub fn open(leases: &Dir) -> Option<Index> {
        let stat = leases.stat().ok()?;
        let (home, home_stat) = Dir::open_private(&index_path(&stat)).ok()??;
        let current = has_mtime_offset(mtime(&stat), mtime(&home_stat));
        current.then(|| Index { home: Some(home), current, seen: mtime(&home_stat), pages: BTreeMap::new() })
    }

    /// Returns the addresses leased to `owner`, including those of old records that name only the container.
    pub fn held_by(&mut self, owner: &LeaseOwner) -> Result<Vec<IpAddr>> {
        let wanted = [owner_digest(owner), container_digest(owner)];
        let held = self.bucket(owner)?.pairs().iter().filter_map(|pair| {
            let (owner, ip) = pair.split_first_chunk::<8>()?;
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?).to_canonical();
            wanted.contains(&u64::from_le_bytes(*owner)).then_some(ip)
        });
        Ok(held.collect())
    }

    /// Returns the first address in `spans` that is not taken.
    pub fn first_free(&mut self, spans: &[Span]) -> Result<Option<IpAddr>> {
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

    /// Records that `ip` is taken, by `owner` if that is known.
    pub fn insert(&mut self, ip: IpAddr, owner: Option<&LeaseOwner>) -> Result<()> {
        let new = self.set_taken(ip, true)?;
        let Some(owner) = owner else { return Ok(()) };
        let pair = pair(ip, owner);
        let page = self.bucket(owner)?;
        // An address that was free cannot have a pair, so the search is only needed for others.
        if new || !page.pairs().contains(&pair) {
            page.bytes.extend(pair);
            page.changed = true;
        }
        Ok(())
    }

    /// Records that `ip` is free and no longer leased to `owner`.
    pub fn remove(&mut self, ip: IpAddr, owner: &LeaseOwner) -> Result<()> {
        self.set_taken(ip, false)?;
        let pair = pair(ip, owner);
        let page = self.bucket(owner)?;
        if let Some(at) = page.pairs().iter().position(|known| *known == pair) {
            let at = HEAD + at * PAIR_LEN;
            page.bytes.drain(at..at + PAIR_LEN);
        }
        page.changed = true;
        Ok(())
    }

    /// Writes the changed pages and marks the index as current. Errors are only logged.
    pub fn save(&mut self, leases: &Dir) {
        let stale = !self.current || self.pages.values().any(|page| page.changed);
        if stale && let Err(error) = self.try_save(leases) {
            debug!("cannot save the index of {:?}: {error}", leases.path());
        }
    }

    fn try_save(&mut self, leases: &Dir) -> io::Result<()> {
        let home = match self.home.take() {
            Some(home) => home,
            None => Dir::create_private(&index_path(&leases.stat()?))?,
        };
        if !self.current {
            home.clear(&[OWNER_FILE])?;
            register(&home, leases)?;
        } else if home.mtime()? != self.seen {
            return Err(io::Error::other("another process removed a page"));
        }
        for (name, page) in self.pages.iter_mut().filter(|(_, page)| page.changed) {
            page.save(&home, name)?;
        }
        // One second before the last change: every later change gets a later mtime from the kernel.
        leases.set_mtime(before(leases.mtime()?, 1)?)?;
        // Read it back, because not every file system stores nanoseconds.
        let index_mtime = before(leases.mtime()?, MTIME_OFFSET)?;
        home.set_mtime(index_mtime)?;
        (self.home, self.current, self.seen) = (Some(home), true, index_mtime);
        Ok(())
    }

    /// Sets or clears the bit of `ip`. Returns whether the bit changed.
    fn set_taken(&mut self, ip: IpAddr, taken: bool) -> Result<bool> {
        let page = self.bitmap(bitmap::base(ip))?;
        page.bytes.resize(HEAD + bitmap::EMPTY.len(), 0);
        let bitmap = page.bytes.get_mut(HEAD..).unwrap_or_default();
        let new = bitmap::set(bitmap, ip, taken);
        page.changed |= new;
        Ok(new)
    }

    /// Returns the bitmap page of the block that starts at `base`.
    fn bitmap(&mut self, base: IpAddr) -> Result<&mut Page> {
        self.page(bitmap_name(base), |len| len == 0 || len == bitmap::EMPTY.len())
    }

    /// Returns the bucket of `owner`. It depends only on the container, so that it includes old records.
    fn bucket(&mut self, owner: &LeaseOwner) -> Result<&mut Page> {
        self.page(bucket_name(owner), |len| len.is_multiple_of(PAIR_LEN))
    }

    /// Returns the page `name`, reading it from its file on first use. Fails if its length does not satisfy `fits`.
    fn page(&mut self, name: String, fits: impl Fn(usize) -> bool) -> Result<&mut Page> {
        let page = match self.pages.entry(name) {
            std::collections::btree_map::Entry::Occupied(page) => page.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let home = self.home.as_ref().filter(|_| self.current);
                let found =
                    home.map(|home| home.read_for_update(vacant.key())).transpose().map_err(|_| Broken)?.flatten();
                vacant.insert(match found {
                    None => Page::new(),
                    Some((bytes, file)) => {
                        let len = bytes.len();
                        Page { file: Some((file, len)), ..Page::read(bytes)? }
                    }
                })
            }
        };
        if fits(page.body().len()) { Ok(page) } else { Err(Broken) }
    }

    /// Creates an index whose pages for `owner` and `ip` have the given contents, with a correct digest if `sealed`.
    #[cfg(feature = "fuzzing")]
    pub fn of_pages(owner: &LeaseOwner, ip: IpAddr, [in_bucket, in_bitmap]: [&[u8]; 2], sealed: bool) -> Result<Index> {
        let page = |content: &[u8]| {
            let mut page = Page::new();
            page.bytes.extend(content);
            Page::read(if sealed { page.seal().to_vec() } else { content.to_vec() })
        };
        let pages = [(bucket_name(owner), page(in_bucket)?), (bitmap_name(bitmap::base(ip)), page(in_bitmap)?)];
        let mut index = Index { pages: pages.into(), ..Index::default() };
        index.bucket(owner)?;
        index.bitmap(bitmap::base(ip))?;
        Ok(index)
    }
}

/// Returns the name of the bitmap page of a block.
fn bitmap_name(base: IpAddr) -> String {
    format!("taken-{base}")
}

/// Returns the name of the bucket of an owner.
fn bucket_name(owner: &LeaseOwner) -> String {
    format!("held-{:03x}", container_digest(owner) % BUCKETS)
}

/// Returns the path of the index of a lease directory.
fn index_path(leases: &FileStat) -> PathBuf {
    Path::new(INDEX_ROOT).join(dir::key(leases.st_dev, leases.st_ino))
}

/// Writes the path of the lease directory into its index. If the index is new, also removes the indexes of deleted
/// lease directories on the same file system.
fn register(home: &Dir, leases: &Dir) -> io::Result<()> {
    let path = path::absolute(leases.path())?.into_os_string().into_vec();
    if home.read(OWNER_FILE)?.as_ref() == Some(&path) {
        return Ok(());
    }
    home.write(OWNER_FILE, &path)?;
    let Some((all, _)) = Dir::open_private(Path::new(INDEX_ROOT))? else { return Ok(()) };
    // Skip other file systems, which may be slow or hang.
    let device = dir::key_prefix(leases.stat()?.st_dev);
    for name in all.names()? {
        let name = name?;
        if name.starts_with(&device)
            && let Err(error) = remove_if_orphaned(&all, &name)
        {
            debug!("cannot check index {name:?}: {error}");
        }
    }
    Ok(())
}

/// Removes the index `name` in `all` if its lease directory is gone. Renames it first: if the lease directory was only
/// moved, a process that still uses the index finds it complete or not at all.
fn remove_if_orphaned(all: &Dir, name: &str) -> io::Result<()> {
    const TOMBSTONE: &str = "doomed";
    let Some(path) = open(all, name)?.map(|index| index.read(OWNER_FILE)).transpose()?.flatten() else { return Ok(()) };
    if !is_gone(Path::new(OsStr::from_bytes(&path)), name) {
        return Ok(());
    }
    let remove = || match open(all, TOMBSTONE)? {
        None => Ok(()),
        Some(index) => index.clear(&[]).and_then(|()| all.remove_dir(TOMBSTONE)),
    };
    // A killed call may have left a renamed index.
    remove()?;
    all.rename(name, TOMBSTONE)?;
    remove()?;
    earlier::forget(name)
}

/// Opens the index directory `name`.
fn open(all: &Dir, name: &str) -> io::Result<Option<Dir>> {
    Ok(Dir::open_private(&all.path().join(name))?.map(|(index, _)| index))
}

/// Returns whether the lease directory `leases` of the index `name` is gone. If another file system is mounted over it,
/// it may only be hidden, which does not count.
fn is_gone(leases: &Path, name: &str) -> bool {
    let exists = fs::metadata(leases).is_ok_and(|stat| dir::key(stat.dev(), stat.ino()) == name);
    let nearest = leases.ancestors().find_map(|path| fs::metadata(path).ok());
    !exists && nearest.is_some_and(|stat| name.starts_with(&dir::key_prefix(stat.dev())))
}

/// Returns the time `by` seconds earlier. Fails on underflow: any program can set the mtime of a directory to any
/// value.
fn before((seconds, nanoseconds): Timestamp, by: i64) -> io::Result<Timestamp> {
    let seconds = seconds.checked_sub(by).ok_or_else(|| io::Error::other("the directory's mtime is too early"))?;
    Ok((seconds, nanoseconds))
}

/// Returns whether the mtimes of lease directory and index have the distance that marks the index as current.
fn has_mtime_offset(leases: Timestamp, index: Timestamp) -> bool {
    before(leases, MTIME_OFFSET).is_ok_and(|expected| expected == index)
}

/// Returns the pair of `ip` and `owner` as stored in a bucket.
fn pair(ip: IpAddr, owner: &LeaseOwner) -> [u8; PAIR_LEN] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut pair = [0; PAIR_LEN];
    let (head, tail) = pair.split_at_mut(8);
    head.copy_from_slice(&owner_digest(owner).to_le_bytes());
    tail.copy_from_slice(&ip.octets());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_inserted_and_removed() {
        let mut index = Index::default();
        let (c1, c2) = (LeaseOwner::new("c1", "eth0"), LeaseOwner::new("c2", "eth0"));
        let [a, b, c]: [IpAddr; 3] = ["10.0.0.1", "fd00::1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        index.insert(a, Some(&c1)).unwrap();
        index.insert(a, Some(&c1)).unwrap();
        index.insert(b, Some(&c1.without_ifname())).unwrap();
        index.insert(c, Some(&c2)).unwrap();
        assert_eq!(index.held_by(&c1).unwrap(), [a, b]);
        assert_eq!(index.held_by(&LeaseOwner::new("c1", "eth1")).unwrap(), [b]);
        let span = Span { first: a, last: "10.0.0.9".parse().unwrap(), gateway: "10.0.0.3".parse().unwrap() };
        assert_eq!(index.first_free(&[span]).unwrap(), Some("10.0.0.4".parse().unwrap()));
        index.remove(a, &c1).unwrap();
        assert_eq!(index.held_by(&c1).unwrap(), [b]);
        assert_eq!(index.first_free(&[span]).unwrap(), Some(a));
    }

    #[test]
    fn a_page_without_a_valid_digest_is_rejected() {
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
    fn a_page_of_an_invalid_length_is_rejected() {
        let (owner, ip) = (LeaseOwner::new("c1", "eth0"), "10.0.0.1".parse().unwrap());
        for (name, wrong) in [(bucket_name(&owner), PAIR_LEN + 1), (bitmap_name(bitmap::base(ip)), 511)] {
            let mut page = Page::new();
            page.bytes.resize(HEAD + wrong, 0);
            let page = Page::read(page.seal().to_vec()).unwrap();
            let mut index = Index { pages: [(name, page)].into(), ..Index::default() };
            assert!(index.insert(ip, Some(&owner)).is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no openat")]
    fn a_page_that_became_shorter_can_be_read_again() {
        let base = std::env::temp_dir().join(format!("cni0-pages-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let opened = || {
            let home = Dir::create_private(&base.join("home")).unwrap();
            let seen = home.mtime().unwrap();
            Index { home: Some(home), current: true, seen, ..Index::default() }
        };
        let owner = LeaseOwner::new("c1", "eth0");
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
    fn an_index_that_lost_a_page_is_not_marked_as_current() {
        let base = std::env::temp_dir().join(format!("cni0-index-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let (owner, ip, seen) = (LeaseOwner::new("c1", "eth0"), "10.0.0.1".parse().unwrap(), (5, 7));
        for lost in [false, true] {
            let home = Dir::create_private(&base.join("home")).unwrap();
            home.write("page", b"").unwrap();
            home.set_mtime(seen).unwrap();
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
    fn a_change_within_the_same_clock_tick_is_detected() {
        let base = std::env::temp_dir().join(format!("cni0-stamps-{}", std::process::id()));
        let leases = Dir::create(&base.join("leases"), 0o755).unwrap();
        let home = base.join("home");
        let mut index = Index { home: Some(Dir::create_private(&home).unwrap()), ..Index::default() };
        leases.create_file("10.0.0.1", b"c1").unwrap();
        let stamp = leases.mtime().unwrap();
        index.try_save(&leases).unwrap();
        let current = || has_mtime_offset(leases.mtime().unwrap(), Dir::open(&home).unwrap().unwrap().mtime().unwrap());
        assert!(current());
        // Simulates another program that adds a lease before the kernel's clock ticks.
        leases.set_mtime(stamp).unwrap();
        assert!(!current());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn only_the_exact_distance_marks_a_current_index() {
        assert!(has_mtime_offset((MTIME_OFFSET + 5, 7), (5, 7)));
        for (leases, index) in [
            ((5, 7), (5, 7)),
            ((MTIME_OFFSET + 5, 8), (5, 7)),
            ((MTIME_OFFSET + 6, 7), (5, 7)),
            ((i64::MIN, 0), (0, 0)),
        ] {
            assert!(!has_mtime_offset(leases, index), "{leases:?} {index:?}");
        }
    }
}
