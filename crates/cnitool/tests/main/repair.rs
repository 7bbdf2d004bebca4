//! `cnitool repair`: restores flushed rules, and reports other problems.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::{parallel, program_path};

use crate::node::{attach, host, json, lose_namespace, network, page, port, powerless, snapshot};
use crate::support::{Host, failure};

/// Gives each container two IPv4 addresses, and an IPv6 address if the kernel has IPv6, masqueraded by this backend.
fn many_addresses(host: &Host, subnet: &str, backend: &str) {
    let mut ranges =
        vec![json!([{ "subnet": format!("{subnet}.0/25") }]), json!([{ "subnet": format!("{subnet}.128/25") }])];
    if Path::new("/proc/sys/net/ipv6").exists() {
        ranges.push(json!([{ "subnet": "fd00:42::/64" }]));
    }
    let more = json!({
        "ipMasqBackend": backend, "ipMasqExclude": ["10.219.0.0/16", "fd00:244::/56"],
        "ipam": { "type": "host-local", "ranges": ranges },
    });
    host.configure("10-pods.conflist", &network("pods", &format!("{subnet}.0/24"), &more).to_string());
}

/// Returns the rules of all tables, sorted and without counters.
fn rules(host: &Host) -> Vec<String> {
    let text = host.lab.sh("nft -s list ruleset");
    let mut rules: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    rules.sort();
    rules
}

/// Returns the states of all attachments in the JSON output, in the order of their files.
pub(crate) fn states(answer: &Value) -> Vec<&str> {
    answer["attachments"].as_array().unwrap().iter().map(|at| at["state"].as_str().unwrap()).collect()
}

#[test]
fn flushed_rules_come_back_exactly_once() {
    for (backend, damages) in [
        (
            "nftables",
            &[
                "nft flush table inet cni_plugins_masquerade",
                "nft flush chain inet cni_plugins_masquerade postrouting",
                "nft flush chain inet cni_plugins_masquerade masq_checks",
                "nft delete table inet cni_plugins_masquerade",
                "nft delete rule inet cni_plugins_masquerade masq_checks handle \
                 $(nft -a list ruleset | sed -n '/masquerade/s/.*# handle //p' | tail -n 1)",
            ][..],
        ),
        (
            "iptables",
            &[
                "iptables -t nat -F",
                "iptables -t nat -F POSTROUTING; ! [ -e /proc/sys/net/ipv6 ] || ip6tables -t nat -F",
                "iptables -t nat -D POSTROUTING 2",
                "iptables -t nat -F $(iptables -t nat -S | sed -n 's/^-N //p' | head -n 1)",
            ][..],
        ),
    ] {
        let host = host("10.161.0.0/24");
        many_addresses(&host, "10.161.0", backend);
        attach(&host, "blue");
        attach(&host, "red");
        let before = rules(&host);
        for damage in damages {
            host.lab.sh(damage);
            let doctor = host.run("doctor").stdout;
            assert!(doctor.contains("`cnitool repair`"), "{backend}, {damage}: {doctor}");
            let answer = json(&host, "repair --json");
            assert!(answer["repaired"].as_u64().unwrap() > 0, "{backend}, {damage}: {answer:#}");
            assert_eq!(answer["wrong"], 0, "{backend}, {damage}: {answer:#}");
            assert_eq!(rules(&host), before, "{backend}, {damage}");
            for name in ["blue", "red"] {
                host.run(&format!("check pods /run/netns/{name}")).ok();
            }
            assert_eq!(states(&json(&host, "repair pods --json")), ["ok", "ok"]);
        }
    }
}

#[test]
fn the_page_reports_what_was_repaired_and_what_is_still_wrong() {
    let host = host("10.162.0.0/24");
    let ids = ["blue", "lost", "red"].map(|name| attach(&host, name));
    lose_namespace(&host, "lost", &ids[1]);
    host.lab.sh("nft flush table inet cni_plugins_masquerade");
    let outcome = host.run("repair pods");
    let text = page(&outcome);
    assert_eq!(outcome.status, Some(0), "{text}");
    assert!(text.ends_with("3 attachments: 0 ok, 2 repaired, 1 gone, 0 wrong\n"), "{text}");
    assert!(text.contains(&ids[0]) && text.contains("(cnitool prune)"), "{text}");

    // The rules do not depend on the port, and CHECK reports what repair does not fix.
    host.lab.sh(&format!("nft flush table inet cni_plugins_masquerade; ip link set {} nomaster", port(&ids[0])));
    let outcome = host.run("repair");
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    let text = page(&outcome);
    assert!(text.ends_with("0 ok, 1 repaired, 1 gone, 1 wrong\n"), "{text}");
    assert!(text.contains("bridge of") && text.contains("rules were missing and have been added"), "{text}");
    assert!(host.lab.sh("nft list ruleset").contains("ip saddr 10.162.0.2"));
    let answer = json(&host, "repair --json");
    let wrong = answer["attachments"].as_array().unwrap().iter().find(|at| at["state"] == "wrong").unwrap();
    assert_eq!((&wrong["container"], &wrong["interface"]), (&json!(ids[0]), &json!("eth0")));
    assert!(wrong["what"].as_str().unwrap().contains("bridge of"), "{wrong}");
}

/// The address may belong to another container by now.
#[test]
fn a_container_without_its_address_gets_no_rule() {
    let host = host("10.163.0.0/24");
    attach(&host, "blue");
    host.lab.sh("nft flush table inet cni_plugins_masquerade; ip -n blue address flush dev eth0");
    let outcome = host.run("repair");
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains("should have the address 10.163.0.2/24"), "{outcome:?}");
    assert!(!host.lab.sh("nft list ruleset").contains("10.163.0.2"));
}

