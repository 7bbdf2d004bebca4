//! What needs no kernel with VRFs.

use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod, can_create_link};

use crate::support::{VERSIONS, config, pod};

fn has_vrfs() -> bool {
    can_create_link("type vrf table 10")
}

#[test]
fn status_says_whether_the_kernel_has_vrfs() {
    let lab = &Lab::new();
    let status = |keys| lab.plugin("vrf", "STATUS").stdin(config(keys).to_string()).run();
    match has_vrfs() {
        true => status(json!({})).silent(),
        false => {
            let error = status(json!({})).error(50);
            assert_eq!(error["msg"], "this kernel has no vrf interfaces");
        }
    }
    let error = status(json!({ "vrfname": "" })).error(7);
    assert_eq!(error["msg"], "configuration is expected to have a valid vrf name");
}

#[test]
fn an_add_without_vrfs_changes_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &["10.1.0.2/24", "fd01::2/64"]);
    let read = || pod.sh("ip -o link; ip route; ip -6 route; cat /proc/sys/net/ipv6/conf/net1/keep_addr_on_down");
    if has_vrfs() {
        return;
    }
    let before = read();
    let error = pod.call("ADD", &config(json!({}))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("this kernel has no vrf interfaces"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("\"vrf\""), "{error}");
    assert_eq!(read(), before);
}

#[test]
fn mistakes_are_reported_and_change_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    pod.sh("ip link add br0 type bridge; ip link add q1 type bridge");
    let before = pod.sh("ip -o link; ip route");
    for version in VERSIONS {
        let error = pod.call("ADD", &config(json!({ "cniVersion": version, "prevResult": null }))).run().error(7);
        assert!(error.to_string().contains("missing prevResult from earlier plugin"), "{error}");
    }
    let refused = |pod: &Pod<'_>, keys, code, text: &str| {
        let error = pod.call("ADD", &config(keys)).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{text}: {error}");
        assert_eq!(pod.sh("ip -o link; ip route"), before, "{text}");
    };
    refused(&pod, json!({ "vrfname": "" }), 7, "configuration is expected to have a valid vrf name");
    refused(&pod, json!({ "vrfname": "longer-than-fifteen" }), 7, "key \"vrfname\"");
    refused(&pod, json!({ "table": 255 }), 7, "key \"table\"");
    refused(&pod, json!({ "vrfname": "q1" }), 999, "Netlink q1 is not a VRF");
    refused(&pod, json!({ "vrfname": "net1" }), 999, "Netlink net1 is not a VRF");
    let absent = Pod { ifname: "nope".to_owned(), ..pod.clone() };
    refused(&absent, json!({}), 999, "could not get link by name \"nope\"");
    pod.sh("ip link set net1 master br0");
    let error = pod.call("ADD", &config(json!({}))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("interface \"net1\" has already a master set: br0"), "{error}");
    pod.call("ADD", &config(json!({}))).env("CNI_NETNS", "/run/netns/gone").run().error(8);
}

#[test]
fn del_needs_nothing() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    lab.sh("touch /run/netns/plain");
    let before = pod.sh("ip -o link; ip route");
    for config in [
        config(json!({})),
        config(json!({ "prevResult": null })),
        config(json!({ "vrfname": "", "table": "x" })),
        config(json!({ "vrfname": 5, "prevResult": { "ips": 5 } })),
    ] {
        for version in VERSIONS {
            let config = with(config.clone(), json!({ "cniVersion": version }));
            pod.del(&config);
            for netns in ["/run/netns/gone", "/run/netns/plain", ""] {
                pod.call("DEL", &config).env("CNI_NETNS", netns).run().silent();
            }
            pod.call("DEL", &config).without("CNI_NETNS").run().silent();
        }
    }
    assert_eq!(pod.sh("ip -o link; ip route"), before);
    assert!(!std::path::Path::new("/run/netns/gone").exists());
    let gc = with(config(json!({})), json!({ "cni.dev/valid-attachments": [] }));
    lab.plugin("vrf", "GC").stdin(gc.to_string()).run().silent();
}

#[test]
fn check_finds_an_interface_outside() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &["10.1.0.2/24"]);
    let error = pod.check(&config(json!({}))).error(999);
    assert!(error["msg"].as_str().unwrap().contains("Failed to find net1 associated to vrf blue"), "{error}");
    pod.check(&config(json!({ "prevResult": null }))).error(7);
}
