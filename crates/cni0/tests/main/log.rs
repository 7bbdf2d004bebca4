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
/// that one line describes the change, and that the last one is the outcome.
#[track_caller]
fn assert_complete(log: &str) {
    let mut last = 0;
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words[0].starts_with("20") && words[0].ends_with('Z') && words[1].starts_with('['), "{log}");
        let at: u64 = words[2].strip_suffix("us").unwrap().parse().unwrap();
        assert!(at >= last, "{log}");
        last = at;
        assert!(["DEBUG", "INFO"].contains(&words[3]), "{log}");
        assert_eq!(words[4..9], ["loopback", "ADD", "net=net1", "container=c1", "if=eth0:"], "{log}");
    }
    assert_eq!(log.matches(" INFO ").count(), 1, "{log}");
    assert!(log.lines().last().unwrap().contains(": ok ms="), "{log}");
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
fn level_info_has_one_line_for_each_call() {
    let lab = Lab::new();
    lab.netns("c1");
    let line = |call: Process| {
        let outcome = call.env("CNI_LOG", "info").run();
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        let (_, line) = outcome.stderr.split_once("us ").unwrap();
        line.trim_end().to_owned()
    };
    let of_c1 = "net=net1 container=c1 if=eth0";
    let added = line(add(&lab, json!({})));
    assert!(added.starts_with(&format!("INFO  loopback ADD {of_c1}: ok ms=")), "{added}");
    assert!(added.contains(" ips=127.0.0.1/8"), "{added}");
    let own = line(add(&lab, json!({})).env("CNI_NETNS", "/proc/self/ns/net"));
    assert!(own.starts_with(&format!("ERROR loopback ADD {of_c1}: failed ms=")), "{own}");
    assert!(own.contains(" code=8 msg=\"CNI_NETNS ") && own.contains(" details=\"set CNI_NETNS to "), "{own}");
    let old = line(add(&lab, json!({"cniVersion": "9.9.9"})));
    assert!(old.starts_with("ERROR ") && old.contains(" code=1 "), "{old}");
    let gc = line(add(&lab, json!({})).env("CNI_COMMAND", "GC"));
    assert!(gc.starts_with("INFO  loopback GC net=net1: ok ms="), "{gc}");
    let unknown = line(add(&lab, json!({})).env("CNI_COMMAND", "FLY"));
    assert!(unknown.starts_with("ERROR loopback FLY net=net1: failed") && unknown.contains(" code=4 "), "{unknown}");
}

#[test]
fn a_line_has_the_trace_of_the_caller() {
    let lab = Lab::new();
    lab.netns("c1");
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let subject = |traceparent: &str| {
        let outcome = add(&lab, json!({})).env("CNI_LOG", "info").env("TRACEPARENT", traceparent).run();
        let (_, line) = outcome.stderr.split_once(" loopback ").unwrap();
        line.split(':').next().unwrap().to_owned()
    };
    let without = "ADD net=net1 container=c1 if=eth0";
    assert_eq!(subject(&format!("00-{trace}-{span}-01")), format!("{without} trace={trace} span={span}"));
    for garbage in ["", "00", "00-x-y-01", "00-\n-\n-01"] {
        assert_eq!(subject(garbage), without, "{garbage:?}");
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

/// A key that no plugin reads may be for another program. One that looks like a known key is a mistake.
#[test]
fn add_warns_of_misspelt_keys() {
    let lab = &Lab::new();
    let config = |keys: &str| {
        format!(
            r#"{{"cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br0", {keys},
                "ipam": {{"type": "host-local", "subnet": "10.1.0.0/24"}}}}"#
        )
    };
    let call = |command: &str, keys: &str| {
        let call = lab.attach("bridge", command, lab.netns(&format!("{command}{}", keys.len())));
        let outcome = call.stdin(config(keys)).run();
        outcome.ok();
        outcome.stderr
    };
    let wrong = r#""isGatway": true, "comment": "x", "MTU": 1400, "capabilities": {}"#;
    assert_eq!(call("ADD", wrong), "warning: [7] no plugin reads the key \"isGatway\" (did you mean \"isGateway\"?)\n");
    assert_eq!(call("DEL", wrong), "");
    // The beginning of a known key may be one of another program.
    assert_eq!(call("ADD", r#""isGateway": true, "ipMasqBackend": "nftables", "isDefault": 1"#), "");
}
