//! The program `flannel`, which contains `bridge` and the IPAM plugin `host-local`.
#![no_main]

cni::main!(flannel::Flannel, bridge::Bridge, host_local::HostLocal);
