//! Networks of `host-device`, whose containers have devices of the host.

use serde_json::{Value, json};

use crate::doctor::problems;
use crate::node::{attach, host, json, lose_namespace, page};

/// Returns the level and the text of the finding about the device.
fn finding(answer: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let finding = answer["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "device").unwrap();
    (text(&finding["level"]), text(&finding["what"]))
}

#[test]
fn devices_are_shown_and_given_back() {
    let host = host("10.254.31.0/24");
    host.lab.sh("ip link add nic type veth peer name far; ip link set far up");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.254.31.0/24" }]] });
    let plugin = json!({ "type": "host-device", "device": "nic", "ipam": ipam });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &list.to_string());
    let doctor = || finding(&json(&host, "doctor --json"));
    assert_eq!(doctor(), ("ok".to_owned(), "nic is on the host".to_owned()));

    let lost = attach(&host, "lost");
    assert_eq!(doctor(), ("ok".to_owned(), format!("\"nic\" is in container {lost}")));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    let shown = page(&host.run("show"));
    assert!(shown.contains("host-device on nic") && shown.contains("nic -> eth0"), "{shown}");
    let devices = json(&host, "show --json")["otherNetworks"][0]["devices"].clone();
    assert_eq!((&devices[0]["device"], &devices[0]["container"]), (&json!("nic"), &json!(lost)), "{devices}");

    // As the kernel gives back a physical device of a namespace that is gone.
    let network = host.lab.network().display().to_string();
    host.lab.sh(&format!("ip -n lost link set eth0 down; ip -n lost link set eth0 name net1 netns {network}"));
    lose_namespace(&host, "lost", &lost);
    assert!(!problems(&json(&host, "doctor --json")).is_empty());
    page(&host.run("prune --force pods"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert_eq!(doctor(), ("ok".to_owned(), "nic is on the host".to_owned()));

    host.lab.sh("ip link del nic");
    let missing = "failed to find host device: Link not found: \"device\" \"nic\"";
    assert_eq!(doctor(), ("fail".to_owned(), missing.to_owned()));
}
