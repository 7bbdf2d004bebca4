//! Limits of a call's cost, as far as it can be counted exactly. Only for release builds; debug builds differ.

use std::fs;

use testing::{Lab, plugins, skip};

fn size(lab: &Lab, plugin: &str) -> u64 {
    fs::metadata(lab.bin().join(plugin)).unwrap().len()
}

/// Returns whether the programs under test are release builds. Debug builds contain symbols, and are large.
fn is_release(lab: &Lab, test: &str) -> bool {
    let release = size(lab, "loopback") < 2 << 20;
    if !release {
        skip(test, "the programs are debug builds; ci/test runs it on release ones");
    }
    release
}

#[test]
fn the_installed_set_is_small() {
    let lab = Lab::new();
    if is_release(&lab, "cost::the_installed_set_is_small") {
        let sizes: Vec<_> = plugins().into_iter().map(|plugin| (size(&lab, &plugin), plugin)).collect();
        assert!(sizes.iter().all(|(size, _)| *size < 840 << 10), "{sizes:?}");
        assert!(sizes.iter().map(|(size, _)| size).sum::<u64>() < 21 << 19, "{sizes:?}");
    }
}

#[test]
fn version_needs_few_system_calls() {
    let lab = Lab::new();
    if is_release(&lab, "cost::version_needs_few_system_calls") {
        let trace = lab.dir().join("trace");
        lab.plugin("loopback", "VERSION").strace(&["-f", "-qq", "-o", trace.to_str().unwrap()]).run().ok();
        let calls = fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains('(')).count();
        assert!((5..60).contains(&calls), "{calls} system calls");
    }
}

#[test]
fn the_program_is_statically_linked() {
    let lab = Lab::new();
    if is_release(&lab, "cost::the_program_is_statically_linked") {
        let said = lab.sh(&format!("ldd {}/loopback 2>&1 || true", lab.bin().display()));
        assert!(said.contains("statically linked") || said.contains("not a dynamic executable"), "{said}");
    }
}
