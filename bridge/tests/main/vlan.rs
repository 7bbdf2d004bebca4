//! VLANs, with tagged packets. If the kernel cannot filter VLANs, the tests are skipped; the kernel of `ci/vm` can.

use serde_json::{Value, json};
use testing::fault::{Effect, inject};
use testing::packets::{assert_nothing_arrives, send, udp};
use testing::{Lab, Pod, skip};

use crate::pod::{assert_clean, host_veth, layer2, layer3};
use crate::stale::{collect, global_addresses, network};

/// Returns whether this kernel can filter VLANs. Leaves nothing behind.
pub(crate) fn kernel_filters(lab: &Lab) -> bool {
    let probe =
        "ip link add probe type bridge vlan_filtering 1 2>/dev/null && ip link del probe && echo yes || echo no";
    lab.sh(probe) == "yes\n"
}

/// Returns whether this kernel can filter VLANs, and reports `test` as skipped if it cannot.
fn can_filter(lab: &Lab, test: &str) -> bool {
    let can = kernel_filters(lab);
    if !can {
        skip(test, "this kernel cannot filter VLANs");
    }
    can
}

/// Returns the VLANs of a port, such as `["1*", "100"]`, where `*` marks the VLAN of untagged frames.
fn vlans(lab: &Lab, port: &str) -> Vec<String> {
    let listing: Value =
        serde_json::from_str(&lab.sh(&format!("bridge -j -compressvlans vlan show dev {port}"))).unwrap();
    let show = |vlan: &Value| {
        let end = vlan.get("vlanEnd").map_or_else(String::new, |end| format!("-{end}"));
        let mark = if vlan["flags"].to_string().contains("PVID") { "*" } else { "" };
        format!("{}{end}{mark}", vlan["vlan"])
    };
    listing[0]["vlans"].as_array().map(|list| list.iter().map(show).collect()).unwrap_or_default()
}

#[test]
fn status_succeeds_with_vlans() {
    let lab = &Lab::new();
    if !can_filter(lab, "status_succeeds_with_vlans") {
        return;
    }
    for create in ["", "ip link add br0 type bridge"] {
        lab.sh(create);
        let before = lab.sh("ip -o link | cut -d: -f1,2");
        for config in [json!({ "vlan": 100 }), json!({ "vlanTrunk": [{ "id": 5 }] })].map(layer2) {
            lab.plugin("bridge", "STATUS").stdin(config.to_string()).run().ok();
        }
        assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
    }
}

#[test]
fn the_old_gateway_of_a_vlan_is_removed() {
    let lab = &Lab::new();
    if !can_filter(lab, "the_old_gateway_of_a_vlan_is_removed") {
        return;
    }
    let [old, new] = [1, 2].map(|n| network(n, json!({ "vlan": 100 })));
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.add(&old);
    b.add(&new);
    collect(lab, &new, &["a", "b"]);
    assert_eq!(global_addresses(lab, "br0.100"), ["10.1.0.1/24", "10.2.0.1/24", "fd01::1/64", "fd02::1/64"]);
    collect(lab, &new, &["b"]);
    assert_eq!(global_addresses(lab, "br0.100"), ["10.2.0.1/24", "fd02::1/64"]);
}

#[test]
fn vlans_are_separated() {
    let lab = &Lab::new();
    if !can_filter(lab, "vlans_are_separated") {
        return;
    }
    let pods =
        [("a", 100, "10.1.0.2/24"), ("b", 100, "10.1.0.3/24"), ("c", 200, "10.1.0.4/24")].map(|(id, vlan, ip)| {
            let pod = Pod::new(lab, id);
            let config = layer2(json!({ "vlan": vlan }));
            let result = pod.add(&config);
            pod.sh(&format!("ip address add {ip} dev eth0"));
            pod.check_result(&config, &result).ok();
            assert_eq!(vlans(lab, &host_veth(&result)), [format!("{vlan}*")]);
            pod
        });
    let [a, b, c] = &pods;
    assert_eq!(send(&a.udp("0.0.0.0"), &b.udp("0.0.0.0"), "10.1.0.3"), "10.1.0.2".parse().ok());
    assert_nothing_arrives(&a.udp("0.0.0.0"), &c.udp("0.0.0.0"), "10.1.0.4");
    for pod in &pods {
        pod.del(&layer2(json!({})));
    }
    assert_clean(lab);
}

#[test]
fn a_trunk_carries_tagged_frames() {
    let lab = &Lab::new();
    if !can_filter(lab, "a_trunk_carries_tagged_frames") {
        return;
    }
    let access = Pod::new(lab, "access");
    access.add(&layer2(json!({ "vlan": 100 })));
    access.sh("ip address add 10.1.0.2/24 dev eth0");
    let trunk = Pod::new(lab, "trunk");
    let config = layer2(json!({ "vlanTrunk": [{ "id": 100 }, { "minID": 200, "maxID": 202 }] }));
    let result = trunk.add(&config);
    assert_eq!(vlans(lab, &host_veth(&result)), ["1*", "100", "200-202"]);
    trunk.check_result(&config, &result).ok();
    for (id, ip) in [(100, "10.1.0.3/24"), (101, "10.2.0.3/24")] {
        trunk.sh(&format!(
            "ip link add link eth0 name eth0.{id} type vlan id {id}; ip address add {ip} dev eth0.{id}; ip link set eth0.{id} up"
        ));
    }
    assert_eq!(send(&trunk.udp("0.0.0.0"), &access.udp("0.0.0.0"), "10.1.0.2"), "10.1.0.3".parse().ok());
    assert_eq!(send(&access.udp("0.0.0.0"), &trunk.udp("0.0.0.0"), "10.1.0.3"), "10.1.0.2".parse().ok());
    // 101 is not in the trunk.
    access.sh("ip address add 10.2.0.2/24 dev eth0");
    assert_nothing_arrives(&trunk.udp("10.2.0.3"), &access.udp("0.0.0.0"), "10.2.0.2");
    // One message adds all of them.
    let whole = Pod::new(lab, "whole");
    let result = whole
        .add(&layer2(json!({ "vlan": 7, "vlanTrunk": [{ "minID": 1, "maxID": 4094 }], "preserveDefaultVlan": true })));
    assert_eq!(vlans(lab, &host_veth(&result)), ["1-6", "7*", "8-4094"]);
    lab.sh(&format!("bridge vlan del dev {} vid 4000", host_veth(&result)));
    let error = whole.check_result(&layer2(json!({ "vlan": 7, "vlanTrunk": [{ "id": 4000 }] })), &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("VLAN 4000 tagged"), "{error}");
}

