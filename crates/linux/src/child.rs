//! A child process with input, output and a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::error::{Error, Kind, Result};
use crate::sys;
use crate::wait::Deadline;

/// Maximum time to wait while a file cannot be executed because it is open for writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Polling interval where the kernel sends no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Output limit, larger than the output of any real program.
const MAX_OUTPUT: usize = 16 << 20;

/// Starts the program. If its file is still open for writing, waits until it is closed or replaced.
pub fn start(process: &mut Command, path: &Path) -> Result<Child> {
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let is_busy = |outcome: &io::Result<Child>| matches!(outcome, Err(e) if e.kind() == ErrorKind::ExecutableFileBusy);
    let mut outcome = process.spawn();
    if is_busy(&outcome) {
        let deadline = Deadline::after(BUSY_TIMEOUT);
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // Without permission to watch the file, the polling interval below still works.
        let _ = watch.add_watch(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB);
        while is_busy(&outcome) && !deadline.has_passed() {
            // The kernel reports the last close just before the file becomes executable, and reports nothing if another
            // file was renamed over this one. So wait for a short interval at most.
            deadline.within(POLL_INTERVAL).readable(watch.as_fd())?;
            let _ = watch.read_events();
            outcome = process.spawn();
        }
        if is_busy(&outcome) {
            let error = Error::from(io::Error::from_raw_os_error(libc::ETXTBSY)).with_kind(Kind::Transient);
            return Err(error.details(format!("the file was still open for writing after {BUSY_TIMEOUT:?}")));
        }
    }
    Ok(outcome?)
}

/// Something that shortens the deadline of a child when it becomes readable, such as the signals that end this process.
#[derive(Clone, Copy, Debug)]
pub struct Interruption<'a> {
    /// What becomes readable, and stays so.
    pub fd: BorrowedFd<'a>,
    /// How long the child may run from then on.
    pub grace: Duration,
}

/// Writes input to a child and reads its output at the same time, so that neither blocks the other, until it exits. The
/// stderr output is returned even on failure.
pub fn run_to_end(child: Child, input: &[u8], deadline: Deadline) -> (Vec<u8>, Result<(ExitStatus, Vec<u8>)>) {
    run_interruptibly(child, input, deadline, None)
}

