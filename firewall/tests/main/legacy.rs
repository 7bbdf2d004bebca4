//! Legacy tables of iptables, which only their tools can change.

use serde_json::{Value, json};
use testing::config::with;
use testing::network::{IPV4, IPV6, Network};
use testing::packets::{Delivery, Server, from};
use testing::{Lab, Pod, Process, legacy, reference};

use crate::support::{self, ADMIN, ENTRY, MARKED, accepted, config, lease};

/// Returns a host whose legacy filter tables are in use; `None` if the kernel has no such tables.
fn legacy_host(test: &str) -> Option<Lab> {
    legacy::host("filter", test)
}

/// Returns the rules of a chain in the legacy table, without `-A CHAIN`.
fn rules(lab: &Lab, tool: &str, chain: &str) -> Vec<String> {
    support::rules(lab, &format!("{tool}-legacy"), chain)
}

/// Returns the accepted addresses, and the rules for single addresses in legacy tables.
fn containers(lab: &Lab) -> Vec<String> {
    let all = ["iptables", "ip6tables"].map(|tool| rules(lab, tool, "CNI-FORWARD")).concat();
    let legacy = all.into_iter().filter(|rule| !rule.contains("admin overrides") && rule != MARKED);
    support::containers(lab).into_iter().chain(legacy).collect()
}

/// Prepares a call of the reference with legacy tools.
fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Process {
    pod.call_reference(command, config).env("PATH", legacy::path(pod.lab))
}

#[test]
fn rules_are_added_to_legacy_tables_that_are_in_use() {
    let Some(lab) = &legacy_host("rules_are_added_to_legacy_tables_that_are_in_use") else { return };
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    let config = config(json!({}));
    pod.check(&config).error(999);
    for _ in 0..2 {
        pod.add(&config);
        for tool in ["iptables", "ip6tables"] {
            assert_eq!(rules(lab, tool, "FORWARD"), [ENTRY]);
            assert_eq!(rules(lab, tool, "CNI-FORWARD"), [ADMIN, MARKED]);
        }
        pod.check(&config).ok();
    }
    assert_eq!(lab.sh("nft list tables"), "table inet cni_firewall\n", "only the legacy tables of iptables are in use");
    neighbour.add(&config);
    for _ in 0..2 {
        pod.del(&config);
        assert_eq!(containers(lab), accepted(&["10.9.0.3", "fd00::3"]));
    }
    neighbour.check(&config).ok();
    // Without a previous result, the leases name the addresses.
    lease("net1", "10.9.0.3", "c2");
    lease("net1", "fd00::3", "c2");
    // A late DEL of a container that had them earlier.
    pod.del(&with(config.clone(), json!({ "prevResult": neighbour.result("1.1.0") })));
    neighbour.check(&config).ok();
    neighbour.del(&with(config, json!({ "prevResult": null })));
    assert_eq!(containers(lab), [] as [&str; 0]);
    assert_eq!(rules(lab, "iptables", "INPUT").len(), 1);
}

#[test]
fn policies_are_added_to_legacy_tables() {
    let Some(lab) = &legacy_host("policies_are_added_to_legacy_tables") else { return };
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let policy = |name: &str| config(json!({ "ingressPolicy": name }));
    for _ in 0..2 {
        pod.add(&policy("isolated"));
        pod.check(&policy("isolated")).ok();
        assert_eq!(rules(lab, "iptables", "CNI-ISOLATION-STAGE-1").len(), 4);
        assert_eq!(rules(lab, "ip6tables", "CNI-ISOLATION-STAGE-2").len(), 2);
        assert_eq!(rules(lab, "iptables", "FORWARD").len(), 2);
    }
    pod.add(&policy("same-bridge"));
    pod.check(&policy("same-bridge")).ok();
    assert_eq!(rules(lab, "iptables", "CNI-ISOLATION-STAGE-1").len(), 3);
    lab.sh("ip link delete br0");
    let gc = with(policy("same-bridge"), json!({ "cni.dev/valid-attachments": [] }));
    lab.plugin("firewall", "GC").stdin(gc.to_string()).run().ok();
    let text = lab.sh("iptables-legacy -S; ip6tables-legacy -S");
    assert!(!text.contains("br0"), "{text}");
}

#[test]
fn rules_of_either_implementation_are_removed_by_the_other() {
    let test = "rules_of_either_implementation_are_removed_by_the_other";
    let Some(lab) = &legacy_host(test) else { return };
    if reference("firewall", test).is_none() {
        return;
    }
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({ "cniVersion": "1.0.0", "backend": "iptables" }));
    theirs(&pod, "ADD", &config).run().ok();
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
    pod.add(&config);
    theirs(&pod, "DEL", &config).run().ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
    pod.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
}

