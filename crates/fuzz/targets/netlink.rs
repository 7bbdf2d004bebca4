//! Replies of the kernel about links, addresses, routes, neighbours, VLANs, traffic control and connection tracking.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| linux::fuzzing::reply(input));
