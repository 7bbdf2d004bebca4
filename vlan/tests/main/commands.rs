//! What distinguishes `vlan` from other plugins.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, can_create_link, needs_link};

/// The parent of all links, and its other end.
const UPLINK: &str = "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up";

fn layer2(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "vlan", "master": "uplink", "vlanId": 33 }), more)
}

fn config(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    with(layer2(json!({ "ipam": ipam })), more)
}

/// Returns a host with a master; `None` if the kernel has no such links.
fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new();
    lab.sh(UPLINK);
    needs_link(test, "link uplink type vlan id 9").then_some(lab)
}

#[test]
fn all_keys_reach_the_link() {
    let Some(lab) = &lab("all_keys_reach_the_link") else { return };
    lab.sh("ip link set uplink mtu 1450");
    for (protocol, mtu) in [("802.1Q", 1400), ("802.1ad", 0)] {
        let pod = Pod::new(lab, "a");
        let keys = config(json!({ "protocol": protocol, "mtu": mtu, "dns": { "domain": "d" } }));
        let result = pod.add(&keys);
        let link = &pod.ip("link show eth0")[0];
        let data = &link["linkinfo"]["info_data"];
        let mtu = if mtu == 0 { 1450 } else { mtu };
        assert_eq!(
            (&data["id"], &data["protocol"], &link["mtu"]),
            (&json!(33), &json!(protocol), &json!(mtu)),
            "{link}"
        );
        assert_eq!((&result["interfaces"][0]["mtu"], &result["dns"]["domain"]), (&json!(mtu), &json!("d")));
        pod.check_result(&keys, &result).ok();
        let error = pod.check_result(&config(json!({ "vlanId": 34, "protocol": protocol })), &result).error(999);
        assert!(error["msg"].as_str().unwrap().contains("want VLAN 34"), "{error}");
        pod.del(&keys);
        lab.sh("ip netns del a");
    }
}

#[test]
fn frames_are_treated_as_requested() {
    let Some(lab) = &lab("frames_are_treated_as_requested") else { return };
    let pod = Pod::new(lab, "a");
    let keys = json!({ "reorderHdr": false, "ingressQos": { "1": 6 }, "egressQos": { "0": 3, "4": 2 } });
    let mac = "02:00:00:00:00:07";
    let config = config(with(keys, json!({ "mac": mac })));
    let result = pod.add(&config);
    let link = &pod.ip("link show eth0")[0];
    let data = &link["linkinfo"]["info_data"];
    assert!(!data["flags"].to_string().contains("REORDER_HDR"), "{link}");
    let pair = |from: u32, to: u32| json!({ "from": from, "to": to });
    assert_eq!(data["ingress_qos"], json!([pair(1, 6)]));
    assert_eq!(data["egress_qos"], json!([pair(0, 3), pair(4, 2)]));
    assert_eq!((&link["address"], &result["interfaces"][0]["mac"]), (&json!(mac), &json!(mac)));
    pod.check_result(&config, &result).ok();
    pod.del(&config);
}

/// In a list, the interface that the last plugin created needs no name.
#[test]
fn the_last_interface_of_the_list_is_the_master() {
    let Some(lab) = &lab("the_last_interface_of_the_list_is_the_master") else { return };
    let pod = Pod::new(lab, "a");
    pod.sh("ip link add net1 type veth peer name far1; ip link set net1 up; ip link set far1 up");
    let previous = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "net1", "sandbox": "/run/netns/a" }] });
    let keys = config(json!({ "linkInContainer": true, "master": "", "prevResult": previous }));
    let result = pod.add(&keys);
    assert_eq!(pod.ip("link show eth0")[0]["link"], "net1");
    pod.check_result(&keys, &result).ok();
}

/// A tag belongs to one container. The failed ADD of another one leaves nothing, and does not block it.
#[test]
fn a_tag_in_use_is_refused() {
    let Some(lab) = &lab("a_tag_in_use_is_refused") else { return };
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.add(&config(json!({})));
    let error = b.call("ADD", &config(json!({}))).run().error(999);
    let details = error["details"].as_str().unwrap();
    assert!(details.contains("has a link with the same tag on \"uplink\""), "{error}");
    assert!(!b.sh("ip -o link").contains("vlan"));
    a.del(&config(json!({})));
    b.add(&config(json!({})));
}

/// DEL of the reference fails without the master.
#[test]
fn del_does_not_need_the_master() {
    let Some(lab) = &lab("del_does_not_need_the_master") else { return };
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    lab.sh("ip link del uplink");
    pod.del(&config(json!({})));
    assert_eq!(lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'"), "");
}

#[test]
fn the_master_can_be_in_the_container() {
    let Some(lab) = &lab("the_master_can_be_in_the_container") else { return };
    let pod = Pod::new(lab, "a");
    pod.sh("ip link add net1 type veth peer name far1; ip link set net1 up; ip link set far1 up");
    let keys = config(json!({ "master": "net1", "linkInContainer": true }));
    let result = pod.add(&keys);
    pod.check_result(&keys, &result).ok();
    pod.del(&keys);
    assert!(!pod.sh("ip -o link").contains("eth0"));
}

#[test]
fn bad_keys_change_nothing() {
    let lab = &Lab::new();
    lab.sh(UPLINK);
    let pod = Pod::new(lab, "a");
    for (keys, code, text) in [
        (
            json!({ "master": "" }),
            7,
            "\"master\" field is required. It specifies the host interface name to create the VLAN for",
        ),
        (json!({ "master": "nope" }), 999, "find master \"nope\": Link not found"),
        (json!({ "vlanId": null }), 7, "vlanId"),
        (json!({ "vlanId": 4095 }), 7, "invalid VLAN ID 4095 (must be between 0 and 4094 inclusive)"),
        (json!({ "vlanId": -1 }), 7, "invalid VLAN ID -1"),
        (json!({ "egressQos": { "0": 8 } }), 7, "egressQos"),
        (json!({ "ingressQos": { "8": 0 } }), 7, "ingressQos"),
        (json!({ "shared": true, "reorderHdr": false }), 7, "shared"),
        (json!({ "master": "", "linkInContainer": true }), 7, "\"master\" field is required"),
        (json!({ "mac": "zz" }), 7, "zz"),
        (json!({ "protocol": "x" }), 7, "unknown VLAN protocol: \"x\""),
        (json!({ "mtu": 1600 }), 7, "invalid MTU 1600, must be [0, master MTU(1500)]"),
        (json!({ "mtu": -100 }), 7, "invalid MTU -100, must be [0, master MTU(1500)]"),
    ] {
        let error = pod.call("ADD", &config(keys.clone())).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "", "{keys}");
        assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "", "{keys}");
        pod.del(&config(keys));
    }
}

#[test]
fn status_reports_a_kernel_without_vlans() {
    let lab = &Lab::new();
    lab.sh(UPLINK);
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    let status = lab.plugin("vlan", "STATUS").stdin(layer2(json!({})).to_string()).run();
    match can_create_link("link uplink type vlan id 9") {
        true => status.silent(),
        false => {
            assert_eq!(status.error(50)["msg"], "this kernel has no vlan interfaces");
            // An ADD creates nothing either.
            Pod::new(lab, "a").call("ADD", &config(json!({}))).run().error(999);
            assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "");
        }
    }
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
}
