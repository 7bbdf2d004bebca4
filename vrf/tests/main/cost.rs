//! Limits for the cost of a call, so that it grows only on purpose, also compared with the reference.

use serde_json::json;
use testing::{cost, reference};

use crate::support::{config, lab, pod};

#[test]
fn few_messages_are_sent() {
    let Some(lab) = &lab("few_messages_are_sent") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24", "fd01::2/64"]);
    let config = config(json!({ "table": 1001 }));
    let found = ["ADD", "CHECK", "DEL"].map(|command| cost::of(lab, pod.call(command, &config)));
    // Links, routes, addresses, the VRF (and before Linux 6.2 a query for it), the change.
    for (found, limit) in found.iter().zip([6, 1, 2]) {
        assert!(found.messages <= limit && found.children == 0, "{found:?}");
    }
}

/// The dynamic linker makes a third of the system calls of a program of cargo. Those of `ci/build` make a tenth of the
/// reference's.
#[test]
fn far_fewer_system_calls_than_the_reference() {
    let test = "far_fewer_system_calls_than_the_reference";
    if reference("vrf", test).is_none() {
        return;
    }
    let Some(lab) = &lab(test) else { return };
    let count = |is_ours: bool| {
        let pod = pod(lab, if is_ours { "c1" } else { "c2" }, &["10.1.0.2/24"]);
        let config = config(json!({ "cniVersion": "1.0.0" }));
        ["ADD", "DEL"].map(|command| {
            let call = if is_ours { pod.call(command, &config) } else { pod.call_reference(command, &config) };
            let (outcome, log) = call.trace(lab, &["-f"]);
            outcome.ok();
            log.lines().filter(|line| line.contains('(') && !line.contains("resumed>")).count()
        })
    };
    let (ours, theirs) = (count(true), count(false));
    eprintln!("system calls of ADD and DEL: {ours:?}, reference {theirs:?}");
    assert!(ours[0] * 6 <= theirs[0] && ours[1] * 6 <= theirs[1], "{ours:?} {theirs:?}");
}
