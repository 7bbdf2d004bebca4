//! STATUS: reports whether an ADD could succeed, and changes nothing.

use serde_json::{Value, json};
use testing::fault::inject_all;
use testing::{Lab, Pod, Process};

use crate::support::{config, ruleset};

fn call(lab: &Lab, keys: Value) -> Process {
    lab.plugin("firewall", "STATUS").stdin(config(keys).to_string())
}

#[test]
fn status_succeeds_and_changes_nothing() {
    let lab = &Lab::new();
    let all = [
        json!({}),
        json!({ "backend": "nftables" }),
        json!({ "backend": "iptables", "ingressPolicy": "same-bridge" }),
        json!({ "ingressPolicy": "isolated", "iptablesAdminChainName": "OTHER" }),
    ];
    for keys in &all {
        call(lab, keys.clone()).run().ok();
    }
    assert_eq!(ruleset(lab), "");
    Pod::absent(lab, "c1", &["10.9.0.2/24"]).add(&config(json!({})));
    let before = ruleset(lab);
    for keys in &all {
        call(lab, keys.clone()).run().ok();
    }
    assert_eq!(ruleset(lab), before);
}

/// A trial is expensive: the kernel waits until no processor uses the old rules. A runtime may call STATUS every few
/// seconds.
#[test]
fn rules_are_tried_once() {
    let lab = &Lab::new();
    let tried = |keys: Value| {
        let outcome = call(lab, keys).env("CNI_LOG", "debug").run();
        outcome.ok();
        outcome.stderr.contains("(trying)")
    };
    for keys in [json!({}), json!({ "ingressPolicy": "isolated" })] {
        assert!(tried(keys.clone()));
        assert!(!tried(keys.clone()));
        // With other rules in the same chains.
        Pod::absent(lab, "c1", &["10.9.0.2/24"]).add(&config(json!({})));
        tried(keys.clone());
        Pod::absent(lab, "c2", &["10.9.0.3/24"]).add(&config(json!({})));
        assert!(!tried(keys));
    }
}

#[test]
fn a_kernel_without_nftables_is_reported() {
    let lab = &Lab::new();
    // The C library repeats the call after EPROTONOSUPPORT.
    let call = call(lab, json!({ "backend": "nftables" }));
    let error = inject_all(lab, call, "socket", "error=EAFNOSUPPORT:when=1").error(50);
    assert!(error["msg"].as_str().unwrap().contains("nf_tables"), "{error}");
}

#[test]
fn firewalld_that_does_not_run_is_reported() {
    let lab = &Lab::new();
    call(lab, json!({ "backend": "firewalld" })).run().error(50);
}

#[test]
fn an_invalid_configuration_is_reported() {
    let lab = &Lab::new();
    let error = call(lab, json!({ "ingressPolicy": "closed" })).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("unknown ingress policy: \"closed\""), "{error}");
}

#[test]
fn chains_of_other_programs_that_drop_are_reported() {
    let lab = &Lab::new();
    lab.sh(
        "nft 'add table inet mine; add chain inet mine guard { type filter hook forward priority 0; policy drop; }'",
    );
    let outcome = call(lab, json!({})).env("CNI_LOG", "warn").run();
    outcome.ok();
    assert!(outcome.stderr.contains("drops forwarded packets"), "{outcome:?}");
    lab.sh("nft delete table inet mine; iptables -P FORWARD DROP");
    let outcome = call(lab, json!({})).env("CNI_LOG", "warn").run();
    outcome.ok();
    assert!(!outcome.stderr.contains("drops"), "the rules are in that chain: {outcome:?}");
}
