//! The program `portmap`.
#![no_main]

cni::main!(portmap::Portmap);
