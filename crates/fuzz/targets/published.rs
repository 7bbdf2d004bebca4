//! Elements in the table of `portmap`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| portmap::fuzzing::element(input));
