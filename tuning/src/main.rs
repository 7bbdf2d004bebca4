//! The `tuning` plugin as a program of its own.
#![no_main]

cni::main!(tuning::Tuning);
