//! DEL: removes everything of an attachment, and nothing of others.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::{Lab, Pod};

use crate::support::{ADMIN, accepted_all, config, containers, lease, rules, ruleset};

/// Returns the configuration without a previous result.
fn without_result(config: Value) -> Value {
    with(config, json!({ "prevResult": null }))
}

#[test]
fn nothing_but_the_attachment_is_needed() {
    Lab::for_each_layout(|lab| {
        let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
        let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
        neighbour.add(&config(json!({})));
        let neighbours = accepted_all(&["10.9.0.3", "fd00::3"]);
        for keys in [
            without_result(json!({})),
            json!({}),
            json!({ "backend": "nftables" }),
            json!({ "backend": "iptables" }),
            json!({ "backend": "foo" }),
            json!({ "ingressPolicy": "closed" }),
            json!({ "ingressPolicy": "isolated" }),
            json!({ "iptablesAdminChainName": "OTHER" }),
            json!({ "iptablesAdminChainName": 7 }),
            json!({ "prevResult": { "cniVersion": "1.1.0", "ips": [{ "address": "nonsense" }] } }),
            json!({ "prevResult": { "cniVersion": "1.1.0", "ips": [{ "address": "10.9.0.3/24" }] } }),
        ] {
            pod.add(&config(json!({})));
            for _ in 0..2 {
                pod.call("DEL", &config(keys.clone())).without("CNI_NETNS").run().ok();
                assert_eq!(containers(lab), neighbours, "{keys}");
            }
        }
        for tool in ["iptables", "ip6tables"] {
            assert_eq!(rules(lab, tool, "CNI-FORWARD")[0], ADMIN);
        }
        neighbour.check(&config(json!({}))).ok();
    });
}

#[test]
fn a_host_without_rules_stays_so() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    pod.del(&config(json!({})));
    pod.del(&without_result(config(json!({ "ingressPolicy": "isolated" }))));
    assert_eq!(ruleset(lab), "");
}

#[test]
fn a_late_del_keeps_the_rules_of_the_next_container_with_the_address() {
    let lab = &Lab::new();
    let first = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let second = Pod::absent(lab, "c2", &["10.9.0.2/24"]);
    let config = config(json!({}));
    first.add(&config);
    first.del(&config);
    second.add(&config);
    first.del(&config);
    second.check(&config).ok();
    assert_eq!(containers(lab), accepted_all(&["10.9.0.2"]));
    // Without marks, the lease proves whose they are.
    lab.sh("iptables-save >/run/saved; iptables-restore </run/saved");
    lease("net1", "10.9.0.2", "c2");
    first.del(&config);
    second.check(&config).ok();
    second.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn the_first_del_after_the_address_was_given_again_keeps_the_new_rules() {
    let lab = &Lab::new();
    let first = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let second = Pod::absent(lab, "c2", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    first.add(&config);
    second.add(&config);
    assert_eq!(containers(lab).len(), 12);
    first.del(&config);
    second.check(&config).ok();
    assert_eq!(containers(lab), accepted_all(&["10.9.0.2", "fd00::2"]));
}

#[test]
fn the_same_address_on_two_networks_has_two_owners() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let (one, two) = (config(json!({})), on_network("net2", config(json!({}))));
    for (gone, left) in [(&one, &two), (&two, &one)] {
        pod.add(&one);
        pod.add(&two);
        pod.del(gone);
        pod.check(left).ok();
        assert_eq!(containers(lab), accepted_all(&["10.9.0.2"]));
    }
}

/// An administrator saves and restores the tables, which loses the marks.
#[test]
fn rules_without_marks_are_removed_by_address() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    let config = config(json!({}));
    let lose_marks =
        || lab.sh("for tool in iptables ip6tables; do $tool-save >/run/saved; $tool-restore </run/saved; done");
    for keys in [config.clone(), without_result(config.clone())] {
        pod.add(&config);
        neighbour.add(&config);
        lose_marks();
        assert_eq!(containers(lab).len(), 12);
        // Without a previous result, the leases name the addresses.
        lease("net1", "10.9.0.2", "c1");
        lease("net1", "fd00::2", "c1");
        pod.check(&config).ok();
        pod.del(&keys);
        assert_eq!(containers(lab), accepted_all(&["10.9.0.3", "fd00::3"]));
        neighbour.check(&config).ok();
        lab.sh("rm -r /var/lib/cni");
    }
    // An ADD marks them again.
    pod.add(&config);
    lose_marks();
    pod.add(&config);
    neighbour.add(&config);
    assert_eq!(containers(lab).len(), 12);
    pod.del(&without_result(config.clone()));
    assert_eq!(containers(lab), accepted_all(&["10.9.0.3", "fd00::3"]));
}

/// A crash can leave an empty file. Whatever else has the name of a lease is not read, and nothing waits for it.
#[test]
fn what_is_not_a_lease_does_not_keep_rules() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({}));
    lease("net1", "10.9.0.3", "c2");
    for create in [
        ":>$file",
        "printf '\\0\\0\\0\\0' >$file",
        "truncate -s 10G $file",
        "mkfifo $file",
        "mkdir $file",
        "ln -s /nowhere $file",
        "ln -s 10.9.0.3 $file",
        "ln -s /dev/zero $file",
    ] {
        for network in ["net1", "net2"] {
            pod.add(&config);
            lab.sh("iptables-save >/run/saved; iptables-restore </run/saved");
            let file = format!("/var/lib/cni/networks/{network}/10.9.0.2");
            lab.sh(&format!("mkdir -p /var/lib/cni/networks/{network}; file={file}; {create}"));
            pod.del(&config);
            assert_eq!(containers(lab), [] as [&str; 0], "{network}: {create}");
            // Without a previous result, all leases are read.
            pod.add(&config);
            pod.del(&without_result(config.clone()));
            assert_eq!(containers(lab), [] as [&str; 0], "{network}: {create}");
            lab.sh(&format!("rm -r {file}"));
        }
    }
}

/// The configuration of a chained plugin does not have the `dataDir` of its network.
#[test]
fn leases_in_any_directory_are_evidence() {
    let lab = &Lab::new();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let ipam = json!({ "type": "host-local", "dataDir": "/var/lib/elsewhere", "subnet": "10.9.0.0/24" });
    let network = with(config(json!({})), json!({ "type": "host-local", "ipam": ipam }));
    let config = config(json!({}));
    second.add(&network);
    let add_without_marks = || {
        second.add(&config);
        lab.sh("iptables-save >/run/saved; iptables-restore </run/saved");
    };
    add_without_marks();
    first.del(&config);
    second.check(&config).ok();
    second.del(&without_result(config.clone()));
    assert_eq!(containers(lab), [] as [&str; 0]);
    // Without the record of host-local, the directory is known only if the configuration names it.
    lab.sh("rm -r /run/cni0");
    for (ipam, is_removed) in [(Value::Null, false), (ipam, true)] {
        add_without_marks();
        second.del(&without_result(with(config.clone(), json!({ "ipam": ipam }))));
        assert_eq!(containers(lab).is_empty(), is_removed);
    }
}

#[test]
fn a_del_keeps_the_policy_for_others_on_the_bridge() {
    let lab = &Lab::new();
    let config = config(json!({ "ingressPolicy": "same-bridge" }));
    let pods = ["c1", "c2"].map(|id| {
        let ip = format!("10.9.0.{}/24", if id == "c1" { 2 } else { 3 });
        Pod::on_bridge(lab, "br0", id, &[&ip])
    });
    pods.iter().for_each(|pod| drop(pod.add(&config)));
    pods[0].del(&config);
    pods[1].check(&config).ok();
}
