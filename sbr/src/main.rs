//! The program `sbr`.
#![no_main]

cni::main!(sbr::Sbr);
