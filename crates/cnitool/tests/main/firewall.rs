//! Accepted addresses and ingress policies: a network of bridge and firewall, shown, checked, repaired and pruned.

use serde_json::{Value, json};

use crate::doctor::{only_problem, problems};
use crate::node::{attach, attach_and_show, host_with, json, lose_namespace, network, page, port};
use crate::repair::states;
use crate::support::Host;

/// A host with the network `pods`, whose second plugin accepts the traffic of containers.
fn accepting_host(subnet: &str, keys: &Value) -> Host {
    let mut plugin = json!({ "type": "firewall", "backend": "iptables" });
    for (key, value) in keys.as_object().unwrap() {
        plugin[key] = value.clone();
    }
    host_with(subnet, &plugin)
}

/// Returns the addresses whose traffic is accepted.
fn accepted_addresses(host: &Host) -> String {
    host.lab.sh("nft list set inet cni_firewall ipv4 2>/dev/null || true")
}

/// Returns the rules of a chain.
fn rules(host: &Host, chain: &str) -> String {
    host.lab.sh(&format!("iptables -w -S {chain}"))
}

#[test]
fn accepted_addresses_are_shown_and_pruned() {
    let host = accepting_host("10.190.0.0/24", &json!({}));
    let (id, lost, bridge) = attach_and_show(&host);
    assert_eq!(bridge["acceptedAddresses"].as_array().unwrap().len(), 2, "{bridge:#}");
    let accepted = &bridge["acceptedAddresses"][0];
    for (key, value) in [
        ("address", json!("10.190.0.2")),
        ("backend", json!("nftables")),
        ("container", json!(id)),
        ("interface", json!("eth0")),
        ("ofPort", json!(true)),
    ] {
        assert_eq!(accepted[key], value, "{key} in {accepted:#}");
    }
    assert!(bridge["ports"].as_array().unwrap().iter().all(|port| port["acceptedAddresses"] == true), "{bridge:#}");
    let text = page(&host.run("show"));
    assert!(text.contains("accepted") && text.contains("  firewall: 2 by nftables, all of ports above\n"), "{text}");

    lose_namespace(&host, "lost", &lost);
    let text = page(&host.run("show"));
    assert!(text.contains("firewall: 2 by nftables, 1 of no port above:\n    10.190.0.3: pods, if: eth0"), "{text}");
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 accepted address of containers that are gone"), "{findings}");
    let text = page(&host.run("prune --dry-run"));
    assert!(text.contains("accepted address  10.190.0.3"), "{text}");
    page(&host.run("prune --force pods"));
    let left = accepted_addresses(&host);
    assert!(left.contains("10.190.0.2") && !left.contains("10.190.0.3"), "{left}");
    assert!(page(&host.run("prune --force pods")).contains("nothing to remove"));
}

#[test]
fn flushed_rules_are_reported_and_repaired() {
    let host = accepting_host("10.191.0.0/24", &json!({}));
    attach(&host, "blue");
    attach(&host, "red");
    host.lab.sh("iptables -P FORWARD DROP");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "the rules accept what the policy drops");
    for (damage, repaired, part) in [
        ("iptables -F", 1, "2 of 2 live containers lack their rules, such as 10.191.0.2"),
        ("iptables -F FORWARD", 1, "no rule in chain FORWARD of table ip filter leads to chain CNI-FORWARD"),
        ("nft delete table inet cni_firewall", 2, "2 of 2 live containers lack their rules, such as 10.191.0.2"),
        ("nft delete element inet cni_firewall ipv4 { 10.191.0.3 }", 1, "1 of 2 live containers lack their rules"),
    ] {
        host.lab.sh(damage);
        let what = only_problem(&host, "firewall", "fail");
        assert!(what.contains(part) && what.contains("drops their packets"), "{damage}: {what}");
        host.lab.sh("iptables -P FORWARD ACCEPT");
        let what = only_problem(&host, "firewall", "warn");
        assert!(what.contains(part) && what.contains("no chain drops forwarded packets"), "{damage}: {what}");
        host.lab.sh("iptables -P FORWARD DROP");
        let answer = json(&host, "repair --json");
        assert_eq!(answer["repaired"], repaired, "{damage}: {answer:#}");
        assert!(answer.to_string().contains("rules of the firewall were missing and have been added"), "{answer:#}");
        assert_eq!(states(&json(&host, "repair --json")), ["ok", "ok"]);
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{damage}");
    }
    let rules = rules(&host, "CNI-FORWARD");
    assert_eq!(rules.matches("--mark 0x1000/0x1000").count(), 1, "{rules}");
}

