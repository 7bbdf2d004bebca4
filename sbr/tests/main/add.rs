//! ADD: rules, tables, and what stays in the main table.

use serde_json::{Value, json};
use testing::Lab;
use testing::config::with;

use crate::support::{Routed, V4, V6, VERSIONS, chained, config, connect, pod, previous};

const ETH0: [&str; 2] = ["10.9.0.0/24 dev eth0 scope link src 10.9.0.2", "default via 10.9.0.1 dev eth0"];
const NET1: [&str; 2] = ["192.168.1.0/24 dev net1 scope link src 192.168.1.209", "default via 192.168.1.1 dev net1"];

#[test]
fn an_address_gets_a_rule_and_a_table_in_every_version() {
    for version in VERSIONS {
        let lab = &Lab::new();
        let pod = pod(lab, "c1", &[V4]);
        pod.sh("ip route add 10.20.0.0/16 via 192.168.1.7; ip route add 10.21.0.0/16 dev net1 metric 7");
        let before = pod.state();
        let config = chained(&pod, json!({ "cniVersion": version }), &[V4]);
        // The result of the earlier plugin is passed on.
        assert_eq!(pod.add(&config), config["prevResult"], "{version}");
        assert_eq!(pod.rules(), ["192.168.1.209 100"], "{version}");
        let others = ["10.20.0.0/16 via 192.168.1.7 dev net1", "10.21.0.0/16 dev net1 scope link metric 7"];
        assert_eq!(pod.table("-4", "100"), [others, NET1].concat(), "{version}");
        assert_eq!(pod.table("-4", "main"), ETH0, "{version}");
        if version >= "0.4" {
            pod.check(&config).ok();
        }
        // A runtime of an older version has no previous result.
        pod.del(&with(config, json!({ "prevResult": null })));
        assert_eq!(pod.rules(), [""; 0], "{version}");
        assert_eq!(pod.table("-4", "100"), [""; 0], "{version}");
        assert_eq!(pod.table("-4", "main"), ETH0, "{version}: {before}");
    }
}

#[test]
fn a_default_route_of_the_interface_moves() {
    for extra in ["", " metric 300 mtu 1400"] {
        let lab = &Lab::new();
        let pod = pod(lab, "c1", &[V4]);
        pod.sh(&format!("ip route del default; ip route add default via 192.168.1.1{extra}"));
        pod.add(&chained(&pod, json!({}), &[V4]));
        assert_eq!(pod.table("-4", "100"), [NET1[0].to_owned(), format!("{}{extra}", NET1[1])]);
        assert_eq!(pod.table("-4", "main"), ETH0[..1]);
    }
}

#[test]
fn each_address_has_its_own_table() {
    for version in ["0.3.0", "1.1.0"] {
        let lab = &Lab::new();
        let other = ("192.168.101.209/24", "192.168.101.1");
        let pod = pod(lab, "c1", &[V4, other]);
        let mut config = chained(&pod, json!({ "cniVersion": version }), &[V4, other]);
        // An index out of range counts as the interface.
        config["prevResult"]["ips"][1]["interface"] = json!(9);
        pod.add(&config);
        assert_eq!(pod.rules(), ["192.168.1.209 100", "192.168.101.209 101"]);
        assert_eq!(pod.table("-4", "100"), NET1);
        let expected =
            ["192.168.101.0/24 dev net1 scope link src 192.168.101.209", "default via 192.168.101.1 dev net1"];
        assert_eq!(pod.table("-4", "101"), expected);
        assert_eq!(pod.table("-4", "main"), ETH0);
    }
}

