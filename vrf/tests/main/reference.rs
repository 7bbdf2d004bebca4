//! The reference beside this plugin: each removes what the other added.

use serde_json::json;
use testing::config::with;
use testing::{Pod, reference};

use crate::support::{Members, config, lab, pod};

#[test]
fn each_removes_what_the_other_added() {
    let test = "each_removes_what_the_other_added";
    if reference("vrf", test).is_none() {
        return;
    }
    let Some(lab) = &lab(test) else { return };
    for (number, is_ours) in [false, true].into_iter().enumerate() {
        let pod: Pod<'_> = pod(lab, &format!("c{number}"), &["10.1.0.2/24", "fd01::2/64"]).with_mac();
        let config = config(json!({ "cniVersion": "1.0.0" }));
        if is_ours {
            pod.add(&config);
            pod.call_reference("CHECK", &config).run().ok();
            pod.call_reference("DEL", &config).run().ok();
        } else {
            pod.call_reference("ADD", &config).run().ok();
            assert_eq!(pod.vrfs(), [("blue".to_owned(), 1, vec!["net1".to_owned()])]);
            pod.check(&config).silent();
            pod.add(&config);
            pod.del(&config);
        }
        assert_eq!(pod.vrfs(), [], "ours: {is_ours}");
    }
}

#[test]
fn a_membership_of_the_reference_needs_evidence() {
    let test = "a_membership_of_the_reference_needs_evidence";
    if reference("vrf", test).is_none() {
        return;
    }
    let Some(lab) = &lab(test) else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    let config = config(json!({ "cniVersion": "1.0.0" }));
    pod.call_reference("ADD", &config).run().ok();
    pod.del(&with(config.clone(), json!({ "prevResult": null })));
    assert_eq!(pod.vrfs().len(), 1);
    lab.sh("mkdir -p /var/lib/cni/networks/net1; printf 'c1\\r\\nnet1' >/var/lib/cni/networks/net1/10.1.0.2");
    pod.del(&with(config, json!({ "prevResult": null })));
    assert_eq!(pod.vrfs(), []);
}
