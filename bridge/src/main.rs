//! The `bridge` plugin as a program of its own.
#![no_main]

cni::main!(bridge::Bridge);
