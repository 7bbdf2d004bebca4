//! Networks of `static`, with and without leases.

use std::fs;

use serde_json::{Value, json};

use crate::doctor::problems;
use crate::node::{attach_with, host, json, lose_namespace, page};
use crate::support::Host;

/// A host with a network of `static` that gets its addresses from the runtime.
fn host_of(subnet: &str, leases: bool) -> Host {
    let host = host(&format!("{subnet}.0/24"));
    let gateway = json!({ "address": format!("{subnet}.2/24"), "gateway": format!("{subnet}.1") });
    let ipam = json!({ "type": "static", "leases": leases, "addresses": [gateway] });
    let plugin = json!({ "type": "bridge", "bridge": "br-pods", "isDefaultGateway": true, "capabilities": { "ips": true },
                         "ipam": ipam });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &list.to_string());
    host
}

fn attach(host: &Host, name: &str, ip: &str) -> String {
    attach_with(host, name, &json!({ "ips": [format!("{ip}/24")] }).to_string())
}

fn leased(answer: &Value) -> Vec<&str> {
    let leases = answer["networks"][0]["leases"].as_array().unwrap().iter();
    leases.map(|lease| lease["address"].as_str().unwrap()).collect()
}

#[test]
fn leases_are_shown_and_pruned() {
    let host = host_of("10.254.11", true);
    let (_, lost) = (attach(&host, "blue", "10.254.11.7"), attach(&host, "lost", "10.254.11.8"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert_eq!(leased(&json(&host, "leases --json")), ["10.254.11.7", "10.254.11.8"]);
    lose_namespace(&host, "lost", &lost);
    assert_eq!(json(&host, "leases --json")["networks"][0]["leases"][1]["state"], "gone");
    page(&host.run("prune --force pods"));
    assert_eq!(leased(&json(&host, "leases --json")), ["10.254.11.7"]);
    assert_eq!(host.cached().len(), 1);
}

#[test]
fn a_network_without_leases_has_no_problem() {
    let host = host_of("10.254.12", false);
    let (_, lost) = (attach(&host, "blue", "10.254.12.7"), attach(&host, "lost", "10.254.12.8"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert!(page(&host.run("show")).contains("10.254.12.7"));
    lose_namespace(&host, "lost", &lost);
    page(&host.run("prune --force pods"));
    assert_eq!(host.cached().len(), 1);
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

#[test]
fn its_keys_are_known() {
    let host = host_of("10.254.13", true);
    let path = host.conf_dir().join("10-pods.conflist");
    let outcome = host.run(&format!("validate {}", path.display()));
    assert!(outcome.stdout.contains("0 errors, 0 warnings"), "{outcome:?}");
    let mistake = fs::read_to_string(&path).unwrap().replace("\"leases\"", "\"lease\"");
    fs::write(&path, mistake).unwrap();
    let outcome = host.run(&format!("validate {}", path.display()));
    assert!(format!("{}{}", outcome.stdout, outcome.stderr).contains("leases"), "{outcome:?}");
}
