//! The program `flannel`, which contains `bridge` and the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(flannel::Flannel, bridge::Bridge, host_local::HostLocal, static_ipam::Static);
