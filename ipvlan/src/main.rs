//! The program `ipvlan`, which contains the IPAM plugin `host-local`.
#![no_main]

cni::main!(ipvlan::Ipvlan, host_local::HostLocal);
