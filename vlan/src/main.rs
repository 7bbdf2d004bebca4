//! The program `vlan`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(vlan::Vlan, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
