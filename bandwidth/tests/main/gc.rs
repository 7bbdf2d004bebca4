//! GC: removes the limits of attachments that are not in the list.

use serde_json::{Value, json};
use testing::Lab;

use crate::pod::{IFB, both, container, container_named, ifbs, redirect, second, with};

fn gc(lab: &Lab, network: &str, valid: Value) {
    let config = with(both(), json!({ "name": network, "cni.dev/valid-attachments": valid }));
    lab.plugin("bandwidth", "GC").stdin(config.to_string()).run().ok();
}

#[test]
fn only_stale_attachments_of_the_network_are_removed() {
    let lab = &Lab::new();
    let pod = container(lab);
    let (second, c2, c3) = (second(&pod), container_named(lab, "c2"), container_named(lab, "c3"));
    let net2 = with(both(), json!({ "name": "net2" }));
    pod.add(&both());
    second.add(&both());
    c2.add(&both());
    c3.add(&net2);
    lab.sh("ip link add bwp000000000000 type ifb; ip link add ifb7 type ifb alias uplink");
    assert_eq!(ifbs(lab).len(), 6);
    gc(lab, "net1", json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "c2", "ifname": "eth0" }]));
    assert_eq!(redirect(lab, "vethc1b"), None);
    assert_eq!(ifbs(lab).len(), 5);
    for (pod, config) in [(&pod, both()), (&c2, both()), (&c3, net2.clone())] {
        pod.check(&config).ok();
    }
    gc(lab, "net1", json!([]));
    assert_eq!((ifbs(lab).len(), redirect(lab, "vethc1")), (3, None));
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    c3.check(&net2).ok();
    gc(lab, "net1", json!([]));
    assert!(!ifbs(lab).contains(&IFB.to_owned()));
}

#[test]
fn a_missing_list_removes_nothing() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    lab.plugin("bandwidth", "GC").stdin(both().to_string()).run().error(7);
    pod.check(&both()).ok();
}
