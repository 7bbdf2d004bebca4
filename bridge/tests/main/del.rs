//! DEL: removes everything despite errors, and can be repeated.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::pod::{assert_clean, layer3};
use crate::upgrade::theirs;

/// Returns a configuration that creates everything that could be left behind.
fn everything(backend: &str) -> Value {
    layer3(json!({ "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true, "isDefaultGateway": true }))
}

#[test]
fn del_removes_all_traces_and_can_be_repeated() {
    Lab::for_each_way_to_delegate(|lab| {
        for backend in ["nftables", "iptables"] {
            let config = everything(backend);
            let pod = Pod::with_ips(lab, &format!("c-{backend}"), &["10.1.0.2/24", "fd01::2/64"]);
            pod.add(&config);
            pod.del(&config);
            assert_clean(lab);
            pod.del(&config);
        }
    });
}

/// Even if it renames interfaces in its namespace.
#[test]
fn a_container_cannot_keep_its_port_or_its_spoof_check() {
    let hide = "ip link set eth0 down; ip link set eth0 name x0; ip link set x0 up;";
    for decoy in ["ip link add eth0 type veth peer name y0", "ip link set lo down; ip link set lo name eth0"] {
        let lab = &Lab::new();
        let config = everything("nftables");
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        pod.add(&config);
        pod.sh(&format!("{hide} {decoy}"));
        pod.del(&config);
        assert_clean(lab);
        pod.del(&config);
    }
}

#[test]
fn long_ids_with_the_same_prefix_are_distinguished() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "isGateway": true, "macspoofchk": true }));
    let [one, two] = ["1", "2"].map(|end| format!("{}{end}", "c".repeat(245)));
    let one = Pod::with_ips(lab, &one, &["10.1.0.2/24"]);
    one.add(&config);
    let two = Pod::with_ips(lab, &two, &["10.1.0.3/24"]);
    two.add(&config);
    one.sh("ip link del eth0");
    one.del(&config);
    two.sh("ip link show dev eth0");
    two.del(&config);
    assert_clean(lab);
}

#[test]
fn del_continues_without_the_ipam_plugin() {
    let lab = &Lab::new();
    let config = everything("nftables");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    pod.add(&config);
    fs::remove_file(lab.bin().join("scripted")).unwrap();
    let error = pod.call("DEL", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("\"scripted\""), "{error}");
    assert_clean(lab);
}

#[test]
fn del_removes_the_objects_of_an_older_configuration() {
    let lab = &Lab::new();
    for backend in ["nftables", "iptables"] {
        let pod = Pod::with_ips(lab, backend, &["10.1.0.2/24", "fd01::2/64"]);
        pod.add(&everything(backend));
        // Now without these features, and on another bridge.
        pod.del(&layer3(json!({ "bridge": "br1" })));
        assert_clean(lab);
    }
}

#[test]
fn attachments_of_one_container_do_not_disturb_each_other() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": backend }));
        let first = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        let result = first.add(&config);
        let second = first.interface("eth1", &[]);
        second.answer(json!({ "ips": [{ "address": "10.1.0.3/24" }] }));
        let second_result = second.add(&config);
        first.check_result(&config, &result).ok();
        // A runtime passes the result of ADD.
        let mut with_previous = config.clone();
        with_previous["prevResult"] = second_result;
        second.del(&with_previous);
        first.check_result(&config, &result).ok();
        let rules = lab.sh("nft list ruleset");
        assert!(!rules.contains("10.1.0.3"), "{backend}: {rules}");
        first.del(&config);
        assert_clean(lab);
    }
}

/// A runtime may pass no result, or that of the other interface. With iptables, the interfaces of a container share a
/// chain, and the pairs of the reference have no alias.
#[test]
fn leases_tell_the_masquerade_of_interfaces_apart() {
    let lab = &Lab::new();
    let has_reference = reference("bridge", "leases_tell_the_masquerade_of_interfaces_apart").is_some();
    for (backend, is_theirs) in [("nftables", false), ("iptables", false), ("iptables", has_reference)] {
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
        let keys = json!({ "cniVersion": "1.0.0", "ipMasq": true, "ipMasqBackend": backend, "ipam": ipam });
        let config = layer3(keys);
        for previous in [None, Some(0), Some(1)] {
            let id = format!("{backend}-{is_theirs}-{}", previous.unwrap_or(2));
            let first = Pod::new(lab, &id);
            let second = first.interface("eth1", &[]);
            let results = [&first, &second].map(|pod| match is_theirs {
                true => theirs(pod, "ADD", &config).ok(),
                false => pod.add(&config),
            });
            let is_masqueraded = |result: &Value| {
                let ip = result["ips"][0]["address"].as_str().unwrap().trim_end_matches("/24");
                lab.sh("nft list ruleset 2>/dev/null").contains(&format!("saddr {ip} "))
            };
            assert_eq!(results.each_ref().map(is_masqueraded), [true, true], "{}", first.id);
            first.del(&with(config.clone(), json!({ "prevResult": previous.map(|index: usize| &results[index]) })));
            assert_eq!(results.each_ref().map(is_masqueraded), [false, true], "{}", first.id);
            second.del(&with(config.clone(), json!({ "prevResult": results[1] })));
            assert_clean(lab);
        }
    }
}

#[test]
fn del_with_nftables_starts_no_iptables_process() {
    let lab = &Lab::new();
    let config = everything("nftables");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    // Another program uses iptables on this host.
    lab.sh("iptables -t nat -A POSTROUTING -s 10.9.0.0/16 -j ACCEPT");
    pod.add(&config);
    let (outcome, log) = pod.call("DEL", &config).trace(lab, &["-f", "-e", "trace=execve"]);
    outcome.ok();
    assert!(!log.contains("iptables"), "{log}");
    assert!(lab.sh("iptables -t nat -S POSTROUTING").contains("10.9.0.0/16"), "the rule of another program stays");
}

/// There `iptables-save` lists the table of nf_tables, although another program has made the older one.
#[test]
fn a_host_with_only_the_newer_iptables_tools_is_cleaned_up() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    lab.sh("iptables-legacy -t nat -L; mount --bind /dev/null $(realpath /usr/sbin/iptables-legacy)");
    pod.add(&config);
    pod.del(&config);
    assert_clean(lab);
}
