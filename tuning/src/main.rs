//! The program `tuning`.
#![no_main]

cni::main!(tuning::Tuning);