/// A concurrent DEL of another runtime may have looked for rules before repair added them.
#[test]
fn rules_of_a_container_that_is_removed_meanwhile_are_removed() {
    let host = host("10.164.0.0/24");
    let config = network("pods", "10.164.0.0/24", &json!({ "ipMasqBackend": "iptables" }));
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    host.lab.sh("iptables -t nat -F; iptables -t nat -X");
    let options = ["-e", "trace=sendto", "-e", "inject=sendto:signal=STOP"];
    let mut is_removed = false;
    let (outcome, _) = parallel::at_each_stop(&host.lab, host.call("repair"), &options, |_| {
        if !is_removed && host.lab.sh("iptables-save -t nat").contains("CNI-") {
            host.lab.sh("ip -n blue link del eth0");
            is_removed = true;
        }
    });
    assert!(is_removed);
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    let left = host.lab.sh("iptables-save -t nat");
    assert!(!left.contains("CNI-"), "{left}");
}

#[test]
fn networks_without_check_or_without_a_configuration_are_repaired() {
    let host = host("10.165.0.0/24");
    let mut config = network("pods", "10.165.0.0/24", &json!({}));
    for (change, value) in [("cniVersion", json!("0.3.1")), ("disableCheck", json!(true))] {
        config[change] = value;
        host.configure("10-pods.conflist", &config.to_string());
        attach(&host, "blue");
        let before = rules(&host);
        host.lab.sh("nft delete table inet cni_plugins_masquerade");
        assert_eq!(states(&json(&host, "repair --json")), ["repaired"], "{change}");
        assert_eq!(rules(&host), before, "{change}");
        host.lab.sh("nft delete table inet cni_plugins_masquerade");
        let outcome = host.call("repair pods --json").env("NETCONFPATH", "/nonexist").run();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        assert_eq!(rules(&host), before, "{change}");
        host.run("del pods /run/netns/blue").ok();
        host.lab.sh("umount /run/netns/blue; rm /run/netns/blue");
    }
}

#[test]
fn failures_of_repair_are_reported() {
    let host = host("10.166.0.0/24");
    attach(&host, "blue");
    let line = failure(&host.run("repair absent"));
    assert!(line.contains("there is no network \"absent\""), "{line}");
    host.lab.sh("nft flush table inet cni_plugins_masquerade");
    let before = snapshot(&host);
    let line = failure(&powerless(&host, "repair"));
    assert!(line.contains("CAP_NET_ADMIN"), "{line}");
    assert_eq!(snapshot(&host), before);
    fs::write("/var/lib/cni/results/pods-x-eth0", "{").unwrap();
    let outcome = host.run("repair");
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("pods-x-eth0"), "{outcome:?}");
    assert!(outcome.stdout.contains("1 repaired"), "the others are repaired: {outcome:?}");
    assert_eq!(json(&host, "repair --json")["notSeen"].as_array().unwrap().len(), 1);
    fs::remove_file("/var/lib/cni/results/pods-x-eth0").unwrap();
    fs::remove_file(host.lab.bin().join("bridge")).unwrap();
    let answer = json(&host, "repair --json");
    assert_eq!(states(&answer), ["wrong"], "{answer}");
    let what = answer["attachments"][0]["what"].as_str().unwrap();
    assert!(what.contains("failed to find plugin \"bridge\""), "{what}");
}

/// A del waits until the rules are added, and then removes them.
#[test]
fn dels_wait_for_the_repair_of_an_attachment() {
    let host = host("10.167.0.0/24");
    attach(&host, "blue");
    host.lab.sh("nft flush table inet cni_plugins_masquerade");
    let tool = program_path("cnitool");
    host.lab.sh(&format!(
        "export NETCONFPATH={} CNI_PATH={}
         {tool} repair & {tool} del pods /run/netns/blue; wait $!",
        host.conf_dir().display(),
        host.lab.bin().display(),
        tool = tool.display()
    ));
    assert!(!host.lab.sh("nft list ruleset").contains("10.167.0.2"));
}

/// libcni before 1.2, as in podman 4 and containerd 1.7, stores no namespace. The result of the ADD names it.
#[test]
fn attachments_of_runtimes_that_store_no_namespace_are_repaired() {
    let host = host("10.180.0.0/24");
    let id = attach(&host, "blue");
    let path = format!("/var/lib/cni/results/pods-{id}-eth0");
    let text = fs::read_to_string(&path).unwrap();
    let stripped = text.replacen(r#","netns":"/run/netns/blue""#, "", 1);
    assert_ne!(stripped, text);
    fs::write(&path, &stripped).unwrap();
    let before = rules(&host);
    host.lab.sh("nft delete table inet cni_plugins_masquerade");
    let answer = json(&host, "repair --json");
    assert_eq!(states(&answer), ["repaired"], "{answer:#}");
    assert_eq!(answer["attachments"][0]["netns"], "/run/netns/blue", "{answer:#}");
    assert_eq!(rules(&host), before);
    let doctor = host.run("doctor").stdout;
    assert!(doctor.contains("CHECK of 1 attachment succeeds"), "{doctor}");
    lose_namespace(&host, "blue", &id);
    assert_eq!(states(&json(&host, "repair --json")), ["gone"]);

    // In an old version of the result, nothing names the namespace.
    let mut entry: Value = serde_json::from_str(&stripped).unwrap();
    entry["result"] = json!({ "cniVersion": "0.2.0", "ip4": { "ip": "10.180.0.2/24" } });
    fs::write(&path, entry.to_string()).unwrap();
    let answer = json(&host, "repair --json");
    assert_eq!(states(&answer), ["wrong"], "{answer:#}");
    assert!(answer["attachments"][0]["remedy"].as_str().unwrap().contains("again"), "{answer:#}");
}
