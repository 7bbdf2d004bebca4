//! Invalid input: the error has the right code, names key and value, and nothing is created.

use serde_json::{Value, json};
use testing::Lab;

use crate::support::Net;

const CIDR: &str = "the 'address' field is expected to be in CIDR notation, got: ";

#[track_caller]
fn refuses(net: &Net<'_>, code: u32, words: &[&str]) {
    let error = net.call("ADD", "c1").error(code);
    let text = format!("{} {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
}

#[test]
fn in_ipam_is_refused() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!({"leases": true}));
    let cases: &[(&str, Value, u32, &[&str])] = &[
        ("addresses", json!(5), 6, &["ipam.addresses"]),
        ("addresses", json!([null]), 6, &["ipam.addresses[0]", "null"]),
        ("addresses", json!(["10.1.0.5/24"]), 6, &["ipam.addresses[0]", "10.1.0.5/24"]),
        ("addresses", json!([{"address": 5}]), 6, &["ipam.addresses[0].address"]),
        ("addresses", json!([{}]), 7, &["ipam.addresses[0].address", CIDR, "''"]),
        ("addresses", json!([{"address": "10.1.0.5"}]), 7, &["ipam.addresses[0].address", CIDR, "'10.1.0.5'", "/24"]),
        ("addresses", json!([{"address": "10.1.0.5/33"}]), 7, &[CIDR, "'10.1.0.5/33'"]),
        ("addresses", json!([{"address": "10.1.0.5/24", "gateway": "zz"}]), 7, &["ipam.addresses[0].gateway", "zz"]),
        ("addresses", json!([{"address": "10.1.0.5/24", "gateway": "fd00::1"}]), 7, &["fd00::1", "another family"]),
        ("addresses", json!([{"address": "10.1.0.0/24"}]), 7, &["10.1.0.0/24", "address of its network"]),
        ("addresses", json!([{"address": "fd00::/64"}]), 7, &["fd00::/64", "address of its network"]),
        ("addresses", json!([{"address": "10.1.0.255/24"}]), 7, &["broadcast"]),
        ("addresses", json!([{"address": "224.0.0.1/24"}]), 7, &["multicast"]),
        ("addresses", json!([{"address": "ff02::1/64"}]), 7, &["multicast"]),
        ("addresses", json!([{"address": "0.0.0.0/32"}]), 7, &["unspecified"]),
        ("addresses", json!([{"address": "::ffff:10.1.0.5/64"}]), 7, &["IPv4 written as IPv6"]),
        (
            "addresses",
            json!([{"address": "10.1.0.5/24"}, {"address": "10.1.0.5/16"}]),
            7,
            &["ipam.addresses[1].address", "10.1.0.5", "twice"],
        ),
        (
            "addresses",
            json!([]),
            7,
            &["no addresses", "ipam.addresses", "runtimeConfig.ips", "args.cni.ips", "CNI_ARGS"],
        ),
        ("routes", json!({}), 6, &["ipam.routes"]),
        ("routes", json!([{"gw": "10.1.0.1"}]), 7, &["ipam.routes[0].dst"]),
        ("routes", json!([{"dst": "1.2.3.4"}]), 7, &["ipam.routes[0].dst", "1.2.3.4"]),
        ("routes", json!([{"dst": "10.1.0.0/16", "mtu": -1}]), 7, &["ipam.routes[0].mtu"]),
        ("dns", json!({"nameservers": "10.0.0.1"}), 6, &["ipam.dns.nameservers"]),
        ("leases", json!("yes"), 6, &["ipam.leases"]),
        ("dataDir", json!(5), 6, &["ipam.dataDir"]),
        ("dataDir", json!("/run/\0"), 7, &["ipam.dataDir"]),
    ];
    for (key, value, code, words) in cases {
        refuses(
            &net.with_ipam("addresses", json!([{"address": "10.1.0.5/24"}])).with_ipam(key, value.clone()),
            *code,
            words,
        );
    }
    assert_eq!(lab.sh("find /var/lib /run -type f"), "");
}

#[test]
fn of_the_runtime_is_refused() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.5/24");
    let ips = "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'";
    refuses(&net.with("runtimeConfig", json!({"ips": ["10.1.0.5"]})), 7, &["runtimeConfig.ips[0]", ips]);
    refuses(&net.with("args", json!({"cni": {"ips": ["10.1.0.9/24", "10.1.0.5"]}})), 7, &["args.cni.ips[1]", ips]);
    refuses(&net.with("runtimeConfig", json!({"ips": "10.1.0.5"})), 6, &["runtimeConfig.ips"]);
    for (args, words) in [
        ("IP=10.1.0.7", &["IP in CNI_ARGS", "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.7'"][..]),
        ("IP=10.1.0.7/24,", &["got: ''"]),
        ("IP=10.1.0.5/24", &["IP in CNI_ARGS", "10.1.0.5", "twice"]),
        ("IP=10.1.1.0/24", &["IP in CNI_ARGS", "address of its network"]),
        ("GATEWAY=10.1.0", &["GATEWAY in CNI_ARGS", "invalid gateway address: 10.1.0"]),
        ("GATEWAY=10.1.0.1/24", &["invalid gateway address: 10.1.0.1/24"]),
        ("MAC=0a:00:00:00:00:01", &["MAC", "IgnoreUnknown"]),
    ] {
        refuses(&net.with_args(args), 4, words);
    }
    net.with_args("IP=;GATEWAY=").add("c1");
    net.with_args("IgnoreUnknown=1;MAC=x").add("c1");
}

#[test]
fn without_ipam_is_refused() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.5/24").with("ipam", Value::Null);
    let missing = &["IPAM config missing 'ipam' key"];
    refuses(&net, 7, missing);
    refuses(&net.with_args("IP=10.1.0.5/24"), 7, missing);
    refuses(&net.with("runtimeConfig", json!({"ips": ["10.1.0.5/24"]})), 7, missing);
    assert_eq!(net.call("STATUS", "c1").error(7)["msg"], missing[0]);
}

/// DEL must end whatever the configuration has become.
#[test]
fn does_not_keep_del_from_succeeding() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.5/24").with_ipam("leases", json!(true));
    net.add("c1");
    for broken in [
        net.with_ipam("addresses", json!([{"address": "10.1.0.5"}])),
        net.with_ipam("addresses", json!(5)),
        net.with_ipam("leases", json!("yes")),
        net.with_ipam("leases", Value::Null),
        net.with("ipam", Value::Null),
        net.with_args("IP=x;Y=z"),
        net.with("runtimeConfig", json!(5)),
    ] {
        broken.del("c1");
        assert!(net.leases().is_empty(), "{}", broken.config);
        net.add("c1");
    }
    // Where leases are is not known. Without leases, it does not matter.
    let elsewhere = net.with_ipam("dataDir", json!("/proc/none")).with_ipam("leases", json!(false));
    elsewhere.del("c1");
    elsewhere.gc(&[]);
    net.with_ipam("dataDir", json!(5)).del("c1");
}
