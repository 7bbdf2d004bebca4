//! The program `vlan`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(vlan::Vlan, host_local::HostLocal, static_ipam::Static);
