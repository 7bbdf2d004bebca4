//! Faults: a system call of ADD or DEL fails, or the program is killed there.

use serde_json::json;
use testing::fault::{Effect, inject, inject_everywhere};

use crate::support::{Members, config, lab, pod};

const CALLS: [(&str, &str); 4] =
    [("sendto", "ENOBUFS"), ("recvfrom", "ENOMEM"), ("socket", "EMFILE"), ("setns", "EPERM")];

#[test]
fn a_failing_system_call_changes_nothing() {
    let Some(lab) = &lab("a_failing_system_call_changes_nothing") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24", "fd01::2/64"]);
    let routes = "ip route replace 10.10.0.0/16 via 10.1.0.1; ip -6 route replace fd10::/64 via fd01::1";
    pod.sh(routes);
    let config = config(json!({}));
    let before = pod.state();
    let failures = inject_everywhere(
        lab,
        &CALLS,
        || pod.call("ADD", &config),
        |effect, place| {
            match effect {
                Effect::Failed => assert_eq!(pod.state(), before, "{place}"),
                Effect::Tolerated | Effect::NotReached => pod.check(&config).silent(),
            }
            pod.del(&config);
            pod.sh(&format!(
                "{routes}; ip link set net1 alias \"\"; echo 0 >/proc/sys/net/ipv6/conf/net1/keep_addr_on_down"
            ));
            assert_eq!(pod.state(), before, "{place}: after DEL");
        },
    );
    assert!(failures > 5, "only {failures} failures");
}

#[test]
fn a_killed_add_is_removed_by_del_or_completed_by_the_next_add() {
    let Some(lab) = &lab("a_killed_add_is_removed_by_del_or_completed_by_the_next_add") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    let config = config(json!({}));
    for n in 1.. {
        let effect = inject(lab, pod.call("ADD", &config), "sendto", n, "signal=KILL");
        pod.add(&config);
        pod.check(&config).silent();
        pod.del(&config);
        assert_eq!(pod.vrfs(), [], "{n}");
        inject(lab, pod.call("ADD", &config), "sendto", n, "signal=KILL");
        pod.del(&config);
        pod.sh("ip link del blue 2>/dev/null || true");
        if effect == Effect::NotReached {
            break;
        }
    }
}
