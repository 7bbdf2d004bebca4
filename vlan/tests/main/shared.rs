//! A VLAN of several containers: one link of the host, and a macvlan link on top of it for each container.

use serde_json::{Value, json};
use testing::config::with;
use testing::packets::send;
use testing::parallel::{self, assert_silent};
use testing::{Lab, Pod, Scripted, needs_link, wait_until};

const IPS: [&[&str]; 2] = [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"]];

fn config(more: Value) -> Value {
    let ipam = json!({ "type": Scripted::NAME });
    let keys = json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "vlan", "master": "uplink", "vlanId": 33, "shared": true, "ipam": ipam,
    });
    with(keys, more)
}

/// Returns a host with a master, whose wire leads to the namespace `outside`; `None` if the kernel has no such links.
fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new();
    lab.netns("outside");
    lab.sh("ip link add uplink type veth peer name far netns outside; ip link set uplink up");
    lab.sh("ip -n outside link set far up");
    needs_link(test, "link uplink type vlan id 9").then_some(lab)
}

/// Returns the VLAN links of the host.
fn vlans(lab: &Lab) -> String {
    lab.sh("ip -o -d link show type vlan")
}

#[test]
fn containers_share_a_vlan() {
    let Some(lab) = &lab("containers_share_a_vlan") else { return };
    let outside = Pod::absent(lab, "outside", &[]);
    outside.sh("ip link add vlan33 link far type vlan id 33; ip link set vlan33 up");
    outside.sh("ip address add 10.1.0.9/24 dev vlan33; ip address add fd01::9/64 dev vlan33 nodad");
    let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
    let results = [&a, &b].map(|pod| pod.add(&config(json!({}))));
    assert!(vlans(lab).contains("uplink.33@uplink") && vlans(lab).contains("alias cni-shared-vlan"), "{}", vlans(lab));
    assert_eq!(lab.sh("ip address show uplink.33 | grep -c inet || true"), "0\n", "the host is not on the VLAN");
    for (any, other, far) in [("0.0.0.0", "10.1.0.3", "10.1.0.9"), ("::", "fd01::3", "fd01::9")] {
        assert!(send(&a.udp(any), &b.udp(any), other).is_some(), "{other}");
        assert!(send(&a.udp(any), &outside.udp(any), far).is_some(), "{far}");
    }
    for (pod, result) in [&a, &b].into_iter().zip(&results) {
        assert_eq!(result["interfaces"][0]["mac"], pod.ip("link show eth0")[0]["address"]);
        pod.check_result(&config(json!({})), result).ok();
    }
    let error = a.check_result(&config(json!({ "vlanId": 34 })), &results[0]).error(999);
    assert_eq!(error["msg"], "\"uplink\" has no link for VLAN 34");
    lab.sh("ip link set uplink.33 down");
    let error = a.check_result(&config(json!({})), &results[0]).error(999);
    assert_eq!(error["msg"], "up of \"uplink.33\": want true, got false");
    // Another network, on the same VLAN, sets the link up again. A container that has the VLAN for itself is refused.
    let c = Pod::with_ips(lab, "c", &["10.1.0.4/24"]);
    let error = c.call("ADD", &config(json!({ "shared": false }))).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("has a link with the same tag on \"uplink\""), "{error}");
    c.add(&config(json!({ "name": "net2" })));
    a.check_result(&config(json!({})), &results[0]).ok();
    // DEL does not depend on the keys.
    a.del(&config(json!({})));
    c.del(&config(json!({ "name": "net2", "shared": false, "vlanId": 7 })));
    assert!(vlans(lab).contains("uplink.33"), "one container is left");
    b.check_result(&config(json!({})), &results[1]).ok();
    b.del(&config(json!({ "shared": "maybe", "master": "" })));
    assert_eq!(vlans(lab), "");
    assert_eq!(lab.sh("ip -o link show type macvlan"), "");
}

#[test]
fn a_link_of_the_administrator_is_used_and_kept() {
    let Some(lab) = &lab("a_link_of_the_administrator_is_used_and_kept") else { return };
    lab.sh("ip link add mine link uplink type vlan id 33; ip link set mine mtu 1400");
    let a = Pod::with_ips(lab, "a", IPS[0]);
    let status = || lab.plugin("vlan", "STATUS").stdin(config(json!({ "ipam": null })).to_string()).run();
    assert_eq!(status().error(50)["msg"], "master \"mine\" is down");
    lab.sh("ip link set mine up");
    status().silent();
    let before = vlans(lab);
    let error = a.call("ADD", &config(json!({ "mtu": 1450 }))).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("master MTU(1400)"), "{error}");
    let result = a.add(&config(json!({})));
    assert_eq!(result["interfaces"][0]["mtu"], 1400);
    a.check_result(&config(json!({})), &result).ok();
    a.del(&config(json!({})));
    assert_eq!(vlans(lab), before);
}

