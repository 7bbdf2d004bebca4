//! Calls of plugins: CHECK and STATUS.

use std::fs;

use serde_json::json;

use super::{assert_healthy, only_problem, problems, subjects};
use crate::node::{attach, host, json, network, page, port, snapshot};

#[test]
fn a_plugin_that_hangs_does_not_delay_other_findings() {
    let host = host("10.158.0.0/24");
    attach(&host, "blue");
    // The plugin copies what cnitool has printed by then.
    let (out, seen) = (host.lab.dir().join("out"), host.lab.dir().join("seen"));
    host.lab.script("slow", &format!("cp {} {}\nexec sleep 1000", out.display(), seen.display()));
    let list = json!({ "cniVersion": "1.1.0", "name": "slow", "plugins": [{ "type": "slow" }] });
    host.configure("05-slow.conflist", &list.to_string());
    let outcome = host.call("doctor").env("OUT", &out).via_shell("exec \"$0\" \"$@\" >\"$OUT\"").run();
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    let (text, before) = (fs::read_to_string(out).unwrap(), fs::read_to_string(seen).unwrap());
    assert!(before.contains("ok    leases: network pods: 1 lease") && text.starts_with(&before), "{before}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let part = "it did not exit within 5s subjects: plugin slow remedy: runtimes call VERSION before they use a plugin";
    assert!(words.join(" ").contains(part), "{text}");
    assert!(text.contains("ok    status: network pods") && text.contains("1 failure"), "{text}");
}

#[test]
fn check_finds_what_no_other_check_finds() {
    let host = host("10.245.0.0/24");
    let ids = ["blue", "red"].map(|name| attach(&host, name));
    host.lab.sh(&format!("ip link set {} address 02:00:00:00:00:01", port(&ids[0])));
    let before = snapshot(&host);
    let what = only_problem(&host, "check", "fail");
    assert!(what.contains("MAC address of"), "{what}");
    assert_eq!(subjects(&what, "container"), [ids[0].clone()]);
    assert!(what.contains("\"command\":null"), "repair does not change links: {what}");
    assert_eq!(snapshot(&host), before, "CHECK changes nothing");
    let text = page(&host.run("doctor"));
    assert!(text.contains("ok    check: network pods: CHECK of 1 attachment succeeds"), "{text}");
    // The configuration of the add is used if the network has none any more.
    fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    let answer = json(&host, "doctor --json");
    assert!(problems(&answer).contains(&"check fail".to_owned()), "{answer:#}");
}

#[test]
fn networks_without_check_are_not_checked() {
    let host = host("10.246.0.0/24");
    let id = attach(&host, "blue");
    host.lab.sh(&format!("ip link set {} address 02:00:00:00:00:01", port(&id)));
    let mut config = network("pods", "10.246.0.0/24", &json!({}));
    config["disableCheck"] = json!(true);
    host.configure("10-pods.conflist", &config.to_string());
    let text = page(&host.run("doctor"));
    assert!(text.contains("check: network pods: not called: \"disableCheck\" is set"), "{text}");
    assert_healthy(&host, "disableCheck");
    let mut config = network("pods", "10.246.0.0/24", &json!({}));
    config["cniVersion"] = json!("0.3.1");
    host.configure("10-pods.conflist", &config.to_string());
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert!(answer["notSeen"].to_string().contains("CHECK of 1 attachment to network pods"), "{answer:#}");
}

/// STATUS exists since 1.1.0, but plugins of cni0 answer it whatever the version of the network.
#[test]
fn a_feature_that_is_missing_is_found_with_an_old_version() {
    let host = host("10.247.0.0/24");
    let mut config = network("pods", "10.247.0.0/24", &json!({}));
    config["cniVersion"] = json!("1.0.0");
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "firewall", "backend": "firewalld" }));
    host.configure("10-pods.conflist", &config.to_string());
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    let what = only_problem(&host, "status", "fail");
    assert!(what.contains("firewalld"), "{what}");
}

#[test]
fn a_plugin_that_hangs_in_check_is_called_once_on_each_processor() {
    let host = host("10.248.0.0/24");
    let log = host.lab.dir().join("calls");
    let script = format!(
        "case $CNI_COMMAND in
         ADD) jq .prevResult ;;
         VERSION) echo '{{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.1.0\"]}}' ;;
         CHECK) echo >>{}; exec sleep 1000 ;;
         esac",
        log.display()
    );
    host.lab.script("slow", &script);
    let mut config = network("pods", "10.248.0.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "slow" }));
    host.configure("10-pods.conflist", &config.to_string());
    let processors = std::thread::available_parallelism().unwrap().get();
    let all = processors + 2;
    for number in 0..all {
        attach(&host, &format!("c{number}"));
    }
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["check fail"], "{answer:#}");
    let failures = answer["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] == "fail").count();
    assert_eq!(failures, 1, "{answer:#}");
    let called = fs::read_to_string(log).unwrap().lines().count();
    assert!((1..=processors).contains(&called), "{called}");
    let text = format!("CHECK of {} attachments was left out", all - called);
    assert!(answer.to_string().contains(&text), "{text}: {answer:#}");
}

/// A container that ends while doctor runs is not a problem.
#[test]
fn a_namespace_that_vanishes_meanwhile() {
    let host = host("10.249.0.0/24");
    let script = "case $CNI_COMMAND in
         ADD) jq .prevResult ;;
         VERSION) echo '{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.1.0\"]}' ;;
         CHECK) umount $CNI_NETNS; rm -f $CNI_NETNS; echo '{\"code\": 7, \"msg\": \"gone\"}'; exit 1 ;;
         esac";
    host.lab.script("vanish", script);
    let mut config = network("pods", "10.249.0.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "vanish" }));
    host.configure("10-pods.conflist", &config.to_string());
    for name in ["a", "b", "c"] {
        attach(&host, name);
    }
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
}
