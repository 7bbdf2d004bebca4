//! `cnitool leases --watch`: prints leases as they are added and removed.
//!
//! inotify reports that something has changed; what has changed follows from a comparison of the leases before and
//! after. So nothing is missed if the kernel's queue overflows, or if a directory is replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni::inspect::{Lease, LeaseHolder, LeaseStore};
use cni::{Call, Code, Context, Error, Result, utc};
use cni0::PLUGINS;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::json;

use crate::node::Node;
use crate::{conf, out, table};

/// What happens to the files in a lease directory, and to the directory.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// A configuration without keys, whose leases are in the default directory.
const DEFAULTS: &str = r#"{"cniVersion": "1.0.0", "name": "default", "ipam": {}}"#;

/// The leases that are watched.
struct Watch {
    /// The network that was named on the command line.
    only: Option<String>,
    /// Lease directories in configurations, with their networks.
    configured: Vec<(String, &'static dyn LeaseStore, PathBuf)>,
    inotify: Inotify,
}

/// Each lease, by network, address, container and interface.
type Leases = BTreeSet<(String, IpAddr, Option<String>, Option<String>)>;

/// Prints changes of the leases of a network, or of all networks, until stdout is closed.
pub(crate) fn run(network: Option<&str>, as_json: bool) -> Result<()> {
    let node = Node::inspect()?;
    let chosen = node.chosen(network)?;
    conf::warn_of_broken(&node.broken);
    let configured = chosen.into_iter().filter_map(|one| {
        let (store, directory) = one.store.as_ref()?;
        Some((one.name.clone(), *store, directory.clone()))
    });
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
    let inotify = inotify.context(|| "watch the leases").map_err(|error| match error.errno() {
        Some(libc::EMFILE) => error.details("raise the sysctl fs.inotify.max_user_instances"),
        _ => error,
    })?;
    let watch = Watch { only: network.map(str::to_owned), configured: configured.collect(), inotify };
    let mut before = watch.leases()?;
    out::warn("watching the leases");
    while watch.wait()? {
        let now = watch.leases()?;
        for lease in before.difference(&now) {
            out::print(line("-", lease, as_json)?)?;
        }
        for lease in now.difference(&before) {
            out::print(line("+", lease, as_json)?)?;
        }
        before = now;
    }
    Ok(())
}

impl Watch {
    /// Waits for an event and takes all events from the queue. Returns false if the reader of stdout is gone.
    fn wait(&self) -> Result<bool> {
        let stdout = io::stdout();
        loop {
            let mut fds = [
                PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
                // Only reports that the reader is gone.
                PollFd::new(stdout.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                outcome => outcome.context(|| "wait for changes of the leases")?,
            };
            let [changed, closed] = fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
            if closed {
                return Ok(false);
            }
            if changed {
                break;
            }
        }
        loop {
            match self.inotify.read_events() {
                Err(Errno::EAGAIN) => return Ok(true),
                outcome => drop(outcome.context(|| "read the changes of the leases")?),
            }
        }
    }

    /// Watches all directories, then reads the leases. In this order, no change in between is missed.
    fn leases(&self) -> Result<Leases> {
        let mut directories: BTreeMap<PathBuf, (String, &'static dyn LeaseStore)> = BTreeMap::new();
        for store in PLUGINS.iter().filter_map(|plugin| plugin.lease_store()) {
            if let Some(directory) = store.lease_dir(&Call::for_config(DEFAULTS)?)? {
                self.watch(directory.parent().unwrap_or(&directory))?;
            }
            for directory in store.default_lease_dirs() {
                let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                directories.insert(directory, (name, store));
            }
        }
        for (name, store, directory) in &self.configured {
            directories.insert(directory.clone(), (name.clone(), *store));
        }
        let mut leases = Leases::new();
        for (directory, (network, store)) in directories {
            if self.only.as_ref().is_some_and(|only| *only != network) {
                continue;
            }
            self.watch(&directory)?;
            let found = store.leases(&directory)?.unwrap_or_default();
            leases.extend(found.into_iter().filter_map(|lease| owned(&network, lease)));
        }
        Ok(leases)
    }

    /// Watches a directory, or else the nearest existing directory above, in which it will appear.
    fn watch(&self, directory: &Path) -> Result<()> {
        // A directory that appears while the one above is added is noticed by the second attempt.
        for _ in 0..2 {
            for ancestor in directory.ancestors() {
                match self.inotify.add_watch(ancestor, EVENTS) {
                    Ok(_) if ancestor == directory => return Ok(()),
                    Ok(_) => break,
                    Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                    Err(errno) => {
                        let what = format!("watch the directory {}: {errno}", ancestor.display());
                        let error = Error::new(Code::INTERNAL, what);
                        return Err(match errno {
                            Errno::ENOSPC => error.details("raise the sysctl fs.inotify.max_user_watches"),
                            _ => error,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns a lease with its owner. A file without an owner is not a lease yet, or not any more.
fn owned(network: &str, lease: Lease) -> Option<(String, IpAddr, Option<String>, Option<String>)> {
    let (container, ifname) = match lease.owner {
        LeaseHolder::Container(container, ifname) => (Some(container), ifname),
        LeaseHolder::Unknown => (None, None),
        LeaseHolder::Garbled => return None,
    };
    Some((network.to_owned(), lease.ip, container, ifname))
}

fn line(
    change: &str,
    (network, ip, container, ifname): &(String, IpAddr, Option<String>, Option<String>),
    as_json: bool,
) -> Result<Vec<u8>> {
    let time = utc(SystemTime::now());
    if as_json {
        let object = json!({
            "time": time, "change": change, "network": network, "address": ip, "container": container,
            "interface": ifname,
        });
        return Ok([cni::json::compact(&object)?.as_slice(), b"\n"].concat());
    }
    let [container, ifname] = [container, ifname].map(|name| name.as_deref().unwrap_or("-"));
    Ok((table::sanitize(&format!("{time} {change} {network} {ip} {container} {ifname}")) + "\n").into_bytes())
}
