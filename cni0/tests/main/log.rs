//! The log: off by default, never on stdout.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};
use testing::{Lab, Process};

fn add(lab: &Lab, more: Value) -> Process {
    let mut config = json!({"cniVersion": "1.1.0", "name": "net1"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.attach("loopback", "ADD", "/run/netns/c1").stdin(config.to_string())
}

/// Asserts that every line has time, process, microseconds, level, plugin, command, network, container and interface,
/// and that one line describes the change.
#[track_caller]
fn assert_complete(log: &str) {
    let mut last = 0;
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words[0].starts_with("20") && words[0].ends_with('Z') && words[1].starts_with('['), "{log}");
        let at: u64 = words[2].strip_suffix("us").unwrap().parse().unwrap();
        assert!(at >= last, "{log}");
        last = at;
        assert_eq!(words[3..9], ["DEBUG", "loopback", "ADD", "net=net1", "container=c1", "if=eth0:"], "{log}");
    }
    assert_eq!(log.matches("set link #1 up").count(), 1, "{log}");
}

#[test]
fn silence_by_default() {
    let lab = Lab::new();
    lab.netns("c1");
    assert_eq!(add(&lab, json!({})).run().stderr, "");
    assert_eq!(add(&lab, json!({})).env("RUST_LOG", "debug").run().stderr, "", "a variable of other programs");
    assert_eq!(add(&lab, json!({"logLevel": "warn"})).run().stderr, "");
    assert_eq!(add(&lab, json!({"logLevel": "debug"})).env("CNI_LOG", "off").run().stderr, "");
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
        assert_complete(&outcome.stderr);
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
    assert_complete(&log[log.len() - half..]);
    assert_eq!(log.matches("set link #1 up").count(), 2);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_log_that_cannot_be_opened_does_not_fail_the_call() {
    let lab = Lab::new();
    let (target, link, fifo) = (lab.dir().join("target"), lab.dir().join("link"), lab.dir().join("fifo"));
    symlink(&target, &link).unwrap();
    lab.sh(&format!("mkfifo {}", fifo.display()));
    let (precious, second) = (lab.dir().join("precious"), lab.dir().join("second"));
    fs::write(&precious, "precious").unwrap();
    fs::hard_link(&precious, &second).unwrap();
    for (count, (settings, culprit)) in [
        (json!({"logFile": lab.dir().join("no/such/dir/log")}), "the log goes to stderr"),
        (json!({"logFile": link}), "the log goes to stderr"),
        (json!({"logFile": fifo}), "the log goes to stderr"),
        (json!({"logFile": second}), "not a regular file with a single link"),
        (json!({"logFile": "/dev/null"}), "not a regular file with a single link"),
        (json!({"logFile": "relative.log"}), "relative.log"),
        (json!({"logFile": {}}), "logFile"),
        (json!({"logLevel": "verbose"}), "verbose"),
        (json!({"logLevel": 3}), "logLevel"),
    ]
    .into_iter()
    .enumerate()
    {
        let netns = lab.netns(&format!("c{count}"));
        for command in ["ADD", "DEL"] {
            let outcome = add(&lab, settings.clone()).env("CNI_NETNS", &netns).env("CNI_COMMAND", command).run();
            outcome.ok();
            assert!(outcome.stderr.contains("WARN") && outcome.stderr.contains(culprit), "{}", outcome.stderr);
        }
    }
    assert!(!target.exists(), "a symbolic link is not followed");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "a file with another hard link is not written to");
    lab.netns("c");
    let outcome = add(&lab, json!({})).env("CNI_NETNS", "/run/netns/c").env("CNI_LOG", "loud").run();
    outcome.ok();
    assert!(outcome.stderr.contains("loud"), "{}", outcome.stderr);
}
