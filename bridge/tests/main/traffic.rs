//! Traffic: what rules and ports are for, proved by packets. The first packet counts everywhere.

use cni::testing::{Lab, patience, skip, wait_until};
use serde_json::{Value, json};

use crate::pod::{Pod, assert_clean, layer2, layer3, nothing_comes, outside, send, udp};

const IPS: [&[&str]; 2] = [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"]];

/// Two pods with both families on one network.
fn two<'a>(lab: &'a Lab, config: &Value) -> [Pod<'a>; 2] {
    let pods = [Pod::with_ips(lab, "a", IPS[0]), Pod::with_ips(lab, "b", IPS[1])];
    lab.sh("ip link set lo up");
    for pod in &pods {
        pod.add(config);
    }
    pods
}

#[test]
fn pods_reach_each_other_and_their_gateway() {
    Lab::both(|lab| {
        let [a, b] = two(lab, &layer3(json!({ "isDefaultGateway": true })));
        for (any, own, other, gateway) in
            [("0.0.0.0:0", "10.1.0.2", "10.1.0.3", "10.1.0.1"), ("[::]:0", "fd01::2", "fd01::3", "fd01::1")]
        {
            let own = own.parse().ok();
            assert_eq!(send(&a.udp(any), &b.udp(any), other), own);
            assert_eq!(send(&a.udp(any), &udp(None, any), gateway), own);
            assert_eq!(send(&udp(None, any), &b.udp(any), other), gateway.parse().ok());
        }
    });
}

fn masquerade_hides_pods(config: &Value) {
    let lab = &Lab::new();
    let beyond = outside(lab);
    let [a, b] = two(lab, config);
    for (any, own, other, outside, host) in [
        ("0.0.0.0:0", "10.1.0.2", "10.1.0.3", "192.0.2.2", "192.0.2.1"),
        ("[::]:0", "fd01::2", "fd01::3", "2001:db8::2", "2001:db8::1"),
    ] {
        let (pod, server) = (a.udp(any), udp(Some(&beyond), any));
        assert_eq!(send(&pod, &server, outside), host.parse().ok(), "outside sees the host's address");
        // The way back: to where it seemed to come from.
        pod.send_to(b"hello", (outside.parse::<std::net::IpAddr>().unwrap(), server.local_addr().unwrap().port()))
            .unwrap();
        let mut buffer = [0; 16];
        let (_, seen) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"answer", seen).unwrap();
        pod.set_read_timeout(Some(patience())).unwrap();
        assert_eq!(pod.recv(&mut buffer).unwrap(), 6, "the answer finds its way back");
        assert_eq!(send(&a.udp(any), &b.udp(any), other), own.parse().ok(), "pods see each other's own");
    }
    // The rules of one do not matter to the other.
    a.del(config);
    let server = udp(Some(&beyond), "0.0.0.0:0");
    assert_eq!(send(&b.udp("0.0.0.0:0"), &server, "192.0.2.2"), "192.0.2.1".parse().ok());
    b.del(config);
    assert_clean(lab);
}

#[test]
fn masquerade_by_nftables_hides_pods() {
    masquerade_hides_pods(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true })));
    masquerade_hides_pods(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables" })));
}

#[test]
fn masquerade_by_iptables_hides_pods() {
    masquerade_hides_pods(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables" })));
}

#[test]
fn without_masquerade_pods_are_not_hidden() {
    let lab = &Lab::new();
    let beyond = outside(lab);
    lab.sh(&format!("nsenter --net={} ip route add 10.1.0.0/24 via 192.0.2.1", beyond.display()));
    let [a, _] = two(lab, &layer3(json!({ "isDefaultGateway": true })));
    let server = udp(Some(&beyond), "0.0.0.0:0");
    assert_eq!(send(&a.udp("0.0.0.0:0"), &server, "192.0.2.2"), "10.1.0.2".parse().ok());
}

#[test]
fn own_networks_of_a_pod_are_inside() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let a = Pod::with_ips(lab, "a", &["10.1.0.2/24", "10.2.0.2/24"]);
        let b = Pod::with_ips(lab, "b", &["10.2.0.3/24"]);
        let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": backend }));
        a.add(&config);
        b.add(&config);
        // From the second network to the second network: the masquerade of the first must not come before.
        let seen = send(&a.udp("10.2.0.2:0"), &b.udp("0.0.0.0:0"), "10.2.0.3");
        assert_eq!(seen, "10.2.0.2".parse().ok(), "{backend}");
    }
}

#[test]
fn isolated_ports_reach_their_gateway_only() {
    let lab = &Lab::new();
    let [a, b] = two(lab, &layer3(json!({ "portIsolation": true })));
    for (any, other, gateway) in [("0.0.0.0:0", "10.1.0.3", "10.1.0.1"), ("[::]:0", "fd01::3", "fd01::1")] {
        nothing_comes(&a.udp(any), &b.udp(any), other);
        assert!(send(&a.udp(any), &udp(None, any), gateway).is_some());
    }
}

