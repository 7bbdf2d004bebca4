//! GC: removes what no valid attachment needs.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::{Lab, Outcome, Pod};

use crate::support::{self, accepted, config, containers, rules, ruleset};

fn collect(lab: &Lab, config: &Value, valid: Value) -> Outcome {
    let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("firewall", "GC").stdin(config.to_string()).run()
}

#[test]
fn rules_of_stale_attachments_are_removed() {
    let lab = &Lab::new();
    let pods: Vec<Pod<'_>> = (1..=3)
        .map(|n| Pod::absent(lab, &format!("c{n}"), &[&format!("10.9.0.{n}/24"), &format!("fd00::{n}/64")]))
        .collect();
    let second = Pod { ifname: "eth1".to_owned(), ips: vec!["10.9.0.9/24".to_owned()], ..pods[0].clone() };
    let (one, two) = (config(json!({})), on_network("net2", config(json!({}))));
    pods.iter().take(2).for_each(|pod| drop(pod.add(&one)));
    second.add(&one);
    pods[2].add(&two);
    collect(lab, &one, json!([{ "containerID": "c1", "ifname": "eth0" }])).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.1", "10.9.0.3", "fd00::1", "fd00::3"]));
    pods[0].check(&one).ok();
    pods[2].check(&two).ok();
    collect(lab, &one, json!([])).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.3", "fd00::3"]));
    let before = ruleset(lab);
    collect(lab, &one, json!([])).ok();
    assert_eq!(ruleset(lab), before);
    collect(lab, &two, json!([])).ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn policies_of_bridges_that_are_gone_are_removed() {
    let lab = &Lab::new();
    let isolated = config(json!({ "ingressPolicy": "isolated" }));
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let other = Pod::on_bridge(lab, "br1", "c2", &["10.8.0.2/24", "fd08::2/64"]);
    pod.add(&isolated);
    other.add(&on_network("net2", isolated.clone()));
    let text = || lab.sh("iptables -S; ip6tables -S");
    assert_eq!(text().matches("br0").count(), 10);
    collect(lab, &isolated, json!([])).ok();
    assert_eq!(text().matches("br0").count(), 10, "the bridge exists");
    assert_eq!(support::isolated(lab), ["vethc2"], "the attachment is gone");
    lab.sh("ip link delete br0");
    collect(lab, &isolated, json!([])).ok();
    assert!(!text().contains("br0"), "{}", text());
    other.check(&on_network("net2", isolated)).ok();
    assert_eq!(rules(lab, "iptables", "CNI-ISOLATION-STAGE-2").len(), 2);
}

#[test]
fn without_a_list_nothing_is_removed() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    pod.add(&config(json!({})));
    lab.plugin("firewall", "GC").stdin(config(json!({})).to_string()).run().error(7);
    pod.check(&config(json!({}))).ok();
}

#[test]
fn a_host_without_rules_stays_so() {
    let lab = &Lab::new();
    collect(lab, &config(json!({})), json!([])).ok();
    assert_eq!(ruleset(lab), "");
}
