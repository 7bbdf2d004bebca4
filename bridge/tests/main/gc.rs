//! GC: removes attachments that are not listed, keeps listed ones, and ignores other networks.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Outcome, Pod, Scripted, reference};

use crate::pod::{assert_clean, check_by_chains, host_veth, layer3};
use crate::upgrade::theirs;

/// Calls GC with a list of valid attachments.
pub(crate) fn collect(pod: &Pod<'_>, config: &Value, valid: Value) -> Outcome {
    let mut config = config.clone();
    config["cni.dev/valid-attachments"] = valid;
    pod.lab.plugin("bridge", "GC").stdin(config.to_string()).run()
}

#[test]
fn only_stale_attachments_of_the_network_are_removed() {
    Lab::for_each_way_to_delegate(|lab| {
        for backend in ["nftables", "iptables"] {
            let common = json!({ "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true });
            let (config, mut other) = (layer3(common.clone()), layer3(common));
            other["name"] = json!("net1-other");
            let ids = ["alive", "stale", "foreign"].map(|id| format!("{id}-{backend}"));
            let pods: Vec<_> = ids
                .iter()
                .enumerate()
                .map(|(n, id)| {
                    Pod::with_ips(lab, id, &[&format!("10.1.0.{}/24", n + 2), &format!("fd01::{}/64", n + 2)])
                })
                .collect();
            let alive = pods[0].add(&config);
            pods[1].add(&config);
            let foreign = pods[2].add(&other);

            let valid = json!([{ "containerID": ids[0], "ifname": "eth0" }]);
            collect(&pods[0], &config, valid).ok();
            pods[0].check_result(&config, &alive).ok();
            pods[2].check_result(&other, &foreign).ok();
            assert!(!pods[1].sh("ip -o link").contains("eth0"));
            let rules = lab.sh("nft list ruleset");
            assert!(!rules.contains("10.1.0.3") && !rules.contains(&format!("-stale-{backend}")), "{rules}");

            collect(&pods[0], &config, json!([])).ok();
            pods[2].check_result(&other, &foreign).ok();
            pods[2].del(&other);
            assert_clean(lab);
        }
        assert!(Scripted::of(lab).calls().contains(&"GC".to_owned()));
    });
}

#[test]
fn the_rules_of_a_deleted_port_are_collected() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = pod.add(&config);
    lab.sh(&format!("ip link del {}", host_veth(&result)));
    collect(&pod, &config, json!([])).ok();
    assert_clean(lab);
}

#[test]
fn the_same_container_with_another_interface_is_another_attachment() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    pod.add(&config);
    collect(&pod, &config, json!([{ "containerID": "a", "ifname": "eth1" }])).ok();
    assert_clean(lab);
}

/// If a container is detached and attached again while GC of another network runs, it has a rule for its old port,
/// which GC has listed, and one for its new port, with the same names. An earlier version attached it.
#[test]
fn the_spoof_check_of_a_container_that_was_attached_again_stays() {
    let lab = &Lab::new();
    let config = layer3(json!({ "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = pod.add(&config);
    check_by_chains(&pod, &result);
    lab.sh(
        "nft 'add rule bridge nat PREROUTING iifname vethgone jump cni-br-iface-a-eth0 comment \"macspoofchk-a-eth0\"'",
    );
    let mut other = config.clone();
    other["name"] = json!("net1-other");
    collect(&pod, &other, json!([])).ok();
    pod.check_result(&config, &result).ok();
    assert!(!lab.sh("nft list ruleset").contains("vethgone"));
    // Several rules of a container that is gone.
    lab.sh(&format!("ip link del {}", host_veth(&result)));
    lab.sh(
        "nft 'add rule bridge nat PREROUTING iifname vethgone jump cni-br-iface-a-eth0 comment \"macspoofchk-a-eth0\"'",
    );
    collect(&pod, &other, json!([])).ok();
    assert!(!lab.sh("nft list ruleset").contains("macspoofchk"));
}

#[test]
fn an_iptables_chain_without_a_jump_is_collected() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    pod.add(&config);
    // The state after a DEL was killed halfway.
    lab.sh("iptables -t nat -F POSTROUTING");
    collect(&pod, &config, json!([])).ok();
    assert!(!lab.sh("iptables-save -t nat").contains("CNI-"));
}

/// The interfaces of a container share a chain and a comment of iptables, so leases tell their rules apart.
#[test]
fn the_masquerade_of_a_stale_interface_is_collected_while_another_one_is_valid() {
    let lab = &Lab::new();
    let test = "the_masquerade_of_a_stale_interface_is_collected_while_another_one_is_valid";
    let has_reference = reference("bridge", test).is_some();
    for (backend, is_theirs) in [("nftables", false), ("iptables", false), ("iptables", has_reference)] {
        let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]]);
        let ipam = json!({ "type": "host-local", "ranges": ranges });
        let config = layer3(json!({ "cniVersion": "1.0.0", "ipMasq": true, "ipMasqBackend": backend, "ipam": ipam }));
        let first = Pod::new(lab, &format!("{backend}-{is_theirs}"));
        let second = first.interface("eth1", &[]);
        let [result, stale] = [&first, &second].map(|pod| match is_theirs {
            true => theirs(pod, "ADD", &config).ok(),
            false => pod.add(&config),
        });
        let is_masqueraded = |result: &Value, family: usize| {
            let ip = result["ips"][family]["address"].as_str().unwrap().split('/').next().unwrap();
            lab.sh("nft list ruleset 2>/dev/null").contains(&format!("saddr {ip} "))
        };
        assert!([0, 1].iter().all(|family| is_masqueraded(&result, *family) && is_masqueraded(&stale, *family)));
        let current = with(config.clone(), json!({ "cniVersion": "1.1.0" }));
        collect(&first, &current, json!([{ "containerID": first.id, "ifname": "eth0" }])).ok();
        for family in [0, 1] {
            assert!(!is_masqueraded(&stale, family), "{}: {}", first.id, lab.sh("nft list ruleset"));
            assert!(is_masqueraded(&result, family), "{}: {}", first.id, lab.sh("nft list ruleset"));
        }
        first.del(&with(config, json!({ "prevResult": result })));
        assert!(!lab.sh("nft list ruleset").contains(&first.id));
    }
}

/// Without a lease of the valid interface in the family of a rule, as with another IPAM plugin, nothing shows whose
/// rule it is.
#[test]
fn masquerade_that_may_belong_to_a_valid_interface_stays() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let first = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let result = first.add(&config);
    let second = first.interface("eth1", &[]);
    second.answer(json!({ "ips": [{ "address": "10.1.0.3/24" }] }));
    second.add(&config);
    // Of a time when the network had another IPAM plugin, or of one that leaves only one family to host-local.
    for lease in ["eth1' >10.1.0.9", "eth0' >10.1.0.2", "eth1' >fd01::9"] {
        lab.sh(&format!("mkdir -p /var/lib/cni/networks/net1; cd /var/lib/cni/networks/net1; printf 'a\\r\\n{lease}"));
        collect(&first, &config, json!([{ "containerID": "a", "ifname": "eth0" }])).ok();
        first.check_result(&config, &result).ok();
    }
}
