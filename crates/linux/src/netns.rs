//! Network namespaces: opening, comparing, and running code inside one.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::error::{Context, Error, Kind, Result, tolerate};
use crate::sys;
use crate::wait::Deadline;

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    /// Opens the namespace at `path`; [`Kind::Namespace`] if there is none.
    pub fn open(path: &Path) -> Result<Netns> {
        let missing = || Error::new(Kind::Namespace, format!("there is no network namespace at {path:?}"));
        Netns::open_if_exists(path)?.ok_or_else(missing)
    }

    /// Opens the namespace at `path`; `None` if the path does not exist or is not a network namespace (any more), such
    /// as the empty file that remains when a bind mount of `ip netns` is unmounted.
    pub fn open_if_exists(path: &Path) -> Result<Option<Netns>> {
        // Without O_NONBLOCK, opening a FIFO would block forever.
        let file = match sys::open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => file,
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => return Ok(None),
            Err(errno) => {
                return Err(with_namespace_kind(errno.into()))
                    .context(|| format!("open the network namespace {path:?}"));
            }
        };
        let is_one = sys::is_network_namespace(file.as_fd()).map_err(with_namespace_kind);
        let is_one = is_one.context(|| format!("examine the network namespace {path:?}"))?;
        Ok(is_one.then(|| Netns { file, path: path.to_owned() }))
    }

    /// Opens the namespace at `path` for a command that removes; `None` if it is gone or cannot be opened, so that
    /// nothing can be removed in it. Only a lack of resources is an error: the next attempt may succeed.
    pub fn open_to_clean_up(path: &Path) -> Result<Option<Netns>> {
        tolerate("the namespace counts as gone", Netns::open_if_exists(path))
    }

    /// Creates a namespace and mounts it at `path`, where it stays until it is unmounted, as `ip netns add` does.
    pub fn create(path: &Path) -> Result<Netns> {
        let what = || format!("create the network namespace {path:?}");
        fs::write(path, "").context(what)?;
        let none: Option<&str> = None;
        let mount_new = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some(OWN), path, none, MsFlags::MS_BIND, none)
        };
        // Threads share the mount namespace but each has its own network namespace, so the calling thread stays in its
        // own.
        let made = thread::scope(|scope| scope.spawn(mount_new).join());
        let made = made.map_err(|_| Error::bug("a thread panicked"));
        made.and_then(|made| made.map_err(|errno| with_namespace_kind(errno.into()))).context(what)?;
        Netns::open(path)
    }

    /// Removes what [`create`](Netns::create) has made at `path`. Succeeds if there is nothing. The namespace exists on
    /// while something uses it.
    pub fn remove(path: &Path) -> Result<()> {
        let what = || format!("remove the network namespace {path:?}");
        match umount2(path, MntFlags::MNT_DETACH) {
            // Nothing is mounted there, or there is no such file.
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
            Err(errno) => return Err(io::Error::from(errno)).context(what),
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome.context(what),
        }
    }

    /// Returns the namespace of the calling thread.
    pub fn current() -> Result<Netns> {
        let route = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route);
        Netns::of_socket(socket.ok().as_ref().map(AsFd::as_fd))
    }

    /// Returns the namespace of `socket`, which must be that of the calling thread. Uses the socket if permitted,
    /// because opening a path in /proc takes ten times as long: the kernel creates a directory for this process then.
    pub(crate) fn of_socket(socket: Option<BorrowedFd<'_>>) -> Result<Netns> {
        let path = PathBuf::from(OWN);
        if let Some(Ok(file)) = socket.map(sys::namespace_of) {
            return Ok(Netns { file, path });
        }
        let file = sys::open(&path, OFlag::O_RDONLY).map_err(|errno| with_namespace_kind(errno.into()));
        let file = file.context(|| format!("open this process's own network namespace {OWN:?}"))?;
        Ok(Netns { file, path })
    }

    /// Returns whether both are the same namespace, even if the paths differ.
    pub fn same_as(&self, other: &Netns) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// Returns whether `file` is this namespace.
    pub fn is(&self, file: &Metadata) -> Result<bool> {
        Ok((file.dev(), file.ino()) == self.identity()?)
    }

    fn identity(&self) -> Result<(u64, u64)> {
        let file = self.file.metadata().context(|| format!("examine the network namespace {:?}", self.path))?;
        Ok((file.dev(), file.ino()))
    }

    /// Returns the inode number. The kernel reuses it once the namespace is gone.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.identity()?.1)
    }

    /// Waits until no other process holds the lock of the namespace, by whatever path it was opened; `false` at the
    /// deadline. The lock is released when this value is dropped. Uses SIGALRM, so the caller must run on the main
    /// thread.
    pub fn lock(&self, deadline: Deadline) -> Result<bool> {
        let locked = match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => {
                deadline.run_interruptible(|| self.file.lock()).map(|locked| locked.is_some())
            }
            Err(TryLockError::Error(error)) => Err(error),
        };
        locked.context(|| format!("lock the network namespace {:?}", self.path))
    }

    /// Returns the path at which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor for a netlink message.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` with this thread inside the namespace, then returns to `home`.
    ///
    /// Sockets stay in the namespace in which they were opened, so `work` usually only opens one.
    pub fn run<T, E: From<Error>>(&self, home: &Netns, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.enter()?;
        let outcome = work();
        home.enter().context(|| "return to the former network namespace")?;
        outcome
    }

    /// Runs `work` with this thread inside a new namespace, then returns to `home`. The kernel removes the namespace
    /// when the sockets that `work` has opened are closed.
    pub fn run_in_new<T, E: From<Error>>(home: &Netns, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let made = unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| with_namespace_kind(errno.into()));
        made.context(|| "create a network namespace")?;
        let outcome = work();
        home.enter().context(|| "return to the former network namespace")?;
        outcome
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that changes the namespace")]
    fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| with_namespace_kind(errno.into()))
            .context(|| format!("enter the network namespace {:?}", self.path))
    }
}

/// Sets the kind unless the error is about this process or the machine.
fn with_namespace_kind(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => error.into(),
        Some(libc::EPERM | libc::EACCES) => {
            Error::from(error).with_kind(Kind::Namespace).details("that needs CAP_SYS_ADMIN: run it as root")
        }
        _ => Error::from(error).with_kind(Kind::Namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_recognised() {
        let own = Netns::current().unwrap();
        assert!(own.is(&fs::metadata("/proc/self/ns/net").unwrap()).unwrap());
        assert!(!own.is(&fs::metadata("/proc/self/ns/mnt").unwrap()).unwrap());
    }

    #[test]
    fn namespaces_are_compared_by_identity() {
        let own = Netns::current().unwrap();
        assert!(own.same_as(&Netns::open(Path::new("/proc/self/ns/net")).unwrap()).unwrap());
    }

    #[test]
    fn other_files_are_not_network_namespaces() {
        for path in ["/nowhere", "/proc/self/ns/mnt", "/dev/null", "/etc", "/etc/hostname/x"] {
            assert!(Netns::open_if_exists(Path::new(path)).unwrap().is_none(), "{path}");
            let error = Netns::open(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), Kind::Namespace);
            assert!(error.to_string().contains(path), "{error}");
        }
        assert!(Netns::open(Path::new("/proc/self/ns/net")).is_ok());
    }
}
