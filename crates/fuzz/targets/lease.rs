//! Files in the lease directory, and `resolv.conf`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| host_local::fuzzing::file(input));
