//! A detached child process for work that may continue after this process has answered and exited.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use log::LevelFilter;
use nix::fcntl::OFlag;
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout};

use crate::sys;

/// linux/proc_ns.h: the inode number of the initial PID namespace.
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;
/// Init processes of other PID namespaces that are known to reap orphans.
const INITS: [&str; 6] = ["systemd", "init", "tini", "docker-init", "dumb-init", "catatonit"];

/// A detached child process. Its work continues even if this process exits first.
#[derive(Debug)]
pub struct DetachedChild {
    pid: u32,
    end: OwnedFd,
}

impl DetachedChild {
    /// Runs `work` in a child process. The child has no open descriptors except `keep_open`, so that no reader waits
    /// for it to close a pipe. Its stdin, stdout and stderr are `/dev/null`.
    ///
    /// Fails without side effects if this process has several threads, or if no init process would reap the child as an
    /// orphan. If only the pidfd cannot be opened, the call fails although the child is running.
    pub fn start(keep_open: Option<BorrowedFd<'_>>, work: impl FnOnce()) -> io::Result<DetachedChild> {
        if !init_reaps_orphans() {
            return Err(io::Error::other("no init process would reap the child"));
        }
        match sys::fork()? {
            Some(pid) => Ok(DetachedChild { pid, end: sys::pidfd(pid)? }),
            None => {
                let alone = detach(keep_open);
                if alone.is_ok() {
                    log::set_max_level(LevelFilter::Off);
                    work();
                }
                sys::exit_now(alone.is_err().into())
            }
        }
    }
}

impl AsFd for DetachedChild {
    /// Returns a descriptor that becomes readable when the child exits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Drop for DetachedChild {
    fn drop(&mut self) {
        sys::reap(self.pid);
    }
}

/// Returns whether a process whose parent has exited will be reaped. The init process of the machine does it. The init
/// process of a container can be any program, such as a runtime that only waits for its own children. An ancestor that
/// became a subreaper (PR_SET_CHILD_SUBREAPER) is trusted to reap orphans.
fn init_reaps_orphans() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == INITIAL_PID_NAMESPACE)
        || fs::read_to_string("/proc/1/comm").is_ok_and(|name| INITS.contains(&name.trim_end()))
}

/// Detaches this process, which must exit next, from its parent: working directory, standard streams and descriptors.
fn detach(keep_open: Option<BorrowedFd<'_>>) -> io::Result<()> {
    chdir("/")?;
    let nowhere = sys::open(Path::new("/dev/null"), OFlag::O_RDWR)?;
    dup2_stdin(&nowhere)?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    std::mem::forget(nowhere);
    let Some(kept) = keep_open.map(|fd| fd.as_raw_fd().cast_unsigned()) else { return sys::close_range(3, u32::MAX) };
    // Standard streams are never kept open: they have just been replaced by `/dev/null`.
    if kept > 3 {
        sys::close_range(3, kept - 1)?;
    }
    sys::close_range(kept.max(2) + 1, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "miri cannot fork")]
    fn a_process_with_several_threads_has_no_child() {
        // Every test process has several threads; this makes sure.
        std::thread::scope(|scope| {
            let (waits, ends) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || ends.recv());
            assert_eq!(sys::fork().unwrap_err().raw_os_error(), Some(libc::EINVAL));
            drop(waits);
        });
    }
}
