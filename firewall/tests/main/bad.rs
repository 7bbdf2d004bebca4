//! Bad input: ADD reports it and changes nothing.

use serde_json::{Value, json};
use testing::{Lab, Pod};

use crate::support::{config, ports, ruleset};

/// Expects ADD to fail with a code and a message, and to change nothing.
#[track_caller]
fn refuse(pod: &Pod<'_>, keys: Value, code: u32, message: &str) {
    let config = config(keys);
    let state = || (ruleset(pod.lab), ports(pod.lab));
    let before = state();
    let error = pod.call("ADD", &config).run().error(code);
    assert!(error["msg"].as_str().unwrap().contains(message), "{config}: {error}");
    assert!(error["details"].as_str().is_some_and(|details| !details.is_empty()), "{config}: {error}");
    assert_eq!(state(), before, "{config}");
    pod.del(&config);
    assert_eq!(state(), before, "{config}");
}

#[test]
fn invalid_keys_change_nothing() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    refuse(&pod, json!({ "backend": "foo" }), 7, "unrecognized backend \"foo\"");
    refuse(&pod, json!({ "ingressPolicy": "closed" }), 7, "unknown ingress policy: \"closed\"");
    refuse(&pod, json!({ "iptablesAdminChainName": "a b" }), 7, "iptablesAdminChainName");
    refuse(&pod, json!({ "iptablesAdminChainName": "FORWARD" }), 7, "iptablesAdminChainName");
    refuse(&pod, json!({ "firewalldZone": "a b" }), 7, "firewalldZone");
    refuse(&pod, json!({ "backend": "firewalld" }), 11, "firewalld is not running");
}

/// The tools of iptables take the name of a target for the target.
#[test]
fn a_chain_cannot_have_the_name_of_a_target() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let found = lab.sh("ls /usr/lib/*/xtables /usr/lib*/xtables 2>/dev/null || true");
    let extensions = found.lines().filter_map(|file| file.split_once('_')?.1.strip_suffix(".so"));
    let mut refused = 0;
    for name in ["ACCEPT", "DROP", "QUEUE", "RETURN", "LOG"].into_iter().chain(extensions) {
        let create = |tool: &str| lab.sh(&format!("{tool} -N {name} 2>&1 || true; {tool} -X"));
        if create("iptables").contains("clash") || create("ip6tables").contains("clash") {
            lab.sh("nft flush ruleset");
            refuse(&pod, json!({ "iptablesAdminChainName": name }), 7, "iptablesAdminChainName");
            refused += 1;
        }
    }
    assert!(refused >= 5, "{refused}");
}

#[test]
fn wrong_types_change_nothing() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    for key in ["backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"] {
        for value in [json!(7), json!([]), json!({}), json!(true)] {
            let outcome = pod.call("ADD", &config(json!({ key: value }))).run();
            assert_eq!(outcome.status, Some(1), "{key}: {outcome:?}");
            assert!(outcome.stdout.contains(key), "{outcome:?}");
        }
    }
    assert_eq!(ruleset(lab), "");
}

#[test]
fn a_policy_without_a_bridge_changes_nothing() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let result = |interfaces: Value| json!({ "cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{ "address": "10.9.0.2/24" }] });
    for policy in ["same-bridge", "isolated"] {
        let keys = |interfaces: Value| json!({ "ingressPolicy": policy, "prevResult": result(interfaces) });
        let message = format!("interface needs to be set for ingress policy {policy:?}");
        refuse(&pod, keys(json!([])), 7, &message);
        refuse(&pod, keys(json!([{ "name": "eth0", "sandbox": "/run/netns/c1" }])), 7, &message);
        refuse(&pod, keys(json!([{ "name": "br0" }])), 999, "there is no link \"br0\"");
        refuse(&pod, keys(json!([{ "name": "br\"0" }])), 7, &message);
    }
    // Results of early versions have no interfaces.
    let outcome = pod.call("ADD", &config(json!({ "cniVersion": "0.2.0", "ingressPolicy": "isolated" }))).run();
    outcome.error(7);
    assert_eq!(ruleset(lab), "");
}

#[test]
fn the_bridge_is_found_wherever_the_result_names_it() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24"]);
    let result = json!({
        "cniVersion": "1.1.0", "ips": [{ "address": "10.9.0.2/24", "interface": 1 }],
        "interfaces": [{ "name": "vethc1" }, { "name": "eth0", "sandbox": pod.netns }, { "name": "br0" }],
    });
    pod.add(&config(json!({ "ingressPolicy": "isolated", "prevResult": result })));
    let text = lab.sh("iptables -S");
    assert!(text.contains("-i br0 -o br0") && !text.contains("-i veth"), "{text}");
}
