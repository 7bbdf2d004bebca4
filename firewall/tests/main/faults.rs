//! Faults: a system call of ADD fails, or the program is killed there.

use std::fs;

use serde_json::{Value, json};
use testing::Lab;

use crate::pod::{Pod, accepted_all, config, containers, on_network, ports, ruleset, with};

/// Makes the `n`th system call `name` of ADD fail, or kills the program there. Returns whether the ADD succeeded, or `None`
/// if it makes fewer such calls.
fn inject_fault(pod: &Pod<'_>, config: &Value, name: &str, n: usize, how: &str) -> Option<bool> {
    let trace = pod.lab.dir().join("trace");
    let traced = format!("trace={name}");
    let inject = format!("inject={name}:{how}:when={n}");
    let options = ["-qq", "-s0", "-o", trace.to_str().unwrap(), "-e", &traced, "-e", &inject];
    let outcome = pod.call("ADD", config).strace(&options).run();
    let hit = fs::read_to_string(trace).unwrap().contains("INJECTED") || outcome.status.is_none();
    if !hit {
        outcome.ok();
        return None;
    }
    if outcome.status == Some(1) {
        let error: Value =
            serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{name} {n}: {}", outcome.stdout));
        assert!(!error["msg"].as_str().unwrap().is_empty());
    }
    Some(outcome.status == Some(0))
}

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
        let mut failures = 0;
        for (name, errno) in CALLS {
            for n in 1.. {
                lab.sh("nft flush ruleset; bridge link set dev vethc1 isolated off");
                if has_chains {
                    neighbour.add(&on_network("net2", crate::pod::config(json!({}))));
                }
                let (before, settings) = (ruleset(lab), ports(lab));
                let outcome = inject_fault(&pod, &config, name, n, &format!("error={errno}"));
                if outcome == Some(false) {
                    failures += 1;
                    let left = containers(lab);
                    let expected = if has_chains { accepted_all(&["10.9.0.3", "fd00::3"]) } else { vec![] };
                    assert_eq!(left, expected, "{name} {n}");
                    assert_eq!(ports(lab), settings, "{name} {n}");
                    // Nothing was written before the failure, or it was removed but for the shared chains.
                    assert!(ruleset(lab) == before || ruleset(lab).contains("chain CNI-FORWARD"), "{name} {n}");
                } else {
                    pod.check(&config).ok();
                }
                pod.del(&config);
                if outcome.is_none() {
                    break;
                }
                assert!(n < 80, "{name} is called without end");
            }
        }
        assert!(failures > 10, "chains: {has_chains}: only {failures} failures");
    }
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    for name in ["sendto", "recvfrom"] {
        for n in (1..80).take_while(|n| inject_fault(&pod, &config, name, *n, "signal=KILL").is_some()) {
            pod.call("DEL", &with(config.clone(), json!({ "prevResult": null }))).run().ok();
            assert_eq!(containers(lab), [] as [&str; 0], "{name} {n}");
            lab.sh("nft flush ruleset; bridge link set dev vethc1 isolated off");
            inject_fault(&pod, &config, name, n, "signal=KILL");
            pod.add(&config);
            pod.check(&config).ok();
            assert_eq!(containers(lab), accepted_all(&["10.9.0.2", "fd00::2"]), "{name} {n}");
            lab.sh("nft flush ruleset; bridge link set dev vethc1 isolated off");
        }
    }
}

#[test]
fn on_a_kernel_without_nftables_only_add_fails() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({ "backend": "nftables" }));
    let trace = lab.dir().join("trace");
    // The first socket of ADD is not for netfilter. The C library repeats the call after EPROTONOSUPPORT.
    let run = |call: testing::Process, first: usize| {
        let inject = format!("inject=socket:error=EAFNOSUPPORT:when={first}");
        call.strace(&["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=socket", "-e", &inject]).run()
    };
    let error = run(pod.call("ADD", &config), 2).error(999);
    assert!(error["details"].as_str().unwrap().contains("load the kernel modules nf_tables"), "{error}");
    run(pod.call("DEL", &config), 1).ok();
    let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
    run(lab.plugin("firewall", "GC").stdin(gc.to_string()), 1).ok();
    assert_eq!(ruleset(lab), "");
}
