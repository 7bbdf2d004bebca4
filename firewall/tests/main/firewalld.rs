//! The whole plugin with the real firewalld on a real bus.

use serde_json::{Value, json};
use testing::config::with;
use testing::firewalld::{ADDRESS, Firewalld};
use testing::{Lab, Outcome, Pod, reference};

use crate::support::{accepted, config, containers, rules};

fn ours(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call(command, config).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).run()
}

fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call_reference(command, config).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).run()
}

#[test]
fn addresses_are_bound_to_the_zone() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "addresses_are_bound_to_the_zone") else { return };
    host.start();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    for (keys, zone) in [
        (json!({}), "trusted"),
        (json!({ "backend": "firewalld" }), "trusted"),
        (json!({ "backend": "firewalld", "firewalldZone": "work" }), "work"),
    ] {
        let config = config(keys);
        ours(&pod, "CHECK", &config).error(999);
        for _ in 0..2 {
            assert_eq!(ours(&pod, "ADD", &config).ok(), pod.result("1.1.0"));
            ours(&pod, "CHECK", &config).ok();
            assert_eq!(host.sources(zone), ["10.9.0.2/32", "fd00::2/128"]);
        }
        assert_eq!(containers(lab), [] as [&str; 0]);
        // A reload forgets them.
        host.firewall_cmd("--reload");
        ours(&pod, "CHECK", &config).error(999);
        ours(&pod, "ADD", &config).ok();
        ours(&pod, "CHECK", &config).ok();
        for _ in 0..2 {
            ours(&pod, "DEL", &config).ok();
            assert_eq!(host.sources(zone), [] as [&str; 0]);
        }
    }
    let mistake = config(json!({ "firewalldZone": "nonexistent" }));
    ours(&pod, "ADD", &mistake).error(7);
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
    lab.plugin("firewall", "STATUS")
        .env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS)
        .stdin(config(json!({ "backend": "firewalld" })).to_string())
        .run()
        .ok();
}

/// Without the variable, the bus has a usual place.
#[test]
fn the_bus_is_found() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "the_bus_is_found") else { return };
    host.start();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24"]);
    lab.sh("mkdir /run/dbus; ln -s /run/bus /run/dbus/system_bus_socket");
    pod.add(&config(json!({})));
    assert_eq!(host.sources("trusted"), ["10.9.0.2/32"]);
    pod.del(&config(json!({})));
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}

#[test]
fn firewalld_may_start_between_add_and_del() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "firewalld_may_start_between_add_and_del") else { return };
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    ours(&pod, "ADD", &config).ok();
    assert_eq!(containers(lab), accepted(&["10.9.0.2", "fd00::2"]));
    host.start();
    // It flushes all rules of iptables when it starts.
    assert_eq!(rules(lab, "iptables", "CNI-FORWARD"), [] as [&str; 0]);
    ours(&pod, "CHECK", &config).error(999);
    // Rules that were added beside it are found, whatever the backend is later.
    let iptables = with(config.clone(), json!({ "backend": "iptables" }));
    ours(&pod, "ADD", &iptables).ok();
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
    // And bindings.
    ours(&pod, "ADD", &config).ok();
    ours(&pod, "DEL", &iptables).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);

    // And it may stop.
    ours(&pod, "ADD", &config).ok();
    assert_eq!(host.sources("trusted").len(), 2);
    host.stop();
    ours(&pod, "CHECK", &config).error(999);
    ours(&pod, "ADD", &config).ok();
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(containers(lab), [] as [&str; 0]);
    ours(&pod, "ADD", &with(config, json!({ "backend": "firewalld" }))).error(11);
}

#[test]
fn the_next_owner_of_an_address_keeps_it() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "the_next_owner_of_an_address_keeps_it") else { return };
    host.start();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = config(json!({}));
    crate::support::lease("net1", "10.9.0.2", "c2");
    ours(&second, "ADD", &config).ok();
    ours(&first, "DEL", &config).ok();
    ours(&second, "CHECK", &config).ok();
    // Without a previous result, the lease names the address.
    ours(&second, "DEL", &with(config, json!({ "prevResult": null }))).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}

