//! The program `bandwidth`.
#![no_main]

cni::main!(bandwidth::Bandwidth);
