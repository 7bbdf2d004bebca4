//! Traffic: packets prove the effect of rules and ports. The first packet must always arrive.

use serde_json::{Value, json};
use testing::packets::{assert_nothing_arrives, send, udp};
use testing::{Lab, Pod, skip, timeout, wait_until};

use crate::pod::{assert_clean, layer2, layer3};

const IPS: [&[&str]; 2] = [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"]];

/// Attaches two pods with both address families to one network.
fn two_pods<'a>(lab: &'a Lab, config: &Value) -> [Pod<'a>; 2] {
    let pods = [Pod::with_ips(lab, "a", IPS[0]), Pod::with_ips(lab, "b", IPS[1])];
    lab.sh("ip link set lo up");
    for pod in &pods {
        pod.add(config);
    }
    pods
}

#[test]
fn pods_reach_each_other_and_their_gateway() {
    Lab::for_each_way_to_delegate(|lab| {
        let [a, b] = two_pods(lab, &layer3(json!({ "isDefaultGateway": true })));
        for (any, own, other, gateway) in
            [("0.0.0.0", "10.1.0.2", "10.1.0.3", "10.1.0.1"), ("::", "fd01::2", "fd01::3", "fd01::1")]
        {
            let own = own.parse().ok();
            assert_eq!(send(&a.udp(any), &b.udp(any), other), own);
            assert_eq!(send(&a.udp(any), &udp(None, any, 0), gateway), own);
            assert_eq!(send(&udp(None, any, 0), &b.udp(any), other), gateway.parse().ok());
        }
    });
}

/// Runs a call, then the command `$then`, with a priority above that of the kernel's workers, and keeps all processors
/// busy meanwhile. So the workers run only while the call waits.
const AHEAD_OF_WORKERS: &str = "
    cpus=$(for cpu in $(seq 0 $(($(nproc --all) - 1))); do ! taskset -c $cpu true 2>/dev/null || echo $cpu; done)
    own=${cpus%%[!0-9]*}
    trap 'kill $busy 2>/dev/null || true' EXIT
    chrt -f -p 50 $$
    for cpu in $cpus; do
        [ $cpu = $own ] && taskset -cp $own $$ >&2 && continue
        (ulimit -t 5; exec taskset -c $cpu sh -c 'while :; do :; done') & busy=\"$busy $!\"
    done
    \"$0\"
    eval \"$then\"";

/// A port without a queue drops frames. It gets one from a worker of the kernel, which a busy processor can delay for
/// long.
#[test]
fn a_port_is_up_when_add_returns() {
    let name = "a_port_is_up_when_add_returns";
    for (config, ifname) in [(layer3(json!({ "isDefaultGateway": true })), "eth0"), (layer2(json!({})), "eth1")] {
        let lab = &Lab::new();
        if !lab.sh("chrt -f 50 true 2>&1 || true").is_empty() {
            return skip(name, "real-time priorities are not permitted");
        }
        for round in 0..3 {
            let mut pod = Pod::with_ips(lab, &format!("p{round}"), &["10.1.0.2/24"]);
            pod.ifname = ifname.to_owned();
            let call = pod.call("ADD", &config).env("then", "ip -o link show master br0 >&2");
            let outcome = call.via_shell(AHEAD_OF_WORKERS).run();
            outcome.ok();
            assert!(outcome.stderr.contains(" state UP "), "round {round}: {}", outcome.stderr);
            pod.del(&config);
        }
    }
}

