//! The program `static`.
#![no_main]

cni::main!(static_ipam::Static);
