//! The program `host-device`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(host_device::HostDevice, host_local::HostLocal, static_ipam::Static);
