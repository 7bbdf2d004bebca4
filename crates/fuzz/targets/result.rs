//! Output of another plugin: results of every version, and errors.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| cni::fuzzing::answer(input));
