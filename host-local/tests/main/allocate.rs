//! The addresses that ADD leases, its results and its errors.

use std::fs;

use serde_json::json;
use testing::Lab;

use crate::support::{Net, ip};

#[test]
fn addresses_are_reused_only_after_a_whole_round() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/29");
    for (id, want) in [("a", 2), ("b", 3), ("c", 4)] {
        assert_eq!(net.add(id), [ip(&format!("10.1.0.{want}"))]);
    }
    net.del("b");
    assert_eq!(net.add("d"), [ip("10.1.0.5")]);
    assert_eq!(net.add("e"), [ip("10.1.0.6")]);
    assert_eq!(net.add("f"), [ip("10.1.0.3")]);
    let error = net.call("ADD", "g").error(100);
    let (msg, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    for part in ["\"net\"", "10.1.0.1-10.1.0.6", "all 5 are leased", "/var/lib/cni/networks/net"] {
        assert!(msg.contains(part), "{part}: {msg}");
    }
    assert!(details.contains("the oldest lease is"), "{details}");
    net.assert_tidy();
}

#[test]
fn a_set_of_several_ranges_is_one_pool() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/30"}, {"subnet": "10.1.1.0/30"}]]));
    assert_eq!(net.add("a"), [ip("10.1.0.2")]);
    let second = net.call("ADD", "b").ok();
    assert_eq!(second["ips"], json!([{"address": "10.1.1.2/30", "gateway": "10.1.1.1"}]));
    net.call("ADD", "c").error(100);
}

#[test]
fn either_all_range_sets_lease_an_address_or_none() {
    let lab = Lab::new();
    let net =
        Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.2.0.0/30"}]]));
    assert_eq!(net.add("a"), [ip("10.1.0.2"), ip("fd00::2"), ip("10.2.0.2")]);
    let before = net.leases();
    net.call("ADD", "b").error(100);
    assert_eq!(net.leases(), before, "the leases of b are released, those of a are not");
    net.call("ADD", "a").error(999);
    assert_eq!(net.leases(), before);
}

#[test]
fn ipv6_addresses_with_small_numbers_stay_ipv6() {
    let lab = Lab::new();
    let net = Net::of(&lab, "::100:0/112");
    assert_eq!(net.call("ADD", "a").ok()["ips"][0]["address"], "::100:2/112");
    assert_eq!(net.add("b"), [ip("::100:3")]);
}

#[test]
fn a_second_add_is_a_duplicate_unless_it_requests_the_same_address() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let error = net.call("ADD", "a").error(999);
    let msg = error["msg"].as_str().unwrap();
    assert!(msg.contains("duplicate allocation") && msg.contains("10.1.0.2") && msg.contains("\"a\""), "{msg}");
    let requesting = |id: &str, ip: &str| net.calling("ADD", id).env("CNI_ARGS", format!("IP={ip}")).run();
    let before = net.files();
    assert_eq!(requesting("a", "10.1.0.2").ok()["ips"][0]["address"], "10.1.0.2/24");
    let other = requesting("a", "10.1.0.9").error(999);
    assert!(other["msg"].as_str().unwrap().contains("duplicate allocation"));
    let used = requesting("b", "10.1.0.2").error(999);
    let msg = used["msg"].as_str().unwrap();
    assert!(msg.contains("10.1.0.2") && msg.contains("\"a\"") && msg.contains("\"eth0\""), "{msg}");
    assert_eq!(net.files(), before, "no call changed anything");
}

#[test]
fn a_second_add_whose_result_is_lost_keeps_the_lease() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    let before = net.leases();
    let again = net.calling("ADD", "a").env("CNI_ARGS", "IP=10.1.0.2");
    assert_eq!(again.via_shell("exec \"$0\" >/dev/full").run().status, Some(1));
    assert_eq!(net.leases(), before);
}

#[test]
fn a_repeated_request_does_not_change_the_last_reserved_address() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    net.add("a");
    net.add("b");
    net.calling("ADD", "a").env("CNI_ARGS", "IP=10.1.0.2").run().ok();
    assert_eq!(net.files()["last_reserved_ip.0"], "10.1.0.3");
    net.del("b");
    assert_eq!(net.add("c"), [ip("10.1.0.4")], "an address that was just released is not the next one");
}

#[test]
fn a_failed_second_add_keeps_existing_leases() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    net.add("a");
    let before = net.leases();
    // For the first set, a requests the address it has; for the second set, it is a duplicate.
    net.calling("ADD", "a").env("CNI_ARGS", "IP=10.1.0.2").run().error(999);
    assert_eq!(net.leases(), before);
}

