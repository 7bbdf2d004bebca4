//! Faults: a system call of ADD fails, or the program is killed there.

use serde_json::{Value, json};
use testing::fault::{Effect, inject, inject_all, inject_at, inject_everywhere};

use crate::support::{DATA_DIR, Tuned, config, everything, files, lab, pod, tuned, untouched};

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
    let pod = pod(lab, "c1");
    let config = config(everything());
    let before = pod.state();
    let failures = inject_everywhere(
        lab,
        &CALLS,
        || pod.call("ADD", &config),
        |effect, place| {
            match effect {
                Effect::Failed => assert_eq!(pod.state(), before, "{place}"),
                Effect::Tolerated | Effect::NotReached => drop(pod.check(&config).ok()),
            }
            pod.del(&config);
            pod.sh("cd /proc/sys/net; echo 4096 >core/somaxconn; echo 0 >ipv6/conf/eth0/ndisc_notify
                for name in all/log_martians eth0/log_martians eth0/arp_notify; do echo 0 >ipv4/conf/$name; done");
            assert_eq!(pod.state(), before, "{place}: after DEL");
        },
    );
    assert!(failures > 10, "only {failures} failures");
}

#[test]
fn a_killed_add_is_restored_by_del_or_completed_by_the_next_add() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    for name in ["sendto", "pwrite64", "linkat"] {
        let kill = |n: usize| inject(lab, pod.call("ADD", &config), name, n, "signal=KILL");
        for n in (1..80).take_while(|n| kill(*n) != Effect::NotReached) {
            pod.del(&config);
            assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{name} {n}");
            kill(n);
            pod.add(&config);
            assert_eq!(pod.attributes(), tuned(), "{name} {n}");
            pod.del(&config);
            assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{name} {n}");
        }
        pod.del(&config);
    }
}

#[test]
fn a_killed_del_is_completed_by_the_next_one() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    for name in ["sendto", "recvfrom", "unlinkat"] {
        for n in 1.. {
            pod.add(&config);
            let effect = inject(lab, pod.call("DEL", &config), name, n, "signal=KILL");
            pod.del(&config);
            assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{name} {n}");
            if effect == Effect::NotReached {
                break;
            }
        }
    }
}

/// Otherwise the backup file would stay: the runtime does not repeat a DEL that succeeded.
#[test]
fn a_lack_of_resources_for_the_backup_file_fails_del() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    pod.add(&config);
    inject_at(lab, pod.call("DEL", &config), DATA_DIR, "openat", "error=EMFILE").error(5);
    pod.del(&config);
    assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null));
}

/// DEL succeeds, or fails so that the runtime tries again.
#[test]
fn a_failing_del_can_be_repeated() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    let faults = [("socket", "EMFILE"), ("openat", "EMFILE"), ("sendto", "ENOBUFS"), ("setns", "EPERM")];
    let prepare = || {
        pod.add(&config);
        pod.call("DEL", &config)
    };
    inject_everywhere(lab, &faults, prepare, |_, place| {
        pod.del(&config);
        assert_eq!(pod.backed_up(), Value::Null, "{place}");
        lab.sh("ip link del vethc1");
        pod.connect();
    });
}

/// The error is about the file. Nothing was written, so nothing can be left.
#[test]
fn a_backup_file_that_cannot_be_written_is_not_reported_as_left() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    let before = pod.state();
    for prepare in [
        "mkdir -p /run/cni/tuning/c1_eth0.json",
        "rmdir /run/cni/tuning/c1_eth0.json; mount -t tmpfs -o ro cni0-test /run/cni/tuning",
    ] {
        lab.sh(prepare);
        let error = pod.refused(&config, 5).to_string();
        assert!(error.contains("c1_eth0.json") && !error.contains("not undone"), "{error}");
        assert_eq!(pod.state(), before, "{prepare}");
    }
}

#[test]
fn a_sysctl_that_the_kernel_refuses_needs_no_rollback() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let call = pod.call("ADD", &config(json!({ "sysctl": { "net.core.somaxconn": "77" } })));
    let error = inject_all(lab, call, "pwrite64", "error=EINVAL").error(7);
    assert!(!error.to_string().contains("not undone"), "{error}");
}

/// A second plugin in the list replaces the file of the first.
#[test]
fn a_killed_replacement_of_the_file_leaves_nothing() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    for collects in [false, true] {
        for name in ["renameat", "write"] {
            pod.add(&config);
            let effect = inject(lab, pod.call("ADD", &config), name, 1, "signal=KILL");
            assert_ne!(effect, Effect::NotReached, "{name}");
            if collects {
                crate::gc::gc(lab, "net1", &[]);
            } else {
                pod.del(&config);
            }
            assert_eq!(files(), [""; 0], "{name}");
        }
    }
}

/// Otherwise the interface would stay as it is.
#[test]
fn a_lack_of_resources_to_read_the_backup_file_fails_del() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    pod.add(&config);
    inject_at(lab, pod.call("DEL", &config), "c1_eth0.json", "openat", "error=EMFILE").error(5);
    pod.del(&config);
    assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null));
}
