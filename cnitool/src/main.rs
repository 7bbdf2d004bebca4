//! The runtime side of CNI on the command line: calls plugins as kubelet or podman would, and looks at what they made.

mod cache;
mod chain;
mod cli;
mod commands;
mod conf;
mod demo;
mod out;
mod settings;

use std::env;
use std::process::ExitCode;

use cni::{Code, Error, Result};
use nix::errno::Errno;

use cli::Command;

/// Exit code of a command that failed. The error is on stderr.
const FAILED: u8 = 1;
/// Exit code of a command line that is wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match cli::parse(env::args_os().skip(1)) {
        Err(usage) => {
            out::warn(&usage);
            ExitCode::from(USAGE)
        }
        Ok(command) => match run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Whoever reads only the first lines knows that there are more.
                if error.errno() != Some(Errno::EPIPE as i32) {
                    out::complain(&error);
                }
                ExitCode::from(FAILED)
            }
        },
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Help(text) => out::print(text),
        Command::Version => out::print(concat!("cnitool ", env!("CARGO_PKG_VERSION"), "+cni0\n")),
        Command::Add { network, netns } => commands::add(&network, &netns),
        Command::Del { network, netns } => commands::del(&network, &netns),
        Command::Check { network, netns } => commands::check(&network, &netns),
        Command::Gc { network } => commands::gc(&network),
        Command::Status { network } => commands::status(&network),
        Command::Demo => demo::run(&settings::plugins()),
        other => Err(Error::new(Code::UNSUPPORTED, format!("not made yet: {other:?}"))),
    }
}
