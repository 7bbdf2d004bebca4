//! Entries of the cache that runtimes share.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| cnitool::fuzzing::entry(input));
