//! Several interfaces of one container on one network, whose rules of iptables do not name them: DEL, GC and ADD of one
//! keep the ports of the others.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, reference};

use crate::differential::{nat, theirs};
use crate::support::{config, lease};
use crate::upgrade::{assert_removed, collect, del_without_result};

/// The rules of iptables do not name the interface. A lease or the alias of a link does.
#[test]
fn gc_removes_the_ports_of_one_interface() {
    for has_leases in [true, false] {
        let lab = &Lab::new();
        let interfaces = two_interfaces(lab);
        for (pod, config) in &interfaces {
            pod.add(config);
            if has_leases {
                pod.ips.iter().for_each(|ip| lease("net1", ip.split('/').next().unwrap(), "id1", &pod.ifname));
            } else {
                lab.sh(&format!("ip link set {} alias 'cni-attachment net1 id1 {}'", pod.port, pod.ifname));
            }
        }
        collect(lab, json!([{ "containerID": "id1", "ifname": "eth0" }, { "containerID": "id1", "ifname": "eth1" }]));
        for (pod, config) in &interfaces {
            pod.check(config).ok();
        }
        collect(lab, json!([{ "containerID": "id1", "ifname": "eth1" }]));
        let [(_, _), (second, config)] = &interfaces;
        second.check(config).ok();
        assert!(!nat(lab).contains("10.9.0.2:") && !nat(lab).contains("[fd00::2]"), "{}", nat(lab));
        collect(lab, json!([]));
        assert_removed(lab);
    }
}

