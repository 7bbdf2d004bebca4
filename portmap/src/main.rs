//! The `portmap` plugin as a program of its own.
#![no_main]

cni::main!(portmap::Portmap);
