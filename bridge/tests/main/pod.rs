//! Helpers for all tests: configurations, and what is left of attachments.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Scripted};

/// Returns a configuration with the scripted IPAM plugin, with the keys of `more` added or replaced.
pub(crate) fn layer3(more: Value) -> Value {
    with(layer2(json!({ "isGateway": true, "ipam": { "type": Scripted::NAME } })), more)
}

/// Returns a configuration without IPAM, with the keys of `more` added or replaced.
pub(crate) fn layer2(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0" }), more)
}

/// Returns the name of the host veth.
pub(crate) fn host_veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// Replaces the spoof check of the only attachment that has one by the chains of the reference and of earlier versions.
pub(crate) fn check_by_chains(pod: &Pod<'_>, result: &Value) {
    let (port, mac) = (host_veth(result), result["interfaces"][2]["mac"].as_str().unwrap());
    let comment = format!("comment \"macspoofchk-{}-{}\"", pod.id, pod.ifname);
    let chain = format!("bridge nat cni-br-iface-{}-{}", pod.id, pod.ifname);
    let jump = |to: &str| format!("jump {}", to.trim_start_matches("bridge nat "));
    pod.lab.sh(&format!(
        "nft 'delete table bridge cni_spoofcheck
              add table bridge nat
              add chain bridge nat PREROUTING {{ type filter hook prerouting priority -300; }}
              add chain {chain}-mac
              add chain {chain}
              add rule bridge nat PREROUTING iifname {port} {} {comment}
              add rule {chain} {} {comment}
              add rule {chain}-mac ether saddr {mac} return {comment}
              add rule {chain}-mac drop {comment}'",
        jump(&chain),
        jump(&format!("{chain}-mac")),
    ));
}

/// Asserts that no ports, rules or leases are left after a failed ADD or a DEL.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    let links = lab.sh("ip -o link show type veth");
    let veths: Vec<_> = links.lines().filter(|line| !line.contains("uplink")).collect();
    assert!(veths.is_empty(), "left: {veths:?}");
    let rules = lab.sh("nft -a list ruleset");
    for trace in [", net: ", "macspoofchk", "cni-br-iface", "CNI-"] {
        assert!(!rules.contains(trace), "left: {rules}");
    }
    let leases = lab.sh("find /var/lib/cni -type f ! -name lock ! -name 'last_reserved*' 2>/dev/null || true");
    assert_eq!(leases, "", "left");
}
