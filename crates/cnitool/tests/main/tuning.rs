//! Tuned interfaces: a network of bridge and tuning, shown, checked and pruned.

use std::path::Path;

use serde_json::{Value, json};

use crate::doctor::{only_problem, problems};
use crate::node::{attach, attach_and_show, host, host_with, json, lose_namespace, network, page};

#[test]
fn backups_are_shown_and_pruned() {
    let host = host_with("10.213.0.0/24", &json!({ "type": "tuning", "mtu": 1400, "txQLen": 7 }));
    let (id, lost, bridge) = attach_and_show(&host);
    let backups = bridge["tunedAttributes"].as_array().unwrap();
    assert_eq!(backups.len(), 2, "{bridge:#}");
    let own = backups.iter().find(|backup| backup["container"] == id.as_str()).unwrap();
    for (key, value) in [
        ("mtu", json!({ "before": 1500, "after": 1400 })),
        ("txQLen", json!({ "before": 1000, "after": 7 })),
        ("backend", json!("file")),
        ("interface", json!("eth0")),
        ("ofPort", json!(true)),
    ] {
        assert_eq!(own[key], value, "{key} in {own:#}");
    }
    let text = page(&host.run("show"));
    assert!(text.contains("tuned") && text.contains("mtu 1500 -> 1400, txQLen 1000 -> 7"), "{text}");

    // Another program changes the interface.
    host.lab.sh("ip -n blue link set eth0 txqueuelen 8");
    let what = only_problem(&host, "tuning", "warn");
    assert!(what.contains("txQLen") && what.contains(&id), "{what}");
    host.lab.sh("ip -n blue link set eth0 txqueuelen 7");

    lose_namespace(&host, "lost", &lost);
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 tuning backup of containers that are gone"), "{findings}");
    let file = |id: &str| Path::new("/run/cni/tuning").join(format!("{id}_eth0.json"));
    assert!(file(&lost).exists());
    let text = page(&host.run("prune --dry-run"));
    assert!(text.contains("tuning backup"), "{text}");
    page(&host.run("prune --force pods"));
    assert!(file(&id).exists() && !file(&lost).exists());
    assert!(page(&host.run("prune --force pods")).contains("nothing to remove"));
}

/// A MAC address that is set after `bridge` keeps the container from sending, unless `bridge` sets it, too.
#[test]
fn a_spoof_check_that_drops_all_frames_is_reported() {
    let (subnet, mac) = ("10.99.0.0/24", "02:00:00:00:00:0a");
    let host = host(subnet);
    let configure = |bridge: Value| {
        let mut config = network("pods", subnet, &bridge);
        config["plugins"].as_array_mut().unwrap().push(json!({ "type": "tuning", "mac": mac }));
        host.configure("10-pods.conflist", &config.to_string());
    };
    configure(json!({ "macspoofchk": true }));
    let id = attach(&host, "blue");
    let what = only_problem(&host, "check", "fail");
    for wanted in ["drops all frames", mac, "\\\"args.cni.mac\\\"", &id] {
        assert!(what.contains(wanted), "{wanted}: {what}");
    }
    // The remedy helps.
    page(&host.run("del pods /run/netns/blue"));
    configure(json!({ "macspoofchk": true, "args": { "cni": { "mac": mac } } }));
    attach(&host, "green");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    host.lab.sh("ip netns exec green ping -c 1 -W 5 10.99.0.1");
}

#[test]
fn the_command_sets_again_what_differs() {
    let keys = json!({
        "type": "tuning", "mac": "02:00:00:00:00:07", "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 7,
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_local_port_range": "1024 2000" },
    });
    let host = host_with("10.250.0.0/24", &keys);
    attach(&host, "blue");
    let commands = || {
        let what: Value = serde_json::from_str(&only_problem(&host, "tuning", "warn")).unwrap();
        what["command"].as_str().unwrap().to_owned()
    };
    host.lab.sh("ip -n blue link set eth0 mtu 1300");
    assert_eq!(commands(), "nsenter --net=/run/netns/blue ip link set eth0 mtu 1400", "only what differs");
    host.lab.sh("ip -n blue link set eth0 address 02:00:00:00:00:08 promisc off allmulticast off txqueuelen 8
         ip netns exec blue sysctl -w net.ipv4.conf.eth0.arp_filter=0 'net.ipv4.ip_local_port_range=1024 3000'");
    host.lab.sh(&commands());
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    host.run("check pods /run/netns/blue").ok();
}
