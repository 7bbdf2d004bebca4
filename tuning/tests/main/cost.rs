//! Limits for the cost of a call in system calls and messages, so that it grows only on purpose.

use serde_json::json;
use testing::cost;

use crate::support::{config, everything, lab, pod};

#[test]
fn without_keys_nothing_is_opened() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    for command in ["ADD", "CHECK", "DEL"] {
        let (outcome, log) =
            pod.call(command, &config(json!({}))).trace(lab, &["-e", "trace=read,setns,sendto,openat,mkdir"]);
        outcome.ok();
        let after_start =
            log.lines().skip_while(|line| !line.contains("read(0,")).filter(|line| !line.contains("/proc/"));
        let own: Vec<&str> = after_start.filter(|line| line.contains('(') && !line.contains("read(")).collect();
        // DEL looks for the directory of backup files.
        assert_eq!(own.len(), usize::from(command == "DEL"), "{command}: {own:#?}");
    }
}

#[test]
fn few_messages_are_sent() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let found = ["ADD", "CHECK", "DEL"].map(|command| cost::of(lab, pod.call(command, &config(everything()))));
    // The interface, the ID of the host's namespace, the host veth, the bridge, and one change.
    for (found, limit) in found.iter().zip([5, 1, 2]) {
        assert!(found.messages <= limit && found.children == 0, "{found:?}");
    }
}
