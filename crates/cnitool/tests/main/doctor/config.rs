//! Configurations: broken, shadowed and missing files.

use std::fs;

use serde_json::json;

use super::{only_problem, problems};
use crate::node::{attach, host, json, network, page};

#[test]
fn files_that_are_shadowed_or_broken() {
    let host = host("10.136.0.0/24");
    attach(&host, "blue");
    host.configure("20-pods.conflist", &network("pods", "10.136.0.0/24", &json!({})).to_string());
    let what = only_problem(&host, "config", "warn");
    assert!(what.contains("20-pods.conflist is never used") && what.contains("10-pods.conflist"), "{what}");
    fs::remove_file(host.conf_dir().join("20-pods.conflist")).unwrap();
    host.configure("05-broken.conflist", "{\n  \"name\": \"x\",,\n}");
    let what = only_problem(&host, "config", "fail");
    assert!(what.contains("05-broken.conflist:2:"), "{what}");
    host.configure("05-broken.conflist", &network("bad", "10.136.1.0/24", &json!({ "mtu": 7 })).to_string());
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["config fail"], "{answer:#}");
    assert!(answer.to_string().contains("plugin \\\"bridge\\\": key \\\"mtu\\\": 7 is out of range"), "{answer:#}");
}

#[test]
fn two_files_of_one_network_of_which_each_is_used() {
    let host = host("10.157.0.0/24");
    attach(&host, "blue");
    let mut single = network("pods", "10.157.0.0/24", &json!({}))["plugins"][0].clone();
    (single["name"], single["cniVersion"]) = (json!("pods"), json!("1.1.0"));
    host.configure("00-pods.conf", &single.to_string());
    let what = only_problem(&host, "config", "warn");
    assert!(what.contains("10-pods.conflist") && what.contains("CRI-O use the second"), "{what}");
    assert!(!what.contains("never used"), "{what}");
    // After the list, no program uses it.
    fs::rename(host.conf_dir().join("00-pods.conf"), host.conf_dir().join("20-pods.conf")).unwrap();
    assert!(only_problem(&host, "config", "warn").contains("20-pods.conf is never used"));
}

#[test]
fn the_first_file_by_name_is_the_one_that_kubelet_uses() {
    let host = host("10.137.0.0/24");
    attach(&host, "blue");
    host.configure("05-single.conf", r#"{"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}"#);
    let text = page(&host.run("doctor"));
    let text: Vec<&str> = text.split_whitespace().collect();
    assert!(text.join(" ").contains("first valid file, 05-single.conf (network lo)"), "{text:?}");
}

#[test]
fn a_host_without_any_configuration() {
    let host = host("10.138.0.0/24");
    fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    assert!(only_problem(&host, "config", "fail").contains("there is no network configuration"));
    host.configure("10-pods.conflist", "{");
    assert!(only_problem(&host, "config", "fail").contains("10-pods.conflist:1:"));
    assert!(!page(&host.run("doctor")).contains("there is no network configuration"));
}
