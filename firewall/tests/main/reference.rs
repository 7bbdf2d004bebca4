//! The reference beside this plugin: the same chains and policies. This plugin checks and removes the rules of the
//! reference, whose DEL succeeds for what this plugin added.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Outcome, Pod, reference};

use crate::support::{accepted, config, containers, lease, ruleset};

fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call_reference(command, config).run()
}

/// Returns a configuration that both implementations support.
fn common(keys: Value) -> Value {
    with(config(json!({ "cniVersion": "1.0.0", "backend": "iptables" })), keys)
}

/// Returns the rules of both families without those of addresses, chain by chain: the reference creates chains in
/// another order. Comments of policies differ between its versions.
fn listing(lab: &Lab) -> Vec<String> {
    let text = lab.sh("iptables -S 2>/dev/null; echo; ip6tables -S 2>/dev/null");
    let is_shared = |line: &&str| !line.starts_with("-A CNI-FORWARD") || line.contains("-j CNI-");
    let rules = text.lines().filter(|line| line.starts_with("-A")).filter(is_shared);
    let mut lines: Vec<String> = rules.map(|line| line.replace("same-bridge|isolated", "same-bridge")).collect();
    lines.sort_by(|a, b| a.split(' ').nth(1).cmp(&b.split(' ').nth(1)));
    lines
}

#[test]
fn chains_and_policies_are_those_of_the_reference() {
    if reference("firewall", "chains_and_policies_are_those_of_the_reference").is_none() {
        return;
    }
    let dual: &[&str] = &["10.9.0.2/24", "fd00::2/64"];
    for (keys, ips) in [
        (json!({}), dual),
        (json!({}), &["10.9.0.2/24"]),
        (json!({}), &["fd00::2/64"]),
        (json!({}), &["10.9.0.2/24", "10.8.0.2/32"]),
        (json!({ "iptablesAdminChainName": "CNI-foobar" }), dual),
        (json!({ "ingressPolicy": "open" }), dual),
        (json!({ "ingressPolicy": "same-bridge" }), dual),
    ] {
        let config = common(keys);
        let [expected, found] = [false, true].map(|is_ours| {
            let lab = &Lab::new();
            lab.sh("ip link add br0 type bridge");
            let pods = [2, 3].map(|n| {
                let ips: Vec<String> = ips.iter().map(|ip| ip.replace("2/", &format!("{n}/"))).collect();
                Pod::absent(lab, &format!("c{n}"), &ips.iter().map(String::as_str).collect::<Vec<_>>())
            });
            for _ in 0..2 {
                for pod in &pods {
                    if is_ours { drop(pod.add(&config)) } else { drop(theirs(pod, "ADD", &config).ok()) }
                }
            }
            listing(lab)
        });
        let is_exemption = |line: &String| line.contains("--ctstate DNAT -j RETURN");
        let found: Vec<String> = found.into_iter().filter(|line| !is_exemption(line)).collect();
        assert_eq!(found, expected, "{config}");
    }
}

#[test]
fn the_reference_detaches_our_containers() {
    if reference("firewall", "the_reference_detaches_our_containers").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    let config = common(json!({}));
    pod.add(&config);
    neighbour.add(&config);
    let before = ruleset(lab);
    // It finds no rules of its own.
    theirs(&pod, "CHECK", &config).error(999);
    theirs(&pod, "DEL", &config).ok();
    assert_eq!(ruleset(lab), before);
    neighbour.check(&config).ok();
    // Its ADD adds its own rules, and its DEL removes them.
    theirs(&pod, "ADD", &config).ok();
    theirs(&pod, "CHECK", &config).ok();
    theirs(&pod, "DEL", &config).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2", "10.9.0.3", "fd00::3"]));
    // What it leaves, the next DEL, ADD or GC of this plugin removes.
    let gc = with(
        config.clone(),
        json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": [{ "containerID": "c2", "ifname": "eth0" }] }),
    );
    lab.plugin("firewall", "GC").stdin(gc.to_string()).run().ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.3", "fd00::3"]));
    pod.add(&config);
    theirs(&pod, "DEL", &config).ok();
    pod.del(&with(config.clone(), json!({ "prevResult": null })));
    assert_eq!(containers(lab), accepted(&["10.9.0.3", "fd00::3"]));
}