/// firewalld does not know who bound an address, but the plugin records it.
#[test]
fn stale_bindings_are_collected_and_those_of_other_programs_stay() {
    let test = "stale_bindings_are_collected_and_those_of_other_programs_stay";
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, test) else { return };
    host.start();
    let pods =
        [2, 3, 4].map(|n| Pod::absent(lab, &format!("c{n}"), &[&format!("10.9.0.{n}/24"), &format!("fd00::{n}/64")]));
    let config = config(json!({}));
    let gc = |valid: Value| {
        let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
        lab.plugin("firewall", "GC").env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).stdin(config.to_string()).run().ok();
        host.sources("trusted")
    };
    // Another program binds an address of the last pod before its ADD.
    host.firewall_cmd("--zone=trusted --add-source=10.9.0.4/32");
    for pod in &pods {
        ours(pod, "ADD", &config).ok();
    }
    let kept = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    assert_eq!(gc(kept), ["10.9.0.2/32", "10.9.0.4/32", "fd00::2/128"]);
    // The next container with the address takes the binding over from one that was lost.
    let next = Pod::absent(lab, "c5", &["10.9.0.2/24"]);
    ours(&next, "ADD", &config).ok();
    assert_eq!(gc(json!([{ "containerID": "c5", "ifname": "eth0" }])), ["10.9.0.2/32", "10.9.0.4/32"]);
    // DEL needs neither a previous result nor a lease.
    ours(&next, "DEL", &with(config.clone(), json!({ "prevResult": null }))).ok();
    assert_eq!(host.sources("trusted"), ["10.9.0.4/32"]);
    assert!(!lab.sh("nft list table inet cni_firewalld").contains("elements"));
    // The administrator makes a binding permanent.
    ours(&pods[1], "ADD", &config).ok();
    host.firewall_cmd("--permanent --zone=trusted --add-source=10.9.0.3/32");
    assert_eq!(gc(json!([])), ["10.9.0.3/32", "10.9.0.4/32"]);
}

#[test]
fn bindings_of_either_implementation_are_removed_by_the_other() {
    let test = "bindings_of_either_implementation_are_removed_by_the_other";
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, test) else { return };
    if reference("firewall", test).is_none() {
        return;
    }
    host.start();
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({ "cniVersion": "1.0.0" }));
    ours(&pod, "ADD", &config).ok();
    theirs(&pod, "CHECK", &config).ok();
    theirs(&pod, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
    theirs(&pod, "ADD", &config).ok();
    assert_eq!(host.sources("trusted").len(), 2);
    ours(&pod, "CHECK", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}

/// The IPAM plugin has no leases that could prove it, but the record of the binding does.
#[test]
fn a_late_del_keeps_the_binding_of_the_next_owner() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "a_late_del_keeps_the_binding_of_the_next_owner") else { return };
    host.start();
    let (first, second) = (Pod::absent(lab, "c1", &["10.9.0.2/24"]), Pod::absent(lab, "c2", &["10.9.0.2/24"]));
    let config = config(json!({}));
    ours(&first, "ADD", &config).ok();
    ours(&second, "ADD", &config).ok();
    for _ in 0..2 {
        ours(&first, "DEL", &config).ok();
        ours(&second, "CHECK", &config).ok();
    }
    ours(&second, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
}

/// An address that the permanent configuration has in the zone.
#[test]
fn a_permanent_binding_stays() {
    let lab = &Lab::new();
    let Some(mut host) = Firewalld::prepare(lab, "a_permanent_binding_stays") else { return };
    host.start();
    host.firewall_cmd("--permanent --zone=trusted --add-source=10.9.0.2/32");
    host.firewall_cmd("--reload");
    let pod = Pod::absent(lab, "c1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = config(json!({}));
    ours(&pod, "ADD", &config).ok();
    ours(&pod, "DEL", &config).ok();
    assert_eq!(host.sources("trusted"), ["10.9.0.2/32"]);
}