fn assert_masquerade(config: &Value) {
    let lab = &Lab::new();
    let beyond = lab.outside();
    let [a, b] = two_pods(lab, config);
    for (any, own, other, outside, host) in [
        ("0.0.0.0", "10.1.0.2", "10.1.0.3", "192.0.2.2", "192.0.2.1"),
        ("::", "fd01::2", "fd01::3", "2001:db8::2", "2001:db8::1"),
    ] {
        let (pod, server) = (a.udp(any), udp(Some(&beyond), any, 0));
        assert_eq!(send(&pod, &server, outside), host.parse().ok(), "outside sees the host's address");
        // The reply goes to the source address that the server sees.
        pod.send_to(b"hello", (outside.parse::<std::net::IpAddr>().unwrap(), server.local_addr().unwrap().port()))
            .unwrap();
        let mut buffer = [0; 16];
        let (_, seen) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"answer", seen).unwrap();
        pod.set_read_timeout(Some(timeout())).unwrap();
        assert_eq!(pod.recv(&mut buffer).unwrap(), 6, "the reply arrives");
        assert_eq!(send(&a.udp(any), &b.udp(any), other), own.parse().ok(), "pods see each other's own address");
    }
    // Removing the rules of one pod does not affect the other.
    a.del(config);
    let server = udp(Some(&beyond), "0.0.0.0", 0);
    assert_eq!(send(&b.udp("0.0.0.0"), &server, "192.0.2.2"), "192.0.2.1".parse().ok());
    b.del(config);
    assert_clean(lab);
}

#[test]
fn pods_are_masqueraded_with_nftables() {
    assert_masquerade(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true })));
    assert_masquerade(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables" })));
}

#[test]
fn pods_are_masqueraded_with_iptables() {
    assert_masquerade(&layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables" })));
}

#[test]
fn without_masquerade_pods_keep_their_addresses() {
    let lab = &Lab::new();
    let beyond = lab.outside();
    lab.sh(&format!("nsenter --net={} ip route add 10.1.0.0/24 via 192.0.2.1", beyond.display()));
    let [a, _] = two_pods(lab, &layer3(json!({ "isDefaultGateway": true })));
    let server = udp(Some(&beyond), "0.0.0.0", 0);
    assert_eq!(send(&a.udp("0.0.0.0"), &server, "192.0.2.2"), "10.1.0.2".parse().ok());
}

#[test]
fn traffic_between_the_networks_of_a_pod_is_not_masqueraded() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let a = Pod::with_ips(lab, "a", &["10.1.0.2/24", "10.2.0.2/24"]);
        let b = Pod::with_ips(lab, "b", &["10.2.0.3/24"]);
        let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": backend }));
        a.add(&config);
        b.add(&config);
        // Within the second network: the masquerade rule of the first address must not match before.
        let seen = send(&a.udp("10.2.0.2"), &b.udp("0.0.0.0"), "10.2.0.3");
        assert_eq!(seen, "10.2.0.2".parse().ok(), "{backend}");
    }
}

#[test]
fn isolated_ports_reach_their_gateway_only() {
    let lab = &Lab::new();
    let [a, b] = two_pods(lab, &layer3(json!({ "portIsolation": true })));
    for (any, other, gateway) in [("0.0.0.0", "10.1.0.3", "10.1.0.1"), ("::", "fd01::3", "fd01::1")] {
        assert_nothing_arrives(&a.udp(any), &b.udp(any), other);
        assert!(send(&a.udp(any), &udp(None, any, 0), gateway).is_some());
    }
}

