//! Work that may outlive the answer: in a child, of which nobody notices anything.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use log::LevelFilter;
use nix::fcntl::OFlag;
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout};

use crate::sys;

/// linux/proc_ns.h: the number of the PID namespace in which the machine was started.
const FIRST_NAMESPACE: u64 = 0xefff_fffc;
/// First processes of other PID namespaces that are known to bury strangers.
const INITS: [&str; 6] = ["systemd", "init", "tini", "docker-init", "dumb-init", "catatonit"];

/// A child that does something, whether this process still lives or not.
#[derive(Debug)]
pub struct Aside {
    pid: u32,
    end: OwnedFd,
}

impl Aside {
    /// Runs `work` in a child: with nothing open but `hold`, so that nobody waits for a pipe to be closed, and with streams
    /// that lead nowhere.
    ///
    /// Fails, before anything is done, in a process with several threads, and where nobody would bury an orphan; and, with
    /// the child at work, where it cannot be waited for.
    pub fn start(hold: Option<BorrowedFd<'_>>, work: impl FnOnce()) -> io::Result<Aside> {
        if !orphans_are_buried() {
            return Err(io::Error::other("nobody would bury the child"));
        }
        match sys::fork()? {
            Some(pid) => Ok(Aside { pid, end: sys::pidfd(pid)? }),
            None => {
                let alone = let_go(hold);
                if alone.is_ok() {
                    log::set_max_level(LevelFilter::Off);
                    work();
                }
                sys::end(alone.is_err().into())
            }
        }
    }
}

impl AsFd for Aside {
    /// Becomes readable when the child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        sys::bury(self.pid);
    }
}

/// Does somebody bury a process whose parent has ended? The first process of the machine does. That of a container may
/// be anything, for instance a runtime that knows of no children but its own. An ancestor that has asked for orphans
/// (PR_SET_CHILD_SUBREAPER) is trusted to bury them.
fn orphans_are_buried() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_NAMESPACE)
        || fs::read_to_string("/proc/1/comm").is_ok_and(|name| INITS.contains(&name.trim_end()))
}

/// Makes this process, which nobody may use but to end it, independent of whoever started it.
fn let_go(hold: Option<BorrowedFd<'_>>) -> io::Result<()> {
    chdir("/")?;
    let nowhere = sys::open(Path::new("/dev/null"), OFlag::O_RDWR)?;
    dup2_stdin(&nowhere)?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    std::mem::forget(nowhere);
    let Some(held) = hold.map(|fd| fd.as_raw_fd().cast_unsigned()) else { return sys::close_range(3, u32::MAX) };
    // Streams are not for holding: they are gone now.
    if held > 3 {
        sys::close_range(3, held - 1)?;
    }
    sys::close_range(held.max(2) + 1, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it has no children")]
    fn a_process_with_several_threads_has_no_child() {
        // As every test has.
        std::thread::scope(|scope| {
            let (waits, ends) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || ends.recv());
            assert_eq!(sys::fork().unwrap_err().raw_os_error(), Some(libc::EINVAL));
            drop(waits);
        });
    }
}
