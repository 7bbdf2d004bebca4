//! The program `ptp`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(ptp::Ptp, host_local::HostLocal, static_ipam::Static);
