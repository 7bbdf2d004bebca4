//! Tests of the `host-device` plugin. A device is a veth here, which the kernel deletes with its namespace; `pci` has
//! tests with network cards.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod add;
mod bad;
mod del;
mod hardware;
mod pci;
mod restore;
mod suite;
mod upgrade;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

/// Creates a host with the device `nic`, whose other end is `far`.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.sh("ip link add nic address 02:00:00:00:00:01 type veth peer name far; ip link set far up");
    lab
}

/// Returns a network that gives `nic` to a container.
fn config(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "host-device", "device": "nic" }), more)
}

fn ipam() -> Value {
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]]);
    json!({ "ipam": { "type": "host-local", "ranges": ranges } })
}

/// Returns the names of the host's links.
fn links(lab: &Lab) -> Vec<String> {
    let links = lab.ip("link show");
    links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

fn has(lab: &Lab, name: &str) -> bool {
    links(lab).iter().any(|link| link == name)
}

/// Asserts that the host has the device, without traces of a container.
#[track_caller]
fn assert_given_back(lab: &Lab, what: &str) {
    let link = &lab.ip("link show nic")[0];
    assert_eq!(link["ifname"], "nic", "{what}: {:?}", links(lab));
    assert_eq!((&link["ifalias"], &link["altnames"]), (&Value::Null, &Value::Null), "{what}");
    assert_eq!(lab.sh("ls -A /run/cni0/host-device 2>/dev/null || true"), "", "{what}");
}

/// Moves the device to the host under another name, as the kernel does when the namespace of the container is gone.
fn return_as(pod: &Pod<'_>, name: &str) {
    let host = pod.lab.network();
    pod.sh(&format!("ip link set eth0 down; ip link set eth0 name {name} netns {}", host.display()));
}
