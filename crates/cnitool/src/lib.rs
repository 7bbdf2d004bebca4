//! A CNI runtime for the command line: calls plugins as kubelet or podman does, and inspects what they created.

mod cache;
mod chain;
mod cli;
mod commands;
mod conf;
mod demo;
mod doctor;
mod echo;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hint;
mod init;
mod known;
mod leases;
mod lock;
mod metrics;
mod netns;
mod networks;
mod node;
mod out;
mod privilege;
mod progress;
mod prune;
mod repair;
mod schema;
mod settings;
mod show;
mod table;
mod trial;
mod validate;
mod watch;

use std::env;
use std::process::ExitCode;

use cni::Result;
use nix::errno::Errno;

use cli::Command;

/// Exit code of a command that succeeded.
const DONE: u8 = 0;
/// Exit code of a command that failed. The error is on stderr.
const FAILED: u8 = 1;
/// Exit code of an invalid command line.
const USAGE: u8 = 2;
/// Exit code of `doctor` if it found a failure, of `test` if a probe failed, of `repair` if an attachment is still
/// wrong, and of `validate` if a file is invalid.
const UNHEALTHY: u8 = 3;

/// Runs the command in the arguments of this process.
pub fn main() -> ExitCode {
    match cli::parse(env::args_os().skip(1)) {
        Err(usage) => {
            out::warn(&usage);
            ExitCode::from(USAGE)
        }
        Ok(command) => {
            let code = run(command).unwrap_or_else(|error| {
                // A reader such as `head` that closes the pipe early does not need an error.
                if error.errno() != Some(Errno::EPIPE as i32) {
                    out::print_error(&error);
                }
                FAILED
            });
            ExitCode::from(code)
        }
    }
}

/// Runs the command. Returns the exit code.
fn run(command: Command) -> Result<u8> {
    let done = match command {
        Command::Print(text) => out::print(text),
        Command::Complete { words } => out::print(cli::candidates(&words)),
        Command::Version => out::print(concat!("cnitool ", env!("CARGO_PKG_VERSION"), "+cni0\n")),
        Command::Add { network, netns } => commands::add(&network, &netns),
        Command::Del { network, netns } => commands::del(&network, &netns),
        Command::Check { network, netns } => commands::check(&network, &netns),
        Command::Gc { network } => commands::gc(&network),
        Command::Status { network } => commands::status(&network),
        Command::Validate { paths, strict, json } => return validate::run(&paths, strict, json),
        Command::Schema { plugin, single } => schema::run(plugin.as_deref(), single),
        Command::Init { network, subnets } => init::run(&network, &subnets),
        Command::Demo => demo::run(&settings::plugins()),
        Command::Networks { json } => networks::run(json),
        Command::Leases { network, json, watch: true } => watch::run(network.as_deref(), json),
        Command::Leases { network, json, watch: false } => leases::run(network.as_deref(), json),
        Command::Show { what, json } => show::run(what.as_deref(), json),
        Command::Prune { network, dry_run, force, json } => prune::run(network.as_deref(), dry_run, force, json),
        Command::Metrics { output } => metrics::run(output.as_deref()),
        Command::CountCalls { enable } => metrics::count_calls(enable),
        Command::Test(options) => {
            return trial::run(&options).map(|healthy| if healthy { DONE } else { UNHEALTHY });
        }
        Command::Repair { network, json } => {
            return repair::run(network.as_deref(), json).map(|healthy| if healthy { DONE } else { UNHEALTHY });
        }
        Command::Doctor { network, quiet, json } => {
            return doctor::run(network.as_deref(), quiet, json).map(|healthy| if healthy { DONE } else { UNHEALTHY });
        }
    };
    done.map(|()| DONE)
}
