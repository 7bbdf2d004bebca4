//! ADD: the rules of the attachment, and the result.

use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod};

use crate::support::{
    ADMIN, ENTRY, MARKED, accepted, add_address_rules, address_rules, config, containers, isolated, ports, rules,
    ruleset,
};

#[test]
fn the_previous_result_is_returned_in_every_version() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let config = config(json!({ "cniVersion": version }));
        let mut result = pod.add(&config);
        // Some versions of the result always have this key.
        if result["dns"] == json!({}) {
            result.as_object_mut().unwrap().remove("dns");
        }
        assert_eq!(result, pod.result(version), "{version}");
        assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]), "{version}");
        pod.del(&config);
        assert_eq!(containers(lab), [] as [&str; 0], "{version}");
    }
}

#[test]
fn only_families_of_the_container_get_chains() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    pod.add(&config(json!({})));
    assert_eq!(lab.sh("nft list tables"), "table inet cni_firewall\ntable ip filter\n");
    let other = Pod::absent(lab, "c2", &["fd00::2/64"]);
    other.add(&config(json!({})));
    assert_eq!(lab.sh("nft list tables"), "table inet cni_firewall\ntable ip filter\ntable ip6 filter\n");
    pod.check(&config(json!({}))).ok();
    other.check(&config(json!({}))).ok();
}

#[test]
fn a_container_without_addresses_changes_nothing() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &[]);
    assert_eq!(pod.add(&config(json!({})))["interfaces"], pod.result("1.1.0")["interfaces"]);
    assert_eq!(ruleset(lab), "");
    pod.check(&config(json!({}))).ok();
    pod.del(&config(json!({})));
    assert_eq!(ruleset(lab), "");
}

#[test]
fn an_address_that_is_named_twice_gets_its_rules_once() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "10.9.0.2/16", "10.8.0.2/24"]);
    pod.add(&config(json!({})));
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "10.8.0.2"]));
}

#[test]
fn the_administrators_chain_can_have_another_name() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let custom = config(json!({ "iptablesAdminChainName": "CNI-foobar" }));
    let entry = ADMIN.replace("CNI-ADMIN", "CNI-foobar");
    for _ in 0..2 {
        pod.add(&custom);
        pod.check(&custom).ok();
        for tool in ["iptables", "ip6tables"] {
            assert_eq!(rules(lab, tool, "CNI-FORWARD"), [entry.as_str(), MARKED]);
            assert_eq!(lab.sh(&format!("{tool} -S CNI-foobar")), "-N CNI-foobar\n");
        }
    }
    // A network with another name: both chains come before the rules of containers.
    let other = Pod::absent(lab, "c2", &["10.9.0.3/24"]);
    other.add(&config(json!({})));
    let listed = rules(lab, "iptables", "CNI-FORWARD");
    assert_eq!(listed, [ADMIN, &entry, MARKED]);
    pod.check(&custom).ok();
    other.check(&config(json!({}))).ok();
}

