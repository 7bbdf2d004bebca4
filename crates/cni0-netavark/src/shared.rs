//! The bridge of a network. The first container creates it. Since `podman network rm` calls no plugin, the last one
//! removes it, as with netavark's own driver. A bridge that was there before is never removed.
//!
//! A lock keeps a container from losing the bridge to which it is being attached: those that use an existing bridge
//! share it, and a process that creates or removes the bridge has it alone. The file is removed with the bridge.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use bridge::is_gateway_port;
use cni::{Code, Context, Error, IfName, Result};
use linux::Deadline;
use linux::dir::Dir;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, Netlink};

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
    lock: File,
}

impl SharedBridge {
    pub(crate) fn of(network: &Network) -> Result<SharedBridge> {
        let name = network.bridge()?;
        Ok(SharedBridge {
            mark: format!("netavark-network {}", network.id),
            has_own_name: network.own_bridges()?.contains(&name),
            lock: format!("netavark-{name}.lock"),
            name,
        })
    }

    /// Makes sure that nothing removes the bridge while it is used.
    pub(crate) fn start_use(&self) -> Result<Use<'_>> {
        let deadline = Deadline::after(TIMEOUT);
        let dir = self.locks()?;
        let mut host = Netlink::open()?;
        loop {
            let lock = dir.lock_shared(&self.lock, deadline).context(|| self.locking())?.ok_or_else(|| self.held())?;
            if self.find(&mut host)?.is_some() {
                return Ok(Use { bridge: self, is_new: false, dir, lock });
            }
            drop(lock);
            let lock = dir.lock(&self.lock, deadline).context(|| self.locking())?.ok_or_else(|| self.held())?;
            if self.find(&mut host)?.is_none() {
                return Ok(Use { bridge: self, is_new: true, dir, lock });
            }
            // Another container has created it meanwhile.
        }
    }

    /// Removes the bridge if it belongs to the network and has no ports. Each container looks after it has removed its
    /// own port, so that one of them is the last.
    pub(crate) fn remove_if_unused(&self) -> Result<()> {
        let mut host = Netlink::open()?;
        if let Some(link) = self.find(&mut host)?
            && self.gateways_of_unused(&mut host, &link, false)?.is_none()
        {
            return Ok(());
        }
        let dir = self.locks()?;
        let _lock =
            dir.lock(&self.lock, Deadline::after(TIMEOUT)).context(|| self.locking())?.ok_or_else(|| self.held())?;
        self.remove(&dir, false)
    }

    fn locks(&self) -> Result<Dir> {
        Dir::create_private(Path::new(LOCKS)).context(|| self.locking())
    }

    fn locking(&self) -> String {
        format!("lock {:?}", Path::new(LOCKS).join(&self.lock))
    }

    fn held(&self) -> Error {
        let what = format!("{}: another process held it for {} seconds", self.locking(), TIMEOUT.as_secs());
        Error::new(Code::TRY_LATER, what).details("run `lslocks` on the host to find the process that holds the lock")
    }

    fn find(&self, host: &mut Netlink) -> Result<Option<Link>> {
        Ok(host.link(self.name.as_str())?)
    }

    /// Returns the ports for gateways of VLANs, which go with the bridge, if the bridge belongs to the network and has
    /// no other ports; `None` if it must stay.
    fn gateways_of_unused(&self, host: &mut Netlink, link: &Link, is_new: bool) -> Result<Option<Vec<LinkIndex>>> {
        // A setup that was killed may not have marked it.
        let is_ours = link.alias == self.mark || link.alias.is_empty() && (is_new || self.has_own_name);
        if link.kind != "bridge" || !is_ours {
            return Ok(None);
        }
        let mut gateways = Vec::new();
        for port in host.links(Some(link.index))? {
            if !is_gateway_port(host, link, &port)? {
                return Ok(None);
            }
            gateways.push(port.index);
        }
        Ok(Some(gateways))
    }

    /// Removes the bridge if it belongs to the network and is not used, and the lock if there is no bridge then. The
    /// caller has the lock alone.
    fn remove(&self, dir: &Dir, is_new: bool) -> Result<()> {
        let mut host = Netlink::open()?;
        if let Some(link) = self.find(&mut host)? {
            let Some(gateways) = self.gateways_of_unused(&mut host, &link, is_new)? else { return Ok(()) };
            for gateway in gateways {
                host.delete_link(gateway)?;
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
        match self.bridge.find(&mut host)?.filter(|link| link.kind == "bridge" && link.alias.is_empty()) {
            Some(link) => Ok(host.apply(&[Change::set_link(link.index, &change)])?),
            None => Ok(()),
        }
    }

    /// Removes the bridge after the container could not be attached, if no other one uses it.
    pub(crate) fn abandon(self) -> Result<()> {
        if self.is_new {
            return self.bridge.remove(&self.dir, true);
        }
        // The last container may have gone meanwhile.
        drop(self.lock);
        self.bridge.remove_if_unused()
    }
}
