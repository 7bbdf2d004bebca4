//! Limits for the cost of an ADD in system calls, messages and processes, so that it grows only on purpose.

use std::fs;

use serde_json::json;
use testing::config::with;
use testing::cost::{self, Cost};
use testing::{Lab, Pod};

use crate::pod::layer3;

#[test]
fn an_add_with_masquerade_takes_five_messages_and_no_process() {
    let lab = &Lab::new();
    let config = layer3(json!({
        "isDefaultGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] },
    }));
    for id in ["first", "second"] {
        Pod::new(lab, id).add(&config);
    }
    // Before 6.2 the kernel does not return the link that it created, and before 6.8 a port comes up later. Both need
    // additional messages.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut version = release.split('.').map(|part| part.parse().unwrap_or(0));
    let old = (version.next(), version.next()) < (Some(6), Some(8));
    // On a busy machine an ADD may have to wait for its port, which takes further calls. The cheapest of several
    // counts.
    let costs = (0..8).map(|n| {
        let pod = Pod::new(lab, &format!("traced{n}"));
        let cost = cost::of(lab, pod.call("ADD", &config));
        assert_eq!(cost.children, 0);
        cost
    });
    let Cost { messages, calls, .. } = costs.min().unwrap();
    assert!(messages <= if old { 10 } else { 5 }, "{messages} messages");
    assert!(calls <= 111, "{calls} system calls");
}

#[test]
fn masquerade_with_iptables_starts_no_process() {
    let lab = &Lab::new();
    let config = layer3(json!({
        "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
    }));
    let status = || cost::of(lab, lab.plugin("bridge", "STATUS").stdin(config.to_string()));
    assert_eq!(status().children, 0);
    let checked = Pod::new(lab, "checked");
    let with_result = with(config.clone(), json!({ "prevResult": checked.add(&config) }));
    assert_eq!(cost::of(lab, checked.call("CHECK", &with_result)).children, 0);
    assert_eq!(status().children, 0);
    for n in 0..2 {
        let pod = Pod::new(lab, &format!("traced{n}"));
        assert_eq!(cost::of(lab, pod.call("ADD", &config)).children, 0);
        // A child waits until the kernel has deleted the link and the rules.
        assert_eq!(cost::of(lab, pod.call("DEL", &config)).children, 1);
    }
}

/// When the kernel rejects a rule or recreates a base chain, it waits until no processor uses the old rules. That takes
/// as long as ten ADDs.
#[test]
fn add_with_masquerade_neither_recreates_a_chain_nor_sends_a_rejected_rule() {
    let lab = &Lab::new();
    let rules = |id: &str, bridge: &str| {
        let pod = Pod::with_ips(lab, id, &[&format!("10.1.0.{}/24", id.len())]);
        let config = layer3(json!({ "ipMasq": true, "bridge": bridge }));
        cost::nft_edits(pod.call("ADD", &config))
    };
    let rule = "add rule to chain inet cni_plugins_masquerade masq_checks";
    let first = rules("aa", "br0");
    assert_eq!(first.iter().filter(|edit| *edit == rule).count(), 1, "{first:?}");
    assert_eq!(first[0], "add table inet cni_plugins_masquerade", "{first:?}");
    assert_eq!(rules("bbb", "br0"), [rule]);
    assert_eq!(rules("cccc", "br1"), [rule], "a second network");
}
