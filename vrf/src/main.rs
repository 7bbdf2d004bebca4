//! The program `vrf`.
#![no_main]

cni::main!(vrf::Vrf);