/// Returns two interfaces of one container on one network, with their configurations.
fn two_interfaces(lab: &Lab) -> [(Pod<'_>, Value); 2] {
    let first = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let second = Pod::absent(lab, "id1", &["10.9.0.3/24", "fd00::3/64"]);
    let second = Pod { ifname: "eth1".into(), port: "veth2".into(), ..second };
    lab.sh("ip link add vethid1 type bridge; ip link add veth2 type bridge");
    let more = json!({ "cniVersion": "1.0.0", "backend": "iptables" });
    let config = |ports: &[&str]| with(config(ports), more.clone());
    [
        (first, config(&["8080:80/tcp", "53:53/udp", "9:9/sctp"])),
        (second, config(&["8081:80/tcp", "10.9.0.1 8080:80/udp", "10.9.0.1 53:53/sctp"])),
    ]
}

/// Makes the link of an interface a veth with its alias, as `bridge` creates it.
fn create_veth(lab: &Lab, link: &str, ifname: &str) {
    lab.sh(&format!(
        "ip link del {link}; ip link add {link} type veth peer name peer
         ip link set {link} alias 'cni-attachment net1 id1 {ifname}'"
    ));
}

#[test]
fn two_interfaces_of_a_container_are_told_apart() {
    if reference("portmap", "two_interfaces_of_a_container_are_told_apart").is_none() {
        return;
    }
    let lab = &Lab::new();
    let interfaces = two_interfaces(lab);
    for by_us in [[true, true], [false, false], [true, false], [false, true]] {
        let add = |index: usize| {
            let (pod, config) = &interfaces[index];
            if by_us[index] {
                pod.add(config);
            } else {
                theirs(pod, "ADD", config).ok();
            }
        };
        for removed in [0, 1] {
            let kept = 1 - removed;
            add(kept);
            let alone = nat(lab);
            lab.sh("nft flush ruleset");
            add(0);
            add(1);
            for (pod, config) in &interfaces {
                pod.check(config).ok();
            }
            interfaces[removed].0.del(&interfaces[removed].1);
            let mut left: Vec<String> = nat(lab).lines().map(str::to_owned).collect();
            if removed == 1 {
                // Rules of the reference that lead nowhere, because the port is published at an address of the other
                // family, cannot be attributed. They stay until the last interface is removed.
                left.retain(|line| !line.contains("-p udp") || !line.contains("--dports 8080 "));
                left.retain(|line| !line.contains("-p sctp") || !line.contains("--dports 53 "));
            }
            assert_eq!(left, alone.lines().collect::<Vec<_>>(), "{by_us:?}");
            interfaces[kept].0.del(&interfaces[kept].1);
            assert_removed(lab);
            lab.sh("nft flush ruleset");
        }
    }
}

/// Without the addresses of the attachment, leases prove which interface an address belongs to.
#[test]
fn leases_tell_interfaces_apart() {
    let lab = &Lab::new();
    let interfaces = two_interfaces(lab);
    for has_leases in [true, false] {
        for (pod, config) in &interfaces {
            pod.add(config);
        }
        if has_leases {
            for (pod, _) in &interfaces {
                for ip in &pod.ips {
                    lease("net1", ip.split('/').next().unwrap(), "id1", &pod.ifname);
                }
            }
        } else {
            fs::remove_dir_all("/var/lib/cni/networks/net1").unwrap();
        }
        let [(first, config), (second, other)] = &interfaces;
        del_without_result(second, "net1");
        if has_leases {
            first.check(config).ok();
            second.check(other).error(999);
            del_without_result(first, "net1");
        }
        assert_removed(lab);
    }
}

/// The DEL of an interface with the result of another one, by either implementation and in all forms.
#[test]
fn the_result_of_another_interface_removes_nothing_of_it() {
    let has_reference = reference("portmap", "the_result_of_another_interface_removes_nothing_of_it").is_some();
    let nftables = || json!({ "backend": "nftables" });
    for evidence in ["lease", "alias"] {
        let lab = &Lab::new();
        let [(first, config), (second, _)] = two_interfaces(lab);
        let second = Pod { ips: first.ips.clone(), port: first.port.clone(), ..second };
        if evidence == "lease" {
            first.ips.iter().for_each(|ip| lease("net1", ip.split('/').next().unwrap(), "id1", "eth0"));
        } else {
            create_veth(lab, &first.port, "eth0");
        }
        for (by_us, config) in
            [(true, config.clone()), (true, with(config.clone(), nftables())), (false, config.clone())]
        {
            match by_us {
                true => drop(first.add(&config)),
                false if has_reference => drop(theirs(&first, "ADD", &config).ok()),
                false => continue,
            }
            let before = lab.sh("nft list ruleset");
            second.del(&config);
            assert_eq!(lab.sh("nft list ruleset"), before, "{evidence} {by_us} {config}");
            first.del(&config);
            assert_removed(lab);
        }
    }
}

/// Both interfaces of a container publish the same port, at different addresses of this host.
#[test]
fn interfaces_with_the_same_port_are_told_apart() {
    let lab = &Lab::new();
    let first = Pod::with_port(lab, "id1", &["10.9.0.2/24"]);
    let second = first.interface("eth1", &["10.9.0.3/24"]);
    lab.sh(&format!("ip link add {} type bridge", second.port));
    let iptables = |port: &str| with(config(&[port]), json!({ "backend": "iptables" }));
    let pods = [(&first, iptables("10.0.0.1 8080:80/tcp")), (&second, iptables("10.0.0.2 8080:80/tcp"))];
    for (removed, kept) in [(0, 1), (1, 0)] {
        for _ in 0..2 {
            pods.iter().for_each(|(pod, config)| drop(pod.add(config)));
        }
        for (pod, config) in &pods {
            pod.check(config).ok();
        }
        pods[removed].0.del(&pods[removed].1);
        pods[kept].0.check(&pods[kept].1).ok();
        let text = nat(lab);
        assert_eq!((text.matches("--to-destination").count(), text.matches("-m multiport").count()), (1, 1), "{text}");
        pods[kept].0.del(&pods[kept].1);
        assert_removed(lab);
    }
}

/// A link that is renamed keeps its alias, which shows that the other interface exists.
#[test]
fn an_interface_with_a_renamed_link_keeps_its_ports() {
    let lab = &Lab::new();
    let interfaces = two_interfaces(lab);
    let [(first, config), (second, other)] = &interfaces;
    create_veth(lab, "veth2", "eth1");
    first.add(config);
    second.add(other);
    lab.sh("ip link set veth2 name renamed");
    first.del(config);
    second.check(other).ok();
    second.del(other);
    assert_removed(lab);
}

/// The DEL of an interface without ports, whose sibling has ports of the reference.
#[test]
fn an_interface_keeps_the_ports_of_the_reference() {
    if reference("portmap", "an_interface_keeps_the_ports_of_the_reference").is_none() {
        return;
    }
    let lab = &Lab::new();
    let interfaces = two_interfaces(lab);
    let [(first, config), (second, other)] = &interfaces;
    create_veth(lab, "veth2", "eth1");
    theirs(second, "ADD", other).ok();
    first.del(config);
    second.check(other).ok();
    second.del(other);
    assert_removed(lab);
}

/// One interface of a container is gone, and another container gets its port.
#[test]
fn the_other_interface_of_an_owner_that_is_gone_keeps_its_ports() {
    let lab = &Lab::new();
    let interfaces = two_interfaces(lab);
    let [(first, config), (second, other)] = &interfaces;
    first.add(config);
    second.add(other);
    lab.sh(&format!("ip link del {}", first.port));
    let third = Pod::absent(lab, "id2", &["10.9.0.4/24"]);
    third.add(&with(config.clone(), json!({ "backend": "nftables" })));
    second.check(other).ok();
}

/// Leases, the aliases of links and the forms of ports each prove which interface a rule belongs to.
#[test]
fn any_evidence_tells_interfaces_apart() {
    if reference("portmap", "any_evidence_tells_interfaces_apart").is_none() {
        return;
    }
    let same_port = |ip: &str| with(config(&[&format!("{ip} 8080:80/tcp")]), json!({ "cniVersion": "1.0.0" }));
    let iptables = |config: Value| with(config, json!({ "backend": "iptables" }));
    for evidence in ["alias", "lease", "form"] {
        let lab = &Lab::new();
        let [first, second] = two_interfaces(lab).map(|(pod, _)| Pod { ips: pod.ips[..1].to_vec(), ..pod });
        let (config, other) = (iptables(same_port("10.0.0.1")), iptables(same_port("10.0.0.2")));
        match evidence {
            // Only the first one has a lease: the configuration of the IPAM plugin was changed between the calls.
            "alias" => {
                lab.sh("ip link set veth2 alias 'cni-attachment net1 id1 eth1'");
                lease("net1", "10.9.0.2", "id1", "eth0");
                first.add(&config);
                second.add(&iptables(with(crate::support::config(&["81:80/tcp"]), json!({ "cniVersion": "1.0.0" }))));
                first.del(&config);
                assert!(nat(lab).contains("10.9.0.3:80"), "{}", nat(lab));
                continue;
            }
            // The reference uses the rule that leads to the chain, which names the link of the first one.
            "lease" => {
                lease("net1", "10.9.0.2", "id1", "eth0");
                lease("net1", "10.9.0.3", "id1", "eth1");
                first.add(&config);
            }
            // The ports of the first one are in maps.
            _ => drop(first.add(&same_port("10.0.0.1"))),
        }
        theirs(&second, "ADD", &other).ok();
        first.del(&config);
        second.check(&other).ok();
    }
}
