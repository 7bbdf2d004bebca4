//! The `flannel` plugin as a program of its own.
#![no_main]

cni::main!(flannel::Flannel);
