//! Limits for the cost of a call in system calls, messages and processes, so that it grows only on purpose.

use std::fs;

use serde_json::{Value, json};
use testing::Lab;

use crate::pod::{Pod, config};

/// Returns the number of netlink messages and of all system calls after the configuration was read.
fn cost(pod: &Pod<'_>, command: &str, config: &Value) -> (usize, usize) {
    let trace = pod.lab.dir().join("trace");
    pod.call(command, config).strace(&["-f", "-qq", "-o", trace.to_str().unwrap()]).run().ok();
    let log = fs::read_to_string(trace).unwrap();
    let count = |call: &str| log.lines().filter(|line| line.contains(&format!(" {call}("))).count();
    assert_eq!(count("execve"), 1, "{log}");
    // DEL leaves the last wait for the kernel to a child.
    let children = count("clone") + count("clone3") + count("fork") + count("vfork");
    assert!(children <= usize::from(command == "DEL"), "{log}");
    // The programs under test may use glibc, which makes more system calls at the start than the released program.
    let calls = log.lines().filter(|line| line.contains('(')).count();
    let start = log.lines().position(|line| line.contains("read(0,")).unwrap();
    (count("sendto"), calls - start)
}

#[test]
fn no_tools_are_called_and_few_messages_are_sent() {
    let lab = &Lab::new();
    for (keys, limits) in [(json!({}), [9, 8, 3]), (json!({ "ingressPolicy": "isolated" }), [19, 26, 3])] {
        let config = config(keys);
        lab.sh("nft flush ruleset");
        Pod::on_bridge(lab, "br0", "first", &["10.9.0.9/24", "fd00::9/64"]).add(&config);
        let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
        let [add, check, del] = ["ADD", "CHECK", "DEL"].map(|command| cost(&pod, command, &config));
        let found = [add.0, check.0, del.0];
        assert!(found.iter().zip(limits).all(|(found, limit)| *found <= limit), "{config}: {add:?} {check:?} {del:?}");
        lab.sh(
            "ip link delete vethc1; ip link delete vethfirst; umount /run/netns/c1 /run/netns/first; rm /run/netns/*",
        );
    }
}

/// The kernel waits for all processors when it rejects a transaction.
#[test]
fn an_add_beside_others_only_appends_rules() {
    let lab = &Lab::new();
    let edits = |id: &str, ip: &str| {
        let outcome = Pod::absent(lab, id, &[ip]).call("ADD", &config(json!({}))).env("CNI_LOG", "debug").run();
        outcome.ok();
        let edits = outcome.stderr.lines().filter_map(|line| line.split_once("nf_tables: "));
        edits.map(|(_, edit)| edit.to_owned()).collect::<Vec<_>>()
    };
    assert!(edits("c1", "10.9.0.2/24").len() > 3);
    let second = edits("c2", "10.9.0.3/24");
    assert_eq!(second.len(), 3, "{second:?}");
}
