//! Invalid configurations: the error has the right code, names key and value, and nothing is created.

use std::path::Path;

use serde_json::{Value, json};
use testing::Lab;

use crate::support::{DATA, Net};

/// A JSON pointer, the value to put there, the expected code, and texts that the message must contain.
type Case = (&'static str, Value, u32, &'static [&'static str]);

fn ranges() -> Vec<Case> {
    let mut cases: Vec<Case> = vec![
        ("/ipam/ranges", json!(5), 6, &["ipam.ranges", "5"]),
        ("/ipam/ranges", json!("x"), 6, &["ipam.ranges", "\\\"x\\\""]),
        ("/ipam/ranges", json!(true), 6, &["ipam.ranges", "true"]),
        ("/ipam/ranges", json!({}), 6, &["ipam.ranges", "object"]),
        ("/ipam/ranges", json!([]), 7, &["ranges"]),
        ("/ipam/ranges", json!([null]), 6, &["ipam.ranges[0]", "null"]),
        ("/ipam/ranges", json!([[null]]), 6, &["ipam.ranges[0][0]", "null"]),
        ("/ipam/ranges", json!([[]]), 7, &["ipam.ranges[0]", "empty"]),
        ("/ipam/ranges", json!([{"subnet": "10.1.0.0/24"}]), 6, &["ipam.ranges[0]"]),
        ("/ipam/ranges", json!([["10.1.0.0/24"]]), 6, &["ipam.ranges[0][0]", "10.1.0.0/24"]),
        ("/ipam/ranges", json!([[[]]]), 6, &["ipam.ranges[0][0]", "list"]),
        ("/ipam/ranges", json!([[{"subnet": "10.1.0.0/24"}], []]), 7, &["ipam.ranges[1]"]),
        ("/ipam/ranges", json!([[{}]]), 7, &["ipam.ranges[0][0]", "subnet"]),
        ("/ipam/ranges", json!([[{"subnet": null}]]), 7, &["ipam.ranges[0][0]", "subnet"]),
        ("/ipam/ranges", json!([[{"rangeStart": "10.1.0.1"}]]), 7, &["ipam.ranges[0][0]", "subnet"]),
        ("/ipam/ranges", json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]), 7, &["ipam.ranges[0]", "IPv6"]),
        (
            "/ipam/ranges",
            json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/25"}]]),
            7,
            &["overlap", "10.1.0.126"],
        ),
        (
            "/ipam/ranges",
            json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]),
            7,
            &["ipam.ranges[0]", "ipam.ranges[1]", "overlap"],
        ),
        ("/ipam/ranges", json!([[{"subnet": "fd00::/64"}], [{"subnet": "fd00::/48"}]]), 7, &["overlap"]),
        ("/ipam/subnet", json!("10.1.0.0/16"), 7, &["overlap", "ipam.ranges[0]"]),
        (
            "/runtimeConfig",
            json!({"ipRanges": [[{"subnet": "10.1.0.0/25"}]]}),
            7,
            &["runtimeConfig.ipRanges[0]", "overlap"],
        ),
        (
            "/runtimeConfig",
            json!({"ipRanges": [[{"subnet": "10.9.0.0/33"}]]}),
            7,
            &["runtimeConfig.ipRanges[0][0].subnet", "10.9.0.0/33"],
        ),
        ("/runtimeConfig", json!({"ipRanges": [null]}), 6, &["runtimeConfig.ipRanges[0]", "null"]),
        ("/runtimeConfig", json!({"ipRanges": [[]]}), 7, &["runtimeConfig.ipRanges[0]"]),
        ("/runtimeConfig", json!({"ipRanges": 7}), 6, &["runtimeConfig.ipRanges", "7"]),
        ("/runtimeConfig", json!([]), 6, &["runtimeConfig", "list"]),
        ("/runtimeConfig", json!("x"), 6, &["runtimeConfig", "x"]),
    ];
    for bad in [
        "",
        "x",
        "10.1.0.0",
        "10.1.0.0/",
        "/24",
        "10.1.0.0/33",
        "10.1.0.0/-1",
        "10.1.0.0/+8",
        "10.1.0/24",
        "10.1.0.0/24 ",
        " 10.1.0.0/24",
        "10.1.0.0/24/24",
        "10.1.0.0/255.255.255.0",
        "010.1.0.0/24",
        "fd00::/129",
        "fd00::%eth0/64",
        "fd00:::/64",
        "10.1.0.0/0x10",
    ] {
        cases.push(("/ipam/ranges", json!([[{"subnet": bad}]]), 7, &["ipam.ranges[0][0].subnet"]));
        cases.push(("/ipam/subnet", json!(bad), 7, &["ipam.subnet"]));
    }
    for (bad, why) in [
        ("10.1.0.0/31", "10.1.0.0/31"),
        ("10.1.0.0/32", "10.1.0.0/32"),
        ("fd00::/127", "fd00::/127"),
        ("fd00::/128", "fd00::/128"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("10.1.0.1/24", "10.1.0.0/24"),
        ("fd00::1/64", "fd00::/64"),
        ("::ffff:10.1.0.0/120", "IPv4"),
    ] {
        cases.push(("/ipam/ranges", json!([[{"subnet": bad}]]), 7, Box::leak(Box::new(["ipam.ranges[0][0]", why]))));
    }
    for key in ["rangeStart", "rangeEnd", "gateway"] {
        let named: &'static [&'static str] = Box::leak(Box::new([key]));
        for bad in [
            json!("x"),
            json!("10.1.0"),
            json!("10.1.0.300"),
            json!("10.1.0.1/24"),
            json!("01.2.3.4"),
            json!("fe80::1%eth0"),
            json!("fd00::1"),
        ] {
            cases.push(("/ipam/ranges", json!([[{"subnet": "10.1.0.0/24", key: bad}]]), 7, named));
        }
        for bad in [json!(5), json!([]), json!({}), json!(true)] {
            cases.push(("/ipam/ranges", json!([[{"subnet": "10.1.0.0/24", key: bad}]]), 6, named));
        }
    }
    for (start, end, named) in [
        ("10.2.0.1", "10.1.0.9", "10.2.0.1"),
        ("10.1.0.9", "10.2.0.1", "10.2.0.1"),
        ("10.1.0.9", "10.1.0.8", "10.1.0.9"),
        ("10.0.255.255", "10.1.0.8", "10.0.255.255"),
    ] {
        let range = json!([[{"subnet": "10.1.0.0/24", "rangeStart": start, "rangeEnd": end}]]);
        cases.push(("/ipam/ranges", range, 7, Box::leak(Box::new(["ipam.ranges[0][0]", named]))));
    }
    cases
}

