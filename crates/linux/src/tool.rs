//! Runs programs of the host, such as iptables, for operations that the kernel does not offer directly.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::run_to_end;
use crate::error::{Context, Error, Kind, Result};
use crate::log::debug;
use crate::process;
use crate::wait::Deadline;

/// Directories to search besides `PATH`, which some runtimes do not set.
const DEFAULT_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Finds a program in `PATH` or in the usual directories.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = process::env("PATH").unwrap_or_default();
    // An empty entry means the current directory, which is not trusted.
    let from_env = env::split_paths(&path).filter(|dir| dir.is_absolute());
    from_env
        .chain(DEFAULT_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0))
}

/// Runs a program with `input` on stdin and returns its output. A non-zero exit status, or a runtime longer than
/// `timeout`, is an error that includes the program's stderr.
pub fn run(name: &str, args: &[&str], input: &str, timeout: Duration) -> Result<String> {
    let what = || format!("run {name} {}", args.join(" "));
    let path = find(name).ok_or_else(|| {
        Error::new(Kind::Program, format!("program {name:?} not found"))
            .details("install it, or put its directory into PATH")
    })?;
    let child = Command::new(&path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(what)?;
    debug!("{} as process {}", what(), child.id());
    let (stderr, outcome) = run_to_end(child, input.as_bytes(), Deadline::after(timeout));
    let (status, stdout) = outcome.context(what)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let printed = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(Error::new(Kind::Program, format!("{}: {status}", what())).details(printed))
}