#[test]
fn addresses_are_requested_in_three_places() {
    let lab = Lab::new();
    let net =
        Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.2.0.0/24"}]]));
    let net = net.with("/runtimeConfig", json!({"ips": ["10.2.0.77/24", "10.1.0.7"]}));
    let net = net.with("/args", json!({"cni": {"ips": ["fd00::77/64"]}}));
    let got = net.calling("ADD", "a").env("CNI_ARGS", "IgnoreUnknown=1;K8S=x;IP=10.1.0.7/8").run().ok();
    let want = ["10.1.0.7/24", "fd00::77/64", "10.2.0.77/24"];
    assert_eq!(got["ips"].as_array().unwrap().iter().map(|ip| &ip["address"]).collect::<Vec<_>>(), want);
    assert_eq!(fs::read_to_string(net.dir().join("last_reserved_ip.2")).unwrap(), "10.2.0.77");
    net.del("a");
    assert!(net.leases().is_empty());
}

#[test]
fn ranges_of_the_runtime_come_first_and_the_legacy_one_before_the_list() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.3.0.0/24")
        .with("/ipam/subnet", json!("10.2.0.0/24"))
        .with("/ipam/rangeStart", json!("10.2.0.10"))
        .with("/ipam/rangeEnd", json!("10.2.0.20"))
        .with("/ipam/gateway", json!("10.2.0.254"))
        .with("/runtimeConfig", json!({"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}));
    let got = net.call("ADD", "a").ok();
    assert_eq!(
        got["ips"],
        json!([
            {"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"address": "10.2.0.10/24", "gateway": "10.2.0.254"},
            {"address": "10.3.0.2/24", "gateway": "10.3.0.1"},
        ])
    );
}

#[test]
fn routes_and_dns_are_part_of_the_result() {
    let lab = Lab::new();
    let resolv = lab.dir().join("resolv.conf");
    fs::write(&resolv, "nameserver 10.0.0.1\nsearch a b\n").unwrap();
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300,
                         "priority": 5, "table": 0, "scope": 253}]);
    let net = Net::of(&lab, "10.1.0.0/24").with("/ipam/routes", routes.clone()).with("/ipam/resolvConf", json!(resolv));
    let got = net.call("ADD", "a").ok();
    assert_eq!(got["routes"], routes);
    assert_eq!(got["dns"], json!({"nameservers": ["10.0.0.1"], "search": ["a", "b"]}));
    let missing = net.with("/ipam/resolvConf", json!("/nowhere/resolv.conf"));
    let error = missing.call("ADD", "b").error(5);
    assert!(error["msg"].as_str().unwrap().contains("/nowhere/resolv.conf"));
    let endless = net.with("/ipam/resolvConf", json!("/dev/zero")).call("ADD", "b").error(7);
    assert!(endless["msg"].as_str().unwrap().contains("/dev/zero"));
    assert_eq!(net.leases().len(), 1);
}

#[test]
fn results_have_the_layout_of_their_version() {
    let lab = Lab::new();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
        let net = net.with("/cniVersion", json!(version));
        let got = net.call("ADD", version).ok();
        assert_eq!(got["cniVersion"], version);
        match version {
            "0.1.0" | "0.2.0" => {
                assert!(got["ip4"]["ip"].as_str().unwrap().starts_with("10.1.0."), "{got}");
                assert!(got["ip6"]["ip"].as_str().unwrap().starts_with("fd00::"), "{got}");
            }
            "1.0.0" | "1.1.0" => assert!(got["ips"][1].get("version").is_none(), "{got}"),
            _ => assert_eq!(got["ips"][1]["version"], "6", "{got}"),
        }
        net.del(version);
    }
}

#[test]
fn check_compares_the_leases_with_the_result_of_add() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    net.call("CHECK", "a").error(999);
    assert!(!net.dir().exists(), "CHECK creates nothing");
    let answer = net.call("ADD", "a").ok();
    let checked = net.with("/prevResult", answer);
    checked.call("CHECK", "a").ok();
    checked.call("CHECK", "b").error(999);
    fs::remove_file(net.dir().join("fd00::2")).unwrap();
    net.call("CHECK", "a").ok();
    let error = checked.call("CHECK", "a").error(999);
    assert!(error["msg"].as_str().unwrap().contains("fd00::2"), "{error}");
}

#[test]
fn empty_and_garbled_leases_are_free() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/29");
    net.add("a");
    fs::write(net.dir().join("10.1.0.3"), "").unwrap();
    fs::write(net.dir().join("10.1.0.4"), [0; 8]).unwrap();
    fs::create_dir(net.dir().join("10.1.0.5")).unwrap();
    let outcome = net.calling("ADD", "b").env("CNI_LOG", "warn").run();
    assert_eq!(outcome.ok()["ips"][0]["address"], "10.1.0.3/29");
    assert!(outcome.stderr.contains("10.1.0.3"), "it is logged: {}", outcome.stderr);
    let asked = net.calling("ADD", "c").env("CNI_ARGS", "IP=10.1.0.4").run();
    assert_eq!(asked.ok()["ips"][0]["address"], "10.1.0.4/29");
    assert_eq!(net.add("d"), [ip("10.1.0.6")], "a directory is not removed");
}
