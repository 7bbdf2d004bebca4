//! Patterns in the list of allowed sysctls of `tuning`, and names to match.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| tuning::fuzzing::pattern(input));
