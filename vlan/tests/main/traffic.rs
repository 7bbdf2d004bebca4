//! Real packets between a container and a host on the same VLAN.

use serde_json::json;
use testing::packets::send;
use testing::{Lab, Pod, needs_link, wait_until};

/// The first packet arrives, in both families, right after ADD, and the neighbour learns the new owner of an address.
#[test]
fn a_container_is_on_the_vlan() {
    let lab = &Lab::new();
    let outside = Pod::new(lab, "outside");
    lab.sh("ip link add uplink type veth peer name far netns outside; ip link set uplink up");
    if !needs_link("a_container_is_on_the_vlan", "link uplink type vlan id 9") {
        return;
    }
    outside.sh("ip link set far up; ip link add vlan33 link far type vlan id 33; ip link set vlan33 up");
    outside.sh("ip address add 10.1.0.9/24 dev vlan33; ip address add fd01::9/64 dev vlan33 nodad");
    outside.sh(
        "for ip in 10.1.0.2 fd01::2; do ip neigh replace $ip lladdr 02:00:00:00:00:77 dev vlan33 nud reachable; done",
    );
    let ipam = json!({ "type": testing::Scripted::NAME });
    let config = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "vlan", "master": "uplink", "vlanId": 33, "ipam": ipam });
    let a = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let result = a.add(&config);
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    for (any, own, far) in [("0.0.0.0", "10.1.0.2", "10.1.0.9"), ("::", "fd01::2", "fd01::9")] {
        assert!(send(&a.udp(any), &outside.udp(any), far).is_some(), "{far}");
        wait_until(&format!("the neighbour to learn the owner of {own}"), || {
            outside.sh(&format!("ip neigh show {own}")).contains(mac)
        });
    }
}
