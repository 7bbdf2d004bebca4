//! The program `dummy`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(dummy::Dummy, host_local::HostLocal, static_ipam::Static);
