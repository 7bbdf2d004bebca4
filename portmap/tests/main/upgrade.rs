//! Upgrade in place, and back: each implementation checks and removes the ports of the other. Those that the reference
//! publishes with nftables are the subject of `reference_nftables`.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::differential::{Case, cases, check_theirs, create_external_chain, nat, theirs};
use crate::reference_nftables::{add_reference_rules, reference_rules};
use crate::support::{config, lease};

/// Asserts that only shared chains and rules are left in the nat tables.
#[track_caller]
pub(crate) fn assert_removed(lab: &Lab) {
    let nat = nat(lab);
    for trace in ["CNI-DN", "CNI-SN", "DNAT --to", "name:"] {
        assert!(!nat.contains(trace), "left: {nat}");
    }
    assert!(nat.contains("-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"), "{nat}");
}

/// Calls our DEL without a previous result and without ports, as some runtimes do.
#[track_caller]
pub(crate) fn del_without_result(pod: &Pod<'_>, network: &str) {
    let config = json!({ "cniVersion": "1.0.0", "name": network, "type": "portmap" });
    let call = pod.lab.plugin("portmap", "DEL").attachment(&pod.id, &pod.ifname, &pod.netns);
    call.stdin(config.to_string()).run().ok();
}

#[test]
fn the_reference_takes_over_ports_of_cni0() {
    if reference("portmap", "the_reference_takes_over_ports_of_cni0").is_none() {
        return;
    }
    let lab = &Lab::new();
    create_external_chain(lab);
    for Case { config, ips } in cases() {
        let pod = Pod::absent(lab, "id1", ips);
        pod.add(&config);
        // With its default backend too.
        let mut default = config.clone();
        default.as_object_mut().unwrap().remove("backend");
        check_theirs(&pod, &default);
        theirs(&pod, "DEL", &default).ok();
        assert_removed(lab);
    }
}

