//! Calling another plugin: found in `CNI_PATH`, run in this process if it is this very program, else executed.
//!
//! Both ways give the same result, and the same error. A copy, another build, the reference's file or a wrapper script
//! is always executed, so that nobody's replacement is bypassed.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use log::debug;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::error::{Answer, Code, Context, Error, Result};
use crate::json;
use crate::plugin::{Attachment, Call, Plugin};
use crate::result::AddResult;
use crate::sys;
use crate::wait::Deadline;

/// Longer than any runtime waits for us, and than a DHCP lease takes.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a file may be written to before it can be executed.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// More than any plugin has to say.
const MAX_OUTPUT: usize = 16 << 20;

/// Another plugin, ready to be called with the configuration of the call at hand.
#[derive(Debug)]
pub struct Delegate<'a> {
    call: &'a Call<'a>,
    name: String,
    way: Way<'a>,
}

#[derive(Debug)]
enum Way<'a> {
    Builtin(&'a dyn Plugin),
    File(PathBuf),
}

impl<'a> Delegate<'a> {
    /// Looks `name` up in `CNI_PATH`: the first executable file of that name.
    pub fn find(call: &'a Call<'a>, name: &str) -> Result<Delegate<'a>> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            let error = Error::new(Code::CONFIG, format!("invalid plugin name {name:?}"));
            return Err(error.details("a \"type\" is the name of a file in CNI_PATH, without '/'"));
        }
        let mut unusable = Vec::new();
        for dir in call.path {
            let path = dir.join(name);
            match fs::metadata(&path) {
                Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {
                    let builtin = call.builtin.iter().copied().find(|plugin| plugin.name() == name);
                    let way = match builtin.filter(|_| is_this_program(&file)) {
                        Some(plugin) => Way::Builtin(plugin),
                        None => Way::File(path),
                    };
                    return Ok(Delegate { call, name: name.to_owned(), way });
                }
                Ok(file) if file.is_file() => unusable.push(format!("{path:?} is not executable")),
                // Not there, or not to be looked at: the next directory may have it.
                _ => {}
            }
        }
        let dirs: Vec<_> = call.path.iter().map(|dir| dir.to_string_lossy()).collect();
        let what = format!("failed to find plugin {name:?} in path [{}]", dirs.join(" "));
        let error = unusable.into_iter().fold(Error::new(Code::INTERNAL, what), Error::details);
        Err(error.details("install the plugin there, or correct CNI_PATH or the \"type\""))
    }

    /// ADD
    pub fn add(&self, at: &Attachment) -> Result<AddResult> {
        let version = self.call.version;
        match &self.way {
            Way::Builtin(plugin) => plugin.add(self.call, at)?.as_seen_in(version),
            Way::File(path) => {
                let stdout = self.execute(path, "ADD")?;
                let text = String::from_utf8_lossy(&stdout);
                AddResult::read_answer(&text, version)
                    .trying(|| format!("read the result of plugin {:?}", self.name))
            }
        }
    }

    /// DEL
    pub fn del(&self, at: &Attachment) -> Result<()> {
        match &self.way {
            Way::Builtin(plugin) => plugin.del(self.call, at),
            Way::File(path) => self.execute(path, "DEL").map(drop),
        }
    }

    /// CHECK
    pub fn check(&self, at: &Attachment) -> Result<()> {
        match &self.way {
            Way::Builtin(plugin) => plugin.check(self.call, at),
            Way::File(path) => self.execute(path, "CHECK").map(drop),
        }
    }

    /// GC
    pub fn gc(&self) -> Result<()> {
        match &self.way {
            Way::Builtin(plugin) => plugin.gc(self.call),
            Way::File(path) => self.execute(path, "GC").map(drop),
        }
    }

    /// STATUS
    pub fn status(&self) -> Result<()> {
        match &self.way {
            Way::Builtin(plugin) => plugin.status(self.call),
            Way::File(path) => self.execute(path, "STATUS").map(drop),
        }
    }

    /// Runs the file with our environment and stdin, `CNI_COMMAND` replaced; what it printed.
    fn execute(&self, path: &Path, command: &str) -> Result<Vec<u8>> {
        let deadline = Deadline::after(PATIENCE);
        let child = start(path, command).trying(|| format!("execute plugin {path:?}"))?;
        debug!("execute {path:?} {command} as process {}", child.id());
        let output = converse(child, self.call.stdin, deadline)
            .trying(|| format!("talk to plugin {path:?}"))?;
        // Ours is free-form too, and whoever collects it wants to read this.
        let _ = io::stderr().write_all(&output.stderr);
        if output.status.success() { Ok(output.stdout) } else { Err(self.failure(path, &output)) }
    }

    /// The child's own error object as it is; otherwise whatever can be told.
    #[cold]
    fn failure(&self, path: &Path, output: &Output) -> Error {
        let stdout = String::from_utf8_lossy(&output.stdout);
        match json::parse::<Answer>(&stdout) {
            Ok(answer) if answer.code != Code::UNKNOWN || !answer.msg.is_empty() => {
                return answer.into();
            }
            _ => {}
        }
        let said = [stdout.trim(), String::from_utf8_lossy(&output.stderr).trim()].join(" ");
        let what = format!("plugin {:?} failed with {} and no CNI error", self.name, output.status);
        let error = Error::new(Code::UNKNOWN, what).details(format!("file {path:?}"));
        match said.trim() {
            "" => error,
            said => error.details(format!("it printed: {said}")),
        }
    }
}

