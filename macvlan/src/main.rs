//! The program `macvlan`, which contains the IPAM plugin `host-local`.
#![no_main]

cni::main!(macvlan::Macvlan, host_local::HostLocal);
