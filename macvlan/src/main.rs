//! The program `macvlan`, which contains the IPAM plugins `host-local` and `static`.
#![no_main]

cni::main!(macvlan::Macvlan, host_local::HostLocal, static_ipam::Static);
