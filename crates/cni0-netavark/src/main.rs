//! `cni0-netavark` as a program.
#![no_main]

cni::linux::main!(cni0_netavark::run);
