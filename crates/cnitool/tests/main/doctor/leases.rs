//! Leases, ranges and the lock of the lease directory.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{OkPage, assert_healthy, claims_all_alive, only_problem, problems, subjects};
use crate::node::{LEASE_LOCK, LONG_ID, attach, hold_lock, host, json, leak, lose_namespace, network, page, port};

#[test]
fn leaked_leases_and_lost_interfaces() {
    let host = host("10.133.0.0/24");
    attach(&host, "blue");
    leak("10.133.0.99", &format!("{LONG_ID}\r\neth0"));
    assert!(only_problem(&host, "leases", "warn").contains("cnitool prune pods"));
    host.run("prune --force").ok_page();
    leak("10.133.0.98", "");
    assert!(only_problem(&host, "leases", "warn").contains("1 lease without an owner"));
    host.run("prune --force").ok_page();
    let cut = attach(&host, "cut");
    host.lab.sh(&format!("ip link del {}", port(&cut)));
    assert!(only_problem(&host, "leases", "warn").contains(&cut[..20]));
    assert!(!claims_all_alive(&host.run("doctor")));
    for name in ["a", "b", "c", "d"] {
        let id = attach(&host, name);
        host.lab.sh(&format!("ip link del {}", port(&id)));
    }
    let what = only_problem(&host, "leases", "warn");
    assert!(what.contains("5 containers exist, but their interfaces do not"), "{what}");
    assert!(what.contains("and 2 more"), "{what}");
    assert!(!claims_all_alive(&host.run("doctor")));
}

#[test]
fn a_deleted_namespace_leaves_a_lease_and_a_rule() {
    let host = host("10.134.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["masquerade warn", "leases warn"], "{answer:#}");
    assert!(answer.to_string().contains("\"1 rule of containers that are gone"), "{answer:#}");
}

#[test]
fn a_range_that_is_full_or_nearly() {
    let host = host("10.135.0.0/24");
    let ranges = json!([[{ "subnet": "10.135.0.0/24", "rangeStart": "10.135.0.10", "rangeEnd": "10.135.0.30" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"] {
        attach(&host, name);
    }
    assert!(only_problem(&host, "ranges", "warn").contains("1 of 21 addresses are left"));
    attach(&host, "u");
    let what = only_problem(&host, "ranges", "fail");
    assert!(what.contains("no address is left of 10.135.0.10-10.135.0.30"), "{what}");
    assert!(page(&host.run("leases")).contains("[####################]  21    0"));
}

/// `prune` is a remedy only if it frees enough addresses.
#[test]
fn a_range_that_is_full_of_leases_of_containers_that_are_gone() {
    let host = host("10.48.0.0/24");
    let ranges = json!([[{ "subnet": "10.48.0.0/24", "rangeStart": "10.48.0.10", "rangeEnd": "10.48.0.29" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    attach(&host, "blue");
    let fill = |from: u8, owner: &str| (from..30).for_each(|last| leak(&format!("10.48.0.{last}"), owner));
    fill(11, &format!("{LONG_ID}\r\neth0"));
    let of = |check: &str| {
        let answer = json(&host, "doctor --json");
        let findings = answer["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check && finding["level"] != "ok").unwrap().clone()
    };
    assert_eq!(of("ranges")["command"], "cnitool prune pods");
    // Only one lease is of a container that is gone.
    let blue = fs::read_to_string("/var/lib/cni/networks/pods/10.48.0.10").unwrap();
    fill(12, &blue);
    assert!(of("ranges")["command"].is_null());
    assert!(of("ranges")["remedy"].as_str().unwrap().contains("add a range"));
    // GC, by which `prune` removes leases, is disabled.
    fill(11, &format!("{LONG_ID}\r\neth0"));
    let mut config = network("pods", "", &ipam);
    config["disableGC"] = json!(true);
    host.configure("10-pods.conflist", &config.to_string());
    for check in ["ranges", "leases"] {
        assert!(of(check)["command"].is_null(), "{check}");
    }
}

#[test]
fn a_directory_that_cannot_be_written() {
    let host = host("10.146.0.0/24");
    attach(&host, "blue");
    host.lab
        .sh("mount --bind /var/lib/cni/networks /var/lib/cni/networks; mount -o remount,bind,ro /var/lib/cni/networks");
    assert!(only_problem(&host, "leases", "fail").contains("Read-only file system"));
}

#[test]
fn networks_that_lease_the_same_addresses() {
    let host = host("10.148.0.0/24");
    attach(&host, "blue");
    host.configure(
        "20-other.conflist",
        &network("other", "10.148.0.0/16", &json!({ "isDefaultGateway": false })).to_string(),
    );
    assert!(only_problem(&host, "ranges", "warn").contains("overlaps 10.148.0.0/24 of network pods"));
}

#[test]
fn a_process_that_holds_the_lock_for_long() {
    let host = host("10.238.0.0/24");
    attach(&host, "blue");
    let mut holder = hold_lock(LEASE_LOCK);
    let start = Instant::now();
    testing::wait_until("the process to be old", || start.elapsed() > Duration::from_secs(6));
    let what = only_problem(&host, "leases", "fail");
    let pid = holder.id().to_string();
    assert!(what.contains(&format!("process {pid} (sleep)")), "{what}");
    assert_eq!(subjects(&what, "process"), [format!("{pid} sleep")]);
    assert_eq!(subjects(&what, "file"), ["/var/lib/cni/networks/pods/lock"]);
    assert!(what.contains("\"command\":null") && what.contains("end it if it hangs"), "{what}");
    let answer = json(&host, "doctor --json");
    assert!(answer["notSeen"].to_string().contains("its leases are locked"), "no call waits for it: {answer:#}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_healthy(&host, "without the holder");
}

#[test]
fn garbage_in_the_cache() {
    let host = host("10.239.0.0/24");
    attach(&host, "blue");
    let put = |name: &str, text: &str| fs::write(format!("/var/lib/cni/results/{name}"), text).unwrap();
    put("pods-a-eth0", "{");
    put("pods-b-eth0", "\u{0}\u{1b}[31m");
    put("x", "");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["cache warn"], "{answer:#}");
    assert!(answer.to_string().contains(r#"{"kind":"file","name":"/var/lib/cni/results/pods-a-eth0"}"#), "{answer:#}");
    host.lab.sh("cd /var/lib/cni/results; rm pods-a-eth0 pods-b-eth0 x");
    // Entries that are valid JSON, but describe nothing that can exist.
    let entry = |network: &str, id: &str, netns: &str, result: &Value| {
        json!({ "kind": "cniCacheV1", "containerId": id, "config": "e30=", "ifName": "eth0", "networkName": network,
                "netns": netns, "result": result })
        .to_string()
    };
    let odd = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "300.1.1.1/99" }], "routes": 7 });
    put("pods-odd-eth0", &entry("pods", "odd", "/run/netns/blue", &odd));
    put("pods-quote-eth0", &entry("pods", "x;reboot", "/run/netns/b;reboot", &odd));
    put("ghosts-c-eth0", &entry("ghosts", "c", "/run/netns/blue", &Value::Null));
    let outcome = host.run("doctor --json");
    assert!(matches!(outcome.status, Some(0 | 3)), "{outcome:?}");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let commands = answer["findings"].as_array().unwrap().iter().filter_map(|finding| finding["command"].as_str());
    assert!(commands.clone().all(|command| !command.contains("reboot")), "{:?}", commands.collect::<Vec<_>>());
    page(&host.run("doctor"));
}
