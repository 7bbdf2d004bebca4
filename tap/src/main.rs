//! The program `tap`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(tap::Tap, host_local::HostLocal, static_ipam::Static);