#[test]
fn the_default_vlan_stays_only_if_configured() {
    let lab = &Lab::new();
    if !can_filter(lab, "the_default_vlan_stays_only_if_configured") {
        return;
    }
    // ADD enables VLAN filtering on an existing bridge, and its ports stay connected.
    let plain = Pod::with_ips(lab, "plain", &["10.1.0.2/24"]);
    plain.add(&layer3(json!({})));
    let kept = Pod::new(lab, "kept");
    let result = kept.add(&layer2(json!({ "vlan": 100, "preserveDefaultVlan": true })));
    assert_eq!(vlans(lab, &host_veth(&result)), ["1", "100*"]);
    assert_eq!(lab.ip("link show br0")[0]["linkinfo"]["info_data"]["vlan_filtering"], 1);
    assert!(send(&plain.udp("0.0.0.0"), &udp(None, "0.0.0.0", 0), "10.1.0.1").is_some());
}

#[test]
fn a_vlan_has_a_gateway_of_its_own() {
    let lab = &Lab::new();
    if !can_filter(lab, "a_vlan_has_a_gateway_of_its_own") {
        return;
    }
    lab.sh("ip link set lo up");
    let config = layer3(json!({ "vlan": 100, "isDefaultGateway": true, "ipMasq": true }));
    let pods = [
        Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]),
        Pod::with_ips(lab, "b", &["10.1.0.3/24", "fd01::3/64"]),
    ];
    for pod in &pods {
        let result = pod.add(&config);
        assert_eq!(result["interfaces"][3]["name"], "br0.100", "{result}");
        assert_eq!(result["interfaces"][3]["mac"], lab.ip("link show br0.100")[0]["address"]);
        pod.check_result(&config, &result).ok();
        for (any, gateway) in [("0.0.0.0", "10.1.0.1"), ("::", "fd01::1")] {
            assert!(send(&pod.udp(any), &udp(None, any, 0), gateway).is_some(), "{gateway}");
        }
    }
    assert!(!lab.sh("ip -o -4 address show br0").contains("10.1.0.1"), "not on the bridge itself");
    for pod in &pods {
        pod.del(&config);
    }
}

#[test]
fn the_next_add_completes_a_gateway_whose_add_was_killed() {
    let lab = &Lab::new();
    if !can_filter(lab, "the_next_add_completes_a_gateway_whose_add_was_killed") {
        return;
    }
    let config = layer3(json!({ "vlan": 100, "isDefaultGateway": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let mut unfinished = 0;
    // Earlier messages do not create the gateway.
    let kill = |n: usize| inject(lab, pod.call("ADD", &config), "sendto", n, "signal=KILL");
    for n in 7.. {
        assert_ne!(kill(n), Effect::NotReached, "no ADD was killed after it finished the gateway");
        let gateway = lab.sh("ip -o link show br0.100 2>/dev/null || true");
        let is_finished = gateway.contains(",LOWER_UP");
        unfinished += usize::from(!gateway.is_empty() && !is_finished);
        pod.del(&config);
        let result = pod.add(&config);
        pod.check_result(&config, &result).ok();
        assert!(send(&pod.udp("0.0.0.0"), &udp(None, "0.0.0.0", 0), "10.1.0.1").is_some(), "after kill {n}");
        if is_finished {
            lab.sh("ip link set $(ip -o link show br0.100 | sed 's/.*@\\([^:]*\\):.*/\\1/') down");
            let error = pod.check_result(&config, &result).error(999);
            assert!(error["msg"].as_str().unwrap().contains("of the VLAN's gateway \"br0.100\" is down"), "{error}");
            break;
        }
        pod.del(&config);
        lab.sh("ip link del br0.100; ip link del br0");
    }
    assert!(unfinished > 1, "{unfinished} times a gateway was left unfinished");
}

#[test]
fn a_kernel_without_vlan_filtering_is_reported_and_nothing_is_left() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for bridge in ["new", "old"] {
        if bridge == "old" {
            lab.sh("ip link add old type bridge");
        }
        let config = layer2(json!({ "bridge": bridge, "vlan": 100 }));
        let outcome = pod.call("ADD", &config).run();
        if outcome.status == Some(0) {
            // This kernel can filter VLANs.
            assert_eq!(lab.ip(&format!("link show {bridge}"))[0]["linkinfo"]["info_data"]["vlan_filtering"], 1);
            pod.del(&config);
            continue;
        }
        let error = outcome.error(2);
        assert!(error["details"].as_str().unwrap().contains("VLAN filtering"), "{error}");
        assert_clean(lab);
    }
}
