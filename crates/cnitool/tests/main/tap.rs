//! Networks whose containers have a TAP device: nothing of it is on the host, but leases are.

use serde_json::json;

use crate::doctor::problems;
use crate::node::{attach, host, json};
use crate::repair::states;

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
