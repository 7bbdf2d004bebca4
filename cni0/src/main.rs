//! All plugins in one program. The name under which it is called picks one; linked under all names it serves as all.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::main(&[&bridge::Bridge, &host_local::HostLocal, &loopback::Loopback])
}