#[test]
fn a_failed_add_leaves_nothing() {
    let Some(lab) = &lab("a_failed_add_leaves_nothing") else { return };
    let a = Pod::with_ips(lab, "a", IPS[0]);
    Scripted::of(lab).fail("ADD");
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    a.call("ADD", &config(json!({}))).run().error(123);
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
    Scripted::of(lab).recover("ADD");
    // The link of a container that is attached stays.
    let b = Pod::with_ips(lab, "b", IPS[1]);
    let result = b.add(&config(json!({})));
    a.sh("ip link add eth0 type veth peer name other");
    a.call("ADD", &config(json!({}))).run().error(999);
    b.check_result(&config(json!({})), &result).ok();
    // A VLAN link cannot be up on a master that is down.
    b.del(&config(json!({})));
    lab.sh("ip link set uplink down");
    let error = b.call("ADD", &config(json!({}))).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("run `ip link set uplink up`"), "{error}");
    assert_eq!(vlans(lab), "");
}

#[test]
fn gc_removes_the_link_of_containers_that_are_gone() {
    let Some(lab) = &lab("gc_removes_the_link_of_containers_that_are_gone") else { return };
    let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
    for pod in [&a, &b] {
        pod.add(&config(json!({})));
    }
    let gc = |valid: Value| {
        let config = config(json!({ "shared": false, "cni.dev/valid-attachments": valid }));
        lab.plugin("vlan", "GC").stdin(config.to_string()).run().silent();
    };
    gc(json!([]));
    assert!(vlans(lab).contains("uplink.33"), "the links of containers exist");
    lab.sh("ip netns del a; ip netns del b");
    // The kernel deletes the links of a namespace later.
    wait_until("GC to remove the VLAN link", || {
        gc(json!([]));
        vlans(lab).is_empty()
    });
}

#[test]
fn a_name_that_cannot_be_used_is_replaced() {
    let Some(lab) = &lab("a_name_that_cannot_be_used_is_replaced") else { return };
    lab.sh("ip link add uplink.33 type bridge");
    let a = Pod::with_ips(lab, "a", IPS[0]);
    let result = a.add(&config(json!({})));
    a.check_result(&config(json!({})), &result).ok();
    a.del(&config(json!({})));
    assert_eq!(vlans(lab), "");
    lab.sh("ip link del uplink.33");
    // A call was killed after it had found no container on the link.
    lab.sh("ip link add uplink.33 link uplink type vlan id 33; ip link set uplink.33 up alias cni-shared-vlan");
    lab.sh("ip link add cni-probe link uplink.33 type macvlan mode passthru");
    a.add(&config(json!({})));
    a.del(&config(json!({})));
    assert_eq!(vlans(lab), "");
    // The administrator made use of the link.
    a.add(&config(json!({})));
    lab.sh("ip address add 192.0.2.1/24 dev uplink.33");
    a.del(&config(json!({})));
    assert!(vlans(lab).contains("uplink.33"));
}

#[test]
fn calls_at_the_same_time_keep_the_links_of_others() {
    let Some(lab) = &lab("calls_at_the_same_time_keep_the_links_of_others") else { return };
    let pods: Vec<_> = (2..8).map(|n| Pod::with_ips(lab, &format!("p{n}"), &[&format!("10.1.0.{n}/24")])).collect();
    let (half, others) = pods.split_at(3);
    let call = |command: &str, pods: &[Pod<'_>]| -> Vec<_> {
        pods.iter().map(|pod| pod.call(command, &config(json!({})))).collect()
    };
    parallel::assert_added(&parallel::run(call("ADD", half)));
    for (gone, new) in [(half, others), (others, half)] {
        let mut calls = call("DEL", gone);
        calls.extend(call("ADD", new));
        let outcomes = parallel::run(calls);
        let (deleted, added) = outcomes.split_at(gone.len());
        assert_silent(deleted);
        parallel::assert_added(added);
        for (pod, outcome) in new.iter().zip(added) {
            pod.check_result(&config(json!({})), &outcome.ok()).ok();
        }
    }
    assert_silent(&parallel::run(call("DEL", half)));
    assert_eq!(vlans(lab), "");
}

#[test]
fn only_links_of_the_host_are_shared() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let error = pod.call("ADD", &config(json!({ "linkInContainer": true }))).run().error(7);
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("\"linkInContainer\": only links of the host can be shared"), "{error}");
}
