//! Black-box tests of the `ptp` plugin: real programs, real kernel, real traffic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test that fails should stop and say where"
)]

mod add;
mod bad;
mod del;
mod suite;
mod traffic;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Scripted};

/// Returns a configuration with the scripted IPAM plugin.
fn scripted(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "ptp", "ipam": { "type": Scripted::NAME } }), more)
}

/// Returns a dual-stack configuration with `host-local` and default routes.
fn dual_stack(more: Value) -> Value {
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    with(scripted(json!({ "ipam": ipam })), more)
}

/// Asserts that no attachment has left anything on the host.
#[track_caller]
fn assert_clean(lab: &Lab) {
    let rules = lab.sh("nft list ruleset; iptables-save -t nat; ip6tables-save -t nat");
    assert!(!rules.contains("net1") && !rules.contains("CNI-"), "{rules}");
    assert_eq!(lab.sh("ip -o link show type veth | grep -v uplink || true"), "");
    assert_eq!(lab.sh("ip route; ip -6 route | grep -v fe80: || true").matches("veth").count(), 0);
    assert_eq!(lab.sh("find /var/lib -name '10.*' -o -name 'fd*'"), "");
}
