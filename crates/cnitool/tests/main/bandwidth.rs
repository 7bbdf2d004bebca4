//! Bandwidth limits: a network of bridge and bandwidth, shown, checked, repaired and pruned.

use serde_json::{Value, json};

use crate::doctor::{only_problem, problems};
use crate::node::{attach, attach_and_show, host_with, json, lose_namespace, network, page, port};
use crate::repair::states;
use crate::support::Host;

/// A host with the network `pods`, whose second plugin limits containers.
fn limiting_host(subnet: &str) -> Host {
    let plugin = json!({
        "type": "bandwidth",
        "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000,
    });
    host_with(subnet, &plugin)
}

/// Returns the names of all ifb links.
fn ifbs(host: &Host) -> Vec<String> {
    let links = host.lab.ip("link show type ifb");
    let links = links.as_array().into_iter().flatten();
    links.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn limits_are_shown_and_pruned() {
    let host = limiting_host("10.200.0.0/24");
    let (id, lost, bridge) = attach_and_show(&host);
    let limits: Vec<&Value> = bridge["bandwidthLimits"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|limit| limit["container"] == id.as_str())
        .collect();
    let of = |direction: &str| limits.iter().find(|limit| limit["direction"] == direction).unwrap();
    for (direction, link, rate) in
        [("ingress", port(&id), 8_000_000), ("egress", of("egress")["link"].as_str().unwrap().to_owned(), 16_000_000)]
    {
        let limit = of(direction);
        for (key, value) in [
            ("link", json!(link)),
            ("rate", json!(rate)),
            ("burst", json!(800_000)),
            ("backend", json!("tc")),
            ("interface", json!("eth0")),
            ("ofPort", json!(true)),
        ] {
            assert_eq!(limit[key], value, "{key} in {limit:#}");
        }
    }
    let text = page(&host.run("show"));
    assert!(text.contains("limited") && text.contains("  bandwidth: 4 by tc, all of ports above\n"), "{text}");
    assert!(text.contains("ingress 8000000 bit/s, burst 800000 bit by veth"), "{text}");

    // The ifb link outlives the veth, and does not make the container seem alive.
    lose_namespace(&host, "lost", &lost);
    assert_eq!(ifbs(&host).len(), 2);
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 bandwidth limit of containers that are gone"), "{findings}");
    let text = page(&host.run("prune --dry-run"));
    assert!(text.contains("bandwidth limit  bwp"), "{text}");
    assert_eq!(ifbs(&host).len(), 2);
    page(&host.run("prune --force pods"));
    assert_eq!(ifbs(&host).len(), 1);
    assert!(page(&host.run("prune --force pods")).contains("nothing to remove"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

#[test]
fn missing_limits_are_reported_and_repaired() {
    let host = limiting_host("10.201.0.0/24");
    let id = attach(&host, "blue");
    let (veth, ifb) = (port(&id), ifbs(&host).remove(0));
    for damage in [
        format!("tc qdisc del dev {veth} root"),
        format!("tc qdisc del dev {veth} clsact"),
        format!("ip link delete {ifb}"),
        format!("ip link set {ifb} down"),
    ] {
        host.lab.sh(&damage);
        let what = only_problem(&host, "bandwidth", "warn");
        assert!(what.contains("1 of 1 live containers lack their limits") && what.contains("cnitool repair"), "{what}");
        assert_eq!(states(&json(&host, "repair --json")), ["repaired"], "{damage}");
        assert_eq!(states(&json(&host, "repair --json")), ["ok"], "{damage}");
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{damage}");
    }
}

#[test]
fn a_link_that_the_reference_left_is_reported() {
    let host = limiting_host("10.202.0.0/24");
    attach(&host, "blue");
    host.lab.sh("ip link add bwp0123456789ab type ifb; ip link add ifb0 type ifb");
    let what = only_problem(&host, "bandwidth", "warn");
    assert!(what.contains("1 ifb link of the reference that no container uses: bwp0123456789ab"), "{what}");
    assert!(what.contains("ip link delete bwp0123456789ab"), "{what}");
}

#[test]
#[ignore = "needs a kernel without ifb links: `ci/kernels no-ifb`"]
fn a_kernel_without_ifb_is_reported() {
    let host = limiting_host("10.254.0.0/24");
    host.lab.sh("sysctl -qw net.ipv4.ip_forward=1"); // as after the first ADD
    let what = only_problem(&host, "status", "fail");
    assert!(what.contains("bandwidth") && what.contains("load the kernel modules sch_tbf, ifb"), "{what}");
    // Containers without limits of the runtime can be attached.
    let mut config = network("pods", "10.254.0.0/24", &json!({}));
    let chained = json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } });
    config["plugins"].as_array_mut().unwrap().push(chained);
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let what = only_problem(&host, "bandwidth", "warn");
    assert!(what.contains("a container with limits cannot be attached"), "{what}");
    assert!(what.contains("load the kernel modules sch_tbf, ifb"), "{what}");
}
