//! The MTU of one container changes nothing for the bridge, the host and other containers.

use serde_json::json;

use crate::support::{MAC, Tuned, config, lab, pod, untouched};

/// The bridge of a LAN, with the host's own addresses, follows its smallest port.
#[test]
fn a_smaller_mtu_changes_only_the_interface() {
    let lab = &lab();
    let [one, other] = ["c1", "c2"].map(|id| pod(lab, id));
    lab.sh("ip link add uplink0 master br0 type veth peer name uplink1
         ip link set uplink0 up; ip link set uplink1 up
         ip address add fd00::1/64 dev br0 nodad; ip route add default via fd00::2 dev br0");
    let host = || {
        lab.sh("ip -o link | sed 's/<.*> \\(mtu [0-9]*\\).*/\\1/'; ip -o -6 address show scope global; ip -6 route show default")
    };
    let before = host();
    let (small, larger) = (config(json!({ "mtu": 1000 })), config(json!({ "mtu": 1400 })));
    one.add(&small);
    assert_eq!(
        (one.link()["mtu"].clone(), other.link()["mtu"].clone(), host()),
        (json!(1000), json!(1500), before.clone())
    );
    other.add(&larger);
    assert_eq!((other.link()["mtu"].clone(), host()), (json!(1400), before.clone()));
    one.del(&small);
    assert_eq!((one.attributes(), other.link()["mtu"].clone(), host()), (untouched(), json!(1400), before.clone()));
    one.add(&small);
    other.del(&larger);
    one.del(&small);
    assert_eq!((one.attributes(), other.attributes(), host()), (untouched(), untouched(), before));
}

/// The kernel drops packets that are larger than the MTU of the host veth.
#[test]
fn the_host_veth_of_a_larger_bridge_is_raised() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh("ip link set br0 mtu 9000");
    let bridge = || lab.ip("link show br0")[0]["mtu"].clone();
    // A second plugin of the same list keeps what the first one has saved.
    let configs = [8000, 9000].map(|mtu| config(json!({ "mtu": mtu })));
    configs.iter().for_each(|config| drop(pod.add(config)));
    assert_eq!((pod.attributes(), bridge()), ((MAC.to_owned(), 9000, 1000, false, false, 9000), json!(9000)));
    pod.del(&configs[0]);
    assert_eq!((pod.attributes(), bridge()), (untouched(), json!(9000)));
}

/// The addresses that the interface has count, not those of the previous result.
#[test]
fn a_small_mtu_would_remove_ipv6_addresses() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    pod.sh("ip address add fd00::2/64 dev eth0 nodad");
    let error = pod.refused(&config(json!({ "mtu": 1279 })), 7);
    assert!(error.to_string().contains("1280") && error.to_string().contains("fd00::2/64"), "{error}");
    assert_eq!(pod.attributes(), untouched());
    pod.add(&config(json!({ "mtu": 1280 })));
    pod.sh("ip address del fd00::2/64 dev eth0");
    pod.add(&config(json!({ "mtu": 1000 })));
}

#[test]
fn the_mtu_must_fit_the_bridge() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    let error = pod.refused(&config(json!({ "mtu": 9000, "sysctl": { "net.core.somaxconn": "77" } })), 7);
    let text = error.to_string();
    assert!(text.contains("9000") && text.contains("1500") && text.contains("br0"), "{error}");
    assert_eq!(pod.state(), before);
    // Without a bridge, only the limits of the link count.
    lab.sh("ip link set vethc1 nomaster");
    pod.add(&config(json!({ "mtu": 9000 })));
    assert_eq!(pod.attributes(), (MAC.to_owned(), 9000, 1000, false, false, 9000));
    pod.del(&config(json!({ "mtu": 9000 })));
    assert_eq!(pod.attributes(), untouched());
}

/// The other end of the pair is in another namespace, and a pair on the host has the same indices.
#[test]
fn only_a_host_veth_of_this_host_is_raised() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.netns("other");
    lab.sh("ip link del vethc1
         ip link add vethc1 index 77 type veth peer name eth0 index 78 netns c1
         ip link set vethc1 netns other
         ip link add same index 77 type veth peer name peer index 78");
    // The carrier of the bridge may still change.
    let mtus = || lab.sh("ip -o link | sed 's/<.*> \\(mtu [0-9]*\\).*/\\1/'");
    let before = mtus();
    let config = config(json!({ "mtu": 9000 }));
    pod.call("ADD", &config).run().ok();
    assert_eq!(pod.link()["mtu"], 9000);
    assert_eq!(lab.ip("-n other link show vethc1")[0]["mtu"], 1500);
    assert_eq!(mtus(), before);
    pod.del(&config);
    assert_eq!(pod.link()["mtu"], 1500);
}
