//! Faults: a system call of ADD fails, or the program is killed there.

use std::cell::RefCell;

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::fault::{Effect, inject, inject_all, inject_everywhere};
use testing::{Lab, Pod, Process};

use crate::support::{accepted, config, containers, isolated, ports, ruleset};

/// A pod for which ADD does everything that it can do.
fn everything(lab: &Lab) -> (Pod<'_>, Value) {
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    (pod, config(json!({ "ingressPolicy": "isolated" })))
}

const CALLS: [(&str, &str); 4] =
    [("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM"), ("socket", "EMFILE"), ("openat", "EMFILE")];

#[test]
fn a_failing_system_call_leaves_no_rules() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    // On a host without chains, and on one with them.
    for has_chains in [false, true] {
        let before = RefCell::default();
        let prepare = || {
            lab.sh("nft flush ruleset");
            if has_chains {
                neighbour.add(&on_network("net2", crate::support::config(json!({}))));
            }
            before.replace((ruleset(lab), ports(lab)));
            pod.call("ADD", &config)
        };
        let failures = inject_everywhere(lab, &CALLS, prepare, |effect, place| {
            if effect == Effect::Failed {
                let (rules, settings) = before.take();
                let expected = if has_chains { accepted(&["10.9.0.3", "fd00::3"]) } else { vec![] };
                assert_eq!(containers(lab), expected, "{place}");
                assert_eq!((ports(lab), isolated(lab)), (settings, vec![]), "{place}");
                // Chains and rules are added by one transaction. What all containers of a bridge share stays only if
                // the answer of the kernel is lost: another ADD may rely on it by then.
                assert!(ruleset(lab) == rules || place.starts_with("recvfrom"), "{place}");
            } else {
                pod.check(&config).ok();
            }
            pod.del(&config);
        });
        assert!(failures > 10, "chains: {has_chains}: only {failures} failures");
    }
}

/// The container uses the rules of the first ADD. The second ADD removes them only if it fails after its transaction,
/// or cannot know whether the kernel applied it.
#[test]
fn a_repeated_add_that_fails_keeps_or_removes_everything() {
    let lab = &Lab::new();
    let (pod, second) = everything(lab);
    let before = RefCell::default();
    let prepare = || {
        lab.sh("nft flush ruleset");
        pod.add(&config(json!({})));
        before.replace(ruleset(lab));
        pod.call("ADD", &second)
    };
    let (mut kept, mut removed) = (0, 0);
    inject_everywhere(lab, &CALLS[..3], prepare, |effect, place| {
        if effect != Effect::Failed {
            return drop(pod.check(&second).ok());
        }
        if ruleset(lab) == before.take() {
            kept += 1;
        } else {
            assert_eq!((containers(lab), isolated(lab)), (vec![], vec![]), "{place}");
            removed += 1;
        }
    });
    assert!(kept > 30 && removed > 0, "{kept} times kept, {removed} times removed");
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    for name in ["sendto", "recvfrom"] {
        let kill = |n: usize| inject(lab, pod.call("ADD", &config), name, n, "signal=KILL");
        for n in (1..80).take_while(|n| kill(*n) != Effect::NotReached) {
            pod.call("DEL", &with(config.clone(), json!({ "prevResult": null }))).run().ok();
            assert_eq!((containers(lab), isolated(lab)), (vec![], vec![]), "{name} {n}");
            lab.sh("nft flush ruleset");
            kill(n);
            pod.add(&config);
            pod.check(&config).ok();
            assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]), "{name} {n}");
            lab.sh("nft flush ruleset");
        }
    }
}

#[test]
fn on_a_kernel_without_nftables_only_add_fails() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({ "backend": "nftables" }));
    // The first socket of ADD is not for netfilter. The C library repeats the call after EPROTONOSUPPORT.
    let run =
        |call: Process, first: usize| inject_all(lab, call, "socket", &format!("error=EAFNOSUPPORT:when={first}"));
    let error = run(pod.call("ADD", &config), 2).error(999);
    assert!(error["details"].as_str().unwrap().contains("load the kernel modules nf_tables"), "{error}");
    run(pod.call("DEL", &config), 1).ok();
    let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
    run(lab.plugin("firewall", "GC").stdin(gc.to_string()), 1).ok();
    assert_eq!(ruleset(lab), "");
}
