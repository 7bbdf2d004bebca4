//! A repeated ADD replaces what an earlier one left.

use serde_json::json;
use testing::Lab;

use crate::support::{Routed, V4, V6, chained, pod};

#[test]
fn the_same_again_changes_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    pod.sh("ip route add 10.20.0.0/16 via 192.168.1.7");
    let config = chained(&pod, json!({}), &[V4, V6]);
    pod.add(&config);
    let added = pod.state();
    assert_eq!(pod.add(&config), config["prevResult"]);
    assert_eq!(pod.state(), added);
    // The plugin before has repeated its ADD as well, so that the main table has the routes again.
    pod.sh("ip route add 192.168.1.0/24 dev net1 proto kernel scope link src 192.168.1.209
        ip route add 10.20.0.0/16 via 192.168.1.7; ip -6 route add fd01::/64 dev net1 proto kernel metric 256");
    pod.add(&config);
    assert_eq!(pod.state(), added);
    pod.del(&config);
    assert_eq!(pod.rules(), [""; 0]);
}

#[test]
fn another_gateway_replaces_the_first() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    pod.add(&chained(&pod, json!({}), &[V4, V6]));
    let config = chained(&pod, json!({ "gateways": ["192.168.1.7", "fd01::7"] }), &[V4, V6]);
    pod.add(&config);
    let defaults = |family, table| {
        pod.table(family, table).into_iter().filter(|line| line.contains("default")).collect::<Vec<_>>()
    };
    assert_eq!(defaults("-4", "100"), ["default via 192.168.1.7 dev net1"]);
    assert_eq!(defaults("-6", "101"), ["default via fd01::7 dev net1 metric 1024"]);
    assert_eq!(pod.rules(), ["192.168.1.209 100", "fd01::5 101"]);
}

#[test]
fn an_address_that_is_gone_loses_its_rule_and_table() {
    let lab = &Lab::new();
    let other = ("192.168.101.209/24", "192.168.101.1");
    let pod = pod(lab, "c1", &[V4, other]);
    pod.add(&chained(&pod, json!({}), &[other, V4]));
    assert_eq!(pod.rules(), ["192.168.1.209 101", "192.168.101.209 100"]);
    pod.sh("ip address del 192.168.101.209/24 dev net1");
    pod.add(&chained(&pod, json!({}), &[V4]));
    assert_eq!(pod.rules(), ["192.168.1.209 101"]);
    assert_eq!(pod.table("-4", "100"), [""; 0]);
    assert_eq!(pod.table("-4", "101").len(), 2);
}

#[test]
fn a_fixed_table_replaces_those_of_addresses() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    pod.add(&chained(&pod, json!({}), &[V4]));
    pod.add(&chained(&pod, json!({ "table": 5000 }), &[V4]));
    assert_eq!(pod.rules(), ["192.168.1.209 5000"]);
    assert_eq!(pod.table("-4", "100"), [""; 0]);
}

/// A table of the attachment that got routes of another interface belongs to another program.
#[test]
fn a_table_that_another_program_took_is_left_to_it() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({}), &[V4]);
    pod.add(&config);
    pod.sh("ip route add 10.77.0.0/16 dev eth0 table 100");
    pod.sh("ip route add 192.168.1.0/24 dev net1 scope link src 192.168.1.209");
    pod.add(&config);
    assert_eq!(pod.rules(), ["192.168.1.209 101"]);
    assert_eq!(pod.table("-4", "100"), ["10.77.0.0/16 dev eth0 scope link"]);
}

#[test]
fn a_failed_repetition_leaves_what_was_there() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    pod.add(&chained(&pod, json!({}), &[V4]));
    let added = pod.state();
    for keys in [json!({ "gateways": ["10.9.0.1"] }), json!({ "gateways": ["192.168.99.1"] })] {
        pod.call("ADD", &chained(&pod, keys, &[V4])).run().error(999);
        assert_eq!(pod.state(), added);
    }
}

/// The routes in the tables are those of the interface, which the main table has no more.
#[test]
fn rules_that_another_program_deleted_are_added_again() {
    let lab = &Lab::new();
    let other = ("192.168.101.209/24", "192.168.101.1");
    let pod = pod(lab, "c1", &[V4, other, V6]);
    let config = chained(&pod, json!({}), &[V4, other, V6]);
    pod.add(&config);
    let added = pod.state();
    for damage in [
        "ip rule del table 100",
        "ip rule del table 101; ip -6 rule del table 102",
        "ip rule del table 100; ip rule del table 101; ip -6 rule del table 102",
    ] {
        pod.sh(damage);
        pod.add(&config);
        let sorted = |state: &str| {
            let mut lines: Vec<_> =
                state.lines().map(|line| line.split_once(":\t").map_or(line, |(_, rule)| rule).to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&pod.state()), sorted(&added), "{damage}");
    }
}
