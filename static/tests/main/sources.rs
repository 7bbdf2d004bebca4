//! The sources of addresses and gateways, in each version of the protocol.

use serde_json::{Value, json};
use testing::Lab;

use crate::support::{Net, VERSIONS};

const V4: &str = "10.10.0.1/24";
const V6: &str = "3ffe:ffff:0:1ff::1/64";

/// Returns the addresses in a result with their gateways, IPv4 first below 0.3.0.
#[track_caller]
fn ips(version: &str, result: &Value) -> Vec<(String, String)> {
    assert_eq!(result["cniVersion"], version);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match result.get("ips") {
        Some(ips) => ips.as_array().unwrap().iter().map(|ip| (text(&ip["address"]), text(&ip["gateway"]))).collect(),
        None => ["ip4", "ip6"]
            .iter()
            .filter_map(|family| result.get(family))
            .map(|ip| (text(&ip["ip"]), text(&ip["gateway"])))
            .collect(),
    }
}

fn pairs(want: &[(&str, &str)]) -> Vec<(String, String)> {
    want.iter().map(|(ip, gateway)| ((*ip).to_owned(), (*gateway).to_owned())).collect()
}

fn both() -> Value {
    json!([
        {"address": V4, "gateway": "10.10.0.254"},
        {"address": V6, "gateway": "3ffe:ffff:0::1"},
    ])
}

#[test]
fn the_configuration_is_returned_in_every_version() {
    let lab = Lab::new();
    let routes = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "192.168.0.0/16", "gw": "10.10.5.1"},
        {"dst": "3ffe:ffff:0:01ff::1/64"},
    ]);
    let dns = json!({"nameservers": ["8.8.8.8"], "domain": "example.com", "search": ["example.com"], "options": ["a"]});
    let net = Net::new(&lab, json!({"addresses": both(), "routes": routes, "dns": dns}));
    for version in VERSIONS {
        let net = net.with_version(version);
        let result = net.add("c1");
        let want = pairs(&[(V4, "10.10.0.254"), (V6, "3ffe:ffff::1")]);
        assert_eq!(ips(version, &result), want, "{version}");
        assert_eq!(result["dns"], dns, "{version}");
        let routes = json!([
            {"dst": "0.0.0.0/0"},
            {"dst": "192.168.0.0/16", "gw": "10.10.5.1"},
            {"dst": "3ffe:ffff:0:1ff::1/64"},
        ]);
        match result.get("ip4") {
            Some(ip4) => assert_eq!(ip4["routes"].as_array().unwrap().len(), 2, "{version}"),
            None => assert_eq!(result["routes"], routes, "{version}"),
        }
        net.del("c1");
    }
    assert_eq!(lab.sh("find /var/lib /run -type f"), "", "without leases, nothing is written");
}

#[test]
fn attributes_of_routes_are_passed_on() {
    let lab = Lab::new();
    let route = json!({"dst": "10.9.0.0/16", "gw": "10.10.0.9", "mtu": 1300, "advmss": 1200, "priority": 100,
                       "table": 50, "scope": 0});
    let ecmp = json!([route, {"dst": "0.0.0.0/0", "gw": "10.10.0.2"}, {"dst": "0.0.0.0/0", "gw": "10.10.0.3"}]);
    let result = Net::of(&lab, V4).with_ipam("routes", ecmp.clone()).add("c1");
    assert_eq!(result["routes"], ecmp);
}

#[test]
fn del_of_an_unknown_attachment_succeeds() {
    let lab = Lab::new();
    for version in VERSIONS {
        Net::of(&lab, V4).with_version(version).del("unknown");
    }
}

#[test]
fn addresses_of_the_variable_are_added() {
    let lab = Lab::new();
    for version in VERSIONS {
        let net = Net::new(&lab, json!({})).with_version(version);
        let one = net.with_args("IP=10.10.0.1/24;GATEWAY=10.10.0.254");
        assert_eq!(ips(version, &one.add("c1")), pairs(&[(V4, "10.10.0.254")]));
        let two = net.with_args("IP=10.10.0.1/24,11.11.0.1/24;GATEWAY=10.10.0.254");
        if version < "0.3.0" {
            let what = format!("CNI version {version} does not support more than 1 address per family");
            assert_eq!(two.call("ADD", "c1").error(7)["msg"], what);
        } else {
            let want = pairs(&[(V4, "10.10.0.254"), ("11.11.0.1/24", "")]);
            assert_eq!(ips(version, &two.add("c1")), want);
        }
    }
    let net = Net::of(&lab, "10.1.0.5/24").with_args("IP=10.10.0.1/24,fd00::1/64;GATEWAY=fe80::1,10.1.0.9");
    // Unlike the reference, GATEWAY also applies to addresses of the configuration.
    let want = pairs(&[("10.1.0.5/24", "10.1.0.9"), (V4, ""), ("fd00::1/64", "fe80::1")]);
    assert_eq!(ips("1.1.0", &net.add("c1")), want);
}

