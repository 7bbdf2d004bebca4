//! `cnitool` as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnitool::main()
}
