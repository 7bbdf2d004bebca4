//! Faults: a system call of ADD or DEL fails, or the program is killed there.

use serde_json::json;
use testing::Lab;
use testing::fault::{Effect, inject, inject_everywhere};

use crate::support::{Routed, V4, V6, chained, pod, restore_networks};

const CALLS: [(&str, &str); 5] =
    [("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM"), ("socket", "EMFILE"), ("openat", "EMFILE"), ("setns", "EPERM")];

#[test]
fn a_failing_system_call_changes_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    pod.sh("ip route add 10.20.0.0/16 via 192.168.1.7; ip -6 route add fd20::/64 via fd01::7");
    let config = chained(&pod, json!({}), &[V4, V6]);
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
            restore_networks(&pod);
            pod.sh("ip route replace 10.20.0.0/16 via 192.168.1.7; ip -6 route replace fd20::/64 via fd01::7");
            assert_eq!(pod.state(), before, "{place}: after DEL");
        },
    );
    assert!(failures > 5, "only {failures} failures");
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    for name in ["sendto", "recvfrom"] {
        for n in 1.. {
            let lab = &Lab::new();
            let pod = pod(lab, "c1", &[V4, V6]);
            let config = chained(&pod, json!({}), &[V4, V6]);
            let effect = inject(lab, pod.call("ADD", &config), name, n, "signal=KILL");
            pod.add(&config);
            pod.check(&config).silent();
            assert_eq!(pod.rules(), ["192.168.1.209 100", "fd01::5 101"], "{name} {n}");
            assert_eq!(pod.table("-4", "100").len() + pod.table("-6", "101").len(), 5, "{name} {n}");
            pod.del(&config);
            restore_networks(&pod);
            inject(lab, pod.call("ADD", &config), name, n, "signal=KILL");
            pod.del(&config);
            assert_eq!(pod.rules(), [""; 0], "{name} {n}");
            if effect == Effect::NotReached {
                break;
            }
        }
    }
}

#[test]
fn a_failing_del_can_be_repeated() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    let config = chained(&pod, json!({}), &[V4, V6]);
    let prepare = || {
        restore_networks(&pod);
        pod.add(&config);
        pod.call("DEL", &config)
    };
    inject_everywhere(lab, &CALLS, prepare, |_, place| {
        pod.del(&config);
        assert_eq!(pod.rules(), [""; 0], "{place}");
    });
}
