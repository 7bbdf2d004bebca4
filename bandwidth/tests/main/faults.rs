//! Faults: a system call of ADD fails, or the program is killed there.

use serde_json::json;
use testing::fault::{self, Effect};
use testing::{Lab, Pod};

use crate::pod::{both, container, ifbs, limit, redirect, state, with};

/// Injects a fault into a call with [`both`].
fn inject(pod: &Pod<'_>, command: &str, name: &str, n: usize, how: &str) -> Effect {
    fault::inject(pod.lab, pod.call(command, &both()), name, n, how)
}

#[test]
fn a_failing_system_call_leaves_nothing() {
    let lab = &Lab::new();
    let pod = container(lab);
    let before = state(lab);
    let faults = [("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM"), ("socket", "EMFILE"), ("setns", "EPERM")];
    let failures = fault::inject_everywhere(
        lab,
        &faults,
        || pod.call("ADD", &both()),
        |effect, place| {
            if effect == Effect::Failed {
                assert_eq!(state(lab), before, "{place}");
            } else {
                pod.check(&both()).ok();
                pod.del(&both());
                lab.sh("tc qdisc del dev vethc1 root; tc qdisc del dev vethc1 clsact");
            }
        },
    );
    assert!(failures > 10, "only {failures} failures");
}

#[test]
fn a_failing_repeated_add_keeps_the_limits() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    let before = state(lab);
    let faults = [("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM")];
    let failures = fault::inject_everywhere(
        lab,
        &faults,
        || pod.call("ADD", &both()),
        |_, place| assert_eq!(state(lab), before, "{place}"),
    );
    assert!(failures > 10, "only {failures} failures");
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let lab = &Lab::new();
    let pod = container(lab);
    let blind = with(both(), json!({ "prevResult": null }));
    for name in ["sendto", "recvfrom"] {
        for n in (1..80).take_while(|n| inject(&pod, "ADD", name, *n, "signal=KILL") != Effect::NotReached) {
            pod.call("DEL", &blind).env("CNI_NETNS", "").run().ok();
            assert_eq!((ifbs(lab), redirect(lab, "vethc1")), (vec![], None), "{name} {n}");
            inject(&pod, "ADD", name, n, "signal=KILL");
            pod.add(&both());
            pod.check(&both()).ok();
            pod.del(&both());
            assert_eq!((ifbs(lab), redirect(lab, "vethc1")), (vec![], None), "{name} {n}");
        }
    }
}

#[test]
fn a_failing_del_or_check_can_be_repeated() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    for n in (1..80).take_while(|n| inject(&pod, "CHECK", "sendto", *n, "error=ENOBUFS") != Effect::NotReached) {
        assert!(limit(lab, "vethc1").is_some(), "{n}");
    }
    for n in 1..80 {
        let effect = inject(&pod, "DEL", "sendto", n, "error=ENOBUFS");
        pod.del(&both());
        assert_eq!(ifbs(lab), [""; 0], "{n}");
        if effect == Effect::NotReached {
            break;
        }
        pod.add(&both());
    }
}