/// The reference adds such rules.
#[test]
fn rules_of_single_addresses_are_sufficient_but_have_no_owner() {
    let host = accepting_host("10.192.0.0/24", &json!({}));
    attach(&host, "blue");
    host.lab.sh("nft delete table inet cni_firewall
         iptables -A CNI-FORWARD -d 10.192.0.2 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         iptables -A CNI-FORWARD -s 10.192.0.2 -j ACCEPT");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    let answer = json(&host, "show --json");
    assert_eq!(answer["bridges"][0]["acceptedAddresses"], json!([]), "{answer:#}");
    assert_eq!(states(&json(&host, "repair --json")), ["ok"]);
}

/// The address may belong to another container by now.
#[test]
fn nothing_is_accepted_for_a_container_without_its_address_or_link() {
    let host = accepting_host("10.193.0.0/24", &json!({}));
    let mut config = network("pods", "10.193.0.0/24", &json!({ "ipMasq": false }));
    // The repair of masquerade would fail first.
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "firewall", "backend": "iptables" }));
    host.configure("10-pods.conflist", &config.to_string());
    let id = attach(&host, "blue");
    host.lab.sh("nft delete table inet cni_firewall; ip -n blue address flush dev eth0");
    assert_eq!(states(&json(&host, "repair --json")), ["wrong"]);
    assert!(!accepted_addresses(&host).contains("10.193.0.2"));
    host.lab.sh("ip -n blue address add 10.193.0.2/24 dev eth0; ip -n blue route add default via 10.193.0.1");
    let port = port(&id);
    host.lab.sh(&format!("ip link set {port} alias 'cni-attachment pods other eth0'"));
    host.run("repair");
    assert!(!accepted_addresses(&host).contains("10.193.0.2"));
    host.lab.sh(&format!("ip link set {port} alias 'cni-attachment pods {id} eth0'"));
    assert_eq!(states(&json(&host, "repair --json")), ["repaired"]);
    assert!(accepted_addresses(&host).contains("10.193.0.2"));

    // A link that was renamed keeps its alias.
    host.lab.sh(&format!(
        "nft delete table inet cni_firewall; ip link set {port} down; ip link set {port} name renamed up"
    ));
    host.run("repair");
    assert!(accepted_addresses(&host).contains("10.193.0.2"));
}

