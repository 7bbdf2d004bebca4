//! Compares results and errors with the reference.

use serde_json::{Value, json};
use testing::{Lab, reference};

use crate::support::{Net, VERSIONS};

#[test]
fn results_are_those_of_the_reference() {
    let Some(program) = reference("static", "results_are_those_of_the_reference") else { return };
    let lab = Lab::new();
    let v4 = json!({"address": "10.10.0.1/24", "gateway": "10.10.0.254"});
    let v6 = json!({"address": "fd00::1/64", "gateway": "fd00::fe"});
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.10.5.1"}, {"dst": "fd01::/64"}]);
    let dns = json!({"nameservers": ["8.8.8.8"], "domain": "a.b", "search": ["a.b", "c"], "options": ["d"]});
    let bare = Net::new(&lab, json!({}));
    let full = Net::new(&lab, json!({"addresses": [v4, v6], "routes": routes, "dns": dns}));
    let runtime = json!({"ips": ["10.20.0.1/24", "fd02::1/64"]});
    let nets = [
        full.clone(),
        full.with_ipam("addresses", json!([v6, v4])),
        full.with_ipam("addresses", json!([{"address": "::ffff:10.0.0.1/120"}])),
        bare.with_args("IP=10.10.0.1/24;GATEWAY=10.10.0.254"),
        bare.with_args("IP=10.10.0.1/24,fd00::1/64;GATEWAY=fd00::9,10.10.0.254"),
        bare.with_args("IP=10.10.0.1/24,11.11.0.1/24;GATEWAY=10.10.0.254"),
        full.with_args("IP=10.11.0.1/24"),
        bare.with("runtimeConfig", runtime.clone()),
        bare.with("args", json!({"cni": runtime})).with_args("IP=10.30.0.1/24"),
        bare.with("args", json!({"cni": {"ips": ["10.40.0.1/24"]}})).with("runtimeConfig", runtime),
        full.with("ipam", Value::Null),
        full.with_ipam("addresses", json!([{"address": "10.10.0.1"}])),
        bare.with_args("IP=10.10.0.1"),
        bare.with_args("IP=10.10.0.1/24;GATEWAY=x"),
        bare.with_args("IP=10.10.0.1/24;FOO=bar"),
        bare.with("runtimeConfig", json!({"ips": ["10.10.0.1"]})),
    ];
    let mut compared = 0;
    for version in VERSIONS.into_iter().filter(|version| *version < "1.1.0") {
        for net in &nets {
            let net = net.with_version(version);
            let (ours, theirs) = (net.call("ADD", "c1"), net.reference(&program, "ADD"));
            assert_eq!(ours.status, theirs.status, "{version} {}: {ours:?} {theirs:?}", net.config);
            if ours.status == Some(0) {
                let mut theirs = theirs.ok();
                // The reference prints an empty object, we print nothing.
                if theirs["dns"] == json!({}) && ours.ok().get("dns").is_none() {
                    theirs.as_object_mut().unwrap().remove("dns");
                }
                assert_eq!(ours.ok(), theirs, "{version} {}", net.config);
                compared += 1;
            } else {
                contains_text(&ours.stdout, &theirs.stdout);
            }
            assert_eq!(net.call("DEL", "c1").ok(), net.reference(&program, "DEL").ok());
        }
    }
    assert!(compared > 50, "{compared}");
}

/// Fails unless our error has the text of the reference, by which users search for it.
#[track_caller]
fn contains_text(ours: &str, theirs: &str) {
    let error = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let (ours, theirs) = (error(ours), error(theirs));
    let theirs = theirs["msg"].as_str().unwrap();
    let known = [
        "IPAM config missing 'ipam' key",
        "the 'address' field is expected to be in CIDR notation, got: '10.10.0.1'",
        "the 'ip' field is expected to be in CIDR notation, got: '10.10.0.1'",
        "an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1'",
        "invalid gateway address: x",
        "does not support more than 1 address per family",
    ];
    if let Some(known) = known.iter().find(|known| theirs.contains(**known)) {
        assert!(ours["msg"].as_str().unwrap().contains(known), "{ours} {theirs}");
    } else {
        assert!(theirs.contains("FOO"), "{theirs}");
        assert!(ours["msg"].as_str().unwrap().contains("FOO"), "{ours}");
    }
}

/// CHECK of the reference accepts our results, and the other way round.
#[test]
fn either_checks_the_results_of_the_other() {
    let Some(program) = reference("static", "either_checks_the_results_of_the_other") else { return };
    let lab = Lab::new();
    let net = Net::new(&lab, json!({"addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}]}));
    let net = net.with_version("1.0.0");
    let (ours, theirs) = (net.add("c1"), net.reference(&program, "ADD").ok());
    net.check("c1", &theirs).ok();
    net.with("prevResult", ours.clone()).reference(&program, "CHECK").ok();
    let other = net.with_ipam("addresses", json!([{"address": "10.10.0.1/24", "gateway": "10.10.0.9"}]));
    let failed = "Failed to match addr 10.10.0.1 on interface eth0";
    for outcome in [other.check("c1", &ours), other.with("prevResult", ours.clone()).reference(&program, "CHECK")] {
        assert!(outcome.stdout.contains(failed), "{outcome:?}");
    }
}