#[test]
fn cni0_takes_over_ports_of_the_reference() {
    if reference("portmap", "cni0_takes_over_ports_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    create_external_chain(lab);
    for (number, Case { config, ips }) in cases().into_iter().enumerate() {
        let pod = Pod::absent(lab, "id1", ips);
        theirs(&pod, "ADD", &config).ok();
        pod.check(&config).ok();
        // Whatever the configuration says now.
        match number % 3 {
            0 => pod.del(&config),
            1 => pod.del(&json!({ "cniVersion": "1.0.0", "name": "net1", "type": "portmap", "backend": "nftables" })),
            _ => del_without_result(&pod, "net1"),
        }
        assert_removed(lab);
        pod.check(&config).error(999);
    }
}

/// A configuration without a backend means iptables for the reference and nftables for cni0. CHECK accepts both.
#[test]
fn check_accepts_ports_of_the_reference_with_the_default_backend() {
    if reference("portmap", "check_accepts_ports_of_the_reference_with_the_default_backend").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = with(config(&["8080:80/tcp"]), json!({ "cniVersion": "1.0.0" }));
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    theirs(&pod, "ADD", &config).ok();
    pod.check(&config).ok();
    // An ADD replaces what the reference has published.
    pod.add(&config);
    assert_removed(lab);
    pod.check(&config).ok();
}

#[test]
fn gc_removes_ports_of_the_reference() {
    if reference("portmap", "gc_removes_ports_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    let net1 = with(config(&["8080:80/tcp"]), json!({ "cniVersion": "1.0.0", "backend": "iptables" }));
    let port = |port: &str, name: &str| {
        let ports = config(&[port])["runtimeConfig"].clone();
        with(net1.clone(), json!({ "runtimeConfig": ports, "name": name }))
    };
    let (alive, stale, foreign) = (port("1:80/tcp", "net1"), port("2:80/udp", "net1"), port("3:80/tcp", "net11"));
    let pods = ["alive", "stale", "foreign"].map(|id| Pod::absent(lab, id, &["10.9.0.2/24", "fd00::2/64"]));
    for (pod, config) in pods.iter().zip([&alive, &stale, &foreign]) {
        theirs(pod, "ADD", config).ok();
    }
    // A DEL was killed after it had emptied the chain.
    let killed = Pod::absent(lab, "stale-too", &["10.9.0.2/24"]);
    theirs(&killed, "ADD", &port("4:80/tcp", "net1")).ok();
    lab.sh("iptables -t nat -F $(iptables -t nat -S CNI-HOSTPORT-DNAT | sed -n '/stale-too/s/.*-j //p')");
    let mut gc = with(alive.clone(), json!({ "cniVersion": "1.1.0" }));
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": "alive", "ifname": "eth0" }]);
    gc.as_object_mut().unwrap().remove("runtimeConfig");
    lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
    pods[0].check(&alive).ok();
    pods[1].check(&stale).error(999);
    pods[2].check(&foreign).ok();
    assert!(!nat(lab).contains("stale"), "{}", nat(lab));
    assert_eq!(nat(lab).matches("--to-destination").count(), 4);
}

/// Calls GC of `net1` with a list of valid attachments.
pub(crate) fn collect(lab: &Lab, valid: Value) {
    let gc = with(config(&[]), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
}

/// A DEL was lost, and the container had another address when it was attached again.
#[test]
fn ports_are_removed_although_the_previous_result_has_other_addresses() {
    if reference("portmap", "ports_are_removed_although_the_previous_result_has_other_addresses").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let moved = Pod { ips: vec!["10.9.0.7/24".into(), "fd00::7/64".into()], ..pod.clone() };
    let renamed = Pod { port: "veth7".into(), ..moved.clone() };
    let config = with(config(&["8080:80/tcp"]), json!({ "cniVersion": "1.0.0", "backend": "iptables" }));
    for later in [&moved, &renamed] {
        theirs(&pod, "ADD", &config).ok();
        later.del(&config);
        assert_removed(lab);
        pod.add(&config);
        later.del(&config);
        assert_removed(lab);
    }
    // The link has no alias, but it is the one that the previous result names.
    lab.sh("ip link add vethid1 type bridge");
    pod.add(&config);
    moved.del(&config);
    assert_removed(lab);
}

/// The name of a chain is a hash of network and container, without a separator.
#[test]
fn containers_whose_chains_have_the_same_name_are_told_apart() {
    if reference("portmap", "containers_whose_chains_have_the_same_name_are_told_apart").is_none() {
        return;
    }
    let lab = &Lab::new();
    for by_us in [true, false] {
        for (removed, with_result) in [(0, true), (1, false), (0, false), (1, true)] {
            let pods = [Pod::absent(lab, "1id", &["10.9.0.2/24"]), Pod::absent(lab, "11id", &["10.8.0.2/24"])];
            let config = |name: &str, ports: &[&str]| {
                with(config(ports), json!({ "cniVersion": "1.0.0", "backend": "iptables", "name": name }))
            };
            let configs = [config("net1", &["8080:80/tcp"]), config("net", &["8081:80/tcp"])];
            for (pod, config) in pods.iter().zip(&configs) {
                if by_us {
                    pod.add(config);
                } else {
                    theirs(pod, "ADD", config).ok();
                }
            }
            assert_eq!(nat(lab).matches(":CNI-DN").count(), 1, "{}", nat(lab));
            if with_result {
                pods[removed].del(&configs[removed]);
            } else {
                del_without_result(&pods[removed], configs[removed]["name"].as_str().unwrap());
            }
            let text = nat(lab);
            assert!(!text.contains(&pods[removed].ips[0].replace("/24", ":")), "{text}");
            assert!(!text.contains(&format!("id: \\\"{}\\\"", pods[removed].id)), "{text}");
            let kept = 1 - removed;
            pods[kept].check(&configs[kept]).ok();
            check_theirs(&pods[kept], &configs[kept]);
            theirs(&pods[kept], "DEL", &configs[kept]).ok();
            assert_removed(lab);
        }
    }
}

/// A chain to which a rule of the administrator leads cannot be deleted, but its rules can.
#[test]
fn a_chain_with_a_foreign_reference_is_emptied() {
    let lab = &Lab::new();
    let config = with(config(&["8080:80/tcp"]), json!({ "backend": "iptables" }));
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    pod.add(&config);
    lab.sh("iptables -t nat -A OUTPUT -d 192.0.2.1 -j CNI-DN-a19237f207ed3fa9670f3");
    pod.del(&config);
    let text = nat(lab);
    assert!(!text.contains("DNAT --to") && !text.contains("name:"), "{text}");
    pod.add(&config);
    pod.check(&config).ok();
}

/// The masquerade chains of versions before 0.7.0, and their rules without ports.
#[test]
fn rules_of_early_versions_are_removed() {
    let lab = &Lab::new();
    let hash = "a19237f207ed3fa9670f3";
    let comment = |what: &str| format!("-m comment --comment '{what} name: \"net1\" id: \"id1\"'");
    lab.sh(&format!(
        "nat() {{ iptables -t nat \"$@\"; }}
         for chain in CNI-HOSTPORT-DNAT CNI-HOSTPORT-SNAT CNI-DN-{hash} CNI-SN-{hash}; do nat -N $chain; done
         nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
         nat -A POSTROUTING -s 127.0.0.1 ! -d 127.0.0.1 -j CNI-HOSTPORT-SNAT
         nat -A CNI-HOSTPORT-DNAT {} -j CNI-DN-{hash}
         nat -A CNI-HOSTPORT-SNAT {} -j CNI-SN-{hash}
         nat -A CNI-DN-{hash} -p tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80
         nat -A CNI-SN-{hash} -p tcp -s 127.0.0.1 -d 10.9.0.2 --dport 80 -j MASQUERADE",
        comment("dnat"),
        comment("snat"),
    ));
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    // It blocks the port for others.
    let other = Pod::absent(lab, "other", &["10.9.0.3/24"]);
    let error = other.call("ADD", &config(&["8080:80/tcp"])).run().error(101);
    assert!(error["msg"].as_str().unwrap().contains("10.9.0.2:80 (net: net1, id: id1)"), "{error}");
    pod.del(&config(&[]));
    assert_removed(lab);
    assert!(nat(lab).contains("-j CNI-HOSTPORT-SNAT"), "{}", nat(lab));
}

/// Each form of published ports blocks a port for other containers, unless its owner is gone.
#[test]
fn a_port_of_the_reference_is_taken_unless_its_container_is_gone() {
    let test = "a_port_of_the_reference_is_taken_unless_its_container_is_gone";
    if reference("portmap", test).is_none() {
        return;
    }
    let lab = &Lab::new();
    let other = Pod::absent(lab, "other", &["10.9.0.3/24"]);
    for backend in ["iptables", "nftables"] {
        let config = with(config(&["8080:80/tcp"]), json!({ "cniVersion": "1.0.0", "backend": backend }));
        let first = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
        theirs(&first, "ADD", &config).ok();
        let taken = || {
            let error = other.call("ADD", &config).run().error(101);
            let message = error["msg"].as_str().unwrap();
            let owner = ["net: net1, id: id1", "net: net1, if: eth0, id: id1"];
            assert!(message.contains("tcp port 8080") && owner.iter().any(|owner| message.contains(owner)), "{error}");
            check_theirs(&first, &config);
        };
        taken();
        // The network has leases, one of them for the container.
        lease("net1", "10.9.0.3", "other", "eth0");
        lease("net1", "10.9.0.2", "id1", "eth0");
        taken();
        // It has none, but a link.
        fs::remove_file("/var/lib/cni/networks/net1/10.9.0.2").unwrap();
        lab.sh("ip link add veth1 type veth peer name veth2; ip link set veth1 alias 'cni-attachment net1 id1 eth0'");
        taken();
        lab.sh("ip link del veth1");
        let outcome = other.call("ADD", &config).env("CNI_LOG", "info").run();
        outcome.ok();
        assert!(outcome.stderr.contains("id: id1"), "{}", outcome.stderr);
        other.check(&config).ok();
        assert!(!nat(lab).contains("id1"), "{}", nat(lab));
        other.del(&config);
        fs::remove_dir_all("/var/lib/cni/networks/net1").unwrap();
    }
    // The network of nftables rules is unknown, so that their owner is never known to be gone.
    add_reference_rules(lab, "id1", 8080, &["10.9.0.2", "fd00::2"]);
    let error = other.call("ADD", &config(&["8080:80/tcp"])).run().error(101);
    assert!(error["msg"].as_str().unwrap().contains("leads to 10.9.0.2:80 (id: id1)"), "{error}");
    other.add(&config(&["8081:80/tcp"]));
    // An ADD of the container itself replaces them.
    let itself = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    itself.add(&config(&["8080:80/tcp"]));
    assert_eq!(reference_rules(lab), [] as [&str; 0]);
}