/// A packet must pass the legacy table and that in nf_tables.
#[test]
fn both_tables_get_rules_if_both_are_in_use() {
    let Some(lab) = &legacy_host("both_tables_get_rules_if_both_are_in_use") else { return };
    lab.sh("iptables -P FORWARD DROP");
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    let config = config(json!({}));
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.2"]));
    for tool in ["iptables", "iptables-legacy"] {
        assert_eq!(support::rules(lab, tool, "CNI-FORWARD"), [ADMIN, MARKED], "{tool}");
    }
    lab.sh("iptables-legacy -F CNI-FORWARD");
    pod.check(&config).error(999);
    pod.add(&config);
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
#[ignore = "needs a kernel without nf_tables: `ci/kernels no-nftables`"]
fn on_a_kernel_without_nf_tables_traffic_is_accepted_in_legacy_tables() {
    let lab = &Lab::new();
    assert!(lab.sh("nft list tables 2>&1 || true").contains("rror"), "this kernel has nf_tables");
    let Network { a: pod, outside, .. } = &Network::new(lab);
    lab.sh("ip -n outside route add default via 192.0.2.1; ip -n outside route add default via 2001:db8::1");
    let path = legacy::path(lab);
    let call = |command: &str, keys: Value| pod.call(command, &config(keys)).env("PATH", &path);

    for keys in [json!({ "backend": "nftables" }), json!({ "ingressPolicy": "isolated" })] {
        for (command, code) in [("STATUS", 50), ("ADD", 999)] {
            let error = call(command, keys.clone()).run().error(code);
            assert!(error["msg"].as_str().unwrap().contains("nf_tables"), "{command}: {error}");
            assert!(
                error["details"].as_str().unwrap().contains("load the kernel modules nf_tables"),
                "{command}: {error}"
            );
        }
    }
    // The host's iptables tools may themselves need nf_tables.
    lab.sh("for f in /usr/sbin/*tables-legacy*; do mount --bind /dev/null $f; done");
    for (command, code) in [("STATUS", 50), ("ADD", 999)] {
        let error = pod.call(command, &config(json!({}))).run().error(code).to_string();
        assert!(error.contains("iptables") && error.contains("nf_tables"), "{command}: {error}");
    }
    lab.sh("for f in /usr/sbin/*tables-legacy*; do umount $f; done");

    lab.sh("iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD DROP");
    let expect = |accepted: bool| {
        for family in [&IPV4, &IPV6] {
            let server = Server::start("udp", Some(outside), family.outside, 80);
            let delivery = if accepted { from(family.pods[0]) } else { Delivery::Lost };
            pod.client().expect(&delivery, family.outside, 80, &server);
        }
    };
    expect(false);
    for keys in [json!({}), json!({ "ingressPolicy": "same-bridge" })] {
        call("STATUS", keys.clone()).run().ok();
        call("ADD", keys.clone()).run().ok();
        call("CHECK", keys.clone()).run().ok();
        expect(true);
        call("DEL", keys.clone()).run().ok();
        assert_eq!(containers(lab), [] as [&str; 0]);
        expect(false);
    }
    lease("net1", "10.1.0.2", "a");
    call("ADD", json!({})).run().ok();
    let gc = config(json!({ "cni.dev/valid-attachments": [{ "containerID": "a", "ifname": "eth0" }] }));
    lab.plugin("firewall", "GC").env("PATH", &path).stdin(gc.to_string()).run().ok();
    call("CHECK", json!({})).run().ok();
}

/// Another ADD relies on the shared rules that a failing one has added.
#[test]
fn a_failed_add_keeps_the_rules_that_others_need() {
    let Some(lab) = &legacy_host("a_failed_add_keeps_the_rules_that_others_need") else { return };
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24"]);
    let config = config(json!({}));
    // The tool for IPv6 waits until the other ADD has succeeded, and fails.
    lab.sh("mkdir /run/tools; cd /run/tools
         printf '#!/bin/sh\\ntouch /run/waiting\\nuntil [ -e /run/added ]; do sleep 0.01; done\\nexit 1\\n' \
             >ip6tables-legacy-restore
         chmod +x *");
    std::thread::scope(|scope| {
        let call = pod.call("ADD", &config).env("PATH", format!("/run/tools:{}", testing::PATH));
        let failing = scope.spawn(move || call.run());
        testing::wait_until("the tool", || std::path::Path::new("/run/waiting").exists());
        neighbour.add(&config);
        std::fs::write("/run/added", "").unwrap();
        failing.join().unwrap().error(999);
    });
    assert_eq!(containers(lab), accepted(&["10.9.0.3"]));
    neighbour.check(&config).ok();
}