#[test]
fn the_runtime_has_precedence() {
    let lab = Lab::new();
    for version in VERSIONS {
        let net = Net::new(&lab, json!({})).with_version(version);
        let want = pairs(&[(V4, ""), (V6, "")]);
        let capability = json!({"ips": [V4, V6]});
        assert_eq!(ips(version, &net.with("runtimeConfig", capability.clone()).add("c1")), want);
        let args = json!({"cni": {"ips": [V4, V6]}});
        assert_eq!(ips(version, &net.with("args", args).add("c1")), want);

        // args replace the configuration and the variable; the capability replaces all.
        let configured = json!([{"address": "10.30.0.1/24"}, {"address": "not even parsed"}]);
        let args = json!({"cni": {"ips": ["10.20.0.1/24"]}});
        let net = net.with_ipam("addresses", configured).with_args("IP=10.40.0.1/24").with("args", args);
        assert_eq!(ips(version, &net.add("c1")), pairs(&[("10.20.0.1/24", "")]));
        assert_eq!(ips(version, &net.with("runtimeConfig", capability).add("c1")), want);
        let empty = net.with("runtimeConfig", json!({"ips": []}));
        assert_eq!(ips(version, &empty.add("c1")), pairs(&[("10.20.0.1/24", "")]));
    }
}

#[test]
fn addresses_of_the_runtime_get_a_gateway_of_the_network() {
    let lab = Lab::new();
    let routes = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "0.0.0.0/0", "gw": "10.20.0.1"},
        {"dst": "10.99.0.0/16", "gw": "10.30.0.1"},
        {"dst": "::/0", "gw": "fe80::1"},
    ]);
    let net = Net::new(&lab, json!({"addresses": both(), "routes": routes}));
    let given = ["10.10.0.7/24", "10.20.0.7/24", "10.30.0.7/24", "10.20.0.1/24", "fd00::7/64"];
    let want = pairs(&[
        (given[0], "10.10.0.254"),
        (given[1], "10.20.0.1"),
        (given[2], ""),
        (given[3], ""),
        (given[4], "fe80::1"),
    ]);
    for (key, value) in [("runtimeConfig", json!({"ips": given})), ("args", json!({"cni": {"ips": given}}))] {
        assert_eq!(ips("1.1.0", &net.with(key, value).add("c1")), want, "{key}");
    }
    let variable = net.with_ipam("addresses", json!([])).with_args("IP=10.20.0.7/24;GATEWAY=10.20.0.9");
    assert_eq!(ips("1.1.0", &variable.add("c1")), pairs(&[("10.20.0.7/24", "10.20.0.9")]));
}

#[test]
fn ipv4_written_as_ipv6_is_ipv4() {
    let lab = Lab::new();
    let result = Net::of(&lab, "::ffff:10.0.0.1/120").add("c1");
    assert_eq!(result["ips"], json!([{"address": "10.0.0.1/24"}]));
}

#[test]
fn subnets_of_one_and_two_addresses_have_no_reserved_addresses() {
    let lab = Lab::new();
    for address in
        ["10.0.0.0/32", "10.0.0.0/31", "10.0.0.1/31", "10.0.0.255/24", "fd00::/128", "fd00::/127", "fd00::ffff/112"]
    {
        let outcome = Net::of(&lab, address).call("ADD", "c1");
        assert_eq!(outcome.status == Some(0), address != "10.0.0.255/24", "{address}: {outcome:?}");
    }
}

#[test]
fn a_gateway_outside_of_the_subnet_is_only_reported() {
    let lab = Lab::new();
    let net =
        Net::new(&lab, json!({"addresses": [{"address": V4, "gateway": "10.99.0.1"}]})).with("logLevel", json!("warn"));
    let outcome = net.call("ADD", "c1");
    assert!(outcome.stderr.contains("gateway 10.99.0.1 is not in the network of 10.10.0.1/24"), "{outcome:?}");
    assert_eq!(ips("1.1.0", &outcome.ok()), pairs(&[(V4, "10.99.0.1")]));
    let unused = Net::of(&lab, V4).with("logLevel", json!("warn")).with_args("GATEWAY=10.99.0.1").call("ADD", "c1");
    assert!(unused.stderr.contains("GATEWAY in CNI_ARGS: 10.99.0.1"), "{unused:?}");
}
