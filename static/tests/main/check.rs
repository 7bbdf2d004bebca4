//! CHECK and STATUS.

use serde_json::json;
use testing::Lab;

use crate::support::Net;

#[test]
fn check_compares_the_addresses_with_the_result() {
    let lab = Lab::new();
    let net = Net::new(
        &lab,
        json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}]}),
    );
    let result = net.add("c1");
    net.check("c1", &result).ok();

    let mut with_gateway = result.clone();
    with_gateway["ips"][1]["gateway"] = json!("fd00::1");
    net.check("c1", &with_gateway).ok();

    let mut other = result.clone();
    other["ips"][0]["gateway"] = json!("10.1.0.2");
    let failed = "static: Failed to match addr 10.1.0.5 on interface eth0";
    assert_eq!(net.check("c1", &other).error(999)["msg"], failed);

    // The reference does not notice this.
    let mut missing = result.clone();
    missing["ips"].as_array_mut().unwrap().remove(0);
    assert_eq!(net.check("c1", &missing).error(999)["msg"], failed);

    assert_eq!(net.call("CHECK", "c1").error(7)["msg"], "Required prevResult missing");
}

#[test]
fn status_needs_a_directory_for_leases() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!({"dataDir": "/var/lib/cni"}));
    lab.sh("mkdir /var/lib/cni; mount -t tmpfs -o ro tmpfs /var/lib/cni");
    // The runtime passes addresses only for attachments.
    net.call("STATUS", "c1").ok();
    let error = net.with_ipam("leases", json!(true)).call("STATUS", "c1").error(50);
    assert!(error["msg"].as_str().unwrap().contains("/var/lib/cni"), "{error}");
    net.with_ipam("leases", json!(true)).with_ipam("dataDir", json!("/run/leases")).call("STATUS", "c1").ok();
    let bad = net.with_ipam("addresses", json!([{"address": "10.1.0.5"}]));
    bad.call("STATUS", "c1").error(7);
    assert_eq!(lab.sh("find /run -type f"), "");
}
