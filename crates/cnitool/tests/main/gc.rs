//! GC and STATUS.

use std::fs;

use serde_json::json;

use crate::node::{attach, lose_namespace, network};
use crate::support::{Host, failure};

const PODS: &str = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [
    {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]}},
    {"type": "second"}
]}"#;

fn host() -> Host {
    let host = Host::new();
    host.recorder("second");
    host.configure("pods.conflist", PODS);
    host
}

#[test]
fn cached_attachments_stay_and_others_are_removed() {
    let host = host();
    let [_, green, lost] = ["blue", "green", "red"].map(|name| attach(&host, name));
    // The namespaces of red and green are gone. The entry of red was lost in a crash; that of green still exists.
    let red = host.cached().into_iter().find(|name| {
        let text = fs::read_to_string(format!("/var/lib/cni/results/{name}")).unwrap();
        text.contains("/run/netns/red")
    });
    fs::remove_file(format!("/var/lib/cni/results/{}", red.unwrap())).unwrap();
    lose_namespace(&host, "red", &lost);
    lose_namespace(&host, "green", &green);
    let leases = || host.lab.sh("ls /var/lib/cni/networks/pods | grep ^10").lines().count();
    assert_eq!(leases(), 3);
    host.run("gc pods").ok();
    assert_eq!(leases(), 2);
    assert_eq!(host.cached().len(), 2);
    let deleted: Vec<String> = host.log().into_iter().filter(|line| !line.starts_with("ADD ")).collect();
    assert_eq!(deleted, [format!("DEL second {lost}  eth0")], "by name");
    host.run("check pods /run/netns/blue").ok();
    host.run("gc pods /run/netns/blue").ok();
    assert_eq!(leases(), 2, "the reference's form, with a namespace");
}

#[test]
fn all_plugins_are_called_and_all_failures_are_reported() {
    let host = host();
    host.recorder("third");
    host.configure("pods.conflist", &PODS.replace(r#"{"type": "second"}"#, r#"{"type": "second"}, {"type": "third"}"#));
    attach(&host, "blue");
    host.lab.sh("printf 'lost\\r\\neth0' >/var/lib/cni/networks/pods/10.22.0.99");
    host.fail("second", "DEL");
    host.fail("third", "DEL");
    let why = failure(&host.run("gc pods"));
    for part in
        ["collect garbage of network \"pods\": plugin \"third\": asked to fail", "plugin \"second\": asked to fail"]
    {
        assert!(why.contains(part), "{why}");
    }
    assert!(!host.lab.sh("ls /var/lib/cni/networks/pods").contains("10.22.0.99"), "the other plugins clean up");
}

#[test]
fn a_cache_that_cannot_be_listed_is_an_error() {
    let host = host();
    fs::create_dir_all("/var/lib/cni").unwrap();
    fs::write("/var/lib/cni/results", "").unwrap();
    let why = failure(&host.run("gc pods"));
    assert!(why.contains("read the directory /var/lib/cni/results: Not a directory"), "{why}");
    assert_eq!(host.log(), [""; 0]);
}

#[test]
fn networks_with_gc_disabled_or_a_version_without_gc() {
    let host = host();
    fs::create_dir_all("/var/lib/cni/networks/pods").unwrap();
    let lease = "/var/lib/cni/networks/pods/10.22.0.99";
    fs::write(lease, "").unwrap();
    host.configure("pods.conflist", &PODS.replace("\"name\"", "\"disableGC\": true, \"name\""));
    host.run("gc pods").ok();
    assert!(fs::exists(lease).unwrap());
    host.configure("pods.conflist", &PODS.replace("1.1.0", "1.0.0"));
    host.run("gc pods").ok();
    assert!(!fs::exists(lease).unwrap());
    assert_eq!(host.log(), [""; 0]);
}

#[test]
fn status_reports_whether_an_add_could_succeed() {
    let host = host();
    host.run("status pods").ok();
    assert_eq!(host.log(), ["STATUS second"]);
    host.fail("second", "STATUS");
    let why = failure(&host.run("status pods /run/netns/blue"));
    assert_eq!(why, "get the status of network \"pods\": plugin \"second\": asked to fail (by a test; code 7)");
    host.configure("pods.conflist", &PODS.replace("10.22.0.0/16", "10.22.0.0/32"));
    let why = failure(&host.run("status pods"));
    assert!(why.contains("plugin \"bridge\": "), "an error of a real plugin: {why}");
    host.configure("pods.conflist", &PODS.replace("1.1.0", "1.0.0"));
    host.run("status pods").ok();
    assert_eq!(host.log().len(), 2, "no plugin was called");
}

/// Some runtimes have no cache, or another one.
#[test]
fn live_containers_stay_even_if_they_are_not_in_the_cache() {
    let host = host();
    host.configure("pods.conflist", &network("pods", "10.22.0.0/16", &json!({})).to_string());
    let netns = host.lab.netns("other");
    let mut config = network("pods", "10.22.0.0/16", &json!({}))["plugins"][0].clone();
    config["name"] = "pods".into();
    config["cniVersion"] = "1.1.0".into();
    let bridge = |command| {
        let calling = host.lab.plugin("bridge", command).attachment("other", "eth0", &netns);
        calling.stdin(config.to_string()).run()
    };
    bridge("ADD").ok();
    fs::write("/var/lib/cni/networks/pods/10.22.0.99", "lost\r\neth0").unwrap();
    host.run("gc pods").ok();
    assert_eq!(host.lab.sh("ls /var/lib/cni/networks/pods | grep ^10"), "10.22.0.2\n");
    assert!(host.lab.sh("nft list ruleset").contains("10.22.0.2"));
    assert!(host.lab.sh("ip -o link show master br-pods").contains("veth"));
    lose_namespace(&host, "other", "other");
    host.run("gc pods").ok();
    assert_eq!(host.lab.sh("ls /var/lib/cni/networks/pods | grep -c ^10 || true"), "0\n");
}
