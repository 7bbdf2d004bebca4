//! Ports that the reference, since version 1.6.0, publishes with nftables: CHECK accepts them, DEL and GC remove them.

use std::fs;

use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod};

use crate::support::{config, lease};
use crate::upgrade::{collect, del_without_result};

/// Adds the rules of the reference with nftables for a container, as version 1.9.1 does.
pub(crate) fn add_reference_rules(lab: &Lab, id: &str, port: u16, ips: &[&str]) {
    for ip in ips {
        let (family, local) = if ip.contains(':') { ("ip6", "") } else { ("ip", "127.0.0.1") };
        let target = if ip.contains(':') { format!("[{ip}]:80") } else { format!("{ip}:80") };
        let local = match local {
            "" => String::new(),
            local => format!(
                "add rule ip cni_hostport masquerading ip saddr {local} ip daddr {ip} masquerade comment \"{id}\""
            ),
        };
        lab.sh(&format!(
            "nft -f - <<END
add table {family} cni_hostport {{ comment \"CNI portmap plugin\"; }}
add chain {family} cni_hostport hostports
add chain {family} cni_hostport hostip_hostports
add chain {family} cni_hostport hostports_all
flush chain {family} cni_hostport hostports_all
add rule {family} cni_hostport hostports_all jump hostip_hostports
add rule {family} cni_hostport hostports_all jump hostports
add chain {family} cni_hostport prerouting {{ type nat hook prerouting priority -100; }}
flush chain {family} cni_hostport prerouting
add rule {family} cni_hostport prerouting fib daddr type local jump hostports_all
add chain {family} cni_hostport output {{ type nat hook output priority -100; }}
flush chain {family} cni_hostport output
add rule {family} cni_hostport output fib daddr type local jump hostports_all
add chain {family} cni_hostport masquerading {{ type nat hook postrouting priority 100; }}
add rule {family} cni_hostport hostports tcp dport {port} dnat to {target} comment \"{id}\"
add rule {family} cni_hostport hostip_hostports {family} daddr {host} udp dport {port} dnat to {target} comment \"{id}\"
add rule {family} cni_hostport masquerading {family} saddr {ip} {family} daddr {ip} masquerade comment \"{id}\"
{local}
END",
            host = if ip.contains(':') { "fd00::1" } else { "10.9.0.1" },
        ));
    }
}

/// Returns the rules with comments in the tables of the reference.
pub(crate) fn reference_rules(lab: &Lab) -> Vec<String> {
    let listing = lab.sh("for family in ip ip6; do nft list table $family cni_hostport 2>/dev/null || true; done");
    listing.lines().filter(|line| line.contains(" comment \"") && !line.contains("plugin")).map(str::to_owned).collect()
}

#[test]
fn nftables_rules_of_the_reference_are_removed_by_their_addresses() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    add_reference_rules(lab, "id1", 8080, &["10.9.0.2", "fd00::2"]);
    // The same container on another network, and another container whose ID begins alike.
    add_reference_rules(lab, "id1", 8081, &["10.7.0.2"]);
    add_reference_rules(lab, "id11", 8082, &["10.9.0.2"]);
    assert_eq!(reference_rules(lab).len(), 15);
    let chains = |lab: &Lab| lab.sh("nft list chains; nft list chain ip cni_hostport hostports_all");
    let before = chains(lab);
    pod.del(&config(&["8080:80/tcp"]));
    let left = reference_rules(lab);
    assert_eq!(left.len(), 8, "{left:#?}");
    assert!(left.iter().all(|rule| rule.contains("10.7.0.2") || rule.contains("\"id11\"")), "{left:#?}");
    assert_eq!(chains(lab), before);
    // A second DEL changes nothing.
    pod.del(&config(&["8080:80/tcp"]));
    assert_eq!(reference_rules(lab), left);
}

#[test]
fn without_addresses_leases_decide_about_nftables_rules_of_the_reference() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    let eth1 = Pod { ifname: "eth1".to_owned(), ..pod.clone() };
    let del = |pod: &Pod<'_>, network: &str| {
        del_without_result(pod, network);
        let mut left: Vec<_> = reference_rules(lab)
            .iter()
            .filter_map(|rule| Some(rule.split_once("dport ")?.1.split(' ').next()?.to_owned()))
            .collect();
        left.sort();
        left.dedup();
        left
    };
    add_reference_rules(lab, "id1", 81, &["10.9.0.2"]);
    add_reference_rules(lab, "id1", 82, &["10.9.0.3"]);
    add_reference_rules(lab, "id1", 83, &["10.7.0.2"]);
    add_reference_rules(lab, "id1", 84, &["10.6.0.2"]);
    lease("net1", "10.9.0.2", "id1", "eth0");
    lease("net1", "10.9.0.3", "id1", "eth1");
    lease("net2", "10.7.0.2", "id1", "eth2");
    // Other networks may use the same addresses.
    lease("net2", "10.9.0.2", "other", "eth0");
    assert_eq!(del(&pod, "net3"), ["81", "82", "83", "84"], "nothing is known to be of this network");
    assert_eq!(del(&pod, "net1"), ["82", "83", "84"]);
    assert_eq!(del(&eth1, "net1"), ["83", "84"]);
    // The interface of an early lease is unknown.
    fs::write("/var/lib/cni/networks/net2/10.7.0.2", "id1").unwrap();
    assert_eq!(del(&pod, "net2"), ["84"]);
    // An address without a lease: of this network only if the container has no lease of another one.
    assert_eq!(del(&pod, "net1"), ["84"]);
    fs::remove_dir_all("/var/lib/cni/networks/net2").unwrap();
    assert_eq!(del(&pod, "net1"), [] as [&str; 0]);
    assert_eq!(reference_rules(lab), [] as [&str; 0]);
}

