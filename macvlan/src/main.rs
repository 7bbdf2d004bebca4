//! The program `macvlan`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(macvlan::Macvlan, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
