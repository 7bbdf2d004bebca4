//! What every plugin reads of a configuration: its head, `prevResult`, and the attachments of a GC. `loopback` reads no more.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| cni::fuzzing::call(input, "", |_| {}));
