//! The keys.

use serde_json::json;
use testing::Lab;
use testing::config::with;

use crate::support::{Routed, V4, V6, chained, connect, pod};

#[test]
fn a_fixed_table_gets_only_rules() {
    let lab = &Lab::new();
    let other = ("192.168.101.209/24", "192.168.101.1");
    let pod = pod(lab, "c1", &[V4, other]);
    pod.sh("ip route add default via 192.168.1.1 dev net1 table 5000; ip rule add from 10.0.0.7 table 5000");
    let before = (pod.table("-4", "5000"), pod.table("-4", "main"));
    let config = chained(&pod, json!({ "table": 5000 }), &[V4, other]);
    for _ in 0..2 {
        pod.add(&config);
        assert_eq!(pod.rules(), ["10.0.0.7 5000", "192.168.1.209 5000", "192.168.101.209 5000"]);
        assert_eq!((pod.table("-4", "5000"), pod.table("-4", "main")), before);
    }
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(pod.rules(), ["10.0.0.7 5000"]);
    assert_eq!((pod.table("-4", "5000"), pod.table("-4", "main")), before);
}

/// Two interfaces may share a fixed table. Each DEL removes its own rules.
#[test]
fn a_fixed_table_can_be_shared() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let ips = [("192.168.2.5/24", "192.168.2.1")];
    let other = pod.interface("net2", &[]);
    connect(&other, "net2", &ips);
    for table in [7, u32::MAX] {
        let (first, second) =
            (chained(&pod, json!({ "table": table }), &[V4]), chained(&other, json!({ "table": table }), &ips));
        pod.add(&first);
        other.add(&second);
        pod.del(&first);
        assert_eq!(pod.rules(), [format!("192.168.2.5 {table}")]);
        other.del(&second);
        assert_eq!(pod.rules(), [""; 0]);
    }
}

#[test]
fn gateways_replace_those_of_the_result() {
    let none = [("192.168.1.209/24", ""), ("fd01::5/64", "")];
    for (ips, gateways, v4, v6) in [
        ([V4, V6], json!(["192.168.1.7"]), "192.168.1.7", "fd01::1"),
        ([V4, V6], json!(["fd01::7", "192.168.1.7"]), "192.168.1.7", "fd01::7"),
        (none, json!(["192.168.1.7", "fe80::7"]), "192.168.1.7", "fe80::7"),
    ] {
        for main in ["", "ip route add default via 192.168.1.9 metric 50; ip -6 route add default via fd01::1"] {
            let lab = &Lab::new();
            let pod = pod(lab, "c1", &[V4, V6]);
            pod.sh(&format!("true; {main}"));
            let config = chained(&pod, json!({ "gateways": gateways }), &ips);
            pod.add(&config);
            let default = |family, table| {
                pod.table(family, table).into_iter().filter(|line| line.starts_with("default")).collect::<Vec<_>>()
            };
            assert_eq!(default("-4", "100"), [format!("default via {v4} dev net1")], "{gateways} {main}");
            assert_eq!(default("-6", "101"), [format!("default via {v6} dev net1 metric 1024")], "{gateways} {main}");
            assert_eq!(default("-4", "main"), ["default via 10.9.0.1 dev eth0"], "{gateways} {main}");
            assert_eq!(default("-6", "main"), [""; 0], "{gateways} {main}");
            pod.check(&config).ok();
            let other = with(config, json!({ "gateways": ["192.168.1.8"] }));
            let error = pod.check(&other).error(999);
            assert!(error["msg"].as_str().unwrap().contains("no default route via 192.168.1.8"), "{error}");
        }
    }
}

#[test]
fn without_a_gateway_there_is_no_default_route() {
    let lab = &Lab::new();
    let ips = [("192.168.1.209/24", "")];
    let pod = pod(lab, "c1", &ips);
    let config = chained(&pod, json!({}), &ips);
    pod.add(&config);
    assert_eq!(pod.table("-4", "100"), ["192.168.1.0/24 dev net1 scope link src 192.168.1.209"]);
    pod.check(&config).ok();
}

#[test]
fn source_hints_keep_the_networks_in_the_main_table() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    pod.sh("ip route add 10.20.0.0/16 via 192.168.1.7; ip -6 route add fd20::/64 via fd01::7");
    let config = chained(&pod, json!({ "addSourceHints": true }), &[V4, V6]);
    pod.add(&config);
    assert_eq!(pod.rules(), ["192.168.1.209 100", "fd01::5 101"]);
    let network = "192.168.1.0/24 dev net1 scope link src 192.168.1.209";
    assert_eq!(
        pod.table("-4", "100"),
        ["10.20.0.0/16 via 192.168.1.7 dev net1", network, "default via 192.168.1.1 dev net1"]
    );
    let eth0 = ["10.9.0.0/24 dev eth0 scope link src 10.9.0.2", network, "default via 10.9.0.1 dev eth0"];
    assert_eq!(pod.table("-4", "main"), eth0);
    let v6 = ["fd01::/64 dev net1 metric 256", "fe80::/64 dev eth0 metric 256", "fe80::/64 dev net1 metric 256"];
    assert_eq!(pod.table("-6", "main"), v6);
    // Packets without a source leave by the interface of the network, with its address.
    for (to, src) in [("192.168.1.50", "192.168.1.209"), ("fd01::50", "fd01::5"), ("10.9.0.50", "10.9.0.2")] {
        let route = pod.sh(&format!("ip route get {to}"));
        assert!(route.contains(&format!("src {src}")), "{route}");
    }
    pod.check(&config).ok();
}