/// Versions of the reference from 1.6.0 on publish ports with nftables.
#[test]
fn check_accepts_nftables_rules_of_the_reference_that_are_complete() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let base = config(&["8080:80/tcp", "10.9.0.1 8080:80/udp", "fd00::1 8080:80/udp"]);
    let forced = with(base.clone(), json!({ "backend": "nftables" }));
    for damage in [
        "delete table ip6 cni_hostport",
        "flush chain ip cni_hostport hostports",
        "flush chain ip6 cni_hostport hostip_hostports",
        "flush chain ip cni_hostport masquerading",
        "flush chain ip cni_hostport prerouting",
        "flush chain ip6 cni_hostport output",
    ] {
        add_reference_rules(lab, "id1", 8080, &["10.9.0.2", "fd00::2"]);
        pod.check(&base).ok();
        pod.check(&forced).ok();
        pod.check(&with(base.clone(), json!({ "backend": "iptables" }))).error(999);
        for (ip, ports) in [("10.9.0.7/24", &["8080:80/tcp"]), ("10.9.0.2/24", &["8080:81/tcp"])] {
            Pod { ips: vec![ip.into()], ..pod.clone() }.check(&config(ports)).error(999);
        }
        Pod { id: "id2".into(), ..pod.clone() }.check(&base).error(999);
        lab.sh(&format!("nft {damage}"));
        pod.check(&base).error(999);
        lab.sh("nft flush ruleset");
    }
}

/// Only a lease shows to which network they belong.
#[test]
fn gc_removes_nftables_rules_of_the_reference_that_a_lease_attributes() {
    let lab = &Lab::new();
    add_reference_rules(lab, "id1", 81, &["10.9.0.2", "fd00::2"]);
    add_reference_rules(lab, "id1", 82, &["10.7.0.2"]);
    add_reference_rules(lab, "id2", 83, &["10.9.0.3"]);
    let before = reference_rules(lab);
    collect(lab, json!([]));
    assert_eq!(reference_rules(lab), before, "without leases, no network is known");
    lease("net1", "10.9.0.2", "id1", "eth0");
    lease("net1", "fd00::2", "id1", "eth0");
    lease("net2", "10.7.0.2", "id1", "eth1");
    lease("net1", "10.9.0.3", "id2", "eth0");
    collect(lab, json!([{ "containerID": "id1", "ifname": "eth0" }, { "containerID": "id2", "ifname": "eth0" }]));
    assert_eq!(reference_rules(lab), before);
    collect(lab, json!([{ "containerID": "id2", "ifname": "eth0" }]));
    let left = reference_rules(lab);
    assert!(!left.iter().any(|rule| rule.contains("10.9.0.2") || rule.contains("fd00::2")), "{left:#?}");
    assert_eq!(left.len(), 8, "{left:#?}");
}
