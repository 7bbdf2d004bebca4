//! Packets of DHCP servers, and lease files of `dhcp`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| dhcp::fuzzing::packet(input));