#[test]
fn rules_of_others_stay_where_they_are() {
    let lab = &Lab::new();
    lab.sh("iptables -P FORWARD DROP
            iptables -A FORWARD -i eth7 -j ACCEPT
            iptables -N CNI-ADMIN
            iptables -A CNI-ADMIN -s 10.9.0.2 -d 192.0.2.7 -j DROP
            iptables -N OTHER");
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    pod.add(&config(json!({})));
    let expected = |chain: &str| rules(lab, "iptables", chain);
    assert_eq!(expected("FORWARD"), [ENTRY, "-i eth7 -j ACCEPT"]);
    assert_eq!(expected("CNI-ADMIN"), ["-s 10.9.0.2/32 -d 192.0.2.7/32 -j DROP"]);
    // The administrator moves the jump behind a rule of another program.
    lab.sh(&format!("iptables -D FORWARD 1; iptables -A FORWARD {ENTRY}"));
    for _ in 0..2 {
        pod.add(&config(json!({})));
        assert_eq!(expected("FORWARD"), ["-i eth7 -j ACCEPT", ENTRY]);
    }
    pod.del(&config(json!({})));
    assert_eq!(lab.sh("iptables -S | grep -c -- '-P FORWARD DROP'"), "1\n");
    assert_eq!(expected("FORWARD"), ["-i eth7 -j ACCEPT", ENTRY]);
    assert_eq!(expected("CNI-FORWARD"), [ADMIN, MARKED]);
    lab.sh("iptables -S OTHER");
}

#[test]
fn a_second_add_with_other_addresses_replaces_the_rules() {
    let lab = &Lab::new();
    let mut pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.7/24"]);
    pod.add(&config(json!({})));
    neighbour.add(&config(json!({})));
    pod.ips = vec!["10.9.0.3/24".to_owned()];
    pod.add(&config(json!({})));
    assert_eq!(containers(lab), accepted(&["10.9.0.7", "10.9.0.3"]));
    // Another interface of the same container is another attachment.
    let second = Pod { ifname: "eth1".to_owned(), ips: vec!["10.9.0.4/24".to_owned()], ..pod.clone() };
    second.add(&config(json!({})));
    assert_eq!(containers(lab), accepted(&["10.9.0.7", "10.9.0.3", "10.9.0.4"]));
    pod.del(&config(json!({})));
    assert_eq!(containers(lab), accepted(&["10.9.0.7", "10.9.0.4"]));
}

/// Such as that of `cnitool repair` with a configuration that was edited.
#[test]
fn a_second_add_that_the_kernel_refuses_changes_nothing() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    pod.add(&config(json!({ "ingressPolicy": "isolated" })));
    // No rule can lead to a base chain.
    lab.sh("nft add chain ip filter base '{ type filter hook forward priority 10; }'");
    let before = ruleset(lab);
    for keys in [json!({}), json!({ "backend": "nftables" }), json!({ "ingressPolicy": "isolated" })] {
        let refused = with(config(keys), json!({ "iptablesAdminChainName": "base" }));
        pod.call("ADD", &refused).run().error(999);
        assert_eq!(ruleset(lab), before, "{refused}");
    }
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
}

#[test]
fn a_second_add_restores_what_is_missing() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    pod.add(&config);
    let complete = ruleset(lab);
    for damage in [
        "iptables -F",
        "iptables -F CNI-FORWARD",
        "ip6tables -F FORWARD",
        "iptables -F; iptables -X",
        "iptables -D CNI-FORWARD 2",
        "iptables -D CNI-FORWARD 1; ip6tables -D CNI-FORWARD 2",
        "nft delete element inet cni_firewall ipv4 { 10.9.0.2 }",
        "nft flush set inet cni_firewall ipv6",
        "nft flush chain inet cni_firewall set_mark",
        "nft flush chain inet cni_firewall accepted",
        "nft delete chain inet cni_firewall clear_mark",
        "nft delete table inet cni_firewall",
        "nft delete table ip filter",
        "nft flush ruleset",
    ] {
        lab.sh(damage);
        pod.check(&config).error(999);
        pod.add(&config);
        pod.check(&config).ok();
        assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]), "{damage}");
        if !damage.contains("-X") && !damage.contains("nft") {
            assert_eq!(without_versions(&ruleset(lab)), without_versions(&complete), "{damage}");
        }
    }
}

#[test]
fn backends_with_rules_add_the_same() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let all: Vec<String> = ["", "iptables", "nftables"]
        .iter()
        .map(|backend| {
            let config = config(json!({ "backend": backend }));
            pod.add(&config);
            pod.check(&config).ok();
            let found = without_versions(&ruleset(lab));
            lab.sh("nft flush ruleset");
            found
        })
        .collect();
    assert!(all[0].contains("CNI-FORWARD"));
    assert!(all.iter().all(|ruleset| *ruleset == all[0]), "{all:#?}");
}

/// Returns a ruleset without random numbers.
fn without_versions(ruleset: &str) -> String {
    let (start, rest) = ruleset.split_once("set versions {").unwrap();
    format!("{start}{}", rest.split_once('}').unwrap().1)
}

