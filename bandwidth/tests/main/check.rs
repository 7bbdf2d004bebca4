//! CHECK: every difference is an error, and nothing is changed.

use serde_json::json;
use testing::Lab;

use crate::pod::{IFB, both, container, state, text, with};

#[test]
fn every_difference_is_reported() {
    let lab = &Lab::new();
    let pod = container(lab);
    for (change, wanted) in [
        ("tc qdisc del dev vethc1 root", "has the queueing discipline \"noqueue\", not \"tbf\""),
        ("tc qdisc replace dev vethc1 root pfifo", "has the queueing discipline \"pfifo\", not \"tbf\""),
        (
            "tc qdisc replace dev vethc1 root handle 1: tbf rate 9mbit burst 100000b latency 25ms",
            "is limited to rate 1125000",
        ),
        ("tc qdisc replace dev vethc1 root handle 1: tbf rate 8mbit burst 90000b limit 125000", "is limited to"),
        ("tc qdisc replace dev vethc1 root handle 1: tbf rate 8mbit burst 100000b limit 90000", "limit 90000 B, not"),
        ("tc qdisc replace dev IFB root pfifo", "link \"IFB\" has the queueing discipline \"pfifo\""),
        (
            "tc qdisc replace dev IFB root handle 1: tbf rate 9mbit burst 100000b latency 25ms",
            "link \"IFB\" is limited",
        ),
        ("tc filter del dev vethc1 ingress", "no filter redirects what link \"vethc1\" receives"),
        ("tc qdisc del dev vethc1 clsact", "no filter redirects"),
        ("ip link set IFB down", "link \"IFB\" is down"),
        ("ip link delete IFB", "there is no ifb link \"IFB\""),
        ("ip link set IFB alias other", "there is no ifb link"),
    ] {
        pod.add(&both());
        pod.check(&both()).ok();
        lab.sh(&change.replace("IFB", IFB));
        let before = state(lab);
        let error = pod.check(&both()).error(999);
        assert!(text(&error["msg"]).contains(&wanted.replace("IFB", IFB)), "{change}: {error}");
        assert!(text(&error["details"]).contains("cnitool repair"), "{error}");
        assert_eq!(state(lab), before, "{change}");
        lab.sh(&format!("ip link delete {IFB} 2>/dev/null || true; tc qdisc del dev vethc1 root 2>/dev/null || true"));
    }
}

#[test]
fn changed_rates_are_reported() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    for key in ["ingressRate", "ingressBurst", "egressRate", "egressBurst"] {
        pod.check(&with(both(), json!({ key: 4_000_000 }))).error(999);
    }
}
