//! Beside the reference: the same limits, and each implementation checks and removes those of the other.

use serde_json::{Value, json};
use testing::{Lab, reference};

use crate::pod::{IFB, both, config, container, container_named, ifbs, limit, redirect, with};

fn rates(rate: u64, burst: u64) -> Value {
    let keys = json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst });
    with(config(keys), json!({ "cniVersion": "1.0.0" }))
}

#[test]
fn limits_and_results_are_the_same() {
    let lab = &Lab::new();
    if reference("bandwidth", "reference::limits_and_results_are_the_same").is_none() {
        return;
    }
    let (ours, theirs) = (container_named(lab, "c1"), container_named(lab, "c2"));
    for (rate, burst) in
        [(8_000_000, 800_000), (29_600_000, 80_000), (1_234_567, 7_654_321), (1_000_000_000, 8_000_000), (16, 800)]
    {
        let config = rates(rate, burst);
        let one = ours.add(&config);
        let other = theirs.call_reference("ADD", &config).run().ok();
        assert_eq!(limit(lab, "vethc1"), limit(lab, "vethc2"), "{config}");
        let name = |result: &Value| result["interfaces"][2]["name"].as_str().unwrap().to_owned();
        assert_eq!(limit(lab, &name(&one)), limit(lab, &name(&other)), "{config}");
        let keys = |result: &Value| result["interfaces"][2].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&one), keys(&other));
        // Each accepts what the other added.
        ours.call_reference("CHECK", &config).run().ok();
        theirs.check(&config).ok();
        for (pod, link) in [(&ours, "vethc1"), (&theirs, "vethc2")] {
            pod.call_reference("DEL", &config).run().ok();
            lab.sh(&format!("tc qdisc del dev {link} root; tc qdisc del dev {link} ingress 2>/dev/null || tc qdisc del dev {link} clsact"));
        }
        assert_eq!(ifbs(lab), [""; 0], "{config}");
    }
}

#[test]
fn an_upgrade_in_place_keeps_the_limits() {
    let lab = &Lab::new();
    if reference("bandwidth", "reference::an_upgrade_in_place_keeps_the_limits").is_none() {
        return;
    }
    let pod = container(lab);
    let config = with(both(), json!({ "cniVersion": "1.0.0" }));
    pod.call_reference("ADD", &config).run().ok();
    pod.check(&config).ok();
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!((ifbs(lab), redirect(lab, "vethc1").as_deref()), (vec![IFB.to_owned()], Some(IFB)));
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    // And back.
    pod.call_reference("CHECK", &config).run().ok();
    pod.call_reference("DEL", &config).run().ok();
    assert_eq!(ifbs(lab), [""; 0]);
    // The reference leaves a filter that drops everything.
    pod.add(&config);
    pod.check(&config).ok();
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    pod.del(&config);
    assert_eq!((ifbs(lab), redirect(lab, "vethc1")), (vec![], None));
}

/// The reference fails after it has created a part.
#[test]
fn what_a_failed_add_of_the_reference_left_is_no_obstacle() {
    let lab = &Lab::new();
    if reference("bandwidth", "reference::what_a_failed_add_of_the_reference_left_is_no_obstacle").is_none() {
        return;
    }
    let pod = container(lab);
    let config = with(both(), json!({ "cniVersion": "1.0.0" }));
    lab.sh(&format!("ip link add {IFB} type ifb"));
    assert_ne!(pod.call_reference("ADD", &config).run().status, Some(0));
    pod.add(&config);
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(ifbs(lab), [""; 0]);
}
