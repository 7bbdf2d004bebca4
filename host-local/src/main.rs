//! The `host-local` plugin as a program of its own.
#![no_main]

cni::main!(host_local::HostLocal);