#[test]
fn a_pod_reaches_itself_through_dnat_only_with_hairpin_mode() {
    for hairpin in [true, false] {
        let lab = &Lab::new();
        if !std::path::Path::new("/proc/sys/net/bridge").exists() {
            return skip("a_pod_reaches_itself_through_dnat_only_with_hairpin_mode", "no br_netfilter");
        }
        // With this, NAT also applies to frames between ports, and they leave through the port where they came in.
        lab.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        let [a, _] = two_pods(lab, &layer3(json!({ "isDefaultGateway": true, "hairpinMode": hairpin })));
        let server = a.udp("0.0.0.0");
        lab.sh("nft 'add table ip service
                  add chain ip service pre { type nat hook prerouting priority -100; }
                  add chain ip service post { type nat hook postrouting priority 90; }
                  add rule ip service pre ip daddr 10.9.9.9 dnat to 10.1.0.2
                  add rule ip service post ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade'");
        if hairpin {
            assert_eq!(send(&a.udp("0.0.0.0"), &server, "10.9.9.9"), "10.1.0.1".parse().ok());
        } else {
            assert_nothing_arrives(&a.udp("0.0.0.0"), &server, "10.9.9.9");
        }
    }
}

/// A chain of another program has the name, but is not a base chain, so that it receives no frames.
#[test]
fn a_spoof_check_without_effect_is_rejected() {
    let lab = &Lab::new();
    let config = layer3(json!({ "macspoofchk": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    lab.sh("nft 'add table bridge cni_spoofcheck; add chain bridge cni_spoofcheck prerouting'");
    let error = pod.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("set up the spoof check"), "{error}");
    assert_clean(lab);
    lab.sh("nft delete table bridge cni_spoofcheck");
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    lab.sh(&format!(
        "cd {}; nft -s list table bridge cni_spoofcheck | sed 's/type filter hook prerouting.*//' >rules
         nft delete table bridge cni_spoofcheck; nft -f rules",
        lab.dir().display()
    ));
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("receives no frames"), "{error}");
}

#[test]
fn frames_with_a_spoofed_mac_are_dropped() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = layer3(json!({ "macspoofchk": true }));
        let [a, b] = two_pods(lab, &config);
        let own = a.ip("link show eth0")[0]["address"].as_str().unwrap().to_owned();
        // To a neighbour and to the host; with a VLAN tag, if this kernel has such links.
        let mut paths = vec![("0.0.0.0", "10.1.0.3"), ("::", "fd01::3")];
        let has_vlans = a.sh("ip link add link eth0 name tagged type vlan id 5 2>/dev/null && echo yes || true");
        if has_vlans == "yes\n" {
            b.sh("ip link add link eth0 name tagged type vlan id 5");
            for (pod, n) in [(&a, 2), (&b, 3)] {
                pod.sh(&format!("ip link set tagged up; ip address add 10.5.0.{n}/24 dev tagged"));
            }
            paths.push(("0.0.0.0", "10.5.0.3"));
        }
        for (any, other) in paths.iter().copied() {
            assert!(send(&a.udp(any), &b.udp(any), other).is_some(), "{other}");
        }
        assert!(send(&a.udp("0.0.0.0"), &udp(None, "0.0.0.0", 0), "10.1.0.1").is_some());
        // The VLAN link follows the address of its link.
        a.sh("ip link set eth0 address 02:00:00:00:00:99");
        for (any, other) in paths.iter().copied() {
            assert_nothing_arrives(&a.udp(any), &b.udp(any), other);
        }
        assert_nothing_arrives(&a.udp("0.0.0.0"), &udp(None, "0.0.0.0", 0), "10.1.0.1");
        a.sh(&format!("ip link set eth0 address {own}"));
        assert!(send(&a.udp("0.0.0.0"), &b.udp("0.0.0.0"), "10.1.0.3").is_some());
        a.del(&config);
        b.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn a_reused_address_is_reachable_with_the_first_packet() {
    let lab = &Lab::new();
    let config = layer3(json!({}));
    let [a, b] = two_pods(lab, &config);
    for round in 0..5 {
        // Host and neighbour learn the current owner…
        for (any, address) in [("0.0.0.0", "10.1.0.2"), ("::", "fd01::2")] {
            assert!(send(&b.udp(any), &a.udp(any), address).is_some(), "round {round}: {address}");
            assert!(send(&udp(None, any, 0), &a.udp(any), address).is_some(), "round {round}: {address}");
        }
        // …which is replaced by a new one with another MAC address.
        a.del(&config);
        a.add(&config);
        // The container has announced its addresses when ADD returns. On a busy machine, delivery takes a little
        // longer.
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
    assert_eq!(send(&a.udp("0.0.0.0"), &b.udp("0.0.0.0"), "10.1.0.3"), "10.1.0.2".parse().ok());
}
