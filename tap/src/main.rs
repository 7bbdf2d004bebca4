//! The program `tap`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(tap::Tap, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
