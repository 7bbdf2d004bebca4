//! The program `loopback`.
#![no_main]

cni::main!(loopback::Loopback);