/// Same device and inode as the running executable. During an upgrade that is the old file, so the new one is executed.
fn is_this_program(file: &Metadata) -> bool {
    fs::metadata("/proc/self/exe")
        .is_ok_and(|own| (own.dev(), own.ino()) == (file.dev(), file.ino()))
}

/// Starts the file. If somebody still writes to it, waits until it was closed.
fn start(path: &Path, command: &str) -> Result<Child> {
    let spawn = || {
        let mut process = Command::new(path);
        process
            .env("CNI_COMMAND", command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let is_busy = |outcome: &io::Result<Child>| matches!(outcome, Err(e) if e.kind() == ErrorKind::ExecutableFileBusy);
    let mut outcome = spawn();
    if is_busy(&outcome) {
        let deadline = Deadline::after(BUSY_PATIENCE);
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        watch.add_watch(path, AddWatchFlags::IN_CLOSE_WRITE)?;
        // Once more before the first wait: it may have been closed before we watched.
        outcome = spawn();
        while is_busy(&outcome) && deadline.readable(watch.as_fd())? {
            let _ = watch.read_events();
            outcome = spawn();
        }
        if is_busy(&outcome) {
            let error =
                Error::from(io::Error::from_raw_os_error(libc::ETXTBSY)).code_is(Code::TRY_LATER);
            return Err(error.details(format!(
                "somebody was still writing to the file after {BUSY_PATIENCE:?}"
            )));
        }
    }
    Ok(outcome?)
}

/// What a child left behind.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Feeds and reads a child at the same time, so that neither waits for the other, until it has ended.
pub(crate) fn converse(mut child: Child, input: &[u8], deadline: Deadline) -> Result<Output> {
    let outcome = exchange(&mut child, input, deadline);
    if outcome.is_err() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (stdout, stderr) = outcome?;
    Ok(Output { status, stdout, stderr })
}

fn exchange(child: &mut Child, mut input: &[u8], deadline: Deadline) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut stdin = child.stdin.take();
    let mut stdout = Reading::new(child.stdout.take());
    let mut stderr = Reading::new(child.stderr.take());
    for fd in [stdin.as_ref().map(AsFd::as_fd), stdout.fd(), stderr.fd()].into_iter().flatten() {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    // A grandchild may keep the pipes open for ever, so the end of the child counts, where the kernel can tell it.
    let end = sys::pidfd(child.id());
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
        let open = [(stdout.fd(), PollFlags::POLLIN), (stderr.fd(), PollFlags::POLLIN)];
        let end = end.as_ref().map(AsFd::as_fd);
        if end.is_none() && open.iter().all(|(fd, _)| fd.is_none()) {
            break;
        }
        let wanted = open.into_iter().chain([
            (stdin.as_ref().map(AsFd::as_fd), PollFlags::POLLOUT),
            (end, PollFlags::POLLIN),
        ]);
        let mut fds: Vec<PollFd<'_>> =
            wanted.filter_map(|(fd, flags)| Some(PollFd::new(fd?, flags))).collect();
        if !deadline.poll(&mut fds)? {
            let what = format!("it had not ended after {:?}", deadline.length());
            return Err(Error::new(Code::TRY_LATER, what).details("it was killed"));
        }
        let ended = end.is_some() && fds.last().is_some_and(|fd| fd.any().unwrap_or(true));
        drop(fds);
        if ended {
            stdout.read()?;
            stderr.read()?;
            break;
        }
    }
    Ok((stdout.bytes, stderr.bytes))
}

/// One output of a child, as far as it has been read.
struct Reading<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Reading<R> {
    fn new(pipe: Option<R>) -> Reading<R> {
        Reading { pipe, bytes: Vec::new() }
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there.
    fn read(&mut self) -> Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let room = (MAX_OUTPUT - self.bytes.len().min(MAX_OUTPUT)) as u64 + 1;
        match pipe.take(room).read_to_end(&mut self.bytes) {
            Ok(_) if self.bytes.len() > MAX_OUTPUT => Err(Error::new(
                Code::UNKNOWN,
                format!("it printed more than {} MiB", MAX_OUTPUT >> 20),
            )),
            Ok(_) => {
                self.pipe = None;
                Ok(())
            }
            // What was read before is kept.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
