//! The `bridge` plugin as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::main(&[&bridge::Bridge])
}
