//! What distinguishes `dummy` from other plugins.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, can_create_link, needs_link};

fn config(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "dummy", "ipam": ipam }), more)
}

#[test]
fn a_network_without_ipam_is_rejected() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for command in ["ADD", "STATUS"] {
        let error =
            pod.call(command, &json!({ "cniVersion": "1.1.0", "name": "net1", "type": "dummy" })).run().error(7);
        assert_eq!(error["msg"], "dummy interface requires an IPAM configuration");
    }
}

#[test]
fn status_reports_a_kernel_without_dummy_links() {
    let lab = &Lab::new();
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    let status = lab.plugin("dummy", "STATUS").stdin(config(json!({})).to_string()).run();
    match can_create_link("type dummy") {
        true => assert_eq!(status.status, Some(0), "{}", status.stdout),
        false => {
            assert_eq!(status.error(50)["msg"], "this kernel has no dummy interfaces");
            // An ADD creates nothing either.
            Pod::new(lab, "a").call("ADD", &config(json!({}))).run().error(999);
            assert_eq!(lab.sh("find /var/lib -type f"), "");
        }
    }
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
}

/// Unlike the reference, which ignores these keys.
#[test]
fn mtu_mac_and_dns_are_used() {
    let lab = &Lab::new();
    if !needs_link("mtu_mac_and_dns_are_used", "type dummy") {
        return;
    }
    let pod = Pod::new(lab, "a");
    let more = json!({
        "mtu": 1400, "dns": { "nameservers": ["10.1.0.9"] }, "runtimeConfig": { "mac": "02:00:00:00:00:07" },
        "capabilities": { "mac": true },
    });
    let result = pod.add(&config(more));
    assert_eq!(result["dns"]["nameservers"], json!(["10.1.0.9"]));
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:07");
    let link = &pod.ip("link show eth0")[0];
    assert_eq!((&link["mtu"], &link["address"]), (&json!(1400), &json!("02:00:00:00:00:07")));
    let addresses = pod.sh("ip -o address show eth0");
    assert!(addresses.contains("10.1.0.2/24") && !addresses.contains("tentative"), "{addresses}");
}

/// A container can rename its interface. The alias still shows whose it is.
#[test]
fn a_renamed_link_is_deleted() {
    let lab = &Lab::new();
    if !needs_link("a_renamed_link_is_deleted", "type dummy") {
        return;
    }
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    pod.sh("ip link set eth0 down; ip link set eth0 name other");
    pod.del(&config(json!({})));
    assert!(!pod.sh("ip -o link").contains("other"));
    assert_eq!(lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'"), "");
}

/// A link without an alias, as the reference creates it, is deleted if the result of ADD or a lease proves whose it is.
#[test]
fn a_link_without_an_alias_is_deleted_only_with_proof() {
    let lab = &Lab::new();
    if !needs_link("a_link_without_an_alias_is_deleted_only_with_proof", "type dummy") {
        return;
    }
    let (config, pod) = (config(json!({})), Pod::new(lab, "a"));
    // The index of a link that cni0 created would be a proof, too.
    let attach = || {
        let result = pod.add(&config);
        let mac = result["interfaces"][0]["mac"].as_str().unwrap();
        pod.sh(&format!("ip link del eth0; ip link add eth0 address {mac} type dummy; ip link set eth0 up"));
        pod.sh("ip address add 10.1.0.2/24 dev eth0; ip address add fd01::2/64 dev eth0");
        result
    };
    // By its address, which is leased to the attachment.
    attach();
    pod.del(&config);
    assert!(!pod.sh("ip -o link").contains("eth0"));
    // By its MAC address, without a lease.
    let result = attach();
    lab.sh("rm -r /var/lib/cni/networks/net1");
    pod.del(&with(config.clone(), json!({ "prevResult": result })));
    assert!(!pod.sh("ip -o link").contains("eth0"));
    // Without any proof.
    attach();
    lab.sh("rm -r /var/lib/cni/networks/net1");
    pod.del(&config);
    assert!(pod.sh("ip -o link").contains("eth0"));
}