fn others() -> Vec<Case> {
    vec![
        ("/ipam", json!(null), 7, &["ipam"]),
        ("/ipam", json!("x"), 6, &["ipam", "x"]),
        ("/ipam", json!([]), 6, &["ipam", "list"]),
        ("/ipam", json!({"type": "host-local"}), 7, &["ranges"]),
        ("/ipam", json!({"rangeStart": "10.1.0.1"}), 7, &["ranges"]),
        ("/ipam/dataDir", json!(5), 6, &["ipam.dataDir", "5"]),
        ("/ipam/dataDir", json!(["/x"]), 6, &["ipam.dataDir", "list"]),
        ("/ipam/dataDir", json!("/a\0b"), 7, &["ipam.dataDir"]),
        ("/ipam/resolvConf", json!({}), 6, &["ipam.resolvConf", "object"]),
        ("/ipam/resolvConf", json!("/a\0b"), 7, &["ipam.resolvConf"]),
        ("/ipam/resolvConf", json!("/nowhere"), 5, &["/nowhere"]),
        ("/ipam/resolvConf", json!("/dev"), 7, &["/dev"]),
        ("/ipam/reclaimAfterReboot", json!("yes"), 6, &["ipam.reclaimAfterReboot", "yes"]),
        ("/ipam/reclaimAfterReboot", json!(1), 6, &["ipam.reclaimAfterReboot", "1"]),
        ("/ipam/routes", json!(5), 6, &["ipam.routes", "5"]),
        ("/ipam/routes", json!([null]), 6, &["ipam.routes[0]", "null"]),
        ("/ipam/routes", json!([{}]), 7, &["ipam.routes[0].dst", "missing"]),
        ("/ipam/routes", json!([{"gw": "10.1.0.1"}]), 7, &["ipam.routes[0].dst", "missing"]),
        ("/ipam/routes", json!([{"dst": null}]), 7, &["ipam.routes[0].dst", "missing"]),
        ("/ipam/routes", json!([{"dst": ""}]), 7, &["ipam.routes[0].dst"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0"}]), 7, &["ipam.routes[0].dst", "10.0.0.0"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8"}, {"dst": "x/8"}]), 7, &["ipam.routes[1].dst", "x/8"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8", "gw": "x"}]), 7, &["ipam.routes[0].gw", "x"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8", "mtu": "1500"}]), 6, &["ipam.routes[0].mtu", "1500"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8", "mtu": 1500.5}]), 6, &["ipam.routes[0].mtu", "1500.5"]),
        (
            "/ipam/routes",
            json!([{"dst": "10.0.0.0/8", "priority": 4294967296u64}]),
            7,
            &["ipam.routes[0].priority", "4294967296"],
        ),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8", "table": []}]), 6, &["ipam.routes[0].table"]),
        ("/ipam/routes", json!([{"dst": "10.0.0.0/8", "scope": 256}]), 7, &["ipam.routes[0].scope", "256"]),
        ("/runtimeConfig", json!({"ips": [null]}), 6, &["runtimeConfig.ips[0]", "null"]),
        ("/runtimeConfig", json!({"ips": [""]}), 7, &["runtimeConfig.ips[0]"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.5", "x"]}), 7, &["runtimeConfig.ips[1]", "x"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.5/33"]}), 7, &["runtimeConfig.ips[0]", "10.1.0.5/33"]),
        ("/runtimeConfig", json!({"ips": "10.1.0.5"}), 6, &["runtimeConfig.ips", "10.1.0.5"]),
        ("/runtimeConfig", json!({"ips": ["10.9.0.5"]}), 7, &["10.9.0.5", "none of the ranges"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.5", "10.1.0.6"]}), 7, &["10.1.0.6", "a second one"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.1"]}), 7, &["10.1.0.1", "gateway"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.0"]}), 7, &["10.1.0.0"]),
        ("/runtimeConfig", json!({"ips": ["10.1.0.255"]}), 7, &["10.1.0.255"]),
        ("/args", json!({"cni": {"ips": [null]}}), 6, &["args.cni.ips[0]", "null"]),
        ("/args", json!({"cni": {"ips": ["fd00::5"]}}), 7, &["fd00::5"]),
        ("/args", json!({"cni": {"ips": [5]}}), 6, &["args.cni.ips[0]", "5"]),
        ("/args", json!({"cni": []}), 6, &["args.cni", "list"]),
        ("/args", json!("x"), 6, &["args", "x"]),
        ("/cniVersion", json!("9.9.9"), 1, &["cniVersion", "9.9.9"]),
        ("/cniVersion", json!(1), 6, &["cniVersion"]),
        ("/name", json!("a/b"), 7, &["a/b"]),
        ("/name", json!(".."), 7, &[".."]),
        ("/name", json!(""), 7, &["name"]),
    ]
}

