//! The `loopback` plugin as a program of its own.
#![no_main]

cni::main!(loopback::Loopback);
