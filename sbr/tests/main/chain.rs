//! Lists of plugins as users of Multus write them.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::support::Routed;

/// Calls the plugins of a list as a runtime does.
fn add_list(pod: &Pod<'_>, list: &[Value]) -> Value {
    list.iter().fold(Value::Null, |previous, plugin| pod.add(&with(plugin.clone(), json!({ "prevResult": previous }))))
}

fn list(version: &str) -> Vec<Value> {
    let plugins = [
        json!({ "type": "macvlan", "master": "uplink", "mode": "bridge", "ipam": { "type": "static", "addresses": [
            { "address": "10.0.30.30/24", "gateway": "10.0.30.1" }], "routes": [{ "dst": "10.20.0.0/16" }], "dns": { "nameservers": ["10.0.30.1"] } } }),
        json!({ "type": "tuning", "sysctl": { "net.ipv4.conf.all.arp_filter": "1" } }),
        json!({ "type": "sbr" }),
    ];
    plugins.map(|plugin| with(json!({ "cniVersion": version, "name": "n" }), plugin)).to_vec()
}

#[test]
fn macvlan_static_tuning_and_sbr() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let lab = &Lab::new();
        lab.netns("router");
        lab.netns("c1");
        lab.sh("ip link add uplink type veth peer name eth0 netns router; ip link set uplink up
            ip -n router link set eth0 up; ip -n router address add 10.0.30.1/24 dev eth0
            ip -n router link set lo up; ip -n router address add 203.0.113.7/32 dev lo");
        let pod = Pod { ifname: "net1".to_owned(), chained: false, ..Pod::absent(lab, "c1", &[]) };
        pod.sh("ip link set lo up");
        for round in 0..2 {
            let result = add_list(&pod, &list(version));
            assert_eq!(result["ips"][0]["address"], "10.0.30.30/24", "{version}");
            assert_eq!(pod.rules(), ["10.0.30.30 100"], "{version}");
            let expected = [
                "10.0.30.0/24 dev net1 scope link src 10.0.30.30",
                "10.20.0.0/16 via 10.0.30.1 dev net1",
                "default via 10.0.30.1 dev net1",
            ];
            assert_eq!(pod.table("-4", "100"), expected, "{version}");
            assert_eq!(pod.sh("cat /proc/sys/net/ipv4/conf/all/arp_filter").trim(), "1");
            pod.sh("until ping -q -c 1 -W 5 -I 10.0.30.30 203.0.113.7; do :; done");
            let with_result = |plugin: &Value| with(plugin.clone(), json!({ "prevResult": result }));
            if version >= "0.4" {
                list(version).iter().for_each(|plugin| pod.check(&with_result(plugin)).silent());
            }
            let previous = if version >= "0.4" { result.clone() } else { Value::Null };
            for plugin in list(version).iter().rev() {
                pod.del(&with(plugin.clone(), json!({ "prevResult": previous })));
            }
            assert_eq!(pod.rules(), [""; 0], "{version} {round}");
            assert_eq!(pod.sh("ip link show type macvlan").trim(), "", "{version} {round}");
        }
    }
}

/// The list of a container whose namespace is gone: the plugins before sbr are called, and release the address.
#[test]
fn del_of_the_list_needs_no_namespace() {
    let lab = &Lab::new();
    lab.sh("ip link add uplink type veth peer name other; ip link set uplink up");
    let network = |plugin: Value| with(json!({ "cniVersion": "0.3.1", "name": "n" }), plugin);
    let list = [
        network(
            json!({ "type": "macvlan", "master": "uplink", "ipam": { "type": "host-local", "subnet": "10.0.30.0/24" } }),
        ),
        network(json!({ "type": "sbr" })),
    ];
    lab.netns("c1");
    let pod = Pod { ifname: "net1".to_owned(), chained: false, ..Pod::absent(lab, "c1", &[]) };
    add_list(&pod, &list);
    lab.sh("umount /run/netns/c1");
    for plugin in list.iter().rev() {
        pod.del(plugin);
    }
    assert_eq!(lab.sh("ls /var/lib/cni/networks/n | grep -c '^10' || true").trim(), "0");
    // The empty file that `ip netns` mounts on is left alone.
    assert_eq!(lab.sh("stat -c %s /run/netns/c1").trim(), "0");
}
