//! Faults: a system call of ADD fails, or the program is killed there.

use std::fs;

use serde_json::{Value, json};
use testing::{Lab, Process};

use crate::pod::{Pod, assert_clean, config, with};

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
    // On a host without chains, on one with them, and after an earlier ADD of the attachment.
    for (before, calls) in [("empty", &calls[..]), ("chains", &calls), ("repeated", &calls[..4])] {
        let mut failures = 0;
        for (name, errno) in calls {
            for n in 1.. {
                match before {
                    "empty" => drop(lab.sh("nft flush ruleset")),
                    "repeated" => drop(pod.add(&crate::pod::config(&["8080:80/tcp", "9090:80/tcp"]))),
                    _ => {}
                }
                lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
                let outcome = inject_fault(&pod, &config, name, n, &format!("error={errno}"));
                match outcome {
                    Some(false) => failures += 1,
                    // The call is not essential.
                    Some(true) | None => {
                        pod.check(&config).ok();
                        pod.del(&config);
                    }
                }
                assert_clean(lab);
                if outcome.is_none() {
                    break;
                }
                assert!(n < 60, "{name} is called without end");
            }
        }
        assert!(failures > 10, "{before}: only {failures} failures");
    }
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let lab = &Lab::new();
    let (pod, config) = everything(lab);
    for name in ["sendto", "recvfrom"] {
        for n in (1..60).take_while(|n| inject_fault(&pod, &config, name, *n, "signal=KILL").is_some()) {
            pod.del(&config);
            assert_clean(lab);
            inject_fault(&pod, &config, name, n, "signal=KILL");
            pod.add(&config);
            pod.check(&config).ok();
            pod.del(&config);
            assert_clean(lab);
            lab.sh("nft flush ruleset");
        }
        pod.del(&config);
    }
}

/// Runs a call on a kernel without nf_tables, which refuses to open the second socket, that for netfilter.
fn without_nftables(lab: &Lab, call: Process, socket: usize) -> testing::Outcome {
    let trace = lab.dir().join("trace");
    let inject = format!("inject=socket:error=EPROTONOSUPPORT:when={socket}+");
    call.strace(&["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=socket", "-e", &inject]).run()
}

#[test]
fn on_a_kernel_without_nftables_only_add_fails() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let config = with(config(&["8080:80/udp"]), json!({ "backend": "nftables" }));
    let error = without_nftables(lab, pod.call("ADD", &config), 2).error(999);
    assert!(error["details"].as_str().unwrap().contains("load the kernel modules nf_tables"), "{error}");
    without_nftables(lab, pod.call("DEL", &config), 1).ok();
    let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
    without_nftables(lab, lab.plugin("portmap", "GC").stdin(gc.to_string()), 1).ok();
}
