//! Pages of `host-local`'s index.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| host_local::fuzzing::index(input));
