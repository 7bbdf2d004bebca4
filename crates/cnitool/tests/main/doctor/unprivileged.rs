//! What is reported without permission to see everything.

use serde_json::Value;

use super::{claims_all_alive, problems};
use crate::node::{attach, host, lose_namespace, powerless};

#[test]
fn without_permission_it_lists_what_was_not_seen() {
    let host = host("10.151.0.0/24");
    attach(&host, "blue");
    let answer: Value = serde_json::from_str(&powerless(&host, "doctor --json").stdout).unwrap();
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert!(!answer["notSeen"].as_array().unwrap().is_empty());
    let claims = answer["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == "firewall");
    assert!(!claims, "no finding about what was not seen: {answer:#}");
}

#[test]
fn without_permission_there_is_no_finding_about_leases() {
    let host = host("10.156.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    // The command runs without capabilities and does not own the files.
    host.lab.sh("chown -R 4711 /var/lib/cni; chmod 600 /var/lib/cni/networks/pods/10*");
    let outcome = powerless(&host, "doctor --json");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let unseen = answer["notSeen"].to_string();
    assert!(unseen.contains("whether 2 leases belong to live containers"), "{answer:#}");
    assert!(!claims_all_alive(&powerless(&host, "doctor")));
    host.lab.sh("chmod 700 /var/lib/cni/networks/pods");
    let answer: Value = serde_json::from_str(&powerless(&host, "doctor --json").stdout).unwrap();
    let claims = |check: &str| answer["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == check);
    assert!(!claims("leases") && !claims("ranges"), "the directory was not seen: {answer:#}");
}
