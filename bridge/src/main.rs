//! The program `bridge`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(bridge::Bridge, host_local::HostLocal, static_ipam::Static);
