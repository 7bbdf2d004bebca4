//! The program `bridge`, which contains the IPAM plugin `host-local`.
#![no_main]

cni::main!(bridge::Bridge, host_local::HostLocal);