/// The bit of the packet mark is a setting of the node.
#[test]
fn another_bit_replaces_the_former_one() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    // With an address of one family. `nft` does not restore the comment of iptables.
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24"]);
    for restore in ["", "nft list ruleset >/run/saved; nft flush ruleset; nft -f /run/saved"] {
        pod.add(&config(json!({})));
        lab.sh(restore);
        let other = config(json!({ "acceptMarkBit": 3 }));
        pod.check(&other).error(999);
        for _ in 0..2 {
            neighbour.add(&other);
            pod.check(&other).ok();
            for tool in ["iptables", "ip6tables"] {
                let listed = rules(lab, tool, "CNI-FORWARD");
                assert_eq!(listed.len(), 2, "{listed:?}");
                assert!(
                    listed[0].ends_with("-j CNI-ADMIN") && listed[1] == MARKED.replace("0x1000", "0x8"),
                    "{listed:?}"
                );
            }
            assert!(!ruleset(lab).contains("0x00001000"), "{}", ruleset(lab));
        }
        lab.sh("nft flush ruleset");
    }
    for bit in [-1, 32] {
        let error = pod.call("ADD", &config(json!({ "acceptMarkBit": bit }))).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains("acceptMarkBit"), "{error}");
    }
}

/// Whatever is added again, the rules of administrators come first.
#[test]
fn chains_of_administrators_come_before_the_accepting_rule() {
    let lab = &Lab::new();
    let [pod, neighbour] = [2, 3].map(|n| Pod::absent(lab, &format!("c{n}"), &[&format!("10.9.0.{n}/24")]));
    pod.add(&config(json!({ "iptablesAdminChainName": "MY-RULES" })));
    for change in [
        "",
        "iptables -D CNI-FORWARD -m mark --mark 0x1000/0x1000 -m comment --comment 'accepted by table inet cni_firewall' -j ACCEPT || iptables -F CNI-FORWARD",
    ] {
        lab.sh(change);
        pod.add(&config(json!({ "iptablesAdminChainName": "MY-RULES" })));
        for keys in [json!({}), json!({ "acceptMarkBit": 3 }), json!({})] {
            neighbour.add(&config(keys));
            let listed = rules(lab, "iptables", "CNI-FORWARD");
            let place = |part: &str| listed.iter().position(|rule| rule.contains(part)).unwrap();
            assert!(place("-j MY-RULES").max(place("-j CNI-ADMIN")) < place("-m mark"), "{listed:#?}");
            assert_eq!(listed.len(), 3, "{listed:#?}");
        }
    }
    // A rule that the administrator has added to the chain itself keeps its place, too.
    lab.sh("nft flush ruleset");
    pod.add(&config(json!({})));
    lab.sh("iptables -D CNI-FORWARD 2; iptables -A CNI-FORWARD -s 10.9.0.2 -d 192.0.2.7 -j DROP");
    add_address_rules("10.9.0.9", None);
    pod.add(&config(json!({})));
    let listed = rules(lab, "iptables", "CNI-FORWARD");
    assert_eq!(listed[..3], [ADMIN, "-s 10.9.0.2/32 -d 192.0.2.7/32 -j DROP", MARKED]);
    assert_eq!(listed[3..], address_rules("10.9.0.9"));
}

/// Rules of earlier versions are replaced, and new ones come before thousands of others.
#[test]
fn rules_of_earlier_versions_are_taken_over() {
    let lab = &Lab::new();
    let [pod, neighbour] = [2, 3].map(|n| Pod::absent(lab, &format!("c{n}"), &[&format!("10.9.0.{n}/24")]));
    let config = config(json!({}));
    pod.add(&config);
    lab.sh("nft delete table inet cni_firewall; iptables -D CNI-FORWARD 2");
    add_address_rules("10.9.0.2", Some("c2"));
    add_address_rules("10.9.0.3", Some("c3"));
    pod.check(&config).ok();
    pod.add(&config);
    let listed = rules(lab, "iptables", "CNI-FORWARD");
    assert_eq!(listed[..2], [ADMIN, MARKED]);
    assert_eq!(listed[2..], address_rules("10.9.0.3"));
    pod.check(&config).ok();
    neighbour.check(&config).ok();
    neighbour.del(&config);
    assert_eq!(containers(lab), accepted(&["10.9.0.2"]));
}

