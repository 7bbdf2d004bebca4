//! The reference beside this plugin: the same tables, and each removes what the other added.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::support::{Routed, V4, V6, chained, pod};

fn added_by_reference(pod: &Pod<'_>, config: &Value) -> Value {
    pod.call_reference("ADD", config).run().ok()
}

#[test]
fn the_tables_are_those_of_the_reference() {
    if reference("sbr", "the_tables_are_those_of_the_reference").is_none() {
        return;
    }
    let two = [V4, ("192.168.101.209/24", "192.168.101.1")];
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        for ips in [&[V4][..], &two, &[V6]] {
            let [expected, found] = [false, true].map(|is_ours| {
                let lab = &Lab::new();
                let pod = pod(lab, "c1", ips);
                let config = chained(&pod, json!({ "cniVersion": version }), ips);
                let result = if is_ours { pod.add(&config) } else { added_by_reference(&pod, &config) };
                let mut tables: Vec<_> =
                    ["100", "101", "main"].map(|table| [pod.table("-4", table), pod.table("-6", table)]).concat();
                // The reference also moves this route out of the main table, and to tables of IPv4 addresses.
                tables.iter_mut().for_each(|routes| routes.retain(|route| !route.starts_with("fe80::")));
                (result["ips"].clone(), result["interfaces"].clone(), pod.rules(), tables)
            });
            assert_eq!(found, expected, "{version} {ips:?}");
        }
    }
}

#[test]
fn each_removes_the_rules_of_the_other() {
    if reference("sbr", "each_removes_the_rules_of_the_other").is_none() {
        return;
    }
    for ips in [&[V4][..], &[V4, V6]] {
        for is_ours in [false, true] {
            let lab = &Lab::new();
            let pod = pod(lab, "c1", ips);
            let config = chained(&pod, json!({ "cniVersion": "1.0.0" }), ips);
            if is_ours {
                pod.add(&config);
                pod.call_reference("DEL", &config).run().ok();
            } else {
                added_by_reference(&pod, &config);
                pod.check(&config).silent();
                pod.del(&config);
            }
            assert_eq!(pod.rules(), [""; 0], "ours: {is_ours} {ips:?}");
        }
    }
}

/// After an upgrade, a runtime may repeat the ADD. The reference has moved the routes already.
#[test]
fn a_repeated_add_takes_over_the_tables_of_the_reference() {
    if reference("sbr", "a_repeated_add_takes_over_the_tables_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({ "cniVersion": "1.0.0" }), &[V4]);
    added_by_reference(&pod, &config);
    let (rules, table) = (pod.rules(), pod.table("-4", "100"));
    pod.add(&config);
    assert_eq!((pod.rules(), pod.table("-4", "100")), (rules, table));
    assert_eq!(pod.sh("ip rule | grep -c 192.168.1.209").trim(), "1");
    pod.del(&with(config, json!({ "prevResult": null })));
    assert_eq!(pod.rules(), [""; 0]);
}

/// Without a previous result, the alias of the interface or a lease proves whose the rules are.
#[test]
fn rules_of_the_reference_need_evidence() {
    if reference("sbr", "rules_of_the_reference_need_evidence").is_none() {
        return;
    }
    for (evidence, is_removed) in [
        ("true", false),
        ("ip -n c1 link set net1 alias 'cni-attachment net1 c1 net1'", true),
        ("ip -n c1 link set net1 alias 'cni-attachment net1 c2 net1'", false),
        ("mkdir -p /var/lib/cni/networks/net1; printf 'c1\\r\\nnet1' >/var/lib/cni/networks/net1/192.168.1.209", true),
        ("mkdir -p /var/lib/cni/networks/net1; printf 'c2\\r\\nnet1' >/var/lib/cni/networks/net1/192.168.1.209", false),
    ] {
        let lab = &Lab::new();
        let pod = pod(lab, "c1", &[V4]);
        let config = chained(&pod, json!({ "cniVersion": "1.0.0" }), &[V4]);
        added_by_reference(&pod, &config);
        lab.sh(evidence);
        pod.del(&with(config, json!({ "prevResult": null })));
        assert_eq!(pod.rules().is_empty(), is_removed, "{evidence}");
    }
}