#[test]
fn policies_are_checked_repaired_and_pruned() {
    let host = accepting_host("10.194.0.0/24", &json!({ "ingressPolicy": "isolated" }));
    let id = attach(&host, "blue");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    let port = port(&id);
    let answer = json(&host, "show --json");
    assert_eq!(answer["bridges"][0]["ports"][0]["ingressPolicy"], true, "{answer:#}");
    for (damage, part) in [
        (format!("nft delete element bridge cni_isolation ports '{{ {port} }}'"), "are not isolated"),
        ("iptables -F CNI-ISOLATION-STAGE-2".to_owned(), "in chain CNI-ISOLATION-STAGE-2 does not exist"),
        ("iptables -D FORWARD 1".to_owned(), "FORWARD does not lead to CNI-ISOLATION-STAGE-1"),
        // In the family in which the network has no addresses, too.
        ("ip6tables -F CNI-ISOLATION-STAGE-1".to_owned(), "in chain CNI-ISOLATION-STAGE-1 does not exist"),
    ] {
        host.lab.sh(&damage);
        let what = only_problem(&host, "policy", "warn");
        assert!(what.contains(part) && what.contains("cnitool repair"), "{damage}: {what}");
        let answer = json(&host, "repair --json");
        assert_eq!(states(&answer), ["repaired"], "{damage}: {answer:#}");
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{damage}");
    }
    // A container of an unknown network keeps the policy.
    host.lab.sh("ip link add stranger type veth peer name other; ip link set stranger master br-pods");
    host.run("del pods /run/netns/blue").ok();
    host.lab.sh("ip link del stranger; ip link del br-pods");
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 ingress policy of links that are gone"), "{findings}");
    let text = page(&host.run("prune --force pods"));
    assert!(text.contains("ingress policy  br-pods") && text.contains("its link is gone"), "{text}");
    assert!(!rules(&host, "CNI-ISOLATION-STAGE-1").contains("br-pods"));
    assert!(!rules(&host, "CNI-ISOLATION-STAGE-2").contains("br-pods"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

/// Otherwise the policy would apply to the container's own link, and replace that of the bridge.
#[test]
fn a_policy_waits_for_a_bridge_that_was_deleted() {
    let host = accepting_host("10.251.1.0/24", &json!({ "ingressPolicy": "same-bridge" }));
    attach(&host, "blue");
    let before = rules(&host, "CNI-ISOLATION-STAGE-1");
    host.lab.sh("ip link del br-pods");
    let findings = json(&host, "doctor --json");
    assert!(!findings.to_string().contains("cnitool repair"), "{findings:#}");
    let answer = json(&host, "repair --json");
    assert_eq!(states(&answer), ["wrong"], "{answer:#}");
    assert!(answer.to_string().contains("attach the container again"), "{answer:#}");
    assert_eq!(rules(&host, "CNI-ISOLATION-STAGE-1"), before);
}

/// Creates a base chain in nf_tables, and a table for it.
fn add_chain(host: &Host, table: &str, hook: &str, policy: &str) {
    host.lab.sh(&format!(
        "nft 'add table {table}; add chain {table} strict {{ type filter hook {hook} priority 0; policy {policy}; }}'"
    ));
}

#[test]
fn chains_of_other_programs_drop_what_the_plugin_accepts() {
    let host = accepting_host("10.195.0.0/24", &json!({}));
    attach(&host, "blue");
    host.lab.sh("iptables -P FORWARD DROP; iptables -A FORWARD -j DROP");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "accepted there");
    for (table, hook, policy, rule, level, part) in [
        ("inet other", "forward", "drop", "", "fail", "chain inet other strict drops everything"),
        ("ip other", "forward", "drop", "tcp dport 80 accept", "warn", "drops packets that none of its rules accepts"),
        ("ip other", "forward", "accept", "drop", "fail", "chain ip other strict drops everything"),
        ("ip other", "forward", "accept", "iifname br-pods drop", "warn", "drops packets on br-pods"),
        ("bridge other", "forward", "drop", "", "fail", "containers on a bridge cannot reach each other"),
        ("bridge other", "input", "drop", "", "fail", "containers cannot reach the gateway"),
        ("inet other", "input", "drop", "", "warn", "containers cannot reach services of this host, such as DNS"),
        ("inet other", "input", "drop", "tcp dport 22 accept", "warn", "may need services of this host, such as DNS"),
    ] {
        add_chain(&host, table, hook, policy);
        if !rule.is_empty() {
            host.lab.sh(&format!("nft add rule {table} strict {rule}"));
        }
        let what = only_problem(&host, "firewall", level);
        assert!(what.contains(part) && !what.contains("the plugin"), "{table} {hook} {rule}: {what}");
        host.lab.sh(&format!("nft delete table {table}"));
    }
    for (table, hook, policy, rule) in [
        ("inet other", "forward", "accept", "iifname br-other drop"),
        ("inet other", "forward", "drop", "accept"),
        ("ip6 other", "forward", "drop", ""),
        ("ip other", "output", "drop", ""),
    ] {
        add_chain(&host, table, hook, policy);
        if !rule.is_empty() {
            host.lab.sh(&format!("nft add rule {table} strict {rule}"));
        }
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{table} {hook} {rule}");
        host.lab.sh(&format!("nft delete table {table}"));
    }
    // The rules accept the packets of one network only.
    host.configure("20-more.conflist", &network("more", "10.196.0.0/24", &json!({})).to_string());
    let what = only_problem(&host, "firewall", "warn");
    let last = host.lab.sh("iptables -S FORWARD | grep -c '^-A'").trim().to_owned();
    assert!(what.contains(&format!(" -I FORWARD {last} -i br-more -j ACCEPT")), "{what}");
    assert!(what.contains("the plugin \\\"firewall\\\""), "{what}");
    assert!(!what.contains("br-pods"), "{what}");
}
