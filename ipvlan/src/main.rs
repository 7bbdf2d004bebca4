//! The program `ipvlan`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(ipvlan::Ipvlan, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
