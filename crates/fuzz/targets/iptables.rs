//! Listings of legacy tables, as `iptables-save` prints them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| {
    let lines: Vec<String> = input.lines().map(str::to_owned).collect();
    cnitool::fuzzing::legacy_table(&lines);
    portmap::fuzzing::legacy_table(&lines);
});
