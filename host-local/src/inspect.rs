//! For tools: read-only access to the ranges of a network and to the leases in its lease directory. Takes no lock, writes no
//! index, and needs only the permission to read the files.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni::inspect::{
    Command, CommandLine, Inspect, Lease, LeaseHolder, LeaseStore, LockHolder, Range, Settings, Shape, shell_word,
};
use cni::lease::{self, DATA_DIR, Holder, LeaseOwner};
use cni::{AttachmentKey, Call, Context, Keep, Result};
use linux::ip::Cidr;
use serde::Deserialize;

use crate::HostLocal;
use crate::config::{self, Config};
use crate::earlier::EarlierLeases;
use crate::lock;
use crate::range;
use crate::status;
use crate::store::{self, Store};
use linux::dir::Dir;

impl Inspect for HostLocal {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        let sets = match Config::read(call) {
            Ok(config) => config.sets,
            Err(_) if gets_ranges_from_runtime(call) => Vec::new(),
            Err(error) => return Err(error),
        };
        let ranges = sets.iter().map(|set| set.ranges().iter().map(describe).collect()).collect();
        Ok(Settings { ranges, ..Settings::default() })
    }

    fn lease_store(&self) -> Option<&dyn LeaseStore> {
        Some(self)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        let dir = config::directory(call)?;
        let is_stale = |lease: &store::Lease| match &lease.holder {
            _ if !keep.may_be_stale(lease.ip, lease.since) => false,
            Holder::Owner(LeaseOwner { container, ifname: Some(ifname) }) => {
                keep.is_stale(AttachmentKey { network: keep.network, container, ifname })
            }
            // An old record names only the container.
            Holder::Owner(LeaseOwner { container, ifname: None }) => !keep.has_container(container),
            Holder::Garbled => true,
            Holder::Unknown => false,
        };
        let removed = Store::open(&dir).and_then(|store| match store {
            Some(mut store) => store.remove_if(is_stale).map(drop),
            None => Ok(()),
        });
        removed.map_err(|error| store::with_hint(error, &dir))
    }
}

/// Returns whether the runtime passes the ranges with each call, so that the configuration may lack them.
fn gets_ranges_from_runtime(call: &Call<'_>) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Network {
        capabilities: Capabilities,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Capabilities {
        ip_ranges: bool,
    }
    call.parse().is_ok_and(|network: Network| network.capabilities.ip_ranges)
}

fn describe(range: &range::Range) -> Range {
    let (first, last) = range.bounds();
    Range {
        subnet: range.subnet(),
        first,
        last,
        gateway: range.gateway(),
        size: range.size(),
        is_whole: range.is_whole(),
    }
}

impl LeaseStore for HostLocal {
    fn lease_dir(&self, call: &Call<'_>) -> Result<PathBuf> {
        config::directory(call)
    }

    fn default_lease_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(DATA_DIR).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    fn leases(&self, directory: &Path) -> Result<Option<Vec<Lease>>> {
        let Some(dir) = open(directory)? else { return Ok(None) };
        let what = || format!("read the directory {directory:?}");
        let mut leases = Vec::new();
        for name in dir.names().context(what)? {
            let name = name.context(what)?;
            let Some(ip) = lease::address(&name) else { continue };
            let (owner, since) = match lease::read(&dir, &name, true) {
                Ok(None) => continue,
                Ok(Some((Holder::Owner(owner), since))) => {
                    (LeaseHolder::Container(owner.container, owner.ifname), since)
                }
                Ok(Some((Holder::Garbled, since))) => (LeaseHolder::Garbled, since),
                Ok(Some((Holder::Unknown, since))) => (LeaseHolder::Unknown, since),
                // The name of the file is enough for a user without permission to read it.
                Err(error) if error.errno() == Some(libc::EACCES) => (LeaseHolder::Unknown, SystemTime::now()),
                Err(error) => return Err(error),
            };
            leases.push(Lease { ip, owner, since });
        }
        leases.sort_by_key(|lease| lease.ip);
        Ok(Some(leases))
    }

    /// Returns the addresses in the record, or if there is none, those that the next call would record.
    fn leases_of_earlier_boots(&self, directory: &Path) -> Result<Vec<IpAddr>> {
        let Some(dir) = open(directory)? else { return Ok(Vec::new()) };
        let earlier = match EarlierLeases::read(&dir)? {
            Some(earlier) => earlier,
            None => EarlierLeases::scan(&dir)?,
        };
        earlier.present(&dir)
    }

    fn check_writable(&self, directory: &Path) -> Result<()> {
        status::writable(&status::nearest(directory)?)
    }

    fn lock_holder(&self, directory: &Path) -> Option<LockHolder> {
        lock::holder_in(directory)
    }

    /// Writes the lease as ADD does: under the lock, and only if the file does not exist.
    fn restore_command(&self, directory: &Path, ip: IpAddr, container: &str, ifname: &str) -> CommandLine {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let script = format!(
            "set -C; printf '%s\\r\\n%s' {} {} >{}",
            shell_word(container),
            shell_word(ifname),
            shell_word(&text(&directory.join(ip.to_string())))
        );
        Command::RestoreLease.line(&[&text(directory), &text(&directory.join(lock::NAME)), &script])
    }
}

fn open(directory: &Path) -> Result<Option<Dir>> {
    Dir::open(directory).context(|| format!("open the directory {directory:?}"))
}

/// Returns whether any network in `data_dir` has a lease file for an address of `subnet`, even an empty or garbled one.
pub(crate) fn has_lease_in(data_dir: &Path, subnet: Cidr) -> Result<bool> {
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
            if lease::address(&name.context(what)?).is_some_and(|ip| subnet.contains(ip)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it opens no file in a directory")]
    fn leases_are_listed_among_other_entries() {
        let dir = std::env::temp_dir().join(format!("host-local-inspect-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let put = |name: &str, content: &str| fs::write(dir.join(name), content).unwrap();
        put("10.1.0.10", "c1\r\neth0");
        put("10.1.0.9", "c2");
        put("10.1.0.11", "");
        put("lock", "");
        put("last_reserved_ip.0", "10.1.0.10");
        fs::create_dir(dir.join("10.1.0.12")).unwrap();
        let found = HostLocal.leases(&dir).unwrap().unwrap();
        let found: Vec<_> = found.into_iter().map(|lease| (lease.ip.to_string(), lease.owner)).collect();
        assert_eq!(
            found,
            [
                ("10.1.0.9".to_owned(), LeaseHolder::Container("c2".to_owned(), None)),
                ("10.1.0.10".to_owned(), LeaseHolder::Container("c1".to_owned(), Some("eth0".to_owned()))),
                ("10.1.0.11".to_owned(), LeaseHolder::Garbled),
                ("10.1.0.12".to_owned(), LeaseHolder::Unknown),
            ]
        );
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 6, "no file was added");
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(HostLocal.leases(&dir).unwrap(), None);
    }
}
