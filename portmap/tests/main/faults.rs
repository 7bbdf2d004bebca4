//! Faults: a system call of ADD fails, or the program is killed there.

use std::cell::RefCell;

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::{Effect, inject, inject_all, inject_everywhere};
use testing::{Lab, Outcome, Pod, Process};

use crate::support::{assert_clean, config};

/// A pod that the host routes to, with ports for which ADD does everything that it can do.
fn everything(lab: &Lab) -> (Pod<'_>, Value) {
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let ports = config(&["8080:80/tcp", "8080:80/udp", "10.1.0.1 8081:80/udp", "fd01::1 8082:80/sctp"]);
    (pod, with(ports, json!({ "conditionsV6": ["-i", "uplink"] })))
}

#[test]
fn a_failing_system_call_leaves_no_ports() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    let calls = [
        ("sendto", "ENOBUFS"),
        ("recvfrom", "ENOMEM"),
        ("socket", "EMFILE"),
        ("pwrite64", "EIO"),
        // Last: with a shared C library, it keeps the program from being started.
        ("openat", "EMFILE"),
    ];
    // On a host without chains, and on one with them.
    for before in ["empty", "chains"] {
        let prepare = || {
            if before == "empty" {
                lab.sh("nft flush ruleset");
            }
            lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
            pod.call("ADD", &config)
        };
        let failures = inject_everywhere(lab, &calls, prepare, |effect, _| {
            if effect != Effect::Failed {
                pod.check(&config).ok();
                pod.del(&config);
            }
            assert_clean(lab);
        });
        assert!(failures > 10, "{before}: only {failures} failures");
    }
}

/// What the first ADD published is in use. The second ADD removes it only if it fails after its transaction, or cannot
/// know whether the kernel applied it.
#[test]
fn a_repeated_add_that_fails_keeps_or_removes_everything() {
    let lab = &Lab::new();
    let (pod, _) = everything(lab);
    let faults = [("socket", "EMFILE"), ("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM"), ("pwrite64", "EIO")];
    for backend in ["nftables", "iptables"] {
        let ports = |ports: &[&str]| with(config(ports), json!({ "backend": backend }));
        let first = ports(&["8080:80/tcp", "9090:80/tcp"]);
        let second = ports(&["8080:81/tcp", "8080:80/udp", "10.1.0.1 8081:80/udp", "fd01::1 8082:80/sctp"]);
        let before = RefCell::new(String::new());
        let prepare = || {
            pod.add(&first);
            lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
            before.replace(lab.sh("nft -s list ruleset"));
            pod.call("ADD", &second)
        };
        let (mut kept, mut removed) = (0, 0);
        inject_everywhere(lab, &faults, prepare, |effect, place| {
            if effect != Effect::Failed {
                return drop(pod.check(&second).ok());
            }
            let after = lab.sh("nft -s list ruleset");
            if after == *before.borrow() {
                kept += 1;
            } else {
                assert!(!after.contains("10.1.0.2") && !after.contains("fd01::2"), "{backend}, {place}: {after}");
                removed += 1;
            }
        });
        assert!(kept > 15 && removed > 0, "{backend}: {kept} times kept, {removed} times removed");
        pod.del(&second);
        assert!(!lab.sh("nft list ruleset").contains("10.1.0.2"));
    }
}

/// CHECK would fail for ever if ADD succeeded without the setting.
#[test]
fn an_add_that_cannot_write_route_localnet_fails() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    let path = "/proc/sys/net/ipv4/conf/br0/route_localnet";
    let mut failures = 0;
    for n in 1.. {
        let fault = format!("inject=openat:error=EACCES:when={n}");
        let (outcome, log) = pod.call("ADD", &config).trace(lab, &["-P", path, "-e", "trace=openat", "-e", &fault]);
        if outcome.status == Some(0) {
            pod.check(&config).ok();
            pod.del(&config);
        } else {
            assert_eq!(outcome.status, Some(1), "{n}");
            failures += 1;
        }
        assert_clean(lab);
        if !log.contains("INJECTED") {
            break;
        }
    }
    assert!(failures > 0);
}

/// The rollback needs no more descriptors than the ADD had.
#[test]
fn an_add_without_descriptors_leaves_nothing() {
    let lab = &Lab::new();
    let (pod, _) = everything(lab);
    for backend in ["nftables", "iptables"] {
        let config = with(config(&["8080:80/tcp", "8081:80/udp"]), json!({ "backend": backend }));
        // The dynamic loader needs one.
        let (mut failures, mut limit) = (0, 4);
        loop {
            lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
            let outcome = pod.call("ADD", &config).via_shell(&format!("ulimit -n {limit}; exec \"$0\"")).run();
            if outcome.status == Some(0) {
                break;
            }
            outcome.error(5);
            assert_clean(lab);
            let left = lab.sh("nft list ruleset");
            assert!(!left.contains("10.1.0.2") && !left.contains("fd01::2"), "{backend}, {limit} descriptors: {left}");
            (failures, limit) = (failures + 1, limit + 1);
        }
        assert!(failures >= 2, "{backend}: {failures} failures");
        pod.del(&config);
    }
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    for name in ["sendto", "recvfrom"] {
        let kill = |n: usize| inject(lab, pod.call("ADD", &config), name, n, "signal=KILL");
        for n in (1..60).take_while(|n| kill(*n) != Effect::NotReached) {
            pod.del(&config);
            assert_clean(lab);
            kill(n);
            pod.add(&config);
            pod.check(&config).ok();
            pod.del(&config);
            assert_clean(lab);
            lab.sh("nft flush ruleset");
        }
        pod.del(&config);
    }
}

/// Runs a call on a kernel without nf_tables, which refuses to open sockets from this one on.
fn without_nftables(lab: &Lab, call: Process, socket: usize) -> Outcome {
    inject_all(lab, call, "socket", &format!("error=EPROTONOSUPPORT:when={socket}+"))
}

#[test]
fn on_a_kernel_without_nftables_only_add_fails() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let config = with(config(&["8080:80/udp"]), json!({ "backend": "nftables" }));
    // The first socket of ADD is not for netfilter.
    let error = without_nftables(lab, pod.call("ADD", &config), 2).error(999);
    assert!(error["details"].as_str().unwrap().contains("load the kernel modules nf_tables"), "{error}");
    without_nftables(lab, pod.call("DEL", &config), 1).ok();
    let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
    without_nftables(lab, lab.plugin("portmap", "GC").stdin(gc.to_string()), 1).ok();
}
