//! Networks of `ptp`: host veths without a bridge, and rules of a kind that `bridge` lists, too.

use serde_json::json;

use crate::doctor::problems;
use crate::node::{attach, host, json, lose_namespace, page};

#[test]
fn host_veths_and_rules_are_shown_repaired_and_pruned() {
    let host = host("10.254.21.0/24");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.254.21.0/24" }]] });
    let plugin = json!({ "type": "ptp", "ipMasq": true, "ipam": ipam });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &list.to_string());
    attach(&host, "blue");
    let lost = attach(&host, "lost");

    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    let shown = page(&host.run("show"));
    assert!(shown.contains("host veths:") && !shown.contains("detached"), "{shown}");
    let rules = json(&host, "show --json")["otherNetworks"][0]["masquerade"].as_array().unwrap().len();
    assert_eq!(rules, 2, "each rule is listed once");

    host.lab.sh("nft flush ruleset");
    assert!(!problems(&json(&host, "doctor --json")).is_empty());
    page(&host.run("repair pods"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);

    lose_namespace(&host, "lost", &lost);
    page(&host.run("prune --force pods"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert!(!host.lab.sh("nft list ruleset").contains("10.254.21.3"));
}
