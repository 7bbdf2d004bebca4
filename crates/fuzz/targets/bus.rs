//! Messages of a bus to `firewall`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| firewall::fuzzing::bus(input));