#[test]
fn each_family_has_its_own_table() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    let config = chained(&pod, json!({}), &[V4, V6]);
    pod.add(&config);
    assert_eq!(pod.rules(), ["192.168.1.209 100", "fd01::5 101"]);
    assert_eq!(pod.table("-4", "100"), NET1);
    let link_local = "fe80::/64 dev net1 metric 256";
    let expected = ["default via fd01::1 dev net1 metric 1024", "fd01::/64 dev net1 metric 256", link_local];
    assert_eq!(pod.table("-6", "101"), expected);
    assert_eq!((pod.table("-6", "100"), pod.table("-4", "101")), (Vec::new(), Vec::new()));
    assert_eq!(pod.table("-6", "main"), ["fe80::/64 dev eth0 metric 256", link_local]);
    pod.check(&config).ok();
}

/// Without an IPv6 address, sbr has no table to which the routes could move.
#[test]
fn routes_of_a_family_without_an_address_stay() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    let before = pod.table("-6", "main");
    pod.add(&chained(&pod, json!({}), &[V4]));
    assert_eq!(pod.table("-6", "main"), before);
}

/// Such as one by a link-local address, which IPv6 routers have.
#[test]
fn routes_by_a_next_hop_outside_of_the_networks_are_kept() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[("192.168.1.209/32", ""), ("fd01::5/64", "")]);
    pod.sh("ip route add 169.254.1.1 dev net1; ip route add 10.20.0.0/16 via 169.254.1.1 dev net1
        ip route add default via 169.254.1.1 dev net1 metric 9; ip route add 10.21.0.0/16 via 172.31.0.1 dev net1 onlink
        ip -6 route add default via fe80::1 dev net1");
    pod.add(&chained(&pod, json!({}), &[("192.168.1.209/32", ""), ("fd01::5/64", "")]));
    let expected = [
        "10.20.0.0/16 via 169.254.1.1 dev net1",
        "10.21.0.0/16 via 172.31.0.1 dev net1 onlink",
        "169.254.1.1 dev net1 scope link",
        "default via 169.254.1.1 dev net1 metric 9",
    ];
    assert_eq!(pod.table("-4", "100"), expected);
    assert_eq!(pod.table("-4", "main"), ETH0);
    assert!(pod.table("-6", "101").contains(&"default via fe80::1 dev net1 metric 1024".to_owned()));
}

#[test]
fn tables_of_others_are_not_used() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    // A table of routes without a rule, one without a route to a next hop, one of a rule without routes, one of IPv6,
    // and one by the interface itself.
    pod.sh("ip route add 10.77.0.0/16 via 10.9.0.1 table 100; ip route add blackhole 10.78.0.0/16 table 101
        ip rule add from 10.79.0.1 table 102; ip -6 route add unreachable fd99::/64 table 103; ip rule add iif eth0 goto 32766
        ip route add 10.76.0.0/16 dev net1 table 104");
    pod.add(&chained(&pod, json!({}), &[V4, V6]));
    assert_eq!(pod.rules(), ["10.79.0.1 102", "192.168.1.209 105", "fd01::5 106"]);
    assert_eq!(pod.table("-4", "100"), ["10.77.0.0/16 via 10.9.0.1 dev eth0"]);
    assert_eq!(pod.table("-4", "105"), NET1);
}

#[test]
fn several_interfaces_have_different_tables() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let ips = [("192.168.2.5/24", "192.168.2.1"), ("fd02::5/64", "fd02::1")];
    let other = pod.interface("net2", &[]);
    connect(&other, "net2", &ips);
    let (first, second) = (chained(&pod, json!({}), &[V4]), chained(&other, json!({ "name": "net2" }), &ips));
    pod.add(&first);
    other.add(&second);
    assert_eq!(pod.rules(), ["192.168.1.209 100", "192.168.2.5 101", "fd02::5 102"]);
    let (mine, theirs) = (pod.table("-4", "100"), pod.table("-4", "101"));
    pod.del(&first);
    assert_eq!(
        (pod.rules(), pod.table("-4", "101")),
        (vec!["192.168.2.5 101".to_owned(), "fd02::5 102".to_owned()], theirs)
    );
    // The main plugin repeats its ADD: the routes are there again.
    pod.sh("ip route add 192.168.1.0/24 dev net1 scope link src 192.168.1.209");
    pod.add(&first);
    other.del(&with(second, json!({ "prevResult": null })));
    assert_eq!((pod.rules(), pod.table("-4", "100")), (vec!["192.168.1.209 100".to_owned()], mine));
}

