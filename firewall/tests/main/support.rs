//! Helpers for all tests: configurations, and the rules of the host.

use std::net::IpAddr;
use std::path::Path;

use cni::AttachmentKey;
use linux::ip::Cidr;
use linux::iptables::{ConnectionState, FAMILIES, Match, Rule, Target};
use linux::netlink::nft::{Edit, Nftables};
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

/// The rule that accepts the packets of all containers.
pub(crate) const MARKED: &str =
    "-m comment --comment \"accepted by table inet cni_firewall\" -m mark --mark 0x1000/0x1000 -j ACCEPT";

/// Returns the rules of an address, as the reference and earlier versions added them, and the tools list them. The
/// reference does not add the last one.
pub(crate) fn address_rules(ip: &str) -> Vec<String> {
    let ip = if ip.contains(':') { format!("{ip}/128") } else { format!("{ip}/32") };
    vec![
        format!("-d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-s {ip} -j ACCEPT"),
        format!("-d {ip} -m conntrack --ctstate DNAT -j ACCEPT"),
    ]
}

/// Adds the rules of an address as earlier versions did: with the comment of the attachment as their mark, which the
/// tools do not show and lose when they save and restore; or without. ADD must have created the chains.
pub(crate) fn add_address_rules(ip: &str, owner: Option<&str>) {
    let comment = owner.map(|id| AttachmentKey { network: "net1", container: id, ifname: "eth0" }.comment());
    let ip: IpAddr = ip.parse().unwrap();
    let [v4, v6] = &FAMILIES;
    let table = if ip.is_ipv4() { v4 } else { v6 }.table("filter");
    let to = |state| vec![Match::destination(ip), Match::Connection(state)];
    let rules =
        [to(ConnectionState::Established), vec![Match::source(Cidr::host(ip))], to(ConnectionState::Translated)];
    let edits = rules.map(|matches| {
        let rule = Rule { mark: comment.as_deref(), ..Rule::new("CNI-FORWARD", matches, Target::Accept) };
        Edit::add_rule(&rule.spec(table))
    });
    Nftables::open().unwrap().apply(&edits).unwrap();
}

/// Returns the accepted addresses, those of IPv4 first, and after them all rules for single addresses. Asserts that
/// nothing else is left without an address.
pub(crate) fn containers(lab: &Lab) -> Vec<String> {
    let members = |set: &str| elements(lab, &format!("inet cni_firewall {set}"));
    let mut ips: Vec<IpAddr> = ["ipv4", "ipv6"].map(members).concat().iter().map(|ip| ip.parse().unwrap()).collect();
    ips.sort();
    let [attachments, versions] = ["attachments", "versions"].map(|set| members(set).len());
    assert_eq!(attachments, versions);
    let waiting = lab.sh("nft list set inet cni_firewall waiting 2>/dev/null || true");
    assert!(attachments > 1 || !waiting.contains("elements"), "{waiting}");
    assert_eq!(attachments == 0, ips.is_empty());
    let all = ["iptables", "ip6tables"].map(|tool| rules(lab, tool, "CNI-FORWARD")).concat();
    let rules = all.into_iter().filter(|rule| !rule.contains("admin overrides") && rule != MARKED);
    ips.iter().map(ToString::to_string).chain(rules).collect()
}

/// Returns these addresses as [`containers`] does.
pub(crate) fn accepted(ips: &[&str]) -> Vec<String> {
    let mut ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
    ips.sort();
    ips.iter().map(ToString::to_string).collect()
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
    elements(lab, "bridge cni_isolation ports")
}

/// Returns the keys of a set, sorted.
fn elements(lab: &Lab, set: &str) -> Vec<String> {
    let listing = lab.sh(&format!("nft -j list set {set} 2>/dev/null || echo '{{}}'"));
    let listing: Value = serde_json::from_str(&listing).unwrap();
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let elements = objects.filter_map(|object| object["set"]["elem"].as_array()).flatten();
    // Without a comment, an element is only its key.
    let key = |found: &Value| found["elem"]["val"].as_str().or(found.as_str()).unwrap().to_owned();
    let mut keys: Vec<String> = elements.map(key).collect();
    keys.sort();
    keys
}
