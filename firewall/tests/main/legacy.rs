//! Legacy tables of iptables, which only their tools can change.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Process, legacy, reference};

use crate::support::{ADMIN, ENTRY, accepted, accepted_all, config, lease, ruleset};

/// Returns a host whose legacy filter tables are in use; `None` if the kernel has no such tables.
fn legacy_host(test: &str) -> Option<Lab> {
    legacy::host("filter", test)
}

/// Returns the rules of a chain in the legacy table, without `-A CHAIN`.
fn rules(lab: &Lab, tool: &str, chain: &str) -> Vec<String> {
    crate::support::rules(lab, &format!("{tool}-legacy"), chain)
}

/// Returns the rules of all containers, of both families, without the administrator's.
fn containers(lab: &Lab) -> Vec<String> {
    let all = ["iptables", "ip6tables"].map(|tool| rules(lab, tool, "CNI-FORWARD")).concat();
    all.into_iter().filter(|rule| !rule.contains("admin overrides")).collect()
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
        for (tool, ip) in [("iptables", "10.9.0.2"), ("ip6tables", "fd00::2")] {
            assert_eq!(rules(lab, tool, "FORWARD"), [ENTRY]);
            assert_eq!(rules(lab, tool, "CNI-FORWARD"), [vec![ADMIN.to_owned()], accepted(ip)].concat());
        }
        pod.check(&config).ok();
    }
    assert_eq!(ruleset(lab), "", "only the legacy tables are in use");
    neighbour.add(&config);
    for _ in 0..2 {
        pod.del(&config);
        assert_eq!(containers(lab), accepted_all(&["10.9.0.3", "fd00::3"]));
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
    theirs(&pod, "CHECK", &config).run().ok();
    theirs(&pod, "DEL", &config).run().ok();
    // It does not know the rule for published ports.
    assert_eq!(containers(lab).len(), 2);
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
    assert_eq!(containers(lab), accepted("10.9.0.2"));
    assert_eq!(crate::support::containers(lab), accepted("10.9.0.2"));
    lab.sh("iptables-legacy -F CNI-FORWARD");
    pod.check(&config).error(999);
    pod.add(&config);
    pod.check(&config).ok();
    pod.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
    assert_eq!(crate::support::containers(lab), [] as [&str; 0]);
}
