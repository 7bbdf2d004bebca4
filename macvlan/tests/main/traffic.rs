//! Real packets between two containers, and between a container and a host on the same wire.

use serde_json::{Value, json};
use testing::packets::{assert_nothing_arrives, send};
use testing::{Lab, Pod};

const IPS: [&[&str]; 3] =
    [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"], &["10.1.0.9/24", "fd01::9/64"]];

fn config(mode: &str) -> Value {
    let ipam = json!({ "type": testing::Scripted::NAME });
    json!({ "cniVersion": "1.1.0", "name": "net1", "type": "macvlan", "master": "uplink", "mode": mode, "ipam": ipam })
}

/// Creates the parent of all links, whose wire leads to the namespace of `outside`.
fn wire<'a>(lab: &'a Lab) -> Pod<'a> {
    let outside = Pod::new(lab, "outside");
    lab.sh("ip link add uplink type veth peer name far netns outside; ip link set uplink up");
    outside.sh("ip link set far up; ip address add 10.1.0.9/24 dev far; ip address add fd01::9/64 dev far nodad");
    outside
}

/// The first packet arrives, in both families, right after ADD.
#[test]
fn containers_reach_the_wire_and_in_mode_bridge_each_other() {
    for mode in ["bridge", "private", "vepa", "passthru"] {
        let lab = &Lab::new();
        let outside = wire(lab);
        let a = Pod::with_ips(lab, "a", IPS[0]);
        a.add(&config(mode));
        for (any, address) in [("0.0.0.0", "10.1.0.9"), ("::", "fd01::9")] {
            assert!(send(&a.udp(any), &outside.udp(any), address).is_some(), "{mode}: {address}");
        }
        if mode == "passthru" {
            continue;
        }
        let b = Pod::with_ips(lab, "b", IPS[1]);
        b.add(&config(mode));
        for (any, address) in [("0.0.0.0", "10.1.0.3"), ("::", "fd01::3")] {
            match mode {
                "bridge" => assert!(send(&a.udp(any), &b.udp(any), address).is_some(), "{mode}: {address}"),
                _ => assert_nothing_arrives(&a.udp(any), &b.udp(any), address),
            }
        }
    }
}

/// A neighbour that remembers the former owner of an address sends to the new one: ADD announced it.
#[test]
fn addresses_are_announced() {
    let lab = &Lab::new();
    let outside = wire(lab);
    let old = Pod::with_ips(lab, "old", IPS[0]);
    old.add(&config("bridge"));
    for (any, address) in [("0.0.0.0", "10.1.0.2"), ("::", "fd01::2")] {
        assert!(send(&outside.udp(any), &old.udp(any), address).is_some(), "{address}");
    }
    old.del(&config("bridge"));
    outside
        .sh("for ip in 10.1.0.2 fd01::2; do ip neigh replace $ip lladdr 02:00:00:00:00:77 dev far nud reachable; done");
    let new = Pod::with_ips(lab, "new", IPS[0]);
    let result = new.add(&config("bridge"));
    let mac = result["interfaces"][0]["mac"].as_str().unwrap().to_owned();
    for address in ["10.1.0.2", "fd01::2"] {
        testing::wait_until(&format!("the neighbour to learn the owner of {address}"), || {
            outside.sh(&format!("ip neigh show {address}")).contains(&mac)
        });
    }
}

/// The kernel looks for a duplicate of the link-local address. No packet needs that one, so that ADD does not wait.
#[test]
fn an_add_does_not_wait_for_duplicate_address_detection() {
    let lab = &Lab::new();
    let outside = wire(lab);
    let pod = Pod::with_ips(lab, "a", IPS[0]);
    // A minute, and an ADD would wait for ten seconds.
    pod.sh("sysctl -qw net.ipv6.conf.default.dad_transmits=60");
    pod.add(&config("bridge"));
    assert!(pod.sh("ip -6 address show dev eth0 scope link").contains("tentative"));
    assert!(send(&pod.udp("::"), &outside.udp("::"), "fd01::9").is_some());
}