#[test]
fn only_addresses_of_the_interface_count() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let mut config = chained(&pod, json!({}), &[V4, ("10.9.0.2/24", "10.9.0.1")]);
    config["prevResult"]["interfaces"][0] = json!({ "name": "eth0", "sandbox": pod.netns });
    config["prevResult"]["ips"][1]["interface"] = json!(0);
    pod.add(&config);
    assert_eq!(pod.rules(), ["192.168.1.209 100"]);
    let before = pod.state();
    config["prevResult"]["ips"][0]["interface"] = json!(0);
    let error = pod.call("ADD", &config).run().error(7);
    assert_eq!(error["msg"], "No IP addresses supplied on interface: net1");
    assert_eq!(pod.state(), before);
}

#[test]
fn mistakes_are_reported_and_change_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let before = pod.state();
    let fails = |config: &Value, code: u32, ifname: &str, text: &str| {
        let error = pod.call("ADD", config).env("CNI_IFNAME", ifname).run().error(code);
        assert!(error.to_string().contains(text), "{text}: {error}");
        assert_eq!(pod.state(), before, "{text}");
    };
    for version in VERSIONS {
        let first = config(json!({ "cniVersion": version, "prevResult": null }));
        fails(&first, 7, "net1", "must be called as chained plugin");
    }
    fails(&chained(&pod, json!({}), &[]), 7, "net1", "No IP addresses supplied on interface: net1");
    let absent = with(config(json!({})), json!({ "prevResult": previous("1.1.0", "net9", "c1", &[V4]) }));
    fails(&absent, 999, "net9", "Cannot find network interface net9");
    fails(&chained(&pod, json!({ "table": 0 }), &[V4]), 7, "net1", "key \\\"table\\\"");
    fails(&chained(&pod, json!({ "gateways": ["x"] }), &[V4]), 7, "net1", "invalid static gateway IP address");
    // The kernel refuses a gateway that it cannot reach.
    for gateway in ["192.168.99.1", "10.9.0.1"] {
        let unreachable = chained(&pod, json!({}), &[("192.168.1.209/24", gateway)]);
        fails(&unreachable, 999, "net1", &format!("via {gateway}"));
        fails(&unreachable, 999, "net1", "Failed to add default route");
    }
    let missing = chained(&pod, json!({}), &[V4]);
    pod.call("ADD", &missing).env("CNI_NETNS", "/run/netns/absent").run().error(8);
    assert!(!std::path::Path::new("/run/netns/absent").exists());
}

/// A runtime that does not get the answer does not know of the rules.
#[test]
fn an_answer_that_is_lost_reverts_everything() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    pod.sh("ip route add 10.20.0.0/16 via 192.168.1.7 metric 5");
    let before = pod.state();
    let call = pod.call("ADD", &chained(&pod, json!({}), &[V4, V6])).via_shell("exec \"$0\" >/dev/full");
    let outcome = call.run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert_eq!(pod.state(), before);
}

#[test]
fn status_and_gc_need_no_container() {
    let lab = &Lab::new();
    lab.plugin("sbr", "STATUS").stdin(config(json!({})).to_string()).run().silent();
    let error = lab.plugin("sbr", "STATUS").stdin(config(json!({ "gateways": [""] })).to_string()).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("gateways[0]"), "{error}");
    let pod = pod(lab, "c1", &[V4]);
    pod.add(&chained(&pod, json!({}), &[V4]));
    let added = pod.state();
    let gc = with(config(json!({})), json!({ "cni.dev/valid-attachments": [] }));
    lab.plugin("sbr", "GC").stdin(gc.to_string()).run().silent();
    assert_eq!(pod.state(), added);
    lab.plugin("sbr", "GC").stdin(config(json!({})).to_string()).run().error(7);
}