#[test]
fn a_pod_reaches_itself_through_dnat_only_with_hairpin_mode() {
    for hairpin in [true, false] {
        let lab = &Lab::new();
        if !std::path::Path::new("/proc/sys/net/bridge").exists() {
            return skip("a_pod_reaches_itself_through_dnat_only_with_hairpin_mode", "no br_netfilter");
        }
        // With this, frames between ports are translated too, and go back out where they came in.
        lab.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        let [a, _] = two(lab, &layer3(json!({ "isDefaultGateway": true, "hairpinMode": hairpin })));
        let server = a.udp("0.0.0.0:0");
        lab.sh("nft 'add table ip service
                  add chain ip service pre { type nat hook prerouting priority -100; }
                  add chain ip service post { type nat hook postrouting priority 90; }
                  add rule ip service pre ip daddr 10.9.9.9 dnat to 10.1.0.2
                  add rule ip service post ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade'");
        if hairpin {
            assert_eq!(send(&a.udp("0.0.0.0:0"), &server, "10.9.9.9"), "10.1.0.1".parse().ok());
        } else {
            nothing_comes(&a.udp("0.0.0.0:0"), &server, "10.9.9.9");
        }
    }
}

/// Somebody else's chain has the name, and no packets come into it.
#[test]
fn a_spoof_check_that_would_check_nothing_is_refused() {
    let lab = &Lab::new();
    let config = layer3(json!({ "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    lab.sh("nft 'add table bridge nat; add chain bridge nat PREROUTING'");
    let error = pod.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("set up the spoof check"), "{error}");
    assert_clean(lab);
    lab.sh("nft delete table bridge nat");
    let told = pod.add(&config);
    pod.check(&config, &told).ok();
    lab.sh(&format!(
        "cd {}; nft -s list table bridge nat | sed 's/type filter hook prerouting.*//' >rules
         nft delete table bridge nat; nft -f rules",
        lab.dir().display()
    ));
    let error = pod.check(&config, &told).error(999);
    assert!(error["msg"].as_str().unwrap().contains("no frames come into chain"), "{error}");
}

#[test]
fn a_spoofed_hardware_address_does_not_pass() {
    Lab::both(|lab| {
        let config = layer3(json!({ "macspoofchk": true }));
        let [a, b] = two(lab, &config);
        let own = a.ip("link show eth0")[0]["address"].as_str().unwrap().to_owned();
        for (any, other) in [("0.0.0.0:0", "10.1.0.3"), ("[::]:0", "fd01::3")] {
            assert!(send(&a.udp(any), &b.udp(any), other).is_some());
        }
        a.sh("ip link set eth0 address 02:00:00:00:00:99");
        for (any, other) in [("0.0.0.0:0", "10.1.0.3"), ("[::]:0", "fd01::3")] {
            nothing_comes(&a.udp(any), &b.udp(any), other);
        }
        a.sh(&format!("ip link set eth0 address {own}"));
        assert!(send(&a.udp("0.0.0.0:0"), &b.udp("0.0.0.0:0"), "10.1.0.3").is_some());
        a.del(&config);
        b.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn an_address_given_again_is_reached_at_the_first_packet() {
    let lab = &Lab::new();
    let config = layer3(json!({}));
    let [a, b] = two(lab, &config);
    for round in 0..5 {
        // Host and neighbour learn the present owner…
        for (any, address) in [("0.0.0.0:0", "10.1.0.2"), ("[::]:0", "fd01::2")] {
            assert!(send(&b.udp(any), &a.udp(any), address).is_some(), "round {round}: {address}");
            assert!(send(&udp(None, any), &a.udp(any), address).is_some(), "round {round}: {address}");
        }
        // …who gives way to another one, with another hardware address.
        a.del(&config);
        a.add(&config);
        // The container has announced itself when ADD returns. On a busy machine the kernel delivers that a little later.
        let mac = a.ip("link show eth0")[0]["address"].clone();
        let is_stale = |neighbour: &Value| {
            ["10.1.0.2", "fd01::2"].iter().any(|ip| neighbour["dst"] == *ip)
                && neighbour["lladdr"].is_string()
                && neighbour["lladdr"] != mac
        };
        let learnt = |neighbours: Value| !neighbours.as_array().into_iter().flatten().any(is_stale);
        wait_until("neighbours to learn the new owner of the address", || {
            learnt(b.ip("neigh show")) && learnt(lab.ip("neigh show"))
        });
    }
}

#[test]
fn layer2_carries_frames() {
    let lab = &Lab::new();
    let pods = [Pod::new(lab, "a"), Pod::new(lab, "b")];
    for (pod, ip) in pods.iter().zip(["10.1.0.2/24", "10.1.0.3/24"]) {
        pod.add(&layer2(json!({})));
        pod.sh(&format!("ip address add {ip} dev eth0"));
    }
    let [a, b] = &pods;
    assert_eq!(send(&a.udp("0.0.0.0:0"), &b.udp("0.0.0.0:0"), "10.1.0.3"), "10.1.0.2".parse().ok());
}
