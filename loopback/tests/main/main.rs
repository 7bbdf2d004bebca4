//! Black-box tests of `loopback` with the real kernel, compared with the reference.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod commands;
mod reference;

use std::path::Path;

use serde_json::json;
use testing::{Lab, Process};

/// Returns a configuration with `version` as its `cniVersion`, or without one if `version` is empty.
fn config(version: &str) -> String {
    if version.is_empty() {
        return json!({"name": "lo", "type": "loopback"}).to_string();
    }
    json!({"cniVersion": version, "name": "lo", "type": "loopback"}).to_string()
}

/// Prepares a call of the plugin for container `c1`, with `lo` as the interface name, as kubelet does.
fn call(lab: &Lab, command: &str, netns: &Path) -> Process {
    lab.attach("loopback", command, netns).env("CNI_IFNAME", "lo").stdin(config("1.1.0"))
}

/// Returns whether `lo` is up in a namespace under /run/netns.
fn is_up(lab: &Lab, netns: &str) -> bool {
    lab.ip(&format!("-n {netns} link show dev lo"))[0]["flags"].as_array().unwrap().contains(&"UP".into())
}
