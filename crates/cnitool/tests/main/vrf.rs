//! Routing tables of their own: a network of bridge and vrf, checked and repaired. Needs a kernel with VRFs, such as
//! that of `ci/vm`.

use serde_json::json;
use testing::needs_link;

use crate::doctor::{only_problem, problems};
use crate::node::{attach, host_with, json};
use crate::repair::states;

#[test]
fn missing_memberships_are_reported_and_repaired() {
    let host = host_with("10.254.42.0/24", &json!({ "type": "vrf", "vrfname": "blue" }));
    if !needs_link("missing_memberships_are_reported_and_repaired", "type vrf table 10") {
        return;
    }
    attach(&host, "blue");
    let found = json(&host, "doctor --json");
    assert!(found.to_string().contains("interfaces of live containers are in their VRF"), "{found}");
    assert_eq!(problems(&found), [""; 0], "{found:#}");
    host.lab.sh("ip -n blue link set eth0 nomaster; ip -n blue route add default via 10.254.42.1");
    let what = only_problem(&host, "vrf", "warn");
    assert!(
        what.contains("1 of 1 live containers lack memberships of a VRF") && what.contains("cnitool repair"),
        "{what}"
    );
    assert_eq!(states(&json(&host, "repair --json")), ["repaired"]);
    assert_eq!(states(&json(&host, "repair --json")), ["ok"]);
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}
