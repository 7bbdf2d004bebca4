//! Files in the directory of leases, and a resolver's file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| host_local::fuzzing::file(input));
