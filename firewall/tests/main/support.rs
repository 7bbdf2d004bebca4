//! Helpers for all tests: configurations, and the rules of the host.

use std::path::Path;

use serde_json::{Value, json};
use testing::Lab;
use testing::config::with;

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "firewall" }), keys)
}

/// Returns the rules of a chain in the table `filter`, as `iptables` or `ip6tables` lists them, without `-A CHAIN`.
pub(crate) fn rules(lab: &Lab, tool: &str, chain: &str) -> Vec<String> {
    let listing = lab.sh(&format!("{tool} -w -S {chain} 2>/dev/null || true"));
    let prefix = format!("-A {chain} ");
    listing.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

/// The first rule of the chain with the rules of containers.
pub(crate) const ADMIN: &str = "-m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN";
/// The rule that leads to the rules of containers.
pub(crate) const ENTRY: &str = "-m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD";

/// Returns the rules of an address, as the tools list them.
pub(crate) fn accepted(ip: &str) -> Vec<String> {
    let ip = if ip.contains(':') { format!("{ip}/128") } else { format!("{ip}/32") };
    vec![
        format!("-d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-s {ip} -j ACCEPT"),
        format!("-d {ip} -m conntrack --ctstate DNAT -j ACCEPT"),
    ]
}

/// Returns the rules of all containers, of both families, without the administrator's.
pub(crate) fn containers(lab: &Lab) -> Vec<String> {
    let all = ["iptables", "ip6tables"].map(|tool| rules(lab, tool, "CNI-FORWARD")).concat();
    all.into_iter().filter(|rule| !rule.contains("admin overrides")).collect()
}

/// Returns the rules for these addresses. Those of IPv4 must come first.
pub(crate) fn accepted_all(ips: &[&str]) -> Vec<String> {
    ips.iter().flat_map(|ip| accepted(ip)).collect()
}

/// Returns everything in nf_tables, to find out whether something has changed.
pub(crate) fn ruleset(lab: &Lab) -> String {
    lab.sh("nft list ruleset 2>/dev/null")
}

/// Adds a lease as `host-local` does.
pub(crate) fn lease(network: &str, ip: &str, id: &str) {
    let dir = Path::new("/var/lib/cni/networks").join(network);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(ip), format!("{id}\r\neth0")).unwrap();
}

/// Returns the settings of all ports of bridges.
pub(crate) fn ports(lab: &Lab) -> String {
    lab.sh("bridge -d link show")
}

/// Returns the ports of isolated containers.
pub(crate) fn isolated(lab: &Lab) -> Vec<String> {
    let listing = lab.sh("nft -j list set bridge cni_isolation ports 2>/dev/null || echo '{}'");
    let listing: Value = serde_json::from_str(&listing).unwrap();
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let elements = objects.filter_map(|object| object["set"]["elem"].as_array()).flatten();
    let mut keys: Vec<String> = elements.map(|found| found["elem"]["val"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    keys
}
