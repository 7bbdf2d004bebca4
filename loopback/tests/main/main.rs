//! Black-box tests of `loopback`: the program, the kernel, and the reference beside it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod commands;
mod reference;

use std::path::Path;

use cni::testing::{Calling, Lab};
use serde_json::json;

/// A configuration in `version`; the empty one names none.
fn config(version: &str) -> String {
    if version.is_empty() {
        return json!({"name": "lo", "type": "loopback"}).to_string();
    }
    json!({"cniVersion": version, "name": "lo", "type": "loopback"}).to_string()
}

/// A call of our plugin for container `c1`, with `lo` as kubelet asks for it.
fn call(lab: &Lab, command: &str, netns: &Path) -> Calling {
    lab.attach("loopback", command, netns).env("CNI_IFNAME", "lo").stdin(config("1.1.0"))
}

/// Is `lo` of a namespace under /run/netns up?
fn is_up(lab: &Lab, netns: &str) -> bool {
    lab.ip(&format!("-n {netns} link show dev lo"))[0]["flags"].as_array().unwrap().contains(&"UP".into())
}
