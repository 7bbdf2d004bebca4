//! Many calls at the same time, first on a host without chains.

use serde_json::{Value, json};
use testing::config::with;
use testing::parallel::{assert_added, assert_silent};
use testing::{Lab, Outcome, Pod, parallel};

use crate::support::{ADMIN, ENTRY, MARKED, accepted, config, containers, rules};

const PODS: usize = 100;

/// Starts one call for each line `COMMAND CONTAINER` at the same time, and returns their outcomes, in that order.
fn all_at_once(lab: &Lab, calls: &[String], config: impl Fn(&str) -> Value) -> Vec<Outcome> {
    let call = |call: &String| {
        let (command, id) = call.split_once(' ').unwrap();
        Pod::absent(lab, id, &[]).call(command, &config(id))
    };
    parallel::run(calls.iter().map(call).collect())
}

/// Returns the configuration for a container with the number at the end of its ID.
fn numbered(id: &str, keys: Value) -> Value {
    let number: usize = id.trim_start_matches(|letter: char| letter.is_alphabetic()).parse().unwrap();
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "br0" }, { "name": "eth0", "sandbox": "/run/netns/x" }],
        "ips": [{ "address": format!("10.1.0.{number}/24"), "interface": 1 }, { "address": format!("fd01::{number}/64"), "interface": 1 }],
    });
    with(config(keys), json!({ "prevResult": result }))
}

fn calls(command: &str, ids: impl Iterator<Item = usize>) -> Vec<String> {
    ids.map(|n| format!("{command} c{n}")).collect()
}

#[test]
fn a_hundred_first_adds_create_one_set_of_chains() {
    for policy in ["open", "isolated"] {
        let lab = &Lab::new();
        lab.sh("ip link add br0 type bridge");
        let config = |id: &str| numbered(id, json!({ "ingressPolicy": policy }));
        assert_added(&all_at_once(lab, &calls("ADD", 1..=PODS), config));
        let policies = usize::from(policy == "isolated");
        let all: Vec<String> = (1..=PODS).flat_map(|n| [format!("10.1.0.{n}"), format!("fd01::{n}")]).collect();
        assert_eq!(containers(lab), accepted(&all.iter().map(String::as_str).collect::<Vec<_>>()));
        for tool in ["iptables", "ip6tables"] {
            let forward = rules(lab, tool, "FORWARD");
            assert_eq!(forward.len(), 1 + policies, "{forward:#?}");
            assert_eq!(forward[policies], ENTRY);
            assert_eq!(rules(lab, tool, "CNI-FORWARD"), [ADMIN, MARKED]);
            assert_eq!(rules(lab, tool, "CNI-ISOLATION-STAGE-1").len(), 4 * policies);
            assert_eq!(rules(lab, tool, "CNI-ISOLATION-STAGE-2").len(), 2 * policies);
        }
        assert_silent(&all_at_once(lab, &calls("CHECK", 1..=PODS), config));
        assert_silent(&all_at_once(lab, &calls("DEL", 1..=PODS), config));
        assert_eq!(containers(lab), [] as [&str; 0]);
    }
}

#[test]
fn adds_and_dels_race() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge");
    let config = |id: &str| numbered(id, json!({}));
    assert_added(&all_at_once(lab, &calls("ADD", 1..=25), config));
    for round in 0..4 {
        let (old, new) = (1 + 25 * (round % 2), 1 + 25 * ((round + 1) % 2));
        let (dels, adds) = (calls("DEL", old..old + 25), calls("ADD", new..new + 25));
        let mixed: Vec<String> = dels.into_iter().zip(adds).flat_map(|(del, add)| [del, add]).collect();
        for (n, outcome) in all_at_once(lab, &mixed, config).iter().enumerate() {
            if n % 2 == 0 { outcome.silent() } else { assert_added(std::slice::from_ref(outcome)) }
        }
        assert_silent(&all_at_once(lab, &calls("CHECK", new..new + 25), config));
        assert_eq!(containers(lab).len(), 50);
    }
}

/// The same attachment, as if a runtime repeated a call that it thinks lost.
#[test]
fn repeated_calls_for_one_attachment_race() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge");
    let config = |id: &str| numbered(id, json!({}));
    assert_added(&all_at_once(lab, &vec!["ADD c1".to_owned(); 20], config));
    assert_added(&all_at_once(lab, &["ADD c1".to_owned()], config));
    assert_eq!(containers(lab), accepted(&["10.1.0.1", "fd01::1"]));
    let mixed: Vec<String> = (0..20).map(|n| format!("{} c1", ["ADD", "DEL"][n % 2])).collect();
    for (n, outcome) in all_at_once(lab, &mixed, config).iter().enumerate() {
        if n % 2 == 0 { assert_added(std::slice::from_ref(outcome)) } else { outcome.silent() }
    }
    assert_silent(&all_at_once(lab, &["DEL c1".to_owned()], config));
    assert_eq!(containers(lab), [] as [&str; 0]);
}

/// Containers with the same address come and go at the same time. Those that are left have it.
#[test]
fn attachments_with_one_address_race() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge");
    let config = |_: &str| numbered("c1", json!({}));
    for round in 0..4 {
        let (old, new) = (30 * (round % 2), 30 * ((round + 1) % 2));
        assert_added(&all_at_once(lab, &calls("ADD", old..old + 30), config));
        let (dels, adds) = (calls("DEL", old..old + 30), calls("ADD", new..new + 30));
        let mixed: Vec<String> = dels.into_iter().zip(adds).flat_map(|(del, add)| [del, add]).collect();
        for (n, outcome) in all_at_once(lab, &mixed, config).iter().enumerate() {
            if n % 2 == 0 { outcome.silent() } else { assert_added(std::slice::from_ref(outcome)) }
        }
        assert_silent(&all_at_once(lab, &calls("CHECK", new..new + 30), config));
        assert_eq!(containers(lab), accepted(&["10.1.0.1", "fd01::1"]));
        assert_silent(&all_at_once(lab, &calls("DEL", new..new + 30), config));
        assert_eq!(containers(lab), [] as [&str; 0]);
    }
}

/// Another program changes rules all the time.
#[test]
fn foreign_transactions_do_not_disturb() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge");
    let config = |id: &str| numbered(id, json!({ "ingressPolicy": "same-bridge" }));
    parallel::beside(lab, "iptables -w -N OTHER; iptables -w -X OTHER", || {
        for _ in 0..3 {
            assert_added(&all_at_once(lab, &calls("ADD", 1..=5), config));
            assert_silent(&all_at_once(lab, &calls("CHECK", 1..=5), config));
            assert_silent(&all_at_once(lab, &calls("DEL", 1..=5), config));
        }
    });
}