/// The tools of iptables must be able to read the tables after an ADD with a policy as well.
#[test]
fn tools_of_iptables_can_save_and_restore_everything() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    pod.add(&config(json!({ "ingressPolicy": "isolated" })));
    for tool in ["iptables", "ip6tables"] {
        let saved = || {
            let text = lab.sh(&format!("{tool}-save 2>&1"));
            text.lines().filter(|line| line.starts_with("-A")).collect::<Vec<_>>().join("\n")
        };
        let before = saved();
        assert_eq!(before.matches("-A CNI-FORWARD").count(), 2, "{before}");
        lab.sh(&format!("{tool}-save >/run/saved; {tool} -F; {tool}-restore </run/saved"));
        assert_eq!(saved(), before);
    }
    pod.check(&config(json!({ "ingressPolicy": "isolated" }))).ok();
}

#[test]
fn another_policy_replaces_the_former_one() {
    let lab = &Lab::new();
    let [pod, neighbour] = [1, 2].map(|n| Pod {
        mac: Some(format!("02:00:00:00:00:0{n}")),
        ..Pod::on_bridge(lab, "br0", &format!("c{n}"), &[&format!("10.9.0.1{n}/24")])
    });
    let policy = |name: &str| config(json!({ "ingressPolicy": name }));
    let dropped = |chain: &str| rules(lab, "iptables", chain).iter().filter(|rule| rule.ends_with("-j DROP")).count();
    let both = |name: &str| [&pod, &neighbour].map(|pod| pod.add(&policy(name)));
    // What `bridge` has set stays.
    lab.sh("bridge link set dev vethc1 isolated on");
    let settings = ports(lab);
    both("isolated");
    assert_eq!((dropped("CNI-ISOLATION-STAGE-1"), dropped("CNI-ISOLATION-STAGE-2")), (1, 1));
    assert_eq!(isolated(lab), ["vethc1", "vethc2"]);
    // One ADD changes the policy of the network.
    pod.add(&policy("same-bridge"));
    assert_eq!(isolated(lab), [""; 0]);
    // Even if the rules of iptables are gone.
    both("isolated");
    lab.sh("iptables -F; ip6tables -F");
    pod.add(&policy("open"));
    assert_eq!(isolated(lab).len(), 0);
    both("same-bridge");
    assert_eq!(ports(lab), settings);
    pod.check(&policy("same-bridge")).ok();
    pod.check(&policy("isolated")).error(999);
    assert_eq!((dropped("CNI-ISOLATION-STAGE-1"), dropped("CNI-ISOLATION-STAGE-2")), (0, 1));
    pod.add(&policy("open"));
    pod.check(&policy("open")).ok();
    assert_eq!((dropped("CNI-ISOLATION-STAGE-1"), dropped("CNI-ISOLATION-STAGE-2")), (0, 0));
    pod.add(&with(policy("same-bridge"), json!({ "name": "net2" })));
    // The policy of another network on the same bridge stays.
    pod.add(&policy("open"));
    assert_eq!(dropped("CNI-ISOLATION-STAGE-2"), 1);
}

/// Such rules lead only some packets to the chains.
#[test]
fn conditional_jumps_of_the_administrator_do_not_count() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge
            for chain in CNI-FORWARD CNI-ADMIN CNI-ISOLATION-STAGE-1; do iptables -N $chain; done
            iptables -A FORWARD -i eth7 -j CNI-FORWARD
            iptables -A FORWARD -i eth7 -j CNI-ISOLATION-STAGE-1
            iptables -A CNI-FORWARD -s 192.0.2.7 -j CNI-ADMIN");
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({ "ingressPolicy": "same-bridge" }));
    for _ in 0..2 {
        pod.add(&config);
        pod.check(&config).ok();
        let forward = rules(lab, "iptables", "FORWARD");
        assert!(forward[0].ends_with("-j CNI-ISOLATION-STAGE-1"), "{forward:#?}");
        assert_eq!(forward[1..], [ENTRY, "-i eth7 -j CNI-FORWARD", "-i eth7 -j CNI-ISOLATION-STAGE-1"]);
        let listed = rules(lab, "iptables", "CNI-FORWARD");
        assert_eq!(listed, [ADMIN, "-s 192.0.2.7/32 -j CNI-ADMIN", MARKED]);
    }
}
