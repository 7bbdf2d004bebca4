//! Beside the reference: its plugin with our daemon, and its daemon with our plugin.

use std::os::unix::net::UnixStream;

use serde_json::json;
use testing::config::with;
use testing::dhcp::{self, SOCKET, Wire, daemon};
use testing::{Lab, Pod, reference, wait_until};

use crate::support::{address, lan};

#[test]
fn its_plugin_is_told_to_use_ours() {
    let test = "reference::its_plugin_is_told_to_use_ours";
    let lab = &Lab::new();
    if reference("dhcp", test).is_none() {
        return;
    }
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    for command in ["ADD", "DEL"] {
        let config = with(lan(json!({})), json!({"cniVersion": "1.0.0", "type": "dhcp"}));
        let error = pod.call_reference(command, &config).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains("needs the plugin dhcp of cni0"), "{error}");
    }
}

#[test]
fn its_daemon_is_recognised_and_its_lease_taken_over() {
    let test = "reference::its_daemon_is_recognised_and_its_lease_taken_over";
    let lab = &Lab::new();
    let Some(program) = reference("dhcp", test) else { return };
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq(test, &["--dhcp-option=3,10.66.0.1"]) else { return };
    let theirs = dhcp::start(lab, "reference", program, &["daemon"]);
    wait_until("the daemon of the reference", || UnixStream::connect(SOCKET).is_ok());
    let pod = Pod::new(lab, "c1");
    let config = with(lan(json!({})), json!({"cniVersion": "1.0.0"}));
    let result = pod.call_reference("ADD", &config).run().ok();
    let ours = Pod::new(lab, "c2");
    let error = ours.call("ADD", &config).run().error(11);
    assert!(error["msg"].as_str().unwrap().contains("the DHCP daemon of the reference listens"), "{error}");
    ours.del(&config);

    theirs.end();
    let _daemon = daemon(lab, &[]);
    assert!(wire.leases().contains(&address(&result)), "its daemon gives nothing back");
    pod.check_result(&config, &result).ok();
    pod.del(&with(config, json!({ "prevResult": result })));
    wait_until("the server to take the address back", || wire.leases().is_empty());
}
