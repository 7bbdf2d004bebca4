//! The `firewall` plugin as a program of its own.
#![no_main]

cni::main!(firewall::Firewall);
