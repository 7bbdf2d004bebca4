//! The daemon: one process with one thread, which waits for requests, messages of servers and points in time in one
//! loop. It enters a container's namespace only to open sockets there, and closes them after an exchange, so that no
//! namespace outlives its container because of a lease.

mod connection;
mod flags;
mod interface;
mod log;
mod serve;
mod session;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::linux::dir::Dir;
use ::linux::log::{error, info, warn};
use ::linux::process::{self, Capability, keep_capabilities, raise_file_limit, start_session};
use ::linux::sha2::sha512;
use ::linux::unix::Listener;
use ::linux::{Deadline, DetachedChild};
use cni::{Code, Context, Error, Result};

use crate::lease::ROOT;
use flags::{Flags, HELP, Invocation};
use log::Sink;
use serve::Daemon;

/// How long a daemon waits for the lock of one that is about to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// What the daemon needs: to change interfaces, to open packet sockets and the port of DHCPv6 clients, to enter
/// namespaces, and to open those that are only known by a process.
const CAPABILITIES: [Capability; 5] =
    [Capability::NetAdmin, Capability::NetRaw, Capability::NetBindService, Capability::SysAdmin, Capability::SysPtrace];

/// Runs the daemon with these arguments, until a signal ends it. Returns whether it succeeded.
pub fn run(arguments: impl Iterator<Item = &'static OsStr>) -> bool {
    let outcome = flags::parse(arguments).and_then(|invocation| match invocation {
        Invocation::Help => Ok(process::answer(HELP.as_bytes())?),
        Invocation::Run(flags) => serve(&flags),
    });
    outcome.map_err(|error| writeln!(io::stderr(), "dhcp daemon: {error:?}")).is_ok()
}

fn serve(flags: &Flags) -> Result<()> {
    if let Some(listener) = passed()? {
        log::start(Sink::Stderr);
        let socket = listener.path().unwrap_or_else(|| flags.socket.clone());
        let _lock = lock(&socket)?;
        return follow(flags, listener, socket);
    }
    let socket = flags.prefixed(&flags.socket);
    Listener::require_unused(&socket)?;
    // Before the socket is replaced: another process may do the same. Two daemons that follow the same leases would
    // confuse the servers.
    let lock = lock(&socket)?;
    let listener = Listener::bind(&socket)?;
    if !flags.on_demand {
        log::start(Sink::Stderr);
        return follow(flags, listener, socket);
    }
    let work = || {
        log::start(Sink::Syslog);
        let outcome = start_session().map_err(Error::from).and_then(|()| {
            let _lock = self::lock(&socket)?;
            // The child has closed the first lock, and the parent is about to.
            follow(flags, listener.inherited()?, socket.clone())
        });
        if let Err(error) = outcome {
            error!("{error:?}");
        }
    };
    let started = DetachedChild::start(Some(listener.as_fd()), work).context(|| "detach the daemon")?;
    // The socket is the child's: a plugin can connect from now on.
    std::mem::forget(listener);
    drop((started, lock));
    Ok(())
}

/// Follows leases until a signal ends the daemon, or until there are none if it was started on demand.
fn follow(flags: &Flags, listener: Listener, socket: PathBuf) -> Result<()> {
    if let Err(error) = raise_file_limit() {
        warn!("{error}");
    }
    let _pidfile = flags.pidfile.as_deref().map(PidFile::write).transpose()?;
    keep_capabilities(&CAPABILITIES)?;
    let mut daemon = Daemon::new(flags, listener, socket)?;
    daemon.load()?;
    info!("serving {:?}", daemon.socket());
    daemon.run()?;
    info!("ended: the leases stay, and the next daemon continues them");
    Ok(())
}

/// Returns the socket that the service manager passed, if it did.
fn passed() -> Result<Option<Listener>> {
    let number = |value: Option<OsString>| value.and_then(|value| value.to_str()?.parse::<u32>().ok());
    let is_for_this = number(process::env("LISTEN_PID")) == Some(std::process::id());
    let passed = number(process::env("LISTEN_FDS")).filter(|_| is_for_this);
    match passed {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Listener::passed()?)),
        // The text of the reference.
        Some(count) => {
            let what = format!("Too many ({count}) FDs passed through socket activation");
            Err(Error::new(Code::ENVIRONMENT, what).details("pass one socket"))
        }
    }
}

/// Takes the lock of the leases that a daemon with this socket follows, for as long as the file is open.
fn lock(socket: &Path) -> Result<File> {
    let what = || format!("lock the leases in {ROOT:?}");
    let dir = Dir::create_private(Path::new(ROOT)).context(what)?;
    let name = format!("lock.{}", sha512(16, &socket.to_string_lossy()));
    dir.lock(&name, Deadline::after(LOCK_TIMEOUT)).context(what)?.ok_or_else(|| {
        let what = format!("another DHCP daemon follows the leases of {socket:?}");
        Error::new(Code::TRY_LATER, what).details("stop it, or use another -socketpath")
    })
}

/// A file with the number of this process, which is removed at the end.
struct PidFile<'a>(&'a Path);

impl PidFile<'_> {
    fn write(path: &Path) -> Result<PidFile<'_>> {
        let what = || format!("write the file {path:?}");
        if !path.is_absolute() {
            // The text of the reference.
            let error = Error::new(Code::CONFIG, "path not absolute");
            return Err(error.details("use an absolute path for -pidfile")).context(what);
        }
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o644).open(path).context(what)?;
        write!(file, "{}", std::process::id()).context(what)?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}
