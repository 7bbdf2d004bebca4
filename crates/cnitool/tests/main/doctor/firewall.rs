//! Chains of other programs that drop packets of containers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::skip;

use super::{OkPage, assert_healthy, only_problem, problems, subjects};
use crate::node::{attach, host, host_with, json, port};

#[test]
fn a_firewall_that_drops_forwarded_packets() {
    let host = host("10.140.0.0/24");
    attach(&host, "blue");
    host.lab.sh(
        "nft 'add table inet strict; add chain inet strict pass { type filter hook forward priority 0; policy drop; }'",
    );
    let what = only_problem(&host, "firewall", "fail");
    assert!(what.contains("inet strict pass drops everything"), "{what}");
    assert!(what.contains("from and to br-pods in the configuration of the program that owns the chain"), "{what}");
    assert!(what.contains("\"command\":null"), "{what}");
    let bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    if Path::new(bridged).exists() {
        for (value, reach) in [("1", "neither each other nor other networks"), ("0", "cannot reach other networks")] {
            fs::write(bridged, value).unwrap();
            let what = only_problem(&host, "firewall", "fail");
            assert!(what.contains(reach), "{what}");
        }
    } else {
        skip("a_firewall_that_drops_forwarded_packets", "the kernel has no br_netfilter; the rest of it ran");
    }
    host.lab.sh("nft 'add rule inet strict pass iifname \"br-pods\" accept'");
    assert!(only_problem(&host, "firewall", "warn").contains("drops packets that none of its rules accepts"));
    host.lab.sh("nft 'delete table inet strict; add table ip6 six; add chain ip6 six pass { type filter hook forward priority 0; policy drop; }'");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "the network has no IPv6: {answer:#}");
}

#[test]
fn iptables_with_a_policy() {
    let host = host("10.141.0.0/24");
    attach(&host, "blue");
    host.lab.sh("iptables-nft -P FORWARD DROP");
    assert!(only_problem(&host, "firewall", "fail").contains("ip filter FORWARD"));
    host.lab.sh("iptables-nft -P FORWARD ACCEPT");
    // The legacy tables, which nf_tables does not list.
    let legacy = testing::Process::new("sh").arg("-c").arg("iptables-legacy -P FORWARD DROP").run();
    if legacy.status != Some(0) {
        return skip("iptables_with_a_policy", "the kernel or the host has no iptables-legacy; the rest of it ran");
    }
    assert!(only_problem(&host, "firewall", "fail").contains("FORWARD of iptables-legacy-save"));
}

/// Each rule drops packets of containers. Another program may need it, so no command removes it.
#[test]
fn rules_of_other_programs_that_drop_packets_of_containers() {
    let host = host("10.233.0.0/24");
    let port = port(&attach(&host, "blue"));
    let chain = |table: &str, hook: &str| {
        format!(
            "nft 'add table {table}; add chain {table} c {{ type filter hook {hook} priority 0; }}'; nft add rule {table} c "
        )
    };
    for (rule, part) in [
        (
            "iptables -I FORWARD -i br-pods -j DROP".to_owned(),
            "a rule of chain ip filter FORWARD drops packets on br-pods",
        ),
        ("iptables -I FORWARD -i br+ -o eth9 -j REJECT".to_owned(), "drops packets on br-pods"),
        ("iptables -I FORWARD -s 10.233.0.0/16 -j DROP".to_owned(), "drops packets on br-pods"),
        ("iptables -I FORWARD -d 10.233.0.2 -p tcp --dport 80 -j REJECT".to_owned(), "drops packets on br-pods"),
        (
            "iptables -N USER; iptables -A USER -j DROP; iptables -I FORWARD -i br-pods -j USER".to_owned(),
            "drops packets on br-pods",
        ),
        (chain("inet own", "forward") + "ip saddr 10.233.0.0/24 tcp dport 25 drop", "a rule of chain inet own c drops"),
        (chain("ip own", "forward") + "iif br-pods reject", "a rule of chain ip own c drops"),
        (chain("bridge own", "forward") + &format!("iifname {port} drop"), "packets between containers on a bridge"),
        (chain("bridge own", "input") + "ip saddr 10.233.0.2 drop", "packets between containers and the gateway"),
        (
            "iptables -I INPUT -i br-pods -p udp --dport 53 -j DROP".to_owned(),
            "containers may need services of this host",
        ),
        ("iptables -I INPUT -s 10.233.0.0/24 -j REJECT".to_owned(), "chain ip filter INPUT drops packets on br-pods"),
        (chain("inet own", "input") + "iifname br-pods tcp dport 53 drop", "chain inet own c drops packets"),
    ] {
        host.lab.sh(&rule);
        let what = only_problem(&host, "firewall", "warn");
        assert!(what.contains(part), "{rule}: {what}");
        assert!(subjects(&what, "link").contains(&"br-pods".to_owned()), "{rule}: {what}");
        assert_eq!(subjects(&what, "rule").len(), 1, "{rule}: {what}");
        assert!(
            what.contains("\"command\":null") && what.contains("decide whether the rule should apply"),
            "{rule}: {what}"
        );
        host.lab.sh("nft flush ruleset");
        host.run("repair").ok_page();
    }
}

