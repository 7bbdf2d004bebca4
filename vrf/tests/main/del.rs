//! DEL removes only what provably belongs to the attachment, and always succeeds.

use serde_json::json;
use testing::config::with;

use crate::support::{Members, another, config, lab, pod};

#[test]
fn nothing_is_needed() {
    let Some(lab) = &lab("nothing_is_needed") else { return };
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    for config in [
        config(json!({ "prevResult": null })),
        config(json!({ "vrfname": "another" })),
        config(json!({ "vrfname": "", "table": [] })),
        config(json!({ "cniVersion": "0.3.1", "prevResult": 7 })),
    ] {
        pod.add(&crate::support::config(json!({})));
        pod.del(&config);
        assert_eq!(pod.vrfs(), [], "{config}");
        assert_eq!(pod.addresses("net1"), ["10.1.0.2/24"]);
        pod.del(&config);
    }
}

/// The reference fails, and the chain of plugins stops before the interface is deleted.
#[test]
fn the_interface_or_the_vrf_may_be_gone() {
    let Some(lab) = &lab("the_interface_or_the_vrf_may_be_gone") else { return };
    for (number, damage) in
        ["ip link del net1", "ip link del blue", "ip link set net1 nomaster", "ip link del net1; ip link del blue"]
            .iter()
            .enumerate()
    {
        let pod = pod(lab, &format!("c{number}"), &["10.1.0.2/24"]);
        pod.add(&config(json!({})));
        pod.sh(damage);
        pod.del(&config(json!({})));
        assert_eq!(pod.vrfs(), [], "{damage}");
    }
}

/// A program in the container can rename interfaces, and give a name to another one.
#[test]
fn a_renamed_interface_is_found_by_its_alias() {
    let Some(lab) = &lab("a_renamed_interface_is_found_by_its_alias") else { return };
    let one = pod(lab, "c1", &["10.1.0.2/24"]);
    one.add(&config(json!({})));
    one.sh("ip link set net1 down; ip link set net1 name other; ip link add net1 type bridge; ip link set net1 master blue");
    one.del(&config(json!({})));
    assert_eq!(one.vrfs()[0].2, ["net1"], "the bridge is not the interface");
    one.sh("ip link del net1; ip link set other name net1");
    one.add(&config(json!({})));
    let two = another(&one, "net2", &["10.2.0.2/24"]);
    two.add(&config(json!({})));
    one.sh("for link in net1 net2; do ip link set $link down; done
        ip link set net1 name third; ip link set net2 name net1; ip link set dev third name net2");
    one.del(&config(json!({})));
    assert_eq!(one.vrfs()[0].2, ["net1"]);
    two.del(&config(json!({})));
    assert_eq!(one.vrfs(), []);
}

#[test]
fn what_belongs_to_others_stays() {
    let Some(lab) = &lab("what_belongs_to_others_stays") else { return };
    let (one, other) = (pod(lab, "c1", &["10.1.0.2/24"]), pod(lab, "c2", &["10.1.0.3/24"]));
    one.add(&config(json!({})));
    other.add(&config(json!({})));
    // VRFs of the container's own programs.
    other.sh("ip link add own type vrf table 77; ip link add used type vrf table 78; ip link add member type bridge; ip link set member master used");
    let before = other.state();
    for config in [config(json!({})), config(json!({ "prevResult": null }))] {
        one.call("DEL", &config).env("CNI_NETNS", &other.netns).run().silent();
        assert_eq!(other.state(), before, "{config}");
    }
    other.del(&config(json!({})));
    assert_eq!(other.vrfs().iter().map(|vrf| vrf.0.clone()).collect::<Vec<_>>(), ["own", "used"]);
    assert_eq!(one.vrfs().len(), 1);
    // One that exists before ADD belongs to the container, too, but goes with its last member, as in the reference.
    other.sh("ip link add blue type vrf table 9");
    let second = another(&other, "net2", &["10.2.0.2/24"]);
    second.add(&config(json!({ "name": "net2" })));
    assert_eq!(other.vrfs()[0], ("blue".to_owned(), 9, vec!["net2".to_owned()]));
    second.del(&config(json!({ "name": "net2" })));
    assert_eq!(other.vrfs().len(), 2);
}

/// An interface of another main plugin has no alias. The MAC address of the previous result, or leases, prove whose it
/// is.
#[test]
fn an_alias_of_another_program_is_kept() {
    let Some(lab) = &lab("an_alias_of_another_program_is_kept") else { return };
    for (number, (keeps, is_removed)) in [(true, true), (false, false)].into_iter().enumerate() {
        let pod = pod(lab, &format!("c{number}"), &["10.1.0.2/24"]);
        pod.sh("ip link set net1 alias enp5s0f1");
        let pod = if keeps { pod.with_mac() } else { pod };
        pod.add(&config(json!({})));
        assert_eq!(pod.ip("link show net1")[0]["ifalias"], "enp5s0f1");
        pod.del(&config(json!({})));
        assert_eq!(pod.vrfs().is_empty(), is_removed);
        pod.del(&with(config(json!({})), json!({ "prevResult": null })));
    }
}
