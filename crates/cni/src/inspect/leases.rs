//! Read-only access to leases, for tools. Takes no lock, writes no index, and needs only the permission to read the
//! files.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use linux::dir::Dir;

use super::{Command, CommandLine, shell_word};
use crate::error::{Context, Result};
use crate::keep::Keep;
use crate::key::AttachmentKey;
use crate::lease::{self, EarlierLeases, Holder, LeaseOwner, Store};
use crate::plugin::Call;

/// The leases of an IPAM plugin. All lease directories have the same format.
pub trait LeaseStore: Sync {
    /// Returns the lease directory of a network, even if the rest of its configuration is invalid. Returns `None` if
    /// the plugin keeps no leases for the network.
    fn lease_dir(&self, call: &Call<'_>) -> Result<Option<PathBuf>>;
    /// Returns the lease directories of all networks without a `dataDir` of their own. Each is named after its network.
    /// Only one plugin lists them.
    fn default_lease_dirs(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Returns the leases in a directory, ordered by address. Returns `None` if the directory does not exist.
    fn leases(&self, directory: &Path) -> Result<Option<Vec<Lease>>> {
        read_leases(directory)
    }
    /// Returns the addresses whose leases are from an earlier boot, so that their containers are gone: those in the
    /// record, or if there is none, those that the next call would record.
    fn leases_of_earlier_boots(&self, directory: &Path) -> Result<Vec<IpAddr>> {
        let Some(dir) = open(directory)? else { return Ok(Vec::new()) };
        let earlier = match EarlierLeases::read(&dir)? {
            Some(earlier) => earlier,
            None => EarlierLeases::scan(&dir)?,
        };
        earlier.present(&dir)
    }
    /// Fails if an ADD could not write a lease. Leaves no file behind.
    fn check_writable(&self, directory: &Path) -> Result<()> {
        lease::writable(&lease::nearest(directory)?)
    }
    /// Returns the process that holds the lock of a directory, if one does and is visible from here.
    fn lock_holder(&self, directory: &Path) -> Option<LockHolder> {
        lease::lock_holder(directory)
    }
    /// Returns the command that writes the missing lease of an attachment, unless the address is leased. It writes the
    /// lease as ADD does: under the lock, and only if the file does not exist.
    fn restore_command(&self, directory: &Path, ip: IpAddr, container: &str, ifname: &str) -> CommandLine {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let script = format!(
            "set -C; printf '%s\\r\\n%s' {} {} >{}",
            shell_word(container),
            shell_word(ifname),
            shell_word(&text(&directory.join(ip.to_string())))
        );
        Command::RestoreLease.line(&[&text(directory), &text(&directory.join(lease::LOCK)), &script])
    }
}

/// A process that holds the lock of a lease directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The lock file.
    pub file: PathBuf,
    /// The id of the process.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
}

impl fmt::Debug for dyn LeaseStore + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseStore")
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// Its owner.
    pub owner: LeaseHolder,
    /// The time of the last change.
    pub since: SystemTime,
    /// What a server has granted; `None` for an address that this host manages itself.
    pub grant: Option<Grant>,
}

/// What a server has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The server.
    pub server: IpAddr,
    /// How long the lease is still valid, zero after its end; `None` if it does not end.
    pub left: Option<Duration>,
}

impl Grant {
    /// Returns whether the time of the lease is over.
    pub fn has_ended(&self) -> bool {
        self.left == Some(Duration::ZERO)
    }
}

/// The owner of an address according to its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseHolder {
    /// A container, and its interface unless the record is an old one.
    Container(String, Option<String>),
    /// No owner: the file is empty or garbled, and the next ADD that needs the address takes it.
    Garbled,
    /// The entry cannot be read, or is not a regular file.
    Unknown,
}

/// Removes the leases in a lease directory whose attachments are not in `keep`.
pub fn collect_leases(directory: &Path, keep: &Keep<'_>) -> Result<()> {
    let is_stale = |lease: &lease::LeaseFile| match &lease.holder {
        _ if !keep.may_be_stale(lease.ip, lease.since) => false,
        Holder::Owner(LeaseOwner { container, ifname: Some(ifname) }) => {
            keep.is_stale(AttachmentKey { network: keep.network, container, ifname })
        }
        // An old record names only the container.
        Holder::Owner(LeaseOwner { container, ifname: None }) => !keep.has_container(container),
        Holder::Garbled => true,
        Holder::Unknown => false,
    };
    let removed = Store::open(directory).and_then(|store| match store {
        Some(mut store) => store.remove_if(is_stale).map(drop),
        None => Ok(()),
    });
    removed.map_err(|error| lease::with_hint(error, directory))
}

fn read_leases(directory: &Path) -> Result<Option<Vec<Lease>>> {
    let Some(dir) = open(directory)? else { return Ok(None) };
    let what = || format!("read the directory {directory:?}");
    let mut leases = Vec::new();
    for name in dir.names().context(what)? {
        let name = name.context(what)?;
        let Some(ip) = lease::address(&name) else { continue };
        let (owner, since) = match lease::read(&dir, &name, true) {
            Ok(None) => continue,
            Ok(Some((Holder::Owner(owner), since))) => (LeaseHolder::Container(owner.container, owner.ifname), since),
            Ok(Some((Holder::Garbled, since))) => (LeaseHolder::Garbled, since),
            Ok(Some((Holder::Unknown, since))) => (LeaseHolder::Unknown, since),
            // The name of the file is enough for a user without permission to read it.
            Err(error) if error.errno() == Some(libc::EACCES) => (LeaseHolder::Unknown, SystemTime::now()),
            Err(error) => return Err(error),
        };
        leases.push(Lease { ip, owner, since, grant: None });
    }
    leases.sort_by_key(|lease| lease.ip);
    Ok(Some(leases))
}

fn open(directory: &Path) -> Result<Option<Dir>> {
    Dir::open(directory).context(|| format!("open the directory {directory:?}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it opens no file in a directory")]
    fn leases_are_listed_among_other_entries() {
        let dir = std::env::temp_dir().join(format!("cni-leases-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let put = |name: &str, content: &str| fs::write(dir.join(name), content).unwrap();
        put("10.1.0.10", "c1\r\neth0");
        put("10.1.0.9", "c2");
        put("10.1.0.11", "");
        put("lock", "");
        put("last_reserved_ip.0", "10.1.0.10");
        fs::create_dir(dir.join("10.1.0.12")).unwrap();
        let found = read_leases(&dir).unwrap().unwrap();
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
        assert_eq!(read_leases(&dir).unwrap(), None);
    }
}