/// Like [`run_to_end`], with less time after an interruption.
pub fn run_interruptibly(
    mut child: Child,
    input: &[u8],
    deadline: Deadline,
    interruption: Option<Interruption<'_>>,
) -> (Vec<u8>, Result<(ExitStatus, Vec<u8>)>) {
    let mut stdout = OutputReader::new(child.stdout.take());
    let mut stderr = OutputReader::new(child.stderr.take());
    let outcome = exchange(&mut child, input, &mut stdout, &mut stderr, deadline, interruption);
    if outcome.is_err() {
        // The child may have exited meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().map_err(Error::from);
    // Output just before the exit.
    let _ = stderr.read();
    let outcome = outcome.and(status).and_then(|status| match stdout.truncated {
        false => Ok((status, stdout.bytes)),
        true => Err(Error::new(Kind::Output, format!("the output exceeds {} MiB", MAX_OUTPUT >> 20))),
    });
    (stderr.bytes, outcome)
}

fn exchange(
    child: &mut Child,
    mut input: &[u8],
    stdout: &mut OutputReader<ChildStdout>,
    stderr: &mut OutputReader<ChildStderr>,
    mut deadline: Deadline,
    mut interruption: Option<Interruption<'_>>,
) -> Result<()> {
    let mut stdin = child.stdin.take();
    for fd in [stdin.as_ref().map(AsFd::as_fd), stdout.fd(), stderr.fd()].into_iter().flatten() {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    // A grandchild may keep the pipes open forever. So where pidfd is available, the exit of the child ends the loop.
    let end = sys::pidfd(child.id()).ok();
    loop {
        if let Some(pipe) = &mut stdin {
            match pipe.write(input) {
                Ok(n) => input = input.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The child may exit or close stdin without reading all input.
                Err(_) => input = &[],
            }
            if input.is_empty() {
                stdin = None;
            }
        }
        stdout.read()?;
        stderr.read()?;
        if end.is_none() && stdout.fd().is_none() && stderr.fd().is_none() && child.try_wait()?.is_some() {
            return Ok(());
        }
        let wanted = [
            (end.as_ref().map(AsFd::as_fd), PollFlags::POLLIN),
            (stdout.fd(), PollFlags::POLLIN),
            (stderr.fd(), PollFlags::POLLIN),
            (stdin.as_ref().map(AsFd::as_fd), PollFlags::POLLOUT),
            (interruption.map(|interruption| interruption.fd), PollFlags::POLLIN),
        ];
        let mut fds: Vec<PollFd<'_>> =
            wanted.iter().filter_map(|(fd, flags)| Some(PollFd::new((*fd)?, *flags))).collect();
        // Without pidfd (before Linux 5.3), no event reports the exit of a child that has closed its pipes.
        let wait =
            if fds.len() == usize::from(interruption.is_some()) { deadline.within(POLL_INTERVAL) } else { deadline };
        wait.poll(&mut fds)?;
        let ended = end.is_some() && fds.first().is_some_and(|fd| fd.any().unwrap_or(true));
        let interrupted = interruption.is_some() && fds.last().and_then(PollFd::any).unwrap_or(false);
        drop(fds);
        if ended {
            stdout.read()?;
            return stderr.read();
        }
        if interrupted && let Some(Interruption { grace, .. }) = interruption.take() {
            deadline = deadline.within(grace);
        }
        // If the child prints without pause, the poll above always returns early; so the deadline is checked here as
        // well.
        if deadline.has_passed() {
            let what = format!("it did not exit within {:?}", deadline.length());
            return Err(Error::new(Kind::Transient, what).details("it was killed"));
        }
    }
}

/// The output of a child from one pipe, as read so far.
struct OutputReader<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
    /// Whether the child printed more than `MAX_OUTPUT`; the rest is discarded.
    truncated: bool,
}

impl<R: Read + AsFd> OutputReader<R> {
    fn new(pipe: Option<R>) -> OutputReader<R> {
        OutputReader { pipe, bytes: Vec::new(), truncated: false }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads the available output, but at most `MAX_OUTPUT` at a time, so that endless output does not block the
    /// caller.
    fn read(&mut self) -> Result<()> {
        let mut piece = [0; 8 << 10];
        for _ in 0..=MAX_OUTPUT / piece.len() {
            let Some(pipe) = &mut self.pipe else { break };
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = MAX_OUTPUT - self.bytes.len();
                    self.truncated |= n > room;
                    self.bytes.extend_from_slice(piece.get(..n.min(room)).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(240);

    fn shell(script: &str) -> Child {
        let mut process = Command::new("sh");
        process.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        process.spawn().unwrap()
    }

    #[test]
    fn a_child_that_does_not_exit_is_killed_and_its_stderr_kept() {
        let child = shell("echo why >&2; exec sleep 1000");
        let pid = child.id();
        // The deadline below starts after the child has printed.
        assert!(Deadline::after(TIMEOUT).readable(child.stderr.as_ref().unwrap().as_fd()).unwrap());
        let (stderr, outcome) = run_to_end(child, b"", Deadline::after(Duration::from_millis(300)));
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), stderr.as_slice()), (Kind::Transient, &b"why\n"[..]));
        assert_eq!(error.to_string(), "it did not exit within 300ms");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "no zombie is left");
    }

    #[test]
    fn a_child_that_outlives_an_interruption_is_killed() {
        let (requests, mut request) = io::pipe().unwrap();
        let interruption = Interruption { fd: requests.as_fd(), grace: Duration::from_millis(300) };
        let run = |script: &str| {
            run_interruptibly(shell(script), b"", Deadline::after(TIMEOUT), Some(interruption)).1.map(|(_, out)| out)
        };
        assert_eq!(run("echo before").unwrap(), b"before\n");
        request.write_all(b"!").unwrap();
        assert_eq!(run("exec sleep 1000").unwrap_err().to_string(), "it did not exit within 300ms");
        // It has time to complete.
        let complete = Interruption { fd: requests.as_fd(), grace: TIMEOUT };
        let (_, outcome) = run_interruptibly(shell("echo after"), b"", Deadline::after(TIMEOUT), Some(complete));
        assert_eq!(outcome.unwrap().1, b"after\n");
    }

    #[test]
    fn a_child_that_prints_without_end_is_killed() {
        let (_, outcome) = run_to_end(shell("exec cat /dev/zero"), b"", Deadline::after(Duration::from_millis(300)));
        assert_eq!(outcome.unwrap_err().to_string(), "it did not exit within 300ms");
    }

    #[test]
    fn excess_output_is_discarded() {
        let flood = "head -c 17000000 /dev/zero";
        let (stderr, outcome) = run_to_end(shell(&format!("echo why >&2; {flood}")), b"", Deadline::after(TIMEOUT));
        assert!(outcome.unwrap_err().to_string().contains("16 MiB"));
        assert_eq!(stderr, b"why\n");
        let (stderr, outcome) = run_to_end(shell(&format!("echo fine; {flood} >&2")), b"", Deadline::after(TIMEOUT));
        assert_eq!(outcome.unwrap().1, b"fine\n", "too much output on stderr is not an error");
        assert_eq!(stderr.len(), MAX_OUTPUT);
    }
}
