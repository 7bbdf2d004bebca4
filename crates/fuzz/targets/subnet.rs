//! The subnet file that flanneld writes for `flannel`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| flannel::fuzzing::subnet_file(input));
