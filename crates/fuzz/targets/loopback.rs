//! The keys that every plugin reads: the common keys, `prevResult`, and GC's valid attachments. `loopback` reads no
//! others.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| cni::fuzzing::call(input, "", |_| {}));
