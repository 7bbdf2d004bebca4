//! DEL and GC: nothing is left, whatever is known about the container.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::{assert_clean, dual_stack};

fn masqueraded(backend: &str) -> Value {
    dual_stack(json!({ "ipMasq": true, "ipMasqBackend": backend }))
}

/// The kernel has deleted the pair with the namespace. Unlike the reference, DEL removes the masquerade rules, too.
#[test]
fn del_without_the_namespace_leaves_nothing() {
    for backend in ["nftables", "iptables"] {
        for has_result in [true, false] {
            let lab = &Lab::new();
            let pod = Pod::new(lab, "a");
            let result = pod.add(&masqueraded(backend));
            lab.sh("ip netns del a");
            let more = if has_result { json!({ "prevResult": result }) } else { json!({}) };
            pod.del(&with(masqueraded(backend), more));
            assert_clean(lab);
        }
    }
}

#[test]
fn gc_removes_pairs_rules_and_leases() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let (stale, kept) = (Pod::new(lab, "stale"), Pod::new(lab, "kept"));
        stale.add(&masqueraded(backend));
        let result = kept.add(&masqueraded(backend));
        let gc = |valid: Value| {
            let config = with(masqueraded(backend), json!({ "cni.dev/valid-attachments": valid }));
            lab.plugin("ptp", "GC").stdin(config.to_string()).run().ok();
        };
        gc(json!([{ "containerID": "kept", "ifname": "eth0" }]));
        assert!(!stale.sh("ip -o link").contains("eth0"));
        kept.check_result(&masqueraded(backend), &result).ok();
        gc(json!([]));
        assert_clean(lab);
    }
}

/// In both modes, and with an interface that the container renamed.
#[test]
fn a_renamed_interface_is_deleted() {
    for keys in [json!({}), json!({ "linkLocalGateway": true })] {
        let lab = &Lab::new();
        let pod = Pod::new(lab, "a");
        pod.add(&dual_stack(keys.clone()));
        pod.sh("ip link set eth0 down; ip link set eth0 name other");
        pod.del(&dual_stack(keys));
        assert_clean(lab);
    }
}

/// The reference finds the interface by its name, and the rules by its addresses.
#[test]
fn the_reference_deletes_an_attachment_with_a_link_local_gateway() {
    if reference("ptp", "the_reference_deletes_an_attachment_with_a_link_local_gateway").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let keys = json!({ "cniVersion": "1.0.0", "linkLocalGateway": true, "ipMasq": true, "ipMasqBackend": "iptables" });
    let config = dual_stack(keys);
    let result = pod.add(&config);
    pod.call_reference("DEL", &with(config, json!({ "prevResult": result }))).run().ok();
    assert_clean(lab);
}
