//! The kernel gives all ipvlan links on a master the mode and the flag of the last one. So an ADD must not have others
//! than the links of the containers that are there: it would change them.
//!
//! The host does not see links in containers. A file has the mode and the flag of the last ADD on each master. Whether
//! links that it speaks of still exist, the kernel knows: it creates no macvlan link beside ipvlan links.

use std::path::Path;

use cni::json::invalid;
use cni::{Context, Home, Result};
use interface::lock::HostLock;
use interface::name::random_index;
use linux::dir::Dir;
use linux::netlink::{Change, IpvlanIsolation, IpvlanMode, Link, LinkKind, MacvlanMode, NewLink, Upper};

/// The directory of the files.
const HOME: &str = "/run/cni0/ipvlan";

/// Returns an error if containers on the master have another mode or flag, and records these. Until the lock is
/// released, no other ADD changes them.
pub(crate) fn keep(host: &mut Home, master: &Link, mode: IpvlanMode, flag: IpvlanIsolation) -> Result<HostLock> {
    let lock = HostLock::acquire()?;
    // Indexes are those of one namespace, and this process may not be in that of the host.
    let name = format!("{:x}-{}", host.netns.inode()?, master.index);
    let path = Path::new(HOME).join(&name);
    let dir = Dir::create_private(Path::new(HOME)).context(|| format!("create {HOME:?}"))?;
    let wanted = format!("{mode} {flag}\n");
    let recorded = dir.read_private(&name).context(|| format!("read {path:?}"))?;
    match recorded {
        Some(recorded) if recorded == wanted.as_bytes() => return Ok(lock),
        Some(recorded) if has_ipvlan(host, master)? => {
            let recorded = String::from_utf8_lossy(&recorded);
            let what = format_args!(
                "\"{mode}\" with the flag \"{flag}\" would change the containers on {:?}, which have {:?}",
                master.name,
                recorded.trim_end()
            );
            return Err(invalid("mode", what, "use the same \"mode\" and \"flag\" in all networks on a master"));
        }
        Some(_) | None => {}
    }
    dir.replace(&name, wanted.as_bytes()).context(|| format!("write {path:?}"))?;
    Ok(lock)
}

/// Returns whether the master has ipvlan links in any namespace. One message creates a link, and the next one in the
/// same datagram deletes it: a killed call leaves nothing.
fn has_ipvlan(host: &mut Home, master: &Link) -> Result<bool> {
    let kind = LinkKind::Upper(Upper::Macvlan { mode: MacvlanMode::Private, broadcast_queue: 0 });
    let index = random_index()?;
    let probe = NewLink { lower: Some(master.index), index: Some(index), ..NewLink::of(kind) };
    match host.netlink.apply(&[Change::create_link(&probe), Change::delete_link(index)]) {
        Ok(()) => Ok(false),
        Err(error) if error.errno() == Some(libc::EBUSY) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
