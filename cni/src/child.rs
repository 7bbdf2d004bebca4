//! A child process, its input and output, and a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::error::{Code, Error, Result};
use crate::sys;
use crate::wait::Deadline;

/// How long a file may be written to before it can be executed.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait where nothing tells the end.
const BUSY_SLICE: Duration = Duration::from_millis(20);
/// More than any plugin has to say.
const MAX_OUTPUT: usize = 16 << 20;

/// Starts the program. If somebody still writes to its file, waits until it was closed or replaced.
pub(crate) fn start(process: &mut Command, path: &Path) -> Result<Child> {
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let is_busy = |outcome: &io::Result<Child>| matches!(outcome, Err(e) if e.kind() == ErrorKind::ExecutableFileBusy);
    let mut outcome = process.spawn();
    if is_busy(&outcome) {
        let deadline = Deadline::after(BUSY_PATIENCE);
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // Without the right to watch there is the slice.
        let _ = watch.add_watch(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB);
        while is_busy(&outcome) && !deadline.is_over() {
            // The kernel tells of the last close just before it lets the file be executed, and nothing of a file that was
            // moved over this one: so a short slice is waited at most.
            deadline.within(BUSY_SLICE).readable(watch.as_fd())?;
            let _ = watch.read_events();
            outcome = process.spawn();
        }
        if is_busy(&outcome) {
            let error = Error::from(io::Error::from_raw_os_error(libc::ETXTBSY)).code_is(Code::TRY_LATER);
            return Err(error.details(format!("somebody was still writing to the file after {BUSY_PATIENCE:?}")));
        }
    }
    Ok(outcome?)
}

/// Feeds and reads a child at the same time, so that neither waits for the other, until it has ended. What it said on
/// stderr is there whatever became of the rest.
pub(crate) fn converse(mut child: Child, input: &[u8], deadline: Deadline) -> (Vec<u8>, Result<(ExitStatus, Vec<u8>)>) {
    let mut stdout = Reading::new(child.stdout.take());
    let mut stderr = Reading::new(child.stderr.take());
    let outcome = exchange(&mut child, input, &mut stdout, &mut stderr, deadline);
    if outcome.is_err() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().map_err(Error::from);
    // Its last words.
    let _ = stderr.read();
    let outcome = outcome.and(status).and_then(|status| match stdout.surplus {
        false => Ok((status, stdout.bytes)),
        true => Err(Error::new(Code::UNKNOWN, format!("it printed more than {} MiB", MAX_OUTPUT >> 20))),
    });
    (stderr.bytes, outcome)
}

fn exchange(
    child: &mut Child,
    mut input: &[u8],
    stdout: &mut Reading<ChildStdout>,
    stderr: &mut Reading<ChildStderr>,
    deadline: Deadline,
) -> Result<()> {
    let mut stdin = child.stdin.take();
    for fd in [stdin.as_ref().map(AsFd::as_fd), stdout.fd(), stderr.fd()].into_iter().flatten() {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    // A grandchild may keep the pipes open for ever, so the end of the child counts, where the kernel can tell it.
    let end = sys::pidfd(child.id()).ok();
    loop {
        if let Some(pipe) = &mut stdin {
            match pipe.write(input) {
                Ok(n) => input = input.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It need not read what it does not want.
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
        ];
        let mut fds: Vec<PollFd<'_>> =
            wanted.iter().filter_map(|(fd, flags)| Some(PollFd::new((*fd)?, *flags))).collect();
        // Without pidfd (before Linux 5.3) nothing tells of the end of a child that has closed its pipes.
        let wait = if fds.is_empty() { deadline.within(BUSY_SLICE) } else { deadline };
        wait.poll(&mut fds)?;
        let ended = end.is_some() && fds.first().is_some_and(|fd| fd.any().unwrap_or(true));
        drop(fds);
        if ended {
            stdout.read()?;
            return stderr.read();
        }
        // Whoever prints without end never lets it come to a wait.
        if deadline.is_over() {
            let what = format!("it had not ended after {:?}", deadline.length());
            return Err(Error::new(Code::TRY_LATER, what).details("it was killed"));
        }
    }
}

/// One output of a child, as far as it has been read.
struct Reading<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
    /// It said more than anybody wants to keep.
    surplus: bool,
}

impl<R: Read + AsFd> Reading<R> {
    fn new(pipe: Option<R>) -> Reading<R> {
        Reading { pipe, bytes: Vec::new(), surplus: false }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there, but no more at a time than is kept: there may always be more.
    fn read(&mut self) -> Result<()> {
        let mut piece = [0; 8 << 10];
        for _ in 0..=MAX_OUTPUT / piece.len() {
            let Some(pipe) = &mut self.pipe else { break };
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = MAX_OUTPUT - self.bytes.len();
                    self.surplus |= n > room;
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

    const PATIENCE: Duration = Duration::from_secs(240);

    fn shell(script: &str) -> Child {
        let mut process = Command::new("sh");
        process.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        process.spawn().unwrap()
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_and_heard() {
        let child = shell("echo why >&2; exec sleep 1000");
        let pid = child.id();
        // The deadline below begins when it has printed.
        assert!(Deadline::after(PATIENCE).readable(child.stderr.as_ref().unwrap().as_fd()).unwrap());
        let (stderr, outcome) = converse(child, b"", Deadline::after(Duration::from_millis(300)));
        let error = outcome.unwrap_err();
        assert_eq!((error.code(), stderr.as_slice()), (Code::TRY_LATER, &b"why\n"[..]));
        assert_eq!(error.to_string(), "it had not ended after 300ms");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "no zombie is left");
    }

    #[test]
    fn a_child_that_prints_without_end_is_killed_too() {
        let (_, outcome) = converse(shell("exec cat /dev/zero"), b"", Deadline::after(Duration::from_millis(300)));
        assert_eq!(outcome.unwrap_err().to_string(), "it had not ended after 300ms");
    }

    #[test]
    fn a_child_that_says_too_much_is_heard_to_the_end() {
        let flood = "head -c 17000000 /dev/zero";
        let (stderr, outcome) = converse(shell(&format!("echo why >&2; {flood}")), b"", Deadline::after(PATIENCE));
        assert!(outcome.unwrap_err().to_string().contains("16 MiB"));
        assert_eq!(stderr, b"why\n");
        let (stderr, outcome) = converse(shell(&format!("echo fine; {flood} >&2")), b"", Deadline::after(PATIENCE));
        assert_eq!(outcome.unwrap().1, b"fine\n", "noise on stderr is no failure");
        assert_eq!(stderr.len(), MAX_OUTPUT);
    }
}