/// The reference leaves the address of the container that is gone. The DEL of the next container with the address,
/// which the reference has attached, cannot know that. GC removes both.
#[test]
fn an_address_that_the_reference_left_goes_with_gc() {
    if reference("firewall", "an_address_that_the_reference_left_goes_with_gc").is_none() {
        return;
    }
    let lab = &Lab::new();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = common(json!({}));
    first.add(&config);
    theirs(&first, "DEL", &config).ok();
    theirs(&second, "ADD", &config).ok();
    lease("net1", "10.9.0.2", "c2");
    second.del(&config);
    let gc = with(config.clone(), json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": [] }));
    lab.plugin("firewall", "GC").stdin(gc.to_string()).run().ok();
    second.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn rules_of_the_reference_are_checked_and_removed() {
    if reference("firewall", "rules_of_the_reference_are_checked_and_removed").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let neighbour = Pod::absent(lab, "c2", &["10.9.0.3/24", "fd00::3/64"]);
    let config = common(json!({}));
    theirs(&pod, "ADD", &config).ok();
    theirs(&neighbour, "ADD", &config).ok();
    let before = ruleset(lab);
    pod.check(&config).ok();
    assert_eq!(ruleset(lab), before);
    pod.del(&config);
    pod.check(&config).error(999);
    neighbour.check(&config).ok();
    theirs(&neighbour, "CHECK", &config).ok();
    assert_eq!(containers(lab).len(), 4);
    // Without a previous result, the lease names the address.
    lease("net1", "10.9.0.3", "c2");
    lease("net1", "fd00::3", "c2");
    neighbour.del(&with(config.clone(), json!({ "prevResult": null })));
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn an_add_takes_over_the_rules_of_the_reference() {
    if reference("firewall", "an_add_takes_over_the_rules_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = common(json!({}));
    theirs(&pod, "ADD", &config).ok();
    pod.add(&config);
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
    pod.check(&config).ok();
    pod.del(&with(config, json!({ "prevResult": null })));
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn a_late_del_keeps_the_rules_that_the_reference_added_for_another_container() {
    if reference("firewall", "a_late_del_keeps_the_rules_that_the_reference_added_for_another_container").is_none() {
        return;
    }
    let lab = &Lab::new();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = common(json!({}));
    lease("net1", "10.9.0.2", "c2");
    theirs(&second, "ADD", &config).ok();
    first.del(&config);
    theirs(&second, "CHECK", &config).ok();
    second.del(&config);
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn policies_of_the_reference_are_checked_and_taken_over() {
    if reference("firewall", "policies_of_the_reference_are_checked_and_taken_over").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24"]);
    let config = common(json!({ "ingressPolicy": "same-bridge" }));
    let fresh = {
        pod.add(&config);
        let listing = listing(lab);
        lab.sh("nft flush ruleset");
        listing
    };
    theirs(&pod, "ADD", &config).ok();
    pod.check(&config).ok();
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(listing(lab), fresh);
    pod.add(&common(json!({ "ingressPolicy": "open" })));
    assert_eq!(lab.sh("iptables -S | grep -c DROP || true"), "0\n");
}

/// Nothing proves that the address is free. The next container that gets it takes the rules over.
#[test]
fn gc_keeps_the_rules_of_the_reference() {
    if reference("firewall", "gc_keeps_the_rules_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = common(json!({}));
    theirs(&first, "ADD", &config).ok();
    let before = ruleset(lab);
    let gc = with(config.clone(), json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": [] }));
    lab.plugin("firewall", "GC").stdin(gc.to_string()).run().ok();
    assert_eq!(ruleset(lab), before);
    second.add(&config);
    lab.plugin("firewall", "GC").stdin(gc.to_string()).run().ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
}
