//! State files of `flannel`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| flannel::fuzzing::state(input, "net1"));
