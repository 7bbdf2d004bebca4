//! Routes, uplinks and neighbours, which decide where packets go before any firewall does.

use serde_json::{Value, json};

use super::{assert_healthy, only_problem, run_commands, subjects};
use crate::node::{attach, host, network, port};
use crate::support::Host;

/// Gives the host an uplink with a default route.
pub(crate) fn add_uplink(host: &Host) {
    host.lab.netns("outside");
    host.lab.sh(
        "ip link add up0 type veth peer name eth0 netns outside; ip -n outside link set eth0 up; ip link set up0 up
         ip address add 192.0.2.2/24 dev up0; ip route add default via 192.0.2.1",
    );
}

/// Each command breaks the network, and the second one mends it. A route may be needed, so no command removes it.
#[track_caller]
fn assert_found(host: &Host, cases: &[(&str, &str, &str)]) {
    for (make, mend, part) in cases {
        host.lab.sh(make);
        let what = only_problem(host, "gateway", "fail");
        assert!(what.contains(part), "{make}: {what}");
        assert!(what.contains("\"command\":null"), "{make}: {what}");
        assert!(!subjects(&what, "container").is_empty(), "{make}: {what}");
        host.lab.sh(mend);
        assert_healthy(host, mend);
    }
}

#[test]
fn routes_that_reject_packets() {
    let host = host("10.21.0.0/24");
    let ranges = json!([[{ "subnet": "10.21.0.0/24" }], [{ "subnet": "fd00:21::/64" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    add_uplink(&host);
    attach(&host, "blue");
    attach(&host, "red");
    assert_healthy(&host, "an uplink");
    assert_found(
        &host,
        &[
            (
                "ip route add blackhole 10.21.0.2",
                "ip route del blackhole 10.21.0.2",
                "blackhole route to 10.21.0.2/32 of table 254 rejects packets of this host to 1 container",
            ),
            ("ip route add prohibit 10.21.0.2/31", "ip route del prohibit 10.21.0.2/31", "2 containers"),
            (
                "ip -6 route add unreachable fd00:21::2",
                "ip -6 route del unreachable fd00:21::2",
                "unreachable route to fd00:21::2/128",
            ),
            (
                "ip rule add from 10.21.0.2 prohibit",
                "ip rule del from 10.21.0.2 prohibit",
                "routing rule from 10.21.0.2/32 prohibit rejects packets between other networks and 1 container",
            ),
            (
                "ip rule add iif br-pods lookup 77; ip route add blackhole default table 77",
                "ip rule del iif br-pods lookup 77; ip route flush table 77",
                "blackhole route to default of table 77 rejects packets between other networks and 2 containers",
            ),
            (
                "ip rule add iif up0 lookup 78; ip route add prohibit 10.21.0.0/24 table 78",
                "ip rule del iif up0 lookup 78; ip route flush table 78",
                "prohibit route to 10.21.0.0/24 of table 78 rejects packets between other networks and 2 containers",
            ),
            (
                "ip -n blue route add blackhole 10.21.0.1",
                "ip -n blue route del blackhole 10.21.0.1",
                "blackhole route to 10.21.0.1/32 of table 254 rejects in their namespaces packets of 1 container",
            ),
            (
                "ip -n blue route add prohibit 10.21.0.3",
                "ip -n blue route del prohibit 10.21.0.3",
                "prohibit route to 10.21.0.3/32",
            ),
            (
                "ip -n red -6 rule add to ::/0 prohibit priority 5",
                "ip -n red -6 rule del priority 5",
                "routing rule prohibit rejects in their namespaces",
            ),
        ],
    );
    // Routes that reject no packet of these containers: to other networks, and to those with a better route.
    for (make, mend) in [
        ("ip route add blackhole 10.99.0.0/16", "ip route del blackhole 10.99.0.0/16"),
        ("ip route add blackhole 10.21.0.0/16", "ip route del blackhole 10.21.0.0/16"),
        ("ip route add blackhole 198.41.0.0/24", "ip route del blackhole 198.41.0.0/24"),
        ("ip route add unreachable default metric 4278198272", "ip route del unreachable default metric 4278198272"),
        ("ip -n blue route add blackhole 10.0.0.0/8", "ip -n blue route del blackhole 10.0.0.0/8"),
    ] {
        host.lab.sh(make);
        assert_healthy(&host, make);
        host.lab.sh(mend);
    }
}

#[test]
fn an_uplink_that_does_not_forward_or_is_down() {
    let host = host("10.22.7.0/24");
    add_uplink(&host);
    attach(&host, "blue");
    host.lab.sh("sysctl -qw net.ipv4.conf.up0.forwarding=0");
    let what = only_problem(&host, "forwarding", "fail");
    assert!(what.contains("packets from up0 are not forwarded") && subjects(&what, "link") == ["up0"], "{what}");
    run_commands(&host);
    host.lab.sh("ip -n outside link set eth0 down");
    let what = only_problem(&host, "uplink", "warn");
    assert!(what.contains("up0, by which packets to other networks leave, has no carrier"), "{what}");
    host.lab.sh("ip -n outside link set eth0 up; ip link set up0 down");
    let what = only_problem(&host, "uplink", "warn");
    assert!(what.contains("up0, which has an address, is down, and this host has no default route"), "{what}");
    assert_eq!(subjects(&what, "link"), ["up0"]);
    host.lab.sh("ip link del up0");
    assert_healthy(&host, "no other network");
}

#[test]
fn links_without_arp() {
    let host = host("10.22.8.0/24");
    let id = attach(&host, "blue");
    for (make, mend, what) in [
        (
            "ip -n blue link set eth0 arp off",
            "ip -n blue link set eth0 arp on",
            "the interface of 1 container has no ARP",
        ),
        ("ip link set br-pods arp off", "ip link set br-pods arp on", "link br-pods has no ARP"),
    ] {
        host.lab.sh(make);
        let found = only_problem(&host, "neighbour", "fail");
        assert!(found.contains(what), "{found}");
        let names = [subjects(&found, "container"), subjects(&found, "link")].concat();
        assert_eq!(names, [if make.contains("blue") { id.as_str() } else { "br-pods" }]);
        host.lab.sh(mend);
        assert_healthy(&host, mend);
    }
}

#[test]
fn neighbours_that_were_set_by_hand() {
    let host = host("10.22.9.0/24");
    let (id, _) = (attach(&host, "blue"), attach(&host, "red"));
    let wrong = "lladdr 02:00:00:00:00:99";
    for (make, mend, part) in [
        (
            format!("ip neigh replace 10.22.9.2 {wrong} dev br-pods nud permanent"),
            "ip neigh del 10.22.9.2 dev br-pods",
            "10.22.9.2 on br-pods is 02:00:00:00:00:99, and the container has ",
        ),
        (
            format!("ip -n blue neigh replace 10.22.9.1 {wrong} dev eth0 nud permanent"),
            "ip -n blue neigh del 10.22.9.1 dev eth0",
            "in a container, 10.22.9.1 is 02:00:00:00:00:99 instead of ",
        ),
        (
            format!("ip -n blue neigh replace 10.22.9.3 {wrong} dev eth0 nud permanent"),
            "ip -n blue neigh del 10.22.9.3 dev eth0",
            "in a container, 10.22.9.3 is 02:00:00:00:00:99 instead of ",
        ),
    ] {
        host.lab.sh(&make);
        let what = only_problem(&host, "neighbour", "fail");
        assert!(what.contains(part), "{make}: {what}");
        assert_eq!(subjects(&what, "container"), [id.as_str()], "{make}");
        host.lab.sh(mend);
        assert_healthy(&host, mend);
    }
    let links: Value = serde_json::from_str(&host.lab.sh("ip -j link show br-pods")).unwrap();
    let mac = links[0]["address"].as_str().unwrap();
    host.lab.sh(&format!(
        "ip -n blue neigh replace 10.22.9.1 lladdr {mac} dev eth0 nud permanent
         ip -n blue neigh replace 10.22.9.77 {wrong} dev eth0 nud permanent"
    ));
    assert_healthy(&host, "the right address, and one of no container");
}

#[test]
fn ports_that_were_isolated_by_hand() {
    let host = host("10.22.10.0/24");
    let ports = ["blue", "red"].map(|name| port(&attach(&host, name)));
    let isolate = |port: &str, how: &str| host.lab.sh(&format!("ip link set {port} type bridge_slave isolated {how}"));
    isolate(&ports[0], "on");
    assert_healthy(&host, "it reaches the other one");
    isolate(&ports[1], "on");
    let what = only_problem(&host, "bridge", "warn");
    assert!(what.contains("2 ports are isolated from each other, without") && what.contains(&ports[1]), "{what}");
    assert_eq!(subjects(&what, "container").len(), 2, "{what}");
}
