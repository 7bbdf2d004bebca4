//! ADD and CHECK: membership, tables, addresses and routes.

use serde_json::{Value, json};
use testing::config::with;

use crate::support::{Members, VERSIONS, another, config, lab, pod};

#[test]
fn the_interface_becomes_a_member_in_every_version() {
    let Some(lab) = &lab("the_interface_becomes_a_member_in_every_version") else { return };
    for (number, version) in VERSIONS.iter().enumerate() {
        let pod = pod(lab, &format!("c{number}"), &["10.1.0.2/24"]);
        let config = config(json!({ "cniVersion": version, "table": 1001 }));
        let previous = with(pod.result(version), if *version < "1" { json!({ "dns": {} }) } else { json!({}) });
        assert_eq!(pod.add(&config), previous, "{version}");
        assert_eq!(pod.vrfs(), [("blue".to_owned(), 1001, vec!["net1".to_owned()])], "{version}");
        assert_eq!(pod.table("1001"), ["10.1.0.0/24 dev net1 scope link src 10.1.0.2"], "{version}");
        if *version >= "0.4" {
            pod.check(&config).silent();
        }
        pod.del(&config);
        assert_eq!(pod.vrfs(), [], "{version}");
        pod.del(&config);
    }
}

#[test]
fn addresses_and_routes_move() {
    let Some(lab) = &lab("addresses_and_routes_move") else { return };
    let ips = ["10.1.0.2/24", "fd01::2/64", "fd02::2/64"];
    let pod = pod(lab, "c1", &ips);
    let other = another(&pod, "net2", &["10.2.0.2/24"]);
    pod.sh("ip route add 10.10.0.0/16 via 10.1.0.1 metric 7 mtu 1400; ip route add default via 10.1.0.1
        ip route add 10.11.0.0/16 dev net1 scope link; ip -6 route add default via fd01::1; ip -6 route add fd10::/64 via fe80::1 dev net1
        ip route add 10.12.0.0/16 via 10.1.0.9 table 100; ip route add 10.13.0.0/16 via 10.2.0.1");
    let before = pod.state();
    pod.add(&config(json!({ "table": 1001 })));
    let expected = [
        "10.1.0.0/24 dev net1 scope link src 10.1.0.2",
        "10.10.0.0/16 via 10.1.0.1 dev net1 metric 7 mtu 1400",
        "10.11.0.0/16 dev net1 scope link",
        "default via 10.1.0.1 dev net1",
        "default via fd01::1 dev net1 metric 1024",
        "fd01::/64 dev net1 metric 256",
        "fd02::/64 dev net1 metric 256",
        "fd10::/64 via fe80::1 dev net1 metric 1024",
    ];
    assert_eq!(pod.table("1001"), expected);
    // Routes of other interfaces, and of tables that rules select, stay.
    assert_eq!(
        pod.table("main"),
        ["10.13.0.0/16 via 10.2.0.1 dev net2", "10.2.0.0/24 dev net2 scope link src 10.2.0.2"]
    );
    assert_eq!(pod.table("100"), ["10.12.0.0/16 via 10.1.0.9 dev net1"]);
    let mut found = pod.addresses("net1");
    found.sort();
    assert_eq!(found, ips);
    assert_eq!(other.vrfs()[0].2, ["net1"]);
    // An answer that is lost reverts everything, except that the kernel keeps addresses from now on.
    let again = config(json!({ "table": 1001 }));
    pod.del(&again);
    pod.sh("ip route replace 10.10.0.0/16 via 10.1.0.1 metric 7 mtu 1400; ip route replace default via 10.1.0.1
        ip route replace 10.11.0.0/16 dev net1 scope link; ip -6 route replace default via fd01::1; ip -6 route replace fd10::/64 via fe80::1 dev net1
        ip route replace 10.12.0.0/16 via 10.1.0.9 table 100; ip link set net1 alias \"\"; echo 0 >/proc/sys/net/ipv6/conf/net1/keep_addr_on_down");
    assert_eq!(pod.state(), before);
    let outcome = pod.call("ADD", &again).via_shell("exec \"$0\" >/dev/full").run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    pod.sh("echo 0 >/proc/sys/net/ipv6/conf/net1/keep_addr_on_down");
    assert_eq!(pod.state(), before);
}

#[test]
fn a_repeated_add_changes_nothing() {
    let Some(lab) = &lab("a_repeated_add_changes_nothing") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24", "fd01::2/64"]);
    pod.sh("ip route add 10.10.0.0/16 via 10.1.0.1");
    for keys in [json!({}), json!({ "table": 1001 })] {
        let config = config(keys);
        pod.add(&config);
        let added = pod.state();
        pod.add(&config);
        assert_eq!(pod.state(), added);
        pod.del(&config);
    }
}

#[test]
fn a_table_that_nothing_uses_is_chosen() {
    let Some(lab) = &lab("a_table_that_nothing_uses_is_chosen") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    // A VRF, a rule, a route, and one that is not to a next hop.
    pod.sh("ip link add red type vrf table 1; ip rule add from 10.9.0.1 table 2; ip route add 10.77.0.0/16 dev net1 table 3
        ip -6 route add unreachable fd99::/64 table 4; ip link add plain type bridge");
    pod.add(&config(json!({})));
    assert_eq!(pod.vrfs()[0], ("blue".to_owned(), 5, vec!["net1".to_owned()]));
    let other = another(&pod, "net2", &["10.2.0.2/24"]);
    other.add(&config(json!({ "vrfname": "green" })));
    assert_eq!(pod.vrfs()[1], ("green".to_owned(), 6, vec!["net2".to_owned()]));
}

#[test]
fn interfaces_share_a_vrf_or_have_their_own() {
    let Some(lab) = &lab("interfaces_share_a_vrf_or_have_their_own") else { return };
    for (number, (first, second, ips)) in [
        ("blue", "blue", ["10.1.0.2/24", "10.2.0.2/24"]),
        ("blue", "red", ["10.1.0.2/24", "10.2.0.2/24"]),
        ("blue", "red", ["10.1.0.2/24", "10.1.0.2/24"]),
        ("blue", "blue", ["fd01::2/64", "fd02::2/64"]),
        ("blue", "red", ["fd01::2/64", "fd02::2/64"]),
        ("blue", "red", ["fd01::2/64", "fd01::2/64"]),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = pod(lab, &format!("c{number}"), &[ips[0]]);
        let (one, two) = (config(json!({ "vrfname": first })), config(json!({ "vrfname": second, "name": "net2" })));
        pod.add(&one);
        let other = another(&pod, "net2", &[ips[1]]);
        other.add(&two);
        let members: Vec<(String, Vec<String>)> =
            pod.vrfs().into_iter().map(|(name, _, members)| (name, members)).collect();
        let expected: Value = match first == second {
            true => json!([["blue", ["net1", "net2"]]]),
            false => json!([["blue", ["net1"]], ["red", ["net2"]]]),
        };
        let mut found = json!(members);
        found[0][1].as_array_mut().unwrap().sort_by_key(ToString::to_string);
        assert_eq!(found, expected, "{first} {second} {ips:?}");
        assert_eq!((pod.addresses("net1"), pod.addresses("net2")), (vec![ips[0].to_owned()], vec![ips[1].to_owned()]));
        pod.check(&one).silent();
        other.check(&two).silent();
        // The VRF stays until its last member is gone.
        pod.del(&one);
        assert_eq!(pod.vrfs().last().map(|vrf| vrf.2.clone()), Some(vec!["net2".to_owned()]));
        other.del(&two);
        assert_eq!(pod.vrfs(), []);
    }
}

#[test]
fn an_existing_vrf_keeps_its_table() {
    let Some(lab) = &lab("an_existing_vrf_keeps_its_table") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    let other = another(&pod, "net2", &["10.2.0.2/24"]);
    pod.add(&config(json!({ "table": 1001 })));
    let before = pod.state();
    let error = other.call("ADD", &config(json!({ "table": 5 }))).run().error(999);
    assert!(
        error["msg"].as_str().unwrap().contains("VRF blue already exist with different routing table 1001"),
        "{error}"
    );
    let error = pod.call("ADD", &config(json!({ "vrfname": "red" }))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("interface \"net1\" has already a master set: blue"), "{error}");
    assert_eq!(pod.state(), before);
    // The same table in another VRF, and the VRF without its table.
    other.add(&config(json!({ "vrfname": "red", "table": 1001, "name": "net2" })));
    assert_eq!(pod.vrfs().iter().map(|vrf| vrf.1).collect::<Vec<_>>(), [1001, 1001]);
    let third = another(&pod, "net3", &["10.3.0.2/24"]);
    third.add(&config(json!({ "name": "net3" })));
    assert_eq!(third.table("1001").len(), 3);
}

#[test]
fn check_finds_damage() {
    let Some(lab) = &lab("check_finds_damage") else { return };
    for (number, (damage, text)) in [
        ("ip link set net1 nomaster", "Failed to find net1 associated to vrf blue"),
        ("ip link del blue", "Failed to find net1 associated to vrf blue"),
        ("ip link set blue down", "up of \"blue\""),
        ("ip link del net1", "Failed to find net1"),
    ]
    .iter()
    .enumerate()
    {
        let pod = pod(lab, &format!("c{number}"), &["10.1.0.2/24"]);
        let config = config(json!({ "table": 7 }));
        pod.add(&config);
        pod.check(&config).silent();
        let error = pod.check(&with(config.clone(), json!({ "table": 8 }))).error(999);
        assert!(error["msg"].as_str().unwrap().contains("different routing table 7"), "{error}");
        pod.sh(damage);
        let error = pod.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{damage}: {error}");
    }
}
