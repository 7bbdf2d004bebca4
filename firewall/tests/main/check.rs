//! CHECK: finds each difference, and changes nothing.

use serde_json::json;
use testing::config::on_network;
use testing::{Lab, Pod};

use crate::support::{ADMIN, ENTRY, config, ports, ruleset};

/// Damages the host in each way, and expects CHECK to find it. Another ADD restores it each time.
fn find_each(lab: &Lab, pod: &Pod<'_>, config: &serde_json::Value, damages: &[(&str, &str)]) {
    pod.check(config).ok();
    for (damage, message) in damages {
        lab.sh(damage);
        let before = (ruleset(lab), ports(lab));
        let error = pod.check(config).error(999);
        assert!(error["msg"].as_str().unwrap().contains(message), "{damage}: {error}");
        assert!(!error["details"].as_str().unwrap().is_empty(), "{damage}: {error}");
        assert_eq!((ruleset(lab), ports(lab)), before, "{damage}");
        lab.sh("nft flush ruleset");
        pod.add(config);
        pod.check(config).ok();
    }
}

#[test]
fn each_missing_rule_is_found() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    pod.add(&config);
    find_each(
        lab,
        &pod,
        &config,
        &[
            ("iptables -D FORWARD 1", "no rule of chain FORWARD leads to CNI-FORWARD"),
            ("ip6tables -D FORWARD 1", "no rule of chain FORWARD leads to CNI-FORWARD"),
            ("iptables -D CNI-FORWARD 1", "no rule of chain CNI-FORWARD leads to CNI-ADMIN"),
            ("iptables -D CNI-FORWARD 2", "-m mark --mark 0x1000/0x1000 -j ACCEPT"),
            ("ip6tables -D CNI-FORWARD 2", "-m mark --mark 0x1000/0x1000 -j ACCEPT"),
            ("nft delete element inet cni_firewall ipv4 { 10.9.0.2 }", "10.9.0.2 is not in table inet cni_firewall"),
            ("nft flush set inet cni_firewall ipv6", "fd00::2 is not in table inet cni_firewall"),
            ("nft flush chain inet cni_firewall set_mark", "rules of table inet cni_firewall do not exist"),
            ("nft flush chain inet cni_firewall accepted", "rules of table inet cni_firewall do not exist"),
            ("nft delete chain inet cni_firewall clear_mark", "rules of table inet cni_firewall do not exist"),
            ("nft delete table inet cni_firewall", "-d 10.9.0.2/32"),
            ("iptables -F; iptables -X", "chain CNI-FORWARD does not exist"),
            ("nft delete table ip6 filter", "chain CNI-FORWARD does not exist"),
            ("iptables -R CNI-FORWARD 2 -s 10.9.0.2 -j DROP", "in chain CNI-FORWARD does not exist"),
        ],
    );
}

#[test]
fn each_difference_of_a_policy_is_found() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let pod = Pod { mac: Some("02:00:00:00:00:01".to_owned()), ..pod };
    let config = config(json!({ "ingressPolicy": "isolated" }));
    pod.add(&config);
    let moved = format!("iptables -D FORWARD 2; iptables -I FORWARD {ENTRY}");
    let missing = "in chain CNI-ISOLATION-STAGE-";
    find_each(
        lab,
        &pod,
        &config,
        &[
            ("iptables -D FORWARD 1", "FORWARD does not lead to CNI-ISOLATION-STAGE-1"),
            (&moved, "before it leads to CNI-FORWARD"),
            ("iptables -D CNI-ISOLATION-STAGE-1 1", missing),
            ("iptables -D CNI-ISOLATION-STAGE-1 2", missing),
            ("ip6tables -D CNI-ISOLATION-STAGE-1 3", missing),
            ("iptables -D CNI-ISOLATION-STAGE-2 1", missing),
            ("ip6tables -F CNI-ISOLATION-STAGE-2", missing),
            ("nft delete element bridge cni_isolation ports '{ vethc1 }'", "port \"vethc1\" is not isolated"),
            ("nft flush chain bridge cni_isolation forward", "port \"vethc1\" is not isolated"),
        ],
    );
}

#[test]
fn a_policy_that_is_too_strict_is_found() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let other = Pod::on_bridge(lab, "br1", "c2", &["10.8.0.2/24", "fd08::2/64"]);
    let policy = |ingress: &str| config(json!({ "ingressPolicy": ingress }));
    // The policy of another network does not matter.
    other.add(&on_network("net2", policy("isolated")));
    for (present, wanted) in [("isolated", "open"), ("same-bridge", "open"), ("isolated", "same-bridge")] {
        pod.add(&policy(present));
        let error = pod.check(&policy(wanted)).error(999);
        assert!(error["msg"].as_str().unwrap().contains("stricter ingress policy"), "{present} {wanted}: {error}");
        pod.add(&policy(wanted));
        pod.check(&policy(wanted)).ok();
    }
}

/// The table names the port, so that the isolation ends.
#[test]
fn an_isolated_port_with_another_name_is_found() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24"]);
    let config = config(json!({ "ingressPolicy": "isolated" }));
    pod.add(&config);
    lab.sh("ip link set vethc1 down; ip link set vethc1 name other up");
    let error = pod.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("the isolated port \"vethc1\" does not exist"), "{error}");
    lab.sh("ip link set other down; ip link set other name vethc1 up");
    pod.check(&config).ok();
}

#[test]
fn an_attachment_without_rules_is_found() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({}));
    pod.check(&config).error(999);
    assert_eq!(ruleset(lab), "");
    // Rules of another container do not count.
    Pod::absent(lab, "c2", &["10.9.0.3/24"]).add(&config);
    pod.check(&config).error(999);
    pod.add(&config);
    pod.check(&config).ok();
    lab.sh(&format!("iptables -A CNI-FORWARD -s 10.7.0.7 -j ACCEPT; iptables -A CNI-FORWARD {ADMIN}"));
    pod.check(&config).ok();
}

#[test]
fn a_missing_previous_result_is_reported() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    for command in ["ADD", "CHECK"] {
        let outcome = pod.call(command, &config(json!({ "prevResult": null }))).run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert!(outcome.stdout.contains("prevResult"), "{outcome:?}");
    }
    assert_eq!(ruleset(lab), "");
}
