//! Pages of the index of `host-local`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| host_local::fuzzing::index(input));
