//! STATUS: says whether an ADD could succeed, and changes nothing.

use std::fs;

use cni::testing::{Lab, Outcome, skip};
use serde_json::{Value, json};

use crate::pod::{Pod, ipam_calls, ipam_fails, layer2, layer3};
use crate::vlan::kernel_filters;

fn status(lab: &Lab, config: &Value) -> Outcome {
    lab.plugin("bridge", "STATUS").stdin(config.to_string()).run()
}

#[test]
fn a_host_that_can_serve_says_so_and_stays_as_it_is() {
    Lab::both(|lab| {
        let _pod = Pod::new(lab, "a");
        for more in [json!({}), json!({ "ipMasq": true }), json!({ "ipMasq": true, "ipMasqBackend": "iptables" })] {
            status(lab, &layer3(more)).ok();
        }
        status(lab, &layer2(json!({}))).ok();
        assert_eq!(lab.sh("ip -o link | wc -l; nft list table inet cni_plugins_masquerade 2>/dev/null || true"), "1\n");
        assert_eq!(lab.sh("sysctl -n net.ipv4.ip_forward"), "0\n");
        assert_eq!(ipam_calls(lab), ["STATUS"; 3]);
    });
}

/// For a trial the kernel waits until all processors have forgotten the old rules.
#[test]
fn masquerade_is_tried_where_it_is_not_in_use() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let config = layer3(json!({ "ipMasq": true }));
    let asked = || lab.plugin("bridge", "STATUS").stdin(config.to_string()).env("CNI_LOG", "debug").run();
    let tried = |outcome: Outcome| {
        outcome.ok();
        outcome.stderr.contains("(trying)")
    };
    assert!(tried(asked()));
    pod.add(&config);
    assert!(!tried(asked()));
    lab.sh("nft flush chain inet cni_plugins_masquerade postrouting");
    assert!(tried(asked()), "the next ADD fills it");
    lab.sh("nft delete table inet cni_plugins_masquerade");
    assert!(tried(asked()));
}

#[test]
fn a_name_taken_by_something_else_is_told() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type veth peer name other");
    let error = status(lab, &layer2(json!({}))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("\"br0\" is no bridge"), "{error}");
}

/// A kernel without VLAN filtering. One with it is tested in `vlan`.
#[test]
fn vlans_that_an_add_would_refuse_are_refused() {
    let lab = &Lab::new();
    if kernel_filters(lab) {
        return skip("vlans_that_an_add_would_refuse_are_refused", "this kernel can filter VLANs");
    }
    let pod = Pod::new(lab, "a");
    for create in ["", "ip link add br0 type bridge"] {
        lab.sh(create);
        for config in [json!({ "vlan": 100 }), json!({ "vlanTrunk": [{ "id": 5 }] })].map(layer2) {
            let before = lab.sh("ip -o link | cut -d: -f1,2");
            let error = status(lab, &config).error(50);
            assert!(error["msg"].as_str().unwrap().contains("\"br0\" cannot filter VLANs"), "{error}");
            assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
            assert_eq!(pod.call("ADD", &config).run().error(2)["details"], error["details"]);
        }
        status(lab, &layer2(json!({}))).ok();
    }
}

#[test]
fn what_is_missing_is_told() {
    let lab = &Lab::new();
    let _pod = Pod::new(lab, "a");
    let error = status(lab, &layer3(json!({ "ipam": { "type": "absent" } }))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("\"absent\""), "{error}");

    let tools = lab.plugin("bridge", "STATUS").env("PATH", "/nowhere");
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    // The usual places are looked at as well, so they are hidden.
    lab.sh("for f in /usr/sbin/*tables*; do mount --bind /dev/null $f; done");
    let error = tools.stdin(config.to_string()).run().error(50);
    assert!(error["msg"].as_str().unwrap().contains("iptables"), "{error}");

    lab.sh("mount --bind /proc/sys/kernel /proc/sys/net 2>/dev/null; mount -o remount,bind,ro /proc/sys/net");
    let error = status(lab, &layer3(json!({}))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.ip_forward"), "{error}");
}

#[test]
fn ipam_has_its_say() {
    let lab = &Lab::new();
    let _pod = Pod::new(lab, "a");
    ipam_fails(lab, "STATUS");
    assert_eq!(status(lab, &layer3(json!({}))).error(123)["msg"], "scripted failure");
    assert!(fs::read_to_string(lab.dir().join("stdin.STATUS")).unwrap().contains("\"net1\""));
}