#[test]
fn rules_that_do_not_harm_containers_are_not_reported() {
    let host = host("10.234.0.0/24");
    attach(&host, "blue");
    for rule in [
        "iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP",
        "iptables -A FORWARD -i br-pods -m conntrack --ctstate INVALID -j DROP",
        "iptables -A FORWARD -i docker0 ! -o docker0 -j DROP",
        "iptables -A FORWARD ! -s 10.234.0.0/24 -i br-pods -j DROP",
        "iptables -A FORWARD -i br-pods -j ACCEPT; iptables -A FORWARD -o br-pods -j ACCEPT; iptables -P FORWARD DROP",
        "iptables -A INPUT -i br-pods -j ACCEPT; iptables -A INPUT -j DROP",
        "iptables -A INPUT -p tcp --dport 25 -j DROP",
        "nft 'add table bridge own; add chain bridge own c { type filter hook forward priority 0; }
         add rule bridge own c iifname other drop'",
    ] {
        host.lab.sh(rule);
        assert_healthy(&host, rule);
        host.lab.sh("iptables -P FORWARD ACCEPT; nft flush ruleset");
        host.run("repair").ok_page();
    }
}

#[test]
fn rules_of_legacy_tables() {
    let host = host("10.236.0.0/24");
    attach(&host, "blue");
    let legacy = testing::Process::new("sh").arg("-c").arg("iptables-legacy -I FORWARD -i br-pods -j DROP").run();
    if legacy.status != Some(0) {
        return skip("rules_of_legacy_tables", "the kernel or the host has no iptables-legacy");
    }
    let what = only_problem(&host, "firewall", "warn");
    assert!(what.contains("a rule of chain FORWARD of iptables-legacy-save drops packets on br-pods"), "{what}");
    host.lab.sh("iptables-legacy -F; iptables-legacy -t mangle -I FORWARD -i br-pods -j DROP");
    let what = only_problem(&host, "firewall", "warn");
    assert!(what.contains("a rule of chain FORWARD of iptables-legacy-save -t mangle drops packets"), "{what}");
    host.lab.sh("iptables-legacy -t mangle -F
         iptables-legacy -N USER; iptables-legacy -A USER -s 10.236.0.0/24 -j REJECT; iptables-legacy -A FORWARD -j USER");
    assert!(only_problem(&host, "firewall", "warn").contains("drops packets on br-pods"));
}

/// The findings are in the order in which packets pass the chains.
#[test]
fn chains_are_reported_in_the_order_of_their_priority() {
    let host = host("10.69.0.0/24");
    attach(&host, "blue");
    host.lab.sh("nft 'table inet late { chain c { type filter hook forward priority 10; policy drop; }; }
         table inet early { chain c { type filter hook forward priority -300; policy drop; }; }'
         iptables -P FORWARD DROP");
    let answer = json(&host, "doctor --json");
    let found = answer["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] == "fail");
    let chains: Vec<&Value> = found.map(|finding| &finding["subjects"][0]["name"]).collect();
    assert_eq!(chains, ["inet early c", "ip filter FORWARD", "inet late c"], "{answer:#}");
}

/// A rule before the jump to the chain of the plugin `firewall` drops what the plugin accepts: the first match decides.
#[test]
fn a_rule_before_the_chain_of_the_plugin() {
    let host = host_with("10.237.0.0/24", &json!({ "type": "firewall", "backend": "iptables" }));
    attach(&host, "blue");
    host.lab.sh("iptables -P FORWARD DROP; iptables -A FORWARD -i br-pods -j DROP; iptables -A FORWARD -j DROP");
    assert_healthy(&host, "the plugin accepts them before");
    for (rule, level, part) in [
        ("FORWARD -i br-pods -j DROP", "warn", "chain ip filter FORWARD drops packets on br-pods"),
        (
            "FORWARD -j DROP",
            "fail",
            "chain ip filter FORWARD drops all packets before they get to the rules of the plugin",
        ),
        (
            "FORWARD -j REJECT",
            "fail",
            "chain ip filter FORWARD drops all packets before they get to the rules of the plugin",
        ),
        ("CNI-ADMIN -j DROP", "warn", "a rule of chain ip filter FORWARD drops packets on br-pods"),
    ] {
        host.lab.sh(&format!("iptables -I {rule}"));
        let what = only_problem(&host, "firewall", level);
        assert!(what.contains(part) && what.contains("\"command\":null"), "{rule}: {what}");
        assert_eq!(subjects(&what, "rule").len(), 1, "{rule}: {what}");
        host.lab.sh(&format!("iptables -D {rule}"));
        assert_healthy(&host, rule);
    }
}

/// The plugin has accepted packets in nf_tables, before the legacy table came into use. Packets must pass both.
#[test]
fn a_legacy_table_beside_the_chain_of_the_plugin() {
    for backend in ["iptables", "nftables"] {
        let host = host_with("10.58.0.0/24", &json!({ "type": "firewall", "backend": backend }));
        attach(&host, "blue");
        let legacy = testing::Process::new("sh").arg("-c").arg("iptables-legacy -P FORWARD DROP").run();
        if legacy.status != Some(0) {
            return skip(
                "a_legacy_table_beside_the_chain_of_the_plugin",
                "the kernel or the host has no iptables-legacy",
            );
        }
        let what = only_problem(&host, "firewall", "fail");
        assert!(what.contains("chain FORWARD of iptables-legacy-save drops everything"), "{backend}: {what}");
        host.lab.sh("iptables-legacy -P FORWARD ACCEPT; iptables-legacy -A FORWARD -j REJECT");
        let what = only_problem(&host, "firewall", "fail");
        assert!(what.contains("iptables-legacy -I FORWARD 1 -i br-pods -j ACCEPT"), "{backend}: {what}");
        // With this backend, the next ADD accepts the packets in the legacy table too.
        host.run("del pods blue").ok();
        attach(&host, "red");
        match backend {
            "iptables" => assert_healthy(&host, "accepted in both"),
            _ => drop(only_problem(&host, "firewall", "fail")),
        }
    }
}
