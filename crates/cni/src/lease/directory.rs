//! Operations of IPAM plugins on a lease directory as a whole.

use std::net::IpAddr;
use std::path::Path;

use linux::dir::Dir;
use linux::ip::Cidr;
use linux::log::warn;

use super::store::{Held, LiveOwners, Store};
use super::{Holder, LeaseOwner, address};
use crate::collector::ErrorCollector;
use crate::config::ValidAttachment;
use crate::error::{Code, Context, Error, Result};
use crate::undo::Undo;

/// Adds a hint to an error if its reason is that leases cannot be written in the directory `path`.
pub fn with_hint(error: Error, path: &Path) -> Error {
    match error.errno() {
        Some(libc::EACCES | libc::EPERM) => error.details(format!("run as root, or allow writing in {path:?}")),
        Some(libc::EROFS) => error.details(format!(
            "mount the file system of {path:?} read-write, or set \"dataDir\" to a directory that can be written"
        )),
        _ => error,
    }
}

/// Leases `ip` to `owner` and registers its release as a rollback step. Returns the holder if `ip` is already leased.
pub fn lease(undo: &mut Undo<'_, Store>, ip: IpAddr, owner: &LeaseOwner) -> Result<Option<Holder>> {
    let of_step = owner.clone();
    undo.push(format!("release {ip}"), move |store: &mut Store| store.release(ip, &of_step));
    let holder = undo.context().reserve(ip, owner)?;
    if holder.is_some() {
        undo.pop();
    }
    Ok(holder)
}

/// Leases all of `ips` in the lease directory `dir` to `owner`, or none of them. Renews those that `owner` has. If one
/// is leased to another owner, first releases the leases of earlier boots.
pub fn reserve_all(dir: &Path, ips: impl IntoIterator<Item = IpAddr>, owner: &LeaseOwner) -> Result<()> {
    let store = Store::create(dir).map_err(|error| with_hint(error, dir))?;
    let mut undo = Undo::new(store);
    for ip in ips {
        if let Err(error) = reserve(&mut undo, ip, owner) {
            return Err(undo.roll_back(with_hint(error, dir)));
        }
    }
    undo.commit();
    Ok(())
}

fn reserve(undo: &mut Undo<'_, Store>, ip: IpAddr, owner: &LeaseOwner) -> Result<()> {
    // Old lease records name only the container.
    let is_own = |holder: &Holder| matches!(holder, Holder::Owner(found) if *found == *owner || *found == owner.without_ifname());
    let mut holder = lease(undo, ip, owner)?;
    if holder.as_ref().is_some_and(|holder| !is_own(holder)) {
        let count = undo.context().reclaim()?;
        if count > 0 {
            warn!("reclaimed {count} leases of earlier boots: {ip} was leased");
            holder = lease(undo, ip, owner)?;
        }
    }
    match holder {
        None => Ok(()),
        // The lease may be from an earlier boot. Renewing it prevents that it is reclaimed.
        Some(holder) if is_own(&holder) => undo.context().renew(ip),
        Some(holder) => Err(in_use(ip, &holder)),
    }
}

/// Returns the error for a requested address that is leased to another owner.
pub fn in_use(ip: IpAddr, holder: &Holder) -> Error {
    let user = match holder {
        Holder::Owner(owner) => owner.to_string(),
        Holder::Garbled | Holder::Unknown => "an entry that is not a lease".to_owned(),
    };
    Error::new(Code::INTERNAL, format!("the requested address {ip} is in use by {user}"))
        .details("request another address, or detach the container that has it")
}

/// Returns the error of CHECK for an owner that has no lease for `which`, an address or "any address".
pub fn missing(dir: &Path, owner: &LeaseOwner, which: &str) -> Error {
    Error::new(Code::INTERNAL, format!("{owner} has no lease for {which} in {dir:?}"))
        .details("the lease was removed: detach the container and attach it again")
}

