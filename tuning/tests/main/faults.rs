//! Faults: a system call of ADD fails, or the program is killed there.

use std::fs;

use serde_json::Value;

use crate::pod::{Pod, config, everything, lab, tuned, untouched};

/// Makes the `n`th system call `name` of `command` fail, or kills the program there. Returns whether it succeeded, or `None`
/// if it makes fewer such calls.
fn inject_fault(pod: &Pod<'_>, command: &str, config: &Value, name: &str, n: usize, how: &str) -> Option<bool> {
    let trace = pod.lab.dir().join("trace");
    let traced = format!("trace={name}");
    let inject = format!("inject={name}:{how}:when={n}");
    let options = ["-qq", "-s0", "-o", trace.to_str().unwrap(), "-e", &traced, "-e", &inject];
    let outcome = pod.call(command, config).strace(&options).run();
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

const CALLS: [(&str, &str); 9] = [
    ("sendto", "ENOBUFS"),
    ("recvfrom", "ENOMEM"),
    ("socket", "EMFILE"),
    ("openat", "EMFILE"),
    ("pwrite64", "EINVAL"),
    ("linkat", "ENOSPC"),
    ("write", "ENOSPC"),
    ("getsockopt", "ENOMEM"),
    ("setns", "EPERM"),
];

#[test]
fn a_failing_system_call_changes_nothing() {
    let lab = &lab();
    let pod = Pod::new(lab, "c1");
    let config = config(everything());
    let before = pod.state();
    let mut failures = 0;
    for (name, errno) in CALLS {
        for n in 1.. {
            let outcome = inject_fault(&pod, "ADD", &config, name, n, &format!("error={errno}"));
            if outcome == Some(false) {
                failures += 1;
                match name {
                    // The answer is lost, and DEL does not know the sysctls: they disappear with the container.
                    "write" => assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{n}"),
                    _ => assert_eq!(pod.state(), before, "{name} {n}"),
                }
            } else {
                pod.check(&config).ok();
            }
            pod.del(&config);
            pod.sh("echo 4096 >/proc/sys/net/core/somaxconn
                    echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_notify; echo 0 >/proc/sys/net/ipv6/conf/eth0/ndisc_notify
                    echo 0 >/proc/sys/net/ipv4/conf/eth0/log_martians; echo 0 >/proc/sys/net/ipv4/conf/all/log_martians");
            assert_eq!(pod.state(), before, "{name} {n}: after DEL");
            if outcome.is_none() {
                break;
            }
            assert!(n < 80, "{name} is called without end");
        }
    }
    assert!(failures > 10, "only {failures} failures");
}

#[test]
fn a_killed_add_is_restored_by_del_or_completed_by_the_next_add() {
    let lab = &lab();
    let pod = Pod::new(lab, "c1");
    let config = config(everything());
    for name in ["sendto", "pwrite64", "linkat"] {
        for n in (1..80).take_while(|n| inject_fault(&pod, "ADD", &config, name, *n, "signal=KILL").is_some()) {
            pod.del(&config);
            assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{name} {n}");
            inject_fault(&pod, "ADD", &config, name, n, "signal=KILL");
            pod.add(&config);
            assert_eq!(pod.attributes(), tuned(), "{name} {n}");
            pod.del(&config);
            assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{name} {n}");
        }
        pod.del(&config);
    }
}

/// DEL succeeds, or fails so that the runtime tries again.
#[test]
fn a_failing_del_can_be_repeated() {
    let lab = &lab();
    let pod = Pod::new(lab, "c1");
    let config = config(everything());
    for (name, errno) in [("socket", "EMFILE"), ("openat", "EMFILE"), ("sendto", "ENOBUFS"), ("setns", "EPERM")] {
        for n in 1..80 {
            pod.add(&config);
            let outcome = inject_fault(&pod, "DEL", &config, name, n, &format!("error={errno}"));
            pod.del(&config);
            assert_eq!(pod.backed_up(), Value::Null, "{name} {n}");
            if outcome.is_none() {
                break;
            }
            lab.sh("ip link del vethc1");
            pod.connect();
        }
    }
}
