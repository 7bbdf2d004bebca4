//! The program `host-device`, which contains the IPAM plugins `dhcp`, `host-local` and `static`.
#![no_main]

cni::main!(host_device::HostDevice, dhcp::Dhcp, host_local::HostLocal, static_ipam::Static);
