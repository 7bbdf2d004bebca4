//! Configurations of `vrf`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| cni::fuzzing::call(input, "", vrf::fuzzing::config));
