//! What the reference leaves, and what it finds.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::{assert_given_back, config, has, ipam, lab, return_as};

/// Returns a network of both implementations.
fn both(more: Value) -> Value {
    with(with(config(ipam()), json!({ "cniVersion": "0.4.0" })), more)
}

fn with_reference(name: &str) -> Option<Lab> {
    reference("host-device", name).map(|_| lab())
}

#[test]
fn the_reference_gives_back_what_cni0_attached() {
    let Some(lab) = &with_reference("the_reference_gives_back_what_cni0_attached") else { return };
    let pod = Pod::new(lab, "a");
    let result = pod.add(&both(json!({})));
    pod.call_reference("CHECK", &with(both(json!({})), json!({ "prevResult": result }))).run().ok();
    pod.call_reference("DEL", &both(json!({}))).run().ok();
    assert!(has(lab, "nic"));
    // It leaves the marks, which the next ADD removes, of whichever container.
    let other = Pod::new(lab, "b");
    other.add(&both(json!({})));
    pod.del(&both(json!({})));
    assert!(!has(lab, "nic"), "DEL of another attachment");
    other.del(&both(json!({})));
    assert_given_back(lab, "DEL");
    // So does DEL, and GC.
    for command in ["DEL", "GC"] {
        pod.add(&both(json!({})));
        pod.call_reference("DEL", &both(json!({}))).run().ok();
        lab.sh("ip link set nic up");
        let config = with(config(ipam()), json!({ "cni.dev/valid-attachments": [] }));
        pod.call(command, &config).run().ok();
        assert_given_back(lab, command);
        assert!(lab.sh("ip -o link show nic").contains(",UP"), "{command} leaves the device to the host");
    }
}

/// Its alias is the name on the host. Without a mark, a result, the configuration or a lease proves whose it is.
#[test]
fn cni0_gives_back_what_the_reference_attached() {
    let Some(lab) = &with_reference("cni0_gives_back_what_the_reference_attached") else { return };
    let pod = Pod::new(lab, "a");
    let result = pod.call_reference("ADD", &both(json!({}))).run().ok();
    pod.check_result(&both(json!({})), &result).ok();
    pod.del(&both(json!({})));
    assert_given_back(lab, "by the configuration");
    let other = json!({ "device": "", "hwaddr": "02:00:00:00:00:99" });
    let result = pod.call_reference("ADD", &both(json!({}))).run().ok();
    pod.del(&both(with(other.clone(), json!({ "prevResult": result, "ipam": {} }))));
    assert_given_back(lab, "by the result");
    lab.sh("rm -r /var/lib/cni");
    pod.call_reference("ADD", &both(json!({}))).run().ok();
    pod.del(&both(other.clone()));
    assert_given_back(lab, "by the lease");
    pod.call_reference("ADD", &both(json!({}))).run().ok();
    let unknown = Pod { id: "b".to_owned(), ..pod.clone() };
    unknown.del(&both(other));
    assert!(pod.sh("ip -o link").contains("eth0"), "DEL without a proof");
}

/// Its DEL cannot give back a device whose namespace is gone. An ADD of cni0 does not take the name in the container
/// for the name on the host.
#[test]
fn devices_that_the_reference_lost_get_their_name_again() {
    let Some(lab) = &with_reference("devices_that_the_reference_lost_get_their_name_again") else { return };
    let pod = Pod::new(lab, "a");
    for (name, mine) in
        [("eth0", json!({})), ("net1", json!({})), ("dev7", json!({ "device": "", "hwaddr": "02:00:00:00:00:01" }))]
    {
        pod.call_reference("ADD", &both(json!({}))).run().ok();
        return_as(&pod, name);
        pod.call_reference("DEL", &both(json!({}))).run().error(999);
        lab.sh("rm -r /var/lib/cni");
        pod.add(&both(mine.clone()));
        pod.del(&both(mine));
        assert_given_back(lab, name);
    }
    pod.call_reference("ADD", &both(json!({}))).run().ok();
    return_as(&pod, "eth0");
    pod.call("DEL", &both(json!({}))).without("CNI_NETNS").run().ok();
    assert_given_back(lab, "DEL");
    // Any other name is that of a user, whatever the alias is.
    lab.sh("ip link set nic down; ip link set nic name storage alias spare");
    let config = both(json!({ "device": "", "hwaddr": "02:00:00:00:00:01" }));
    pod.add(&config);
    pod.del(&config);
    assert_eq!(lab.ip("link show storage")[0]["ifalias"], "spare");
}
