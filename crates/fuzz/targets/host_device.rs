//! Configurations of `host-device`, with `CNI_ARGS`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (args, stdin) = cni::fuzzing::split(input);
    cni::fuzzing::call(stdin, &args, host_device::fuzzing::config);
});
