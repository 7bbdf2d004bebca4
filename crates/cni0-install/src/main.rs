//! Installs the plugins of cni0 into the directory of a container runtime, and restores what was there before.
//!
//! The only way in which plugins get into a directory that other programs share: `ci/install` runs it on a machine, the
//! container image on the nodes of a cluster. A process that is killed at any moment leaves complete files only, and
//! the next call completes or reverts its work.

mod cli;
mod disk;
mod install;
mod network;
mod payload;
mod record;
mod rollback;
mod target;
mod uninstall;
mod verify;

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use linux::{Context, Error, Result};
use nix::sys::signal::{SigSet, Signal};

use cli::Command;

/// Exit code of a command that failed. The error is on stderr.
const FAILED: u8 = 1;
/// Exit code of an invalid command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match cli::parse(env::args_os().skip(1)) {
        Err(usage) => {
            say(&usage);
            ExitCode::from(USAGE)
        }
        Ok(command) => match run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(&one_line(&error));
                ExitCode::from(FAILED)
            }
        },
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Help => print(cli::HELP),
        Command::Version => print(concat!("cni0-install ", env!("CARGO_PKG_VERSION"), "\n")),
        Command::Install(options) => install::run(&options),
        Command::Uninstall { prefix } => uninstall::run(&prefix),
        Command::Rollback { prefix, allow_empty } => rollback::run(&prefix, allow_empty),
        Command::Network { source, conf } => network::configure(&source, &conf),
        Command::RemoveNetwork { conf } => network::remove(&conf),
        Command::Wait => wait(),
    }
}

/// Waits for SIGTERM or SIGINT. The main container of a pod needs a process, and this image has no other program.
fn wait() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Blocked signals reach even process 1 of a container, for which the kernel drops all others.
    signals.thread_block().context(|| "block signals")?;
    say("waiting for SIGTERM");
    signals.wait().map(drop).context(|| "wait for a signal")
}

/// Formats an error with its details in brackets.
fn one_line(error: &Error) -> String {
    match error.details_text() {
        "" => error.to_string(),
        details => format!("{error} ({details})"),
    }
}

/// Writes one line to stderr.
fn say(line: &str) {
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    // An error of stderr itself cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "cni0-install: {line}");
}

fn print(text: &str) -> Result<()> {
    io::stdout().lock().write_all(text.as_bytes()).context(|| "write to stdout")
}
