//! Running a program of the host, such as iptables, for what the kernel cannot be asked directly.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use log::debug;

use crate::child::converse;
use crate::error::{Code, Context, Error, Result};
use crate::request::process_env;
use crate::wait::Deadline;

/// Where programs are if `PATH` does not tell, as in the environment that some runtimes give us.
const USUAL: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Finds a program: in `PATH`, then in the usual places.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = process_env("PATH").unwrap_or_default();
    // An empty entry is the current directory, where anybody may have put something.
    let told = env::split_paths(&path).filter(|dir| dir.is_absolute());
    told.chain(USUAL.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0))
}

/// Runs a program with `input` on its stdin; what it printed. One that fails, or takes longer than `patience`, is an
/// error that says what it printed.
pub fn run(name: &str, args: &[&str], input: &str, patience: Duration) -> Result<String> {
    let what = || format!("run {name} {}", args.join(" "));
    let path = find(name).ok_or_else(|| {
        Error::new(Code::INTERNAL, format!("there is no program {name:?}"))
            .details("install it, or put its directory into PATH")
    })?;
    let child = Command::new(&path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .trying(what)?;
    debug!("{} as process {}", what(), child.id());
    let (stderr, outcome) = converse(child, input.as_bytes(), Deadline::after(patience));
    let (status, stdout) = outcome.trying(what)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(Error::new(Code::INTERNAL, format!("{}: {status}", what())).details(said))
}
