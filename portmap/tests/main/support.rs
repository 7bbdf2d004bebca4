//! Helpers for all tests: configurations, leases, and what is published on the host.

use std::fs;

use linux::netlink::nft::{Edit, Family, Nftables, Table};
use serde_json::{Value, json};
use testing::Lab;

/// Returns a configuration that publishes `ports`, each as `HOST:CONTAINER/PROTOCOL`, or `HOSTIP
/// HOST:CONTAINER/PROTOCOL`.
pub(crate) fn config(ports: &[&str]) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": ports.iter().map(|port| mapping(port)).collect::<Vec<_>>() },
    })
}

fn mapping(text: &str) -> Value {
    let (host_ip, text) = text.split_once(' ').unwrap_or(("", text));
    let (ports, protocol) = text.split_once('/').unwrap();
    let (host, container) = ports.split_once(':').unwrap();
    let mut mapping = json!({
        "hostPort": host.parse::<i64>().unwrap(),
        "containerPort": container.parse::<i64>().unwrap(),
        "protocol": protocol,
    });
    if !host_ip.is_empty() {
        mapping["hostIP"] = json!(host_ip);
    }
    mapping
}

/// Writes the lease of an address, as host-local does.
pub(crate) fn lease(network: &str, ip: &str, container: &str, ifname: &str) {
    let dir = format!("/var/lib/cni/networks/{network}");
    fs::create_dir_all(&dir).unwrap();
    fs::write(format!("{dir}/{ip}"), format!("{container}\r\n{ifname}")).unwrap();
    fs::write(format!("{dir}/last_reserved_ip.0"), ip).unwrap();
}

/// Makes all attachments look as if an earlier version had added them, which had no inventory: their entries in the set
/// `attachments` have no note.
pub(crate) fn forget_inventory(lab: &Lab) {
    let table = Table { family: Family::Inet, name: "cni_hostport" };
    let mut nft = Nftables::open().unwrap();
    let mut heads = nft.elements(table.set("attachments")).unwrap();
    let mut edits = vec![Edit::flush_set(table.set("inventory")), Edit::flush_set(table.set("attachments"))];
    heads.iter_mut().for_each(|head| head.userdata.note.clear());
    edits.extend(Edit::create_elements(table.set("attachments"), &heads));
    nft.apply(&edits).unwrap();
    assert!(!heads.is_empty() && !lab.sh("nft list map inet cni_hostport inventory").contains("elements"));
}

/// Returns the value of `route_localnet` of a link.
pub(crate) fn route_localnet(lab: &Lab, link: &str) -> String {
    lab.sh(&format!("sysctl -n net.ipv4.conf.{link}.route_localnet")).trim().to_owned()
}

/// Asserts that no attachment has an entry.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    assert_eq!(entries(lab), [] as [&str; 0]);
}

/// Returns the elements of all maps and sets of our table, one line each; empty if there are none.
pub(crate) fn entries(lab: &Lab) -> Vec<String> {
    let listing = table(lab);
    let is_of_attachment =
        |line: &&str| line.contains(", net: ") || line.contains(" : goto ") || line.contains(" : return");
    listing.lines().filter(|line| line.contains(" comment \"")).filter(is_of_attachment).map(str::to_owned).collect()
}

/// Returns the published ports, sorted, such as `tcp 8080 to 10.1.0.2 80 (net: net1, if: eth0, id: a)`. The host
/// address comes first if there is one.
pub(crate) fn published(lab: &Lab) -> Vec<String> {
    let listing = lab.sh("nft -j list table inet cni_hostport 2>/dev/null || true");
    let listing: Value = serde_json::from_str(&listing).unwrap_or_default();
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let maps =
        objects.map(|object| &object["map"]).filter(|map| map["name"].as_str().is_some_and(|n| n.contains("_ports")));
    let elements = maps.filter_map(|map| map["elem"].as_array()).flatten();
    let words = |concatenation: &Value| {
        let words = concatenation["concat"].as_array().unwrap().iter();
        words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect::<Vec<_>>().join(" ")
    };
    let mut all: Vec<String> = elements
        .map(|element| {
            // `nft` adds a level if there is a comment.
            let key = if element[0]["elem"].is_null() { &element[0] } else { &element[0]["elem"]["val"] };
            let comment = element[0]["elem"]["comment"].as_str().unwrap_or_default();
            let owner = comment.split_once(", ").map_or("", |(_, owner)| owner);
            format!("{} to {} ({owner})", words(key), words(&element[1]))
        })
        .collect();
    all.sort();
    all
}

/// Returns the line of [`published`] for a port of a container on `net1`.
pub(crate) fn port(mapping: &str, id: &str) -> String {
    format!("{mapping} (net: net1, if: eth0, id: {id})")
}

/// Returns our table as `nft` shows it; empty if it does not exist.
pub(crate) fn table(lab: &Lab) -> String {
    lab.sh("nft list table inet cni_hostport 2>/dev/null || true")
}
