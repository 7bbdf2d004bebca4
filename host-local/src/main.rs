//! The `host-local` plugin as a separate program.
#![no_main]

cni::main!(host_local::HostLocal);
