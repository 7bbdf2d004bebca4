//! Lists of plugins as users of Multus write them.

use serde_json::{Value, json};
use testing::Pod;
use testing::config::with;

use crate::support::{Members, lab};

fn add_list(pod: &Pod<'_>, list: &[Value]) -> Value {
    list.iter().fold(Value::Null, |previous, plugin| pod.add(&with(plugin.clone(), json!({ "prevResult": previous }))))
}

#[test]
fn macvlan_host_local_and_vrf() {
    let Some(lab) = &lab("macvlan_host_local_and_vrf") else { return };
    lab.netns("router");
    lab.sh("ip link add uplink type veth peer name eth0 netns router; ip link set uplink up
        ip -n router link set eth0 up; ip -n router address add 192.168.1.1/24 dev eth0
        ip -n router link set lo up; ip -n router address add 203.0.113.7/32 dev lo");
    for (number, version) in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"].iter().enumerate() {
        let network = |plugin: Value| with(json!({ "cniVersion": version, "name": "v" }), plugin);
        let list = [
            network(json!({ "type": "macvlan", "master": "uplink", "mode": "bridge", "ipam": {
                "type": "host-local", "subnet": "192.168.1.0/24", "routes": [{ "dst": "0.0.0.0/0" }] } })),
            network(json!({ "type": "vrf", "vrfname": "blue", "table": 1001 })),
        ];
        let id = format!("c{number}");
        lab.netns(&id);
        let pod = Pod { ifname: "net1".to_owned(), chained: false, ..Pod::absent(lab, &id, &[]) };
        let result = add_list(&pod, &list);
        assert_eq!(pod.vrfs(), [("blue".to_owned(), 1001, vec!["net1".to_owned()])], "{version}");
        assert!(pod.table("1001").contains(&"default via 192.168.1.1 dev net1".to_owned()), "{:?}", pod.table("1001"));
        assert_eq!(pod.table("main"), [""; 0]);
        pod.sh("until ping -q -c 1 -W 5 -I blue 203.0.113.7; do :; done");
        let with_result = |plugin: &Value| with(plugin.clone(), json!({ "prevResult": result }));
        if *version >= "0.4" {
            list.iter().for_each(|plugin| pod.check(&with_result(plugin)).silent());
        }
        for plugin in list.iter().rev() {
            pod.del(&if *version >= "0.4" { with_result(plugin) } else { plugin.clone() });
        }
        assert_eq!(pod.vrfs(), [], "{version}");
        assert_eq!(pod.sh("ip link show type macvlan").trim(), "", "{version}");
    }
}

/// The rules of sbr select tables whose routes vrf keeps.
#[test]
fn macvlan_static_sbr_and_vrf() {
    let Some(lab) = &lab("macvlan_static_sbr_and_vrf") else { return };
    lab.netns("c1");
    lab.sh("ip link add uplink type veth peer name other; ip link set uplink up; ip link set other up");
    let network = |plugin: Value| with(json!({ "cniVersion": "1.0.0", "name": "v" }), plugin);
    let list = [
        network(json!({ "type": "macvlan", "master": "uplink", "ipam": {
            "type": "static", "addresses": [{ "address": "10.0.30.30/24", "gateway": "10.0.30.1" }] } })),
        network(json!({ "type": "sbr" })),
        network(json!({ "type": "vrf", "vrfname": "blue" })),
    ];
    let pod = Pod { ifname: "net1".to_owned(), chained: false, ..Pod::absent(lab, "c1", &[]) };
    let result = add_list(&pod, &list);
    let expected = ["10.0.30.0/24 dev net1 scope link", "default via 10.0.30.1 dev net1"];
    assert_eq!(pod.table("100"), expected);
    for plugin in &list {
        pod.check(&with(plugin.clone(), json!({ "prevResult": result }))).silent();
    }
    for plugin in list.iter().rev() {
        pod.del(&with(plugin.clone(), json!({ "prevResult": result })));
    }
    assert_eq!(pod.vrfs(), []);
    assert_eq!(pod.sh("ip rule | grep -c 10.0.30.30 || true").trim(), "0");
}
