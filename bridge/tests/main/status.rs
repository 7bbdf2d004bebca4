//! STATUS: reports whether an ADD could succeed, and changes nothing.

use serde_json::{Value, json};
use testing::fault::inject_all;
use testing::{Lab, Outcome, Pod, Scripted, skip};

use crate::pod::{layer2, layer3};
use crate::vlan::kernel_filters;

fn status(lab: &Lab, config: &Value) -> Outcome {
    lab.plugin("bridge", "STATUS").stdin(config.to_string()).run()
}

#[test]
fn status_succeeds_and_changes_nothing() {
    Lab::for_each_way_to_delegate(|lab| {
        Scripted::of(lab);
        for more in [
            json!({}),
            json!({ "ipMasq": true }),
            json!({ "ipMasq": true, "ipMasqBackend": "iptables" }),
            json!({ "macspoofchk": true }),
        ] {
            status(lab, &layer3(more)).ok();
        }
        status(lab, &layer2(json!({}))).ok();
        assert_eq!(lab.sh("ip -o link | wc -l; nft list tables | grep -E 'masquerade|spoofcheck' || true"), "1\n");
        assert_eq!(lab.sh("sysctl -n net.ipv4.ip_forward"), "0\n");
        assert_eq!(Scripted::of(lab).calls(), ["STATUS"; 4]);
    });
}

/// A trial is expensive: the kernel waits until no processor uses the old rules.
#[test]
fn masquerade_is_tried_only_if_it_is_not_in_use() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let config = layer3(json!({ "ipMasq": true }));
    let status = || lab.plugin("bridge", "STATUS").stdin(config.to_string()).env("CNI_LOG", "debug").run();
    let tried = |outcome: Outcome| {
        outcome.ok();
        outcome.stderr.contains("(trying)")
    };
    assert!(tried(status()));
    pod.add(&config);
    assert!(!tried(status()));
    lab.sh("nft flush chain inet cni_plugins_masquerade postrouting");
    assert!(tried(status()), "the next ADD fills the chain");
    lab.sh("nft delete table inet cni_plugins_masquerade");
    assert!(tried(status()));
}

#[test]
fn a_link_that_is_not_a_bridge_is_reported() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type veth peer name other");
    let error = status(lab, &layer2(json!({}))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("\"br0\" is a veth, not a bridge"), "{error}");
}

/// For kernels without VLAN filtering. The tests in `vlan` are for kernels with it.
#[test]
fn vlans_that_an_add_would_reject_are_rejected() {
    let lab = &Lab::new();
    if kernel_filters(lab) {
        return skip("vlans_that_an_add_would_reject_are_rejected", "this kernel can filter VLANs");
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
fn missing_requirements_are_reported() {
    let lab = &Lab::new();
    Scripted::of(lab);
    let error = status(lab, &layer3(json!({ "ipam": { "type": "absent" } }))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("\"absent\""), "{error}");

    let call = |config: &Value| lab.plugin("bridge", "STATUS").stdin(config.to_string());
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    lab.sh("for f in /usr/sbin/*tables*; do mount --bind /dev/null $f; done");
    // The kernel is asked without them.
    call(&config).run().ok();
    // The second socket is the one for nf_tables. The C library repeats the call after EPROTONOSUPPORT.
    let outcome = inject_all(lab, call(&config), "socket", "error=EAFNOSUPPORT:when=2+");
    let error = outcome.error(50);
    assert!(error["msg"].as_str().unwrap().contains("iptables cannot be used"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("ipMasqBackend"), "{error}");

    lab.sh("mount --bind /proc/sys/kernel /proc/sys/net 2>/dev/null; mount -o remount,bind,ro /proc/sys/net");
    let error = status(lab, &layer3(json!({}))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.ip_forward"), "{error}");
}

#[test]
fn the_status_of_ipam_is_returned() {
    let lab = &Lab::new();
    Scripted::of(lab);
    Scripted::of(lab).fail("STATUS");
    assert_eq!(status(lab, &layer3(json!({}))).error(123)["msg"], "scripted failure");
    assert!(Scripted::of(lab).stdin("STATUS").contains("\"net1\""));
}
