//! Source routing: a network of bridge and sbr, checked and repaired.

use serde_json::json;

use crate::doctor::{only_problem, problems};
use crate::node::{attach, host_with, json};
use crate::repair::states;

#[test]
fn missing_rules_are_reported_and_repaired() {
    let host = host_with("10.254.41.0/24", &json!({ "type": "sbr" }));
    attach(&host, "blue");
    let found = json(&host, "doctor --json").to_string();
    assert!(found.contains("leave by the interface of their source"), "{found}");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    for round in 0..2 {
        host.lab.sh("ip -n blue rule del table 100");
        let what = only_problem(&host, "sbr", "warn");
        assert!(
            what.contains("1 of 1 live containers lack rules or routes") && what.contains("cnitool repair"),
            "{what}"
        );
        assert_eq!(states(&json(&host, "repair --json")), ["repaired"], "{round}");
        assert_eq!(states(&json(&host, "repair --json")), ["ok"], "{round}");
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{round}");
    }
}
