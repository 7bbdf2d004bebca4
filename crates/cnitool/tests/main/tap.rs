//! Networks whose containers have a TAP device: nothing of it is on the host, but leases are.

use serde_json::{Value, json};
use testing::config::with;

use crate::doctor::problems;
use crate::node::{attach, host, json, page};
use crate::repair::states;

/// Nothing of the devices is on the host, and nothing of the addresses of `static`.
#[test]
fn attachments_are_shown() {
    let host = host("10.254.44.0/24");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "10.254.44.7/24" }] });
    let keys = json!({ "type": "tap", "owner": 1000, "group": 107, "multiQueue": true, "vnetHdr": true, "ipam": ipam });
    let list = |plugin: Value| json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] }).to_string();
    host.configure("10-pods.conflist", &list(keys.clone()));
    assert!(page(&host.run("show pods")).contains("no containers"));
    let blue = attach(&host, "blue");
    let text = page(&host.run("show"));
    let row = text.lines().find(|line| line.contains("10.254.44.7")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("eth0") && text.contains("tap, multi-queue, vnet_hdr, owner 1000, group 107"), "{text}");
    let network = json(&host, "show --json")["otherNetworks"][0].clone();
    let what = "tap, multi-queue, vnet_hdr, owner 1000, group 107";
    assert_eq!(network["link"], json!({ "what": what, "master": null }));
    let expected = json!({ "container": blue, "interface": "eth0", "state": "alive", "addresses": ["10.254.44.7"] });
    assert_eq!(network["attachments"], json!([expected]));
    host.lab.sh("ip netns del blue");
    assert!(page(&host.run("show")).contains("gone"));
    // What the configuration says of the container's side, and a plugin without properties.
    let described = |plugin: Value| {
        host.configure("10-pods.conflist", &list(plugin));
        json(&host, "show --json")["otherNetworks"][0]["link"]["what"].clone()
    };
    assert_eq!(described(json!({ "type": "tap", "bridge": "br7" })), "tap, port of br7 in the container");
    assert_eq!(described(with(keys, json!({ "type": "dummy" }))), "dummy");
}

#[test]
fn attachments_are_checked_and_pruned() {
    let host = host("10.254.43.0/24");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.254.43.0/24" }]] });
    let plugin = json!({ "type": "tap", "owner": 1000, "ipam": ipam });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &list.to_string());
    assert_eq!(host.run("validate").status, Some(0));
    attach(&host, "blue");
    attach(&host, "lost");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert_eq!(states(&json(&host, "repair --json")), ["ok", "ok"]);

    // CHECK finds what a program did to the device.
    host.lab.sh("ip -n blue link set eth0 down");
    assert!(!problems(&json(&host, "doctor --json")).is_empty());
    host.lab.sh("ip -n blue link set eth0 up; ip -n blue route add default via 10.254.43.1 || true");
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    let found = json(&host, "doctor --json");
    assert!(found.to_string().contains("cnitool prune pods"), "{found:#}");
    assert_eq!(host.run("prune --force pods").status, Some(0));
    assert_eq!(host.lab.sh("ls /var/lib/cni/networks/pods | grep '^10'"), "10.254.43.2\n");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}
