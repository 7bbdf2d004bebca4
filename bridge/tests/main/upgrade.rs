//! Upgrade in place: each implementation checks and deletes attachments of the other and of earlier versions of cni0,
//! and leaves nothing behind.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Outcome, Pod, reference};

use crate::pod::{assert_clean, check_by_chains, host_veth, layer2, layer3};

/// Returns configurations that both implementations support.
fn configurations() -> Vec<Value> {
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]]);
    let ipam =
        json!({ "type": "host-local", "ranges": ranges, "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.0.9" }] });
    let common = |more: Value| with(layer3(json!({ "cniVersion": "1.0.0", "ipam": ipam })), more);
    vec![
        layer2(json!({ "cniVersion": "1.0.0" })),
        common(json!({})),
        common(json!({ "isDefaultGateway": true, "hairpinMode": true })),
        common(json!({ "ipMasq": true, "ipMasqBackend": "iptables" })),
        common(json!({ "ipMasq": true, "ipMasqBackend": "iptables", "macspoofchk": true, "mtu": 1400 })),
        common(json!({ "promiscMode": true, "cniVersion": "0.4.0" })),
    ]
}

/// Calls the reference's plugin, with the reference's host-local.
pub(crate) fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call_reference(command, config).run()
}

/// Calls CHECK of the reference.
#[track_caller]
fn check_theirs(pod: &Pod<'_>, config: &Value, result: &Value) {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    theirs(pod, "CHECK", &config).ok();
}

#[test]
fn cni0_takes_over_attachments_of_the_reference() {
    if reference("bridge", "cni0_takes_over_attachments_of_the_reference").is_none() {
        return;
    }
    Lab::for_each_way_to_delegate(|lab| {
        for (index, config) in configurations().iter().enumerate() {
            let pod = Pod::new(lab, &format!("c{index}"));
            let result = theirs(&pod, "ADD", config).ok();
            pod.check_result(config, &result).ok();
            // With the previous result, as libcni passes it: the host veth has no alias, but the result names it.
            let mut config = config.clone();
            config["prevResult"] = result;
            pod.del(&config);
            assert_clean(lab);
            lab.sh("ip link del br0");
        }
    });
}

/// With versions before 0.4.0, runtimes pass no previous result. Then the lease proves to which attachment the
/// interface belongs.
#[test]
fn cni0_takes_over_without_a_previous_result() {
    if reference("bridge", "cni0_takes_over_without_a_previous_result").is_none() {
        return;
    }
    let lab = &Lab::new();
    for (index, config) in configurations().iter().filter(|config| config.get("ipam").is_some()).enumerate() {
        let pod = Pod::new(lab, &format!("c{index}"));
        theirs(&pod, "ADD", config).ok();
        pod.del(config);
        assert_clean(lab);
    }
}

/// An executed IPAM plugin cannot be queried, but its leases can be read, wherever the configuration puts them.
#[test]
fn cni0_takes_over_with_leases_in_another_directory() {
    if reference("bridge", "cni0_takes_over_with_leases_in_another_directory").is_none() {
        return;
    }
    Lab::for_each_way_to_delegate(|lab| {
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "/var/lib/elsewhere" });
        let config = layer3(json!({ "cniVersion": "1.0.0", "ipam": ipam }));
        let pod = Pod::new(lab, "c1");
        theirs(&pod, "ADD", &config).ok();
        pod.del(&config);
        assert!(!is_attached(&pod));
        assert_clean(lab);
        assert_eq!(lab.sh("ls /var/lib/elsewhere/net1 | grep -c '^10' || true"), "0\n");
    });
}

/// A runtime may pass the previous result of another attachment. The lease shows which pair belongs to this one, so
/// that DEL does not release the address of an interface that it keeps.
#[test]
fn del_with_the_result_of_another_attachment_removes_its_own_pair() {
    if reference("bridge", "del_with_the_result_of_another_attachment_removes_its_own_pair").is_none() {
        return;
    }
    Lab::for_each_way_to_delegate(|lab| {
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
        let config = layer3(json!({ "cniVersion": "1.0.0", "ipMasq": true, "ipam": ipam }));
        let [pod, other] = ["a", "b"].map(|id| Pod::new(lab, id));
        let [_, result] = [&pod, &other].map(|pod| theirs(pod, "ADD", &config).ok());
        pod.del(&with(config.clone(), json!({ "prevResult": result })));
        assert!(!is_attached(&pod));
        assert!(is_attached(&other));
        other.check_result(&config, &result).ok();
        // The path may lead to another container by now, whose address is not leased to this one.
        let moved = Pod { netns: other.netns.clone(), ..pod.clone() };
        moved.del(&with(config.clone(), json!({ "prevResult": null })));
        assert!(is_attached(&other));
        other.del(&with(config, json!({ "prevResult": result })));
        assert_clean(lab);
    });
}

/// Attaches a container as an earlier version did, whose aliases started with another word, and whose spoof check had
/// chains.
fn add_with_old_alias(pod: &Pod<'_>, config: &Value) -> Value {
    let result = pod.add(config);
    let (port, network) = (host_veth(&result), config["name"].as_str().unwrap());
    pod.lab.sh(&format!("ip link set {port} alias \"cni0 {network} {} {}\"", pod.id, pod.ifname));
    if config["macspoofchk"] == true {
        check_by_chains(pod, &result);
    }
    result
}

/// Returns whether the veth pair of a pod exists.
fn is_attached(pod: &Pod<'_>) -> bool {
    pod.sh("ip -o link").contains("eth0")
}

