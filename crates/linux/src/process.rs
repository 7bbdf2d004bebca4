//! This process: its entry point, its environment, its standard streams, its memory, and how it recognises the programs
//! of its set.

pub(crate) mod elf;
pub mod set;

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nix::poll::PollFlags;

use crate::error::{Context, Result};
use crate::sys;
use crate::wait::ready;

pub use crate::sys::arena::Arena;
pub use crate::sys::{Arguments, start};

/// Returns a variable of the environment.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// A permission that a process of root has, and can give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_BIND_SERVICE
    NetBindService = 10,
    /// CAP_NET_ADMIN
    NetAdmin = 12,
    /// CAP_NET_RAW
    NetRaw = 13,
    /// CAP_SYS_PTRACE
    SysPtrace = 19,
    /// CAP_SYS_ADMIN
    SysAdmin = 21,
}

/// Gives up all capabilities but these, and those that programs could gain.
pub fn keep_capabilities(these: &[Capability]) -> Result<()> {
    let bits = these.iter().fold(0, |bits, capability| bits | 1 << *capability as u32);
    sys::limit_capabilities(bits).context(|| "give up capabilities")
}

/// Allows this process as many open files as its hard limit permits.
pub fn raise_file_limit() -> Result<()> {
    sys::raise_file_limit().context(|| "raise the limit of open files")
}

/// Makes this process, which must be a child that leads no process group, independent of the terminal of its parent.
pub fn start_session() -> Result<()> {
    nix::unistd::setsid().context(|| "start a session").map(drop)
}

/// Returns the width of the terminal at stdout in columns; `None` if stdout is not a terminal that knows its width.
pub fn terminal_width() -> Option<usize> {
    sys::terminal_width(io::stdout().as_fd()).map(usize::from)
}

/// Reads stdin as data arrives, without a buffer: std's would touch two more pages.
#[derive(Clone, Copy, Debug)]
pub struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match nix::unistd::read(sys::stdin(), buffer) {
                // The caller made stdin non-blocking.
                Err(nix::Error::EAGAIN) => ready(sys::stdin(), PollFlags::POLLIN)?,
                outcome => return Ok(outcome?),
            }
        }
    }
}

/// Writes an answer to stdout in one piece. std's stdout would split it at the last newline.
pub fn answer(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(sys::stdout(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EAGAIN) => ready(sys::stdout(), PollFlags::POLLOUT)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    sys::ANSWERED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Returns whether [`answer`] has succeeded.
pub fn has_answered() -> bool {
    sys::ANSWERED.load(Ordering::Relaxed)
}

/// Makes an aborting process, for example one without memory, print `answer` to stdout and exit with 1, unless it has
/// answered already.
pub fn answer_aborts(answer: &'static [u8]) -> io::Result<()> {
    Ok(sys::answer_aborts(answer)?)
}
