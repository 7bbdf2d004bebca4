//! The log: nothing unless it is asked for, never on stdout.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use cni::testing::{Calling, Lab};
use serde_json::{Value, json};

fn add(lab: &Lab, more: Value) -> Calling {
    let mut config = json!({"cniVersion": "1.1.0", "name": "net1"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.attach("loopback", "ADD", "/run/netns/c1").stdin(config.to_string())
}

/// Every line: microseconds, level, plugin, command, network, container, interface; one of them tells of the change.
#[track_caller]
fn tells(log: &str) {
    let mut last = 0;
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at: u64 = words[0].strip_suffix("us").unwrap().parse().unwrap();
        assert!(at >= last, "{log}");
        last = at;
        assert_eq!(words[1..7], ["DEBUG", "loopback", "ADD", "net1", "c1", "eth0:"], "{log}");
    }
    assert_eq!(log.matches("set link #1 up").count(), 1, "{log}");
}

#[test]
fn silence_by_default() {
    let lab = Lab::new();
    lab.netns("c1");
    assert_eq!(add(&lab, json!({})).run().stderr, "");
    assert_eq!(
        add(&lab, json!({})).env("RUST_LOG", "debug").run().stderr,
        "",
        "somebody else's variable"
    );
    assert_eq!(add(&lab, json!({"logLevel": "warn"})).run().stderr, "");
    assert_eq!(add(&lab, json!({})).env("CNI_LOG", "nonsense").run().stderr, "");
}

#[test]
fn to_stderr() {
    let lab = Lab::new();
    for (name, calling) in [
        ("c1", add(&lab, json!({})).env("CNI_LOG", "debug")),
        ("c2", add(&lab, json!({"logLevel": "debug"}))),
        ("c3", add(&lab, json!({"LogLevel": "error"})).env("CNI_LOG", "debug")),
    ] {
        let outcome = calling.env("CNI_NETNS", lab.netns(name)).run();
        outcome.ok();
        tells(&outcome.stderr);
    }
}

#[test]
fn to_a_file_that_grows() {
    let lab = Lab::new();
    let file = lab.dir().join("cni.log");
    for name in ["c1", "c2"] {
        let outcome = add(&lab, json!({"logFile": file})).env("CNI_NETNS", lab.netns(name)).run();
        outcome.ok();
        assert_eq!(outcome.stderr, "");
    }
    let log = fs::read_to_string(&file).unwrap();
    let half = log.len() - log.rfind("set link").and_then(|at| log[..at].rfind('\n')).unwrap() - 1;
    tells(&log[log.len() - half..]);
    assert_eq!(log.matches("set link #1 up").count(), 2);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_cannot_be_written_is_no_reason_to_fail() {
    let lab = Lab::new();
    lab.netns("c1");
    let target = lab.dir().join("target");
    let link = lab.dir().join("link");
    symlink(&target, &link).unwrap();
    for file in [lab.dir().join("no/such/dir/log"), link] {
        let outcome = add(&lab, json!({"logFile": file})).run();
        outcome.ok();
        assert!(outcome.stderr.contains("the log goes to stderr"), "{}", outcome.stderr);
    }
    assert!(!target.exists(), "a symbolic link is not followed");
}
