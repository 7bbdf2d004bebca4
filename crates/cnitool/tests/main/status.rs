//! `cnitool status`: what an add would say, through the whole list.

use std::fs;

use serde_json::json;

use crate::doctor::only_problem;
use crate::node::{attach, host, network};
use crate::support::failure;

/// A plugin does not know its place in the list, so its own STATUS succeeds.
#[test]
fn status_reports_a_list_whose_order_makes_every_add_fail() {
    let host = host("10.61.0.0/24");
    host.lab.netns("blue");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    let bridge = network("pods", "10.61.0.0/24", &json!({}))["plugins"][0].clone();
    let what = "it needs the result of an earlier plugin, and is the first";
    for (kind, version) in [("portmap", "1.1.0"), ("firewall", "1.1.0"), ("tuning", "1.0.0"), ("bandwidth", "0.4.0")] {
        let plugins = json!([{ "type": kind }, bridge]);
        let list = json!({ "cniVersion": version, "name": "pods", "plugins": plugins });
        host.configure("10-pods.conflist", &list.to_string());
        assert!(failure(&host.run("add pods blue")).contains(&format!("plugin {kind:?}: ")));
        let why = failure(&host.run("status pods"));
        assert!(why.starts_with(&format!("get the status of network \"pods\": plugin {kind:?}: {what}")), "{why}");
        assert!(why.ends_with("code 7)"), "{why}");
        let found = only_problem(&host, "config", "fail");
        assert!(found.contains(what), "{found}");
    }
}

#[test]
fn a_resolver_file_that_is_missing_makes_the_network_not_ready() {
    let host = host("10.61.1.0/24");
    let ipam =
        json!({ "type": "host-local", "ranges": [[{ "subnet": "10.61.1.0/24" }]], "resolvConf": "/run/resolv.conf" });
    host.configure("10-pods.conflist", &network("pods", "", &json!({ "ipam": ipam })).to_string());
    fs::write("/run/resolv.conf", "nameserver 192.0.2.53\n").unwrap();
    attach(&host, "blue");
    host.run("status pods").ok();
    fs::remove_file("/run/resolv.conf").unwrap();
    assert!(failure(&host.run("status pods")).contains("read \"resolvConf\" \"/run/resolv.conf\": No such file"));
    let found = only_problem(&host, "status", "fail");
    assert!(found.contains("/run/resolv.conf") && found.contains("must name a readable file"), "{found}");
}
