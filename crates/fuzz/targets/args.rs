//! `CNI_ARGS`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| cni::fuzzing::args(input));
