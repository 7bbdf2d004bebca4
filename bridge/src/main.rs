//! The program `bridge`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(bridge::Bridge, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
