//! The bridge of a network. The first container creates it. Since `podman network rm` calls no plugin, the last one
//! removes it, as with netavark's own driver. A bridge that was there before is never removed.
//!
//! A lock keeps a container from losing the bridge to which it is being attached: those that use an existing bridge
//! share it, and whoever creates or removes the bridge has it alone. The file is removed with the bridge.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cni::{Code, Context, Error, IfName, Result};
use linux::Deadline;
use linux::dir::Dir;
use linux::netlink::{Change, Link, LinkChange, Netlink};

use crate::input::Network;

/// The directory of the locks.
const LOCKS: &str = "/run/cni0";
/// How long to wait for the lock. It is held for some messages to the kernel.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The bridge of a network.
#[derive(Debug)]
pub(crate) struct SharedBridge {
    name: IfName,
    /// The alias of a bridge that a container of the network has created.
    mark: String,
    /// Whether the name alone shows that the bridge belongs to the network.
    has_own_name: bool,
    lock: String,
}

/// The bridge of a network while a container is attached to it.
#[derive(Debug)]
pub(crate) struct Use<'a> {
    bridge: &'a SharedBridge,
    /// Whether the bridge did not exist.
    is_new: bool,
    dir: Dir,
    _lock: File,
}

impl SharedBridge {
    pub(crate) fn of(network: &Network) -> Result<SharedBridge> {
        let name = network.bridge()?;
        let own = network.own_bridge()?;
        Ok(SharedBridge {
            mark: format!("netavark-network {}", network.id),
            has_own_name: name == own,
            lock: format!("netavark-{own}.lock"),
            name,
        })
    }

    /// Makes sure that nothing removes the bridge while it is used.
    pub(crate) fn start_use(&self) -> Result<Use<'_>> {
        let (path, deadline) = (Path::new(LOCKS).join(&self.lock), Deadline::after(TIMEOUT));
        let what = || format!("lock {path:?}");
        let held = || {
            let seconds = TIMEOUT.as_secs();
            let what = format!("lock {path:?}: another process held it for {seconds} seconds");
            Error::new(Code::TRY_LATER, what)
                .details("run `lslocks` on the host to find the process that holds the lock")
        };
        let dir = Dir::create_private(Path::new(LOCKS)).context(what)?;
        let mut host = Netlink::open()?;
        loop {
            let lock = dir.lock_shared(&self.lock, deadline).context(what)?.ok_or_else(held)?;
            if self.find(&mut host)?.is_some() {
                return Ok(Use { bridge: self, is_new: false, dir, _lock: lock });
            }
            drop(lock);
            let lock = dir.lock(&self.lock, deadline).context(what)?.ok_or_else(held)?;
            if self.find(&mut host)?.is_none() {
                return Ok(Use { bridge: self, is_new: true, dir, _lock: lock });
            }
            // Another container has created it meanwhile.
        }
    }

    /// Removes the bridge if it belongs to the network, has no ports, and no container is being attached.
    pub(crate) fn remove_if_unused(&self) -> Result<()> {
        let what = || format!("lock {:?}", Path::new(LOCKS).join(&self.lock));
        let dir = Dir::create_private(Path::new(LOCKS)).context(what)?;
        match dir.try_lock(&self.lock).context(what)? {
            Some(_lock) => self.remove(&dir, false),
            None => Ok(()),
        }
    }

    fn find(&self, host: &mut Netlink) -> Result<Option<Link>> {
        Ok(host.link(self.name.as_str())?)
    }

    /// Removes the bridge if it belongs to the network and has no ports, and the lock if there is no bridge then. The
    /// caller has the lock alone.
    fn remove(&self, dir: &Dir, is_new: bool) -> Result<()> {
        let mut host = Netlink::open()?;
        if let Some(link) = self.find(&mut host)? {
            // A setup that was killed may not have marked it.
            let is_ours = link.alias == self.mark || link.alias.is_empty() && (is_new || self.has_own_name);
            if link.kind != "bridge" || !is_ours || !host.links(Some(link.index))?.is_empty() {
                return Ok(());
            }
            host.delete_link_detached(link.index, None)?;
        }
        dir.remove(&self.lock).context(|| format!("remove {:?}", dir.path().join(&self.lock))).map(drop)
    }
}

impl Use<'_> {
    /// Marks a new bridge as the network's.
    pub(crate) fn mark(&self) -> Result<()> {
        if !self.is_new {
            return Ok(());
        }
        let mut host = Netlink::open()?;
        let change = LinkChange { alias: Some(&self.bridge.mark), ..LinkChange::default() };
        match self.bridge.find(&mut host)? {
            Some(link) => Ok(host.apply(&[Change::set_link(link.index, &change)])?),
            None => Ok(()),
        }
    }

    /// Removes a new bridge after the container could not be attached.
    pub(crate) fn abandon(self) -> Result<()> {
        if self.is_new { self.bridge.remove(&self.dir, true) } else { Ok(()) }
    }
}
