//! Replies of nf_tables.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| linux::fuzzing::rules(input));