#[test]
fn del_removes_attachments_of_an_earlier_version() {
    let lab = &Lab::new();
    // Both backends of the masquerade, because iptables rules of one container share a chain.
    for (index, backend) in ["nftables", "iptables"].iter().enumerate() {
        let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true }));
        let mut other = config.clone();
        other["name"] = json!("net2");
        let pod = |id: &str, n: usize| {
            let id = format!("{id}{index}");
            Pod::with_ips(lab, &id, &[&format!("10.1.{index}.{n}/16")])
        };
        let (with_result, without, neighbour, elsewhere) = (pod("a", 2), pod("b", 3), pod("c", 4), pod("d", 5));
        let mut result = add_with_old_alias(&with_result, &config);
        add_with_old_alias(&without, &config);
        let kept = [(&neighbour, &config), (&elsewhere, &other)];
        let results = kept.map(|(pod, config)| add_with_old_alias(pod, config));

        // By now, the name of the host veth in a previous result may belong to another container.
        let port = host_veth(&results[0]);
        result["interfaces"][1]["name"] = json!(port);
        let mut given = config.clone();
        given["prevResult"] = result;
        with_result.del(&given);
        without.del(&config);
        assert!(!is_attached(&with_result) && !is_attached(&without));
        for ((pod, config), result) in kept.iter().zip(&results) {
            pod.check_result(config, result).ok();
            pod.del(config);
        }
        assert_clean(lab);
    }
}

/// The other attachment of the container keeps its iptables rules, which have the same comment.
#[test]
fn del_keeps_the_other_attachment_of_an_earlier_version() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let first = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = add_with_old_alias(&first, &config);
    let second = first.interface("eth1", &[]);
    second.answer(json!({ "ips": [{ "address": "10.1.0.3/24" }] }));
    add_with_old_alias(&second, &config);
    second.del(&config);
    first.check_result(&config, &result).ok();
    first.del(&config);
    assert_clean(lab);
}

#[test]
fn gc_removes_attachments_of_an_earlier_version() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "macspoofchk": true }));
    let mut other = config.clone();
    other["name"] = json!("net2");
    let pods: Vec<_> = ["alive", "stale", "foreign"]
        .iter()
        .enumerate()
        .map(|(n, id)| Pod::with_ips(lab, id, &[&format!("10.1.0.{}/24", n + 2)]))
        .collect();
    let alive = add_with_old_alias(&pods[0], &config);
    add_with_old_alias(&pods[1], &config);
    let foreign = add_with_old_alias(&pods[2], &other);
    let mut gc = config.clone();
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": "alive", "ifname": "eth0" }]);
    lab.plugin("bridge", "GC").stdin(gc.to_string()).run().ok();
    assert!(!is_attached(&pods[1]));
    pods[0].check_result(&config, &alive).ok();
    pods[2].check_result(&other, &foreign).ok();
}

/// The DEL of an attachment of an earlier version was lost. Its chains go with the next ADD, unless their port is that
/// of a live container: their names do not contain the network.
#[test]
fn an_add_replaces_the_chains_of_an_earlier_version() {
    let lab = &Lab::new();
    let config = layer3(json!({ "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = add_with_old_alias(&pod, &config);
    pod.check_result(&config, &result).ok();
    let other = with(config.clone(), json!({ "name": "net2", "bridge": "br2" }));
    let again = Pod { netns: lab.netns("again"), ..pod.clone() };
    let error = again.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("has a spoof check"), "{error}");
    let second = again.add(&other);
    pod.check_result(&config, &result).ok();
    again.check_result(&other, &second).ok();
    again.del(&other);
    pod.check_result(&config, &result).ok();

    lab.sh(&format!("ip link del {}", host_veth(&result)));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    assert!(!lab.sh("nft list ruleset").contains("cni-br-iface"));
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn the_reference_takes_over_attachments_of_cni0() {
    if reference("bridge", "the_reference_takes_over_attachments_of_cni0").is_none() {
        return;
    }
    Lab::for_each_way_to_delegate(|lab| {
        for (index, config) in configurations().iter().enumerate() {
            let pod = Pod::new(lab, &format!("c{index}"));
            let result = pod.add(config);
            // The reference's CHECK always fails without IPAM.
            if config.get("ipam").is_some() {
                check_theirs(&pod, config, &result);
            }
            theirs(&pod, "DEL", config).ok();
            // It does not know the table of the spoof check. GC of any network removes what is left there.
            if config["macspoofchk"] == true {
                assert!(lab.sh("nft list table bridge cni_spoofcheck").contains(&format!("id: {}\"", pod.id)));
                let gc =
                    json!({ "cniVersion": "1.1.0", "name": "any", "type": "bridge", "cni.dev/valid-attachments": [] });
                lab.plugin("bridge", "GC").stdin(gc.to_string()).run().ok();
            }
            assert_clean(lab);
            lab.sh("ip link del br0");
        }
    });
}

#[test]
fn both_work_side_by_side_on_one_bridge() {
    if reference("bridge", "both_work_side_by_side_on_one_bridge").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = &configurations()[3];
    let pods: Vec<_> = (0..6).map(|n| Pod::new(lab, &format!("p{n}"))).collect();
    let results: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(n, pod)| if n % 2 == 0 { theirs(pod, "ADD", config).ok() } else { pod.add(config) })
        .collect();
    for (n, (pod, result)) in pods.iter().zip(&results).enumerate() {
        pod.check_result(config, result).ok();
        check_theirs(pod, config, result);
        if n % 3 == 0 {
            theirs(pod, "DEL", config).ok()
        } else {
            pod.call("DEL", config).run().ok()
        };
    }
    assert_clean(lab);
}
