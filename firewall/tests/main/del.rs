//! DEL: removes everything of an attachment, and nothing of others.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::{Lab, Pod};

use crate::support::{ADMIN, accepted, add_address_rules, address_rules, config, containers, lease, rules, ruleset};

/// Returns the configuration without a previous result.
fn without_result(config: Value) -> Value {
    with(config, json!({ "prevResult": null }))
}

#[test]
fn nothing_but_the_attachment_is_needed() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    neighbour.add(&config(json!({})));
    let neighbours = accepted(&["10.9.0.3", "fd00::3"]);
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
    assert_eq!(containers(lab), accepted(&["10.9.0.2"]));
    // Of rules without marks, the lease proves whose they are.
    second.del(&config);
    add_address_rules("10.9.0.2", None);
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
    first.del(&config);
    second.check(&config).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
}

/// Whatever the order is in which attachments with the same address come and go, those that exist have it.
#[test]
fn an_address_returns_to_an_attachment_that_still_has_it() {
    let lab = &Lab::new();
    let pods = ["a", "b", "c", "d", "e", "f", "g"].map(|id| Pod::absent(lab, id, &["10.9.0.2/24", "fd00::2/64"]));
    let config = config(json!({}));
    for gone in [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [1, 3, 6, 0, 2, 5, 4], [2, 0, 3, 1, 6, 4, 5]] {
        pods.iter().for_each(|pod| drop(pod.add(&config)));
        for (place, n) in gone.iter().enumerate() {
            pods[*n].del(&without_result(config.clone()));
            let left = &gone[place + 1..];
            for n in left {
                pods[*n].check(&config).ok();
            }
            let expected = if left.is_empty() { vec![] } else { accepted(&["10.9.0.2", "fd00::2"]) };
            assert_eq!(containers(lab), expected, "{gone:?} {place}");
        }
    }
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
        assert_eq!(containers(lab), accepted(&["10.9.0.2"]));
    }
}

/// An administrator saved and restored the tables of an earlier version, which loses the marks.
#[test]
fn rules_without_marks_are_removed_by_address() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    let config = config(json!({}));
    pod.add(&config);
    lab.sh("nft delete table inet cni_firewall");
    for keys in [config.clone(), without_result(config.clone())] {
        for ip in ["10.9.0.2", "fd00::2", "10.9.0.3", "fd00::3"] {
            add_address_rules(ip, None);
        }
        assert_eq!(containers(lab).len(), 12);
        // Without a previous result, the leases name the addresses.
        lease("net1", "10.9.0.2", "c1");
        lease("net1", "fd00::2", "c1");
        pod.check(&config).ok();
        pod.del(&keys);
        assert_eq!(containers(lab), ["10.9.0.3", "fd00::3"].map(address_rules).concat());
        neighbour.check(&config).ok();
        neighbour.del(&config);
        assert_eq!(containers(lab), [] as [&str; 0]);
        lab.sh("rm -r /var/lib/cni");
    }
    // An ADD takes them over.
    for ip in ["10.9.0.2", "fd00::2"] {
        add_address_rules(ip, None);
    }
    pod.add(&config);
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
}

/// Another program has deleted a part of the table.
#[test]
fn an_incomplete_table_does_not_keep_addresses() {
    let lab = &Lab::new();
    let [pod, other] = ["c1", "c2"].map(|id| Pod::absent(lab, id, &["10.9.0.2/24", "fd00::2/64"]));
    let config = config(json!({}));
    for damage in ["flush set inet cni_firewall", "delete set inet cni_firewall"] {
        for set in ["versions", "attachments", "waiting"] {
            for is_shared in [false, true] {
                pod.add(&config);
                if is_shared {
                    other.add(&config);
                }
                lab.sh(&format!("nft {damage} {set} || true"));
                pod.del(&config);
                other.del(&config);
                assert_eq!(containers(lab), [] as [&str; 0], "{damage} {set} {is_shared}");
                // An ADD restores it.
                pod.add(&config);
                lab.sh(&format!("nft {damage} {set} || true"));
                pod.add(&config);
                other.add(&config);
                pod.check(&config).ok();
                pod.del(&without_result(config.clone()));
                other.del(&without_result(config.clone()));
                assert_eq!(containers(lab), [] as [&str; 0], "{damage} {set} {is_shared}");
            }
        }
    }
}

/// `nft` does not save what it does not show.
#[test]
fn a_table_that_was_saved_and_restored_is_understood() {
    let lab = &Lab::new();
    let [pod, neighbour] =
        [2, 3].map(|n| Pod::absent(lab, &format!("c{n}"), &[&format!("10.9.0.{n}/24"), &format!("fd00::{n}/64")]));
    let config = config(json!({}));
    for keys in [config.clone(), without_result(config.clone())] {
        pod.add(&config);
        neighbour.add(&config);
        lab.sh("nft list table inet cni_firewall >/run/saved; nft delete table inet cni_firewall; nft -f /run/saved");
        pod.check(&config).ok();
        pod.del(&keys);
        neighbour.check(&config).ok();
        assert_eq!(containers(lab), accepted(&["10.9.0.3", "fd00::3"]));
        neighbour.add(&config);
        neighbour.del(&keys);
        assert_eq!(containers(lab), [] as [&str; 0]);
    }
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
            pod.del(&config);
            add_address_rules("10.9.0.2", None);
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
    second.add(&config);
    second.del(&config);
    add_address_rules("10.9.0.2", None);
    first.del(&config);
    second.check(&config).ok();
    second.del(&without_result(config.clone()));
    assert_eq!(containers(lab), [] as [&str; 0]);
    // Without the record of host-local, the directory is known only if the configuration names it.
    lab.sh("rm -r /run/cni0");
    for (ipam, is_removed) in [(Value::Null, false), (ipam, true)] {
        add_address_rules("10.9.0.2", None);
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
