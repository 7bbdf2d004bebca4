//! Backup files of `tuning`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tuning::fuzzing::backup(input));
