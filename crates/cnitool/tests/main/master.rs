//! Networks whose containers have a link on top of one of the host.

use serde_json::{Value, json};
use testing::config::with;
use testing::needs_link;

use crate::node::{attach, host, json, page};
use crate::support::Host;

/// A host with the network `pods` of the plugin `macvlan`, and the link `uplink`.
pub(crate) fn with_master(subnet: &str) -> Host {
    on_master(subnet, json!({ "type": "macvlan" }))
}

/// The same, with these keys of the plugin.
pub(crate) fn on_master(subnet: &str, keys: Value) -> Host {
    let host = host(subnet);
    host.lab.sh("ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up");
    let plugin = json!({ "master": "uplink", "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]] } });
    let plugin = with(plugin, keys);
    let network = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &network.to_string());
    host
}

#[test]
fn the_master_and_its_containers_are_shown() {
    let host = with_master("10.254.1.0/24");
    let text = page(&host.run("show"));
    assert!(text.contains("macvlan, mode bridge on uplink") && text.contains("no containers"), "{text}");
    let blue = attach(&host, "blue");
    let text = page(&host.run("show pods"));
    let row = text.lines().find(|line| line.contains("10.254.1.2")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("eth0"), "{text}");
    let answer = json(&host, "show --json");
    let network = &answer["otherNetworks"][0];
    let master = json!({ "name": "uplink", "inContainer": false });
    assert_eq!(network["link"], json!({ "what": "macvlan, mode bridge", "master": master }));
    let expected = json!({ "container": blue, "interface": "eth0", "state": "alive", "addresses": ["10.254.1.2"] });
    assert_eq!(network["attachments"], json!([expected]));
    let text = page(&host.run("networks"));
    assert!(text.contains("macvlan, mode bridge on uplink"), "{text}");
    assert_eq!(json(&host, "networks --json")["networks"][0]["link"]["master"]["name"], "uplink");
}

/// Returns the findings of the check of the master, each with its level and text.
fn findings(host: &Host) -> Vec<(String, String)> {
    let answer = json(host, "doctor --json");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = answer["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == "master");
    findings.map(|finding| (text(&finding["level"]), text(&finding["what"]))).collect()
}

#[test]
fn doctor_finds_what_stops_a_master() {
    let host = with_master("10.254.2.0/24");
    attach(&host, "blue");
    let found = |level: &str, what: &str| vec![(level.to_owned(), what.to_owned())];
    assert_eq!(findings(&host), found("ok", "uplink is up"));
    for (damage, undo, level, what) in [
        ("ip link set far down", "ip link set far up", "warn", "uplink has no carrier: containers have no connection"),
        ("ip link set uplink down", "ip link set uplink up", "fail", "uplink is down: containers have no connection"),
        (
            "ip link set uplink name gone",
            "ip link set gone name uplink",
            "fail",
            "find master \"uplink\": Link not found",
        ),
    ] {
        host.lab.sh(damage);
        assert_eq!(findings(&host), found(level, what), "{damage}");
        host.lab.sh(undo);
    }
}

/// The kernel gives all frames of a port to its bridge.
#[test]
fn doctor_finds_a_master_that_is_a_port() {
    let host = with_master("10.254.3.0/24");
    host.lab.sh("ip link add br7 type bridge; ip link set uplink master br7");
    let expected = ("fail".to_owned(), "uplink is a port of a bridge, which gets all its frames".to_owned());
    assert_eq!(findings(&host), [expected]);
}

#[test]
fn a_container_that_is_gone_is_pruned() {
    let host = with_master("10.254.4.0/24");
    attach(&host, "blue");
    attach(&host, "lost");
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    assert_eq!(host.run("prune --force").status, Some(0));
    let leases = host.lab.sh("ls /var/lib/cni/networks/pods");
    assert!(leases.contains("10.254.4.2") && !leases.contains("10.254.4.3"), "{leases}");
}

/// Containers on one link reach each other, so that each needs an address of its own.
#[test]
fn doctor_finds_an_address_twice() {
    let host = with_master("10.254.35.0/24");
    attach(&host, "blue");
    attach(&host, "red");
    let twice = || {
        let answer = json(&host, "doctor --json");
        let found = answer["findings"].as_array().unwrap().iter().map(|finding| finding["what"].as_str().unwrap());
        found.filter(|what| what.contains("interfaces on top of uplink")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(twice(), [""; 0]);
    host.lab.sh("ip -n red address add 10.254.35.2/24 dev eth0");
    let found = twice();
    assert!(found.len() == 1 && found[0].starts_with("10.254.35.2 is on 2 interfaces"), "{found:?}");
    host.lab.sh("ip -n red address del 10.254.35.2/24 dev eth0; ip address add 10.254.35.3/24 dev uplink");
    let found = twice();
    assert!(found.len() == 1 && found[0].starts_with("10.254.35.3 is on 2 interfaces"), "{found:?}");
}

/// Loses a container, and what the runtime and the IPAM plugin know of it.
pub(crate) fn forget(host: &Host, name: &str) {
    host.lab.sh(&format!(
        "umount /run/netns/{name}; rm /run/netns/{name} /var/lib/cni/results/*; find /var/lib/cni/networks -name '10.*' -delete"
    ));
}

/// A lost container takes its interface with it, but not the route of the host to it.
#[test]
fn the_way_to_a_container_that_is_gone_is_pruned() {
    let host = on_master("10.254.36.0/24", json!({ "type": "macvlan", "hostAccess": ["10.254.36.200"] }));
    let ways = || host.lab.sh("ip route | grep -o '10.254.36.[0-9]* dev mv' || true");
    attach(&host, "blue");
    attach(&host, "lost");
    assert_eq!(ways(), "10.254.36.2 dev mv\n10.254.36.3 dev mv\n");
    host.lab.sh("umount /run/netns/lost; rm /run/netns/lost");
    assert_eq!(host.run("prune --force").status, Some(0));
    assert_eq!(ways(), "10.254.36.2 dev mv\n");
    host.lab.sh("umount /run/netns/blue; rm /run/netns/blue");
    assert_eq!(host.run("prune --force").status, Some(0));
    assert_eq!(ways() + &host.lab.sh("ip -o link show type macvlan"), "");
}

/// Returns the findings about links that no container needs, each with its command.
fn unneeded(host: &Host) -> Vec<(String, String)> {
    let answer = json(host, "doctor --json");
    let findings = answer["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == "master");
    let unneeded = findings.filter(|finding| finding["level"] == "warn");
    unneeded.map(|found| (found["what"].to_string(), found["command"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn doctor_finds_a_link_of_the_host_that_no_container_needs() {
    let host = on_master("10.254.37.0/24", json!({ "type": "macvlan", "hostAccess": ["10.254.37.200"] }));
    attach(&host, "blue");
    assert_eq!(unneeded(&host), []);
    // The address is evidence enough, without a result in the cache.
    host.lab.sh("rm /var/lib/cni/results/*");
    assert_eq!(unneeded(&host), []);
    host.lab.sh("touch /var/lib/cni/results/x; umount /run/netns/blue; rm /run/netns/blue");
    let [(what, command)] = &unneeded(&host)[..] else { panic!("{}", json(&host, "doctor --json")) };
    assert!(what.contains("was created for containers, and none uses it"), "{what}");
    assert!(command.starts_with("ip link delete mv"), "{command}");
}

#[test]
fn doctor_finds_a_vlan_link_that_no_container_needs() {
    let host = on_master("10.254.38.0/24", json!({ "type": "vlan", "vlanId": 5, "shared": true }));
    if !needs_link("doctor_finds_a_vlan_link_that_no_container_needs", "link uplink type vlan id 9") {
        return;
    }
    attach(&host, "blue");
    attach(&host, "red");
    assert_eq!(unneeded(&host), []);
    host.lab.sh("ip netns del blue");
    assert_eq!(unneeded(&host), []);
    forget(&host, "red");
    testing::wait_until("the kernel to delete the namespaces", || {
        host.lab.sh("bridge fdb show dev uplink.5 | grep -v '33:33\\|01:00' || true").is_empty()
    });
    let [(_, command)] = &unneeded(&host)[..] else { panic!("{}", json(&host, "doctor --json")) };
    assert_eq!(command, "ip link delete uplink.5");
    host.lab.sh(command);
    assert_eq!(unneeded(&host), []);
    // One of the administrator is not mentioned.
    host.lab.sh("ip link add link uplink name uplink.5 type vlan id 5; ip link set uplink.5 up");
    assert_eq!(unneeded(&host), []);
}
