//! The program `ipvlan`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(ipvlan::Ipvlan, host_local::HostLocal, static_ipam::Static);
