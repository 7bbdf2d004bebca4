//! The program `host-local`.
#![no_main]

cni::main!(host_local::HostLocal);
