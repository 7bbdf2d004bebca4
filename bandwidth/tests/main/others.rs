//! Other programs that use traffic control on the host veth.

use serde_json::json;
use testing::Lab;

use crate::pod::{IFB, both, config, container, ifbs, redirect, state, text};

#[test]
fn filters_of_other_programs_come_first_and_stay() {
    for kind in ["ingress", "clsact"] {
        let lab = &Lab::new();
        let pod = container(lab);
        lab.sh(&format!("tc qdisc add dev vethc1 {kind}"));
        let filter = "tc filter add dev vethc1 ingress protocol all u32 match u32 0 0 flowid 1:1";
        lab.sh(&filter.replace("protocol", "prio 1 protocol"));
        pod.add(&both());
        // The kernel chooses a priority before ours.
        lab.sh(filter);
        pod.check(&both()).ok();
        let prios = lab.sh("tc filter show dev vethc1 ingress | grep -o 'pref [0-9]*' | uniq");
        let prios: Vec<u32> = prios.lines().map(|line| line[5..].parse().unwrap()).collect();
        assert_eq!((prios.len(), prios[0], prios[2]), (3, 1, 65535), "{prios:?}");
        pod.add(&both());
        pod.del(&both());
        assert_eq!((ifbs(lab), redirect(lab, "vethc1")), (vec![], None));
        let left = lab.sh("tc filter show dev vethc1 ingress; tc qdisc show dev vethc1");
        assert!(left.contains("pref 1 ") && left.contains(kind) && !left.contains("mirred"), "{left}");
    }
}

/// A program can add its filters after ADD, which the `ingress` of the reference would prevent.
#[test]
fn clsact_can_be_added_later() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    lab.sh("tc qdisc replace dev vethc1 clsact; tc filter add dev vethc1 egress prio 1 u32 match u32 0 0 flowid 1:1");
    pod.check(&both()).ok();
    assert_eq!(redirect(lab, "vethc1").as_deref(), Some(IFB));
}

#[test]
fn a_queueing_discipline_of_another_program_stays() {
    let lab = &Lab::new();
    let pod = container(lab);
    lab.sh("tc qdisc add dev vethc1 root handle 7: pfifo limit 9");
    let before = state(lab);
    let error = pod.call("ADD", &both()).run().error(999);
    assert!(text(&error["msg"]).contains("queueing discipline \"pfifo\" of another program"), "{error}");
    assert_eq!(state(lab), before);
    pod.add(&config(json!({ "egressRate": 8_000_000, "egressBurst": 800_000 })));
    assert!(state(lab).contains("pfifo"));
}
