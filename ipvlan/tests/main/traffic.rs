//! Real packets between two containers, and between a container and a host on the same wire.

use serde_json::json;
use testing::packets::{assert_nothing_arrives, send};
use testing::{Lab, Pod, needs_link};

const IPS: [&[&str]; 2] = [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"]];

/// The first packet arrives, in both families, right after ADD.
#[test]
fn containers_reach_the_wire_and_each_other_unless_isolated() {
    let test = "containers_reach_the_wire_and_each_other_unless_isolated";
    for (mode, flag) in [("l2", "bridge"), ("l2", "private"), ("l3", "bridge"), ("l3s", "bridge")] {
        let lab = &Lab::new();
        let outside = Pod::new(lab, "outside");
        lab.sh("ip link add uplink type veth peer name far netns outside; ip link set uplink up");
        if !needs_link(test, "link uplink type ipvlan") {
            return;
        }
        outside.sh("ip link set far up; ip address add 10.1.0.9/24 dev far; ip address add fd01::9/64 dev far nodad");
        let ipam = json!({ "type": testing::Scripted::NAME });
        let config = json!({
            "cniVersion": "1.1.0", "name": "net1", "type": "ipvlan", "master": "uplink", "mode": mode, "flag": flag, "ipam": ipam,
        });
        let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
        a.add(&config);
        b.add(&config);
        for (any, far, near) in [("0.0.0.0", "10.1.0.9", "10.1.0.3"), ("::", "fd01::9", "fd01::3")] {
            if mode == "l2" {
                assert!(send(&a.udp(any), &outside.udp(any), far).is_some(), "{mode} {flag}: {far}");
            }
            match flag {
                "bridge" => assert!(send(&a.udp(any), &b.udp(any), near).is_some(), "{mode} {flag}: {near}"),
                _ => assert_nothing_arrives(&a.udp(any), &b.udp(any), near),
            }
        }
    }
}