#[test]
fn every_invalid_configuration_is_refused_before_anything_is_created() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let cases: Vec<Case> = ranges().into_iter().chain(others()).collect();
    assert!(cases.len() >= 100, "{}", cases.len());
    for (pointer, value, code, named) in cases {
        let bad = net.with(pointer, value.clone());
        // A legacy subnet would overlap the list, so the list is emptied.
        let bad = if pointer == "/ipam/subnet" && code == 7 && value != "10.1.0.0/16" {
            bad.with("/ipam/ranges", json!([]))
        } else {
            bad
        };
        let outcome = bad.call("ADD", "a");
        let error = outcome.error(code);
        let text = outcome.stdout;
        for part in named {
            assert!(text.contains(part), "{pointer} = {value} does not name {part}: {text}");
        }
        let hint = error["details"].as_str().unwrap_or_default();
        assert!(!hint.is_empty() || code < 4 || pointer == "/name" || pointer == "/cniVersion", "no hint: {text}");
        assert!(!Path::new(DATA).exists() && !Path::new("/run/cni0").exists(), "{pointer} = {value} created something");
    }
}

#[test]
fn bad_arguments_are_refused() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    for (args, code, named) in [
        ("IP=x", 4, "x"),
        ("IP", 4, "IP"),
        ("IP=10.1.0.5;K=V", 4, "K=V"),
        ("IP=10.9.0.5", 7, "10.9.0.5"),
        ("IP=10.1.0.1", 7, "gateway"),
        ("IgnoreUnknown=maybe", 4, "maybe"),
        ("IP=10.1.0.5;", 4, "CNI_ARGS"),
    ] {
        let outcome = net.calling("ADD", "a").env("CNI_ARGS", args).run();
        outcome.error(code);
        assert!(outcome.stdout.contains(named), "{args}: {}", outcome.stdout);
        assert!(!Path::new(DATA).exists());
    }
    net.calling("ADD", "a").env("CNI_ARGS", "IP=").run().ok();
}

#[test]
fn old_versions_allow_one_address_per_family() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
    for version in ["0.1.0", "0.2.0", ""] {
        net.with("/cniVersion", json!(version)).call("ADD", "a").error(7);
    }
    net.with("/cniVersion", json!("0.3.0")).call("ADD", "a").ok();
}

#[test]
fn text_that_is_not_json_is_refused() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let good = net.config.to_string();
    for text in [
        String::new(),
        "{".into(),
        "[]".into(),
        "5".into(),
        "nonsense".into(),
        format!("{good}x"),
        good[..good.len() - 1].into(),
    ] {
        net.calling("ADD", "a").stdin(text).run().error(6);
        assert!(!Path::new(DATA).exists());
    }
}
