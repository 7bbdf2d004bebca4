//! Limits for the cost of a call in messages and processes, so that it grows only on purpose.

use serde_json::{Value, json};
use testing::{Lab, Pod, cost};

use crate::pod::{both, config, container_named};

/// Returns the number of netlink messages of a call.
fn messages(pod: &Pod<'_>, command: &str, config: &Value) -> usize {
    let cost = cost::of(pod.lab, pod.call(command, config));
    // DEL leaves the last wait for the kernel to a child.
    assert!(cost.children <= usize::from(command == "DEL"), "{cost:?}");
    cost.messages
}

#[test]
fn few_messages_are_sent() {
    let lab = &Lab::new();
    let pod = container_named(lab, "c1");
    let [add, check, del] = ["ADD", "CHECK", "DEL"].map(|command| messages(&pod, command, &both()));
    // Before Linux 6.2, one of them is a query for the new link.
    assert!(add <= 10 && check <= 7 && del <= 6, "{add} {check} {del}");
    let nothing = config(json!({}));
    let counts = ["ADD", "CHECK"].map(|command| messages(&pod, command, &nothing));
    assert_eq!(counts, [0, 0]);
}
