//! The program `dummy`, which contains the IPAM plugin `host-local`.
#![no_main]

cni::main!(dummy::Dummy, host_local::HostLocal);
