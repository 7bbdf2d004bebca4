//! Comparison with Debian's `loopback`: the same bytes where the reference is correct, and each can clean up for the
//! other.

use std::path::Path;

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process, reference};

use super::{call, config, is_up};

/// Prepares the same call of the reference.
fn theirs(command: &str, netns: &Path, stdin: &str) -> Option<Process> {
    let path = reference("loopback", "loopback::reference")?;
    let call = Process::plugin(&path, command).env("CNI_PATH", "/usr/lib/cni");
    Some(call.attachment("c1", "lo", netns).stdin(stdin))
}

/// Runs a call, and returns its output and the state of `lo` without the alias, which the reference does not set.
fn observe(lab: &Lab, calling: Process) -> (Outcome, Value) {
    let outcome = calling.run();
    let mut lo = lab.ip("-n c1 address show dev lo");
    lo[0].as_object_mut().unwrap().remove("ifalias");
    (outcome, lo)
}

#[test]
fn the_same_bytes_where_the_reference_is_correct() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    // With a cniVersion, new results of the reference have the wrong layout, so the test passes previous results
    // through.
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]}});
    let middle = |version: &str| {
        json!({
            "cniVersion": version,
            "interfaces": [{"name": "a<b>", "mac": "0a:58:0a:01:00:02"}, {"name": "eth0", "sandbox": "/run/netns/c1"}],
            "ips": [
                {"version": "4", "interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
                {"version": "6", "address": "fd00::2/64"},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "fd01::/64"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["o"]},
        })
    };
    let with = |version: &str, previous: Value| {
        json!({"cniVersion": version, "name": "lo", "type": "loopback", "prevResult": previous}).to_string()
    };
    let mut configs = vec![config(""), with("0.2.0", old)];
    configs.extend(["0.3.0", "0.3.1", "0.4.0"].map(|version| with(version, middle(version))));
    for stdin in configs {
        for command in ["ADD", "DEL"] {
            let before = if command == "ADD" { "down" } else { "up" };
            // DEL of cni0 needs the mark of its ADD.
            let alias = if command == "ADD" { "" } else { "cni-attachment lo c1 lo" };
            let prepare = || lab.sh(&format!("ip -n c1 link set lo alias \"{alias}\" {before}"));
            let Some(theirs) = theirs(command, &netns, &stdin) else { return };
            prepare();
            let theirs = observe(&lab, theirs);
            prepare();
            let ours = observe(&lab, call(&lab, command, &netns).stdin(stdin.clone()));
            assert_eq!(ours, theirs, "{command} {stdin}");
        }
    }
}

#[test]
fn the_same_codes_for_bad_calls() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    for stdin in
        ["", "{", "[]", "{}", r#"{"name": 5}"#, r#"{"name": "a/b"}"#, r#"{"name": "x", "cniVersion": "9.9.9"}"#]
    {
        let Some(theirs) = theirs("ADD", &netns, stdin) else { return };
        let theirs: Value = serde_json::from_str(&theirs.run().stdout).unwrap();
        let code = theirs["code"].as_u64().unwrap().try_into().unwrap();
        let ours = call(&lab, "ADD", &netns).stdin(stdin).run().error(code);
        assert!(ours["details"].is_string(), "every error has a remedy: {ours}");
    }
}

#[test]
fn each_works_after_the_other() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let stdin = config("1.0.0");
    let Some(add) = theirs("ADD", &netns, &stdin) else { return };
    add.run().ok();
    call(&lab, "CHECK", &netns).run().ok();
    call(&lab, "DEL", &netns).run().ok();
    assert!(is_up(&lab, "c1"), "the reference sets no mark: by now `lo` could belong to another container");
    lab.sh("ip -n c1 link set lo down");
    call(&lab, "ADD", &netns).run().ok();
    for command in ["CHECK", "DEL"] {
        theirs(command, &netns, &stdin).unwrap().run().ok();
    }
    assert!(!is_up(&lab, "c1"));
}
