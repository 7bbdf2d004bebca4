//! STATUS: reports whether an ADD could succeed, and changes nothing.

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::inject_all;
use testing::{Lab, Outcome, Pod, Process};

use crate::support::config;

fn call(lab: &Lab, config: &Value) -> Process {
    lab.plugin("portmap", "STATUS").stdin(config.to_string())
}

/// Makes the kernel refuse all sockets, as one without nf_tables refuses those for it.
fn without_nftables(lab: &Lab, call: Process) -> Outcome {
    inject_all(lab, call, "socket", "error=EPROTONOSUPPORT")
}

#[test]
fn status_succeeds_and_changes_nothing() {
    let lab = &Lab::new();
    for more in [
        json!({}),
        json!({ "backend": "nftables" }),
        json!({ "conditionsV4": ["-s", "10.0.0.0/8"], "conditionsV6": ["ip6 daddr != { fd00::1, fd00::2 }"] }),
        json!({ "snat": false }),
        json!({ "masqAll": true }),
    ] {
        call(lab, &with(config(&[]), more)).run().ok();
    }
    assert_eq!(lab.sh("nft list ruleset"), "");
}

/// A trial is expensive: the kernel waits until no processor uses the old rules. A runtime may call STATUS every few
/// seconds.
#[test]
fn rules_are_tried_only_once_and_if_they_are_not_in_use() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let tried = || {
        let outcome = call(lab, &config(&[])).env("CNI_LOG", "debug").run();
        outcome.ok();
        outcome.stderr.contains("(trying)")
    };
    assert!(tried());
    assert!(!tried());
    pod.add(&config(&["8080:80/tcp"]));
    lab.sh("rm -r /run/cni0");
    assert!(!tried());
    lab.sh("nft flush chain inet cni_hostport postrouting");
    assert!(tried(), "the next ADD fills the chain");
    assert!(!tried());
    lab.sh("nft delete table inet cni_hostport");
    assert!(tried());
    assert!(!tried());
    // Other rules, and a record that another user may have made.
    let conditional = with(config(&[]), json!({ "conditionsV4": ["-s", "10.0.0.0/8"] }));
    let outcome = call(lab, &conditional).env("CNI_LOG", "debug").run();
    assert!(outcome.stderr.contains("(trying)"), "{outcome:?}");
    for distrust in ["chmod 777 /run/cni0/accepted", "chown 1 /run/cni0/accepted"] {
        assert!(!tried());
        lab.sh(distrust);
        assert!(tried(), "{distrust}");
        assert!(tried(), "{distrust}");
        lab.sh("rm -r /run/cni0");
        assert!(tried());
    }
    // The record does not replace the kernel.
    let error = without_nftables(lab, call(lab, &with(config(&[]), json!({ "backend": "nftables" })))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("nf_tables"), "{error}");
    // Nor is it necessary.
    lab.sh("rm -r /run/cni0; touch /run/cni0");
    assert!(tried());
    assert!(tried());
}

#[test]
fn a_kernel_without_nftables_is_reported() {
    let lab = &Lab::new();
    let config = with(config(&["8080:80/tcp"]), json!({ "backend": "nftables" }));
    let error = without_nftables(lab, call(lab, &config)).error(50);
    assert!(error["msg"].as_str().unwrap().contains("nf_tables"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("nft_fib_inet"), "{error}");
}

#[test]
fn a_configuration_that_an_add_rejects_is_reported() {
    let lab = &Lab::new();
    let error = call(lab, &with(config(&[]), json!({ "backend": "foo" }))).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("unrecognized backend \"foo\""), "{error}");
}
