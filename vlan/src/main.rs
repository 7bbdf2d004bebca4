//! The program `vlan`, which contains the IPAM plugin `host-local`.
#![no_main]

cni::main!(vlan::Vlan, host_local::HostLocal);
