//! The key `restore`.

use serde_json::json;
use testing::Pod;

use crate::{assert_given_back, config, lab};

#[test]
fn the_device_is_as_before() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    lab.sh(
        "ip link set nic mtu 1400 up; ip address add 10.7.0.1/24 brd + dev nic; ip -6 address add fd07::1/64 dev nic nodad
            ip route add 10.8.0.0/16 via 10.7.0.9 metric 5; ip route add 10.9.0.0/16 dev nic table 7
            ip -6 route add fd08::/64 via fd07::9",
    );
    let state = || {
        let link = &lab.ip("link show nic")[0];
        let routes = lab.sh("ip route show dev nic table all; ip -6 route show dev nic");
        let mut routes: Vec<_> =
            routes.lines().filter(|line| !line.contains("fe80") && !line.contains("table local")).collect();
        routes.sort_unstable();
        let addresses =
            lab.sh("ip -o address show dev nic scope global | sed \"s/^[0-9]*: //; s/ tentative//; s/ nodad//\"");
        format!(
            "{} {} {}\n{routes:#?}{addresses}",
            link["mtu"],
            link["address"],
            link["flags"].to_string().contains("\"UP\"")
        )
    };
    let before = state();
    let change = "ip link set eth0 down; ip link set eth0 mtu 1300 address 02:00:00:00:00:77 name other";
    pod.add(&config(json!({ "restore": true })));
    pod.sh(change);
    // What ADD was asked for counts.
    pod.del(&config(json!({})));
    assert_eq!(state(), before);
    assert_given_back(lab, "DEL");
    // Without the key, as the reference.
    pod.add(&config(json!({})));
    pod.sh(change);
    pod.del(&config(json!({ "restore": true })));
    let link = &lab.ip("link show nic")[0];
    assert_eq!(
        (&link["mtu"], &link["address"], &link["operstate"]),
        (&json!(1300), &json!("02:00:00:00:00:77"), &json!("DOWN"))
    );
    assert_eq!(lab.sh("ip -o -4 address show dev nic"), "");
}

/// What was added by a DHCP client is left to it, and a bridge gets its port back.
#[test]
fn a_port_of_a_bridge_is_one_again() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    lab.sh("ip link add br0 type bridge; ip link set nic up; ip address add 10.7.0.1/24 dev nic valid_lft 1000 preferred_lft 1000
            ip link set nic master br0");
    pod.add(&config(json!({ "restore": true })));
    pod.del(&config(json!({})));
    assert_eq!(lab.ip("link show nic")[0]["master"], "br0");
    assert_eq!(lab.sh("ip -4 -o address show dev nic"), "");
    // DEL succeeds if something cannot be restored.
    pod.add(&config(json!({ "restore": true })));
    lab.sh("ip link del br0");
    pod.del(&config(json!({})));
    assert_given_back(lab, "DEL without the bridge");
}
