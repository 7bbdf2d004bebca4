//! Limits for the cost of a call in system calls, messages and processes, so that it grows only on purpose.

use serde_json::{Value, json};
use testing::{Lab, Pod, cost};

use crate::support::config;

/// Returns the number of netlink messages of a call in one process. DEL leaves the last wait for the kernel to a child,
/// which queries twice whether the rules still change.
fn messages(pod: &Pod<'_>, command: &str, config: &Value) -> usize {
    let cost = cost::of(pod.lab, pod.call(command, config));
    assert!(cost.children <= usize::from(command == "DEL"), "{command}: {cost:?}");
    cost.messages
}

#[test]
fn no_tools_are_called_and_few_messages_are_sent() {
    let lab = &Lab::new();
    for (keys, limits) in [(json!({}), [8, 13, 11]), (json!({ "ingressPolicy": "isolated" }), [20, 30, 20])] {
        let config = config(keys);
        lab.sh("nft flush ruleset");
        Pod::on_bridge(lab, "br0", "first", &["10.9.0.9/24", "fd00::9/64"]).add(&config);
        let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
        let found = ["ADD", "CHECK", "DEL"].map(|command| messages(&pod, command, &config));
        assert!(found.iter().zip(limits).all(|(found, limit)| *found <= limit), "{config}: {found:?}");
        lab.sh(
            "ip link delete vethc1; ip link delete vethfirst; umount /run/netns/c1 /run/netns/first; rm /run/netns/*",
        );
    }
}

/// The kernel waits for all processors when it rejects a transaction.
#[test]
fn an_add_beside_others_only_adds_addresses() {
    let lab = &Lab::new();
    let edits = |id: &str, ip: &str| cost::nft_edits(Pod::absent(lab, id, &[ip]).call("ADD", &config(json!({}))));
    assert!(edits("c1", "10.9.0.2/24").len() > 3);
    let second = edits("c2", "10.9.0.3/24");
    assert_eq!(second.len(), 3, "{second:?}");
}
