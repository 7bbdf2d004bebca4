//! CHECK compares rules and default routes.

use serde_json::json;
use testing::Lab;
use testing::config::with;

use crate::support::{Routed, V4, V6, chained, config, pod};

#[test]
fn damage_is_found() {
    for (damage, text) in [
        ("ip rule del from 192.168.1.209", "no rule for packets from 192.168.1.209"),
        ("ip -6 rule del from fd01::5", "no rule for packets from fd01::5"),
        ("ip route del default table 100", "table 100"),
        ("ip -6 route flush table 101", "no default route"),
        ("ip link set net1 down", "no default route"),
        ("ip link del net1", "Cannot find network interface net1"),
        ("ip route replace default via 10.9.0.1 dev eth0 table 100", "no default route"),
    ] {
        let lab = &Lab::new();
        let pod = pod(lab, "c1", &[V4, V6]);
        let config = chained(&pod, json!({}), &[V4, V6]);
        pod.add(&config);
        pod.check(&config).silent();
        pod.sh(damage);
        let before = pod.state();
        let error = pod.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{damage}: {error}");
        assert_eq!(pod.state(), before, "{damage}");
    }
}

#[test]
fn a_fixed_table_must_be_the_one() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({ "table": 5000 }), &[V4]);
    pod.add(&config);
    pod.check(&config).silent();
    let error = pod.check(&with(config, json!({ "table": 5001 }))).error(999);
    assert!(error["msg"].as_str().unwrap().contains("from 192.168.1.209 to table 5001"), "{error}");
}

#[test]
fn a_previous_result_is_required() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let error = pod.check(&config(json!({ "prevResult": null }))).error(7);
    assert!(error["msg"].as_str().unwrap().contains("must be called as chained plugin"), "{error}");
}
