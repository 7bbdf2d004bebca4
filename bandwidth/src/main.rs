//! The `bandwidth` plugin as a program of its own.
#![no_main]

cni::main!(bandwidth::Bandwidth);