/// Returns the addresses in the lease directory `dir` that are leased to `owner`.
pub fn held_by(dir: &Path, owner: &LeaseOwner) -> Result<Held> {
    Store::open(dir)?.map_or_else(|| Ok(Held::default()), |mut store| store.held_by(owner))
}

/// Releases all leases of `owner` in the lease directory `dir`, for DEL.
pub fn release(dir: &Path, owner: LeaseOwner) -> Result<()> {
    try_release(dir, owner).map_err(|error| with_hint(error, dir))
}

fn try_release(dir: &Path, owner: LeaseOwner) -> Result<()> {
    let Some(mut store) = Store::open(dir)? else { return Ok(()) };
    let Held { exact, without_ifname } = store.held_by(&owner)?;
    // Old lease records name only the container. They belong to this interface if it has no leases of its own.
    let (held, owner) = if exact.is_empty() { (without_ifname, owner.without_ifname()) } else { (exact, owner) };
    let mut failures = ErrorCollector::default();
    for ip in held {
        failures.record(store.release(ip, &owner));
    }
    failures.into_result()
}

/// Releases all leases in the lease directory `dir` that belong to none of the `valid` attachments, for GC.
pub fn collect(dir: &Path, valid: &[ValidAttachment]) -> Result<()> {
    let live = LiveOwners::new(valid.iter().map(|valid| LeaseOwner::new(&valid.container, &valid.ifname)));
    let removed = Store::open(dir).and_then(|store| match store {
        Some(mut store) => store.remove_if(|lease| !live.contains(lease)).map(drop),
        None => Ok(()),
    });
    removed.map_err(|error| with_hint(error, dir))
}

/// Returns whether any network in `data_dir` has a lease file for an address of `subnet`, even an empty or garbled one.
pub fn has_lease_in(data_dir: &Path, subnet: Cidr) -> Result<bool> {
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
            if address(&name.context(what)?).is_some_and(|ip| subnet.contains(ip)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Opens the lease directory, or its nearest existing ancestor, if an ADD could write leases there.
pub fn usable(path: &Path) -> Result<Dir> {
    let dir = nearest(path).and_then(|dir| writable(&dir).map(|()| dir));
    dir.map_err(|error| with_hint(error, path))
}

/// Returns the answer of STATUS if an ADD could not write leases.
///
/// After an error, a runtime reports the node as not ready, and an orchestrator evicts the pods that run there.
/// Therefore STATUS fails only for conditions under which no ADD can succeed. A shortage that can end without a repair,
/// such as a full disk, is only logged.
pub fn status_of(error: Error) -> Result<()> {
    if matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE)) {
        warn!("{error}");
        return Ok(());
    }
    // A mistake in the configuration keeps its code.
    Err(if error.code() == Code::CONFIG { error } else { error.with_code(Code::NOT_AVAILABLE) })
}

/// Opens the directory, or its nearest existing ancestor, in which ADD would create it.
pub(crate) fn nearest(dir: &Path) -> Result<Dir> {
    let above = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    for path in above {
        if let Some(dir) = Dir::open(path).context(|| format!("open the directory {path:?}"))? {
            return Ok(dir);
        }
    }
    Err(Error::new(Code::IO, format!("no ancestor of {dir:?} exists")))
}

/// Fails if no file can be written in `dir`. Writes an unnamed file, because a permission check does not detect a full
/// disk.
pub(crate) fn writable(dir: &Dir) -> Result<()> {
    match dir.create_unnamed(b"status") {
        Ok(_) => Ok(()),
        // The file system does not support unnamed files, so only the permission can be checked.
        Err(nix::Error::EOPNOTSUPP | nix::Error::EISDIR) => dir.may_write().context(|| what(dir)),
        Err(errno) => Err(errno).context(|| what(dir)),
    }
}

fn what(dir: &Dir) -> String {
    format!("write in the directory {:?}", dir.path())
}
