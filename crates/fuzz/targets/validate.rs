//! Configuration files, which `cnitool validate` examines with the plugins.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| cnitool::fuzzing::validate(input));
