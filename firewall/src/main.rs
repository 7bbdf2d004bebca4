//! The program `firewall`.
#![no_main]

cni::main!(firewall::Firewall);
