//! Traffic: packets prove the effect of addresses, routes and rules. The first packet must always arrive.

use std::net::IpAddr;

use serde_json::{Value, json};
use testing::config::with;
use testing::packets::{send, udp};
use testing::{Lab, Pod, timeout};

use crate::{assert_clean, dual_stack};

/// The address families: any address, those of two pods, and of the gateway.
const FAMILIES: [(&str, &str, &str, &str); 2] =
    [("0.0.0.0", "10.1.0.2", "10.1.0.3", "10.1.0.1"), ("::", "fd01::2", "fd01::3", "fd01::1")];

fn modes() -> [Value; 2] {
    [json!({}), json!({ "linkLocalGateway": true })]
}

/// Right after ADD, without a wait.
#[test]
fn pods_reach_each_other_and_the_host() {
    Lab::for_each_way_to_delegate(|lab| {
        for mode in modes() {
            lab.sh("ip link set lo up; ip link add uplink type bridge; ip link set uplink up
                    ip address add 192.0.2.1/24 dev uplink; ip address add 2001:db8::1/64 dev uplink nodad");
            let pods = [Pod::new(lab, "a"), Pod::new(lab, "b")];
            let has_gateway = mode.get("linkLocalGateway").is_none();
            let config = dual_stack(mode);
            pods.iter().for_each(|pod| drop(pod.add(&config)));
            let [a, b] = &pods;
            for (any, own, other, gateway) in FAMILIES.iter().rev() {
                let (own, host) = (own.parse().ok(), if own.contains(':') { "2001:db8::1" } else { "192.0.2.1" });
                assert!(send(&udp(None, any, 0), &b.udp(any), other).is_some(), "from the host to {other}");
                assert_eq!(send(&a.udp(any), &b.udp(any), other), own);
                assert_eq!(send(&a.udp(any), &udp(None, any, 0), host), own);
                if has_gateway {
                    assert_eq!(send(&a.udp(any), &udp(None, any, 0), gateway), own);
                }
            }
            pods.iter().for_each(|pod| pod.del(&config));
            // The next mode gets the same addresses.
            lab.sh("ip link del uplink; ip netns del a; ip netns del b; rm -r /var/lib/cni /run/cni0");
        }
    });
}

/// Each direction first, for each family: the first packet after an ADD.
#[test]
fn the_first_packet_arrives() {
    for mode in modes() {
        for (any, own, ..) in FAMILIES {
            for from_host in [true, false] {
                let lab = &Lab::new();
                lab.sh("ip link set lo up; ip address add 192.0.2.1/32 dev lo; ip address add 2001:db8::1/128 dev lo");
                let host = if own.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
                let (pod, server) = (Pod::new(lab, "a"), udp(None, any, 0));
                pod.add(&dual_stack(mode.clone()));
                if from_host {
                    assert!(send(&server, &pod.udp(any), own).is_some(), "{mode} {own}");
                } else {
                    assert_eq!(send(&pod.udp(any), &server, host), own.parse().ok(), "{mode} {own}");
                }
            }
        }
    }
}

#[test]
fn packets_to_other_networks_are_masqueraded() {
    for backend in ["nftables", "iptables"] {
        for mode in modes() {
            let lab = &Lab::new();
            let beyond = lab.outside();
            let config = dual_stack(with(mode, json!({ "ipMasq": true, "ipMasqBackend": backend })));
            let (a, b) = (Pod::new(lab, "a"), Pod::new(lab, "b"));
            let result = a.add(&config);
            b.add(&config);
            a.check_result(&config, &result).ok();
            for (any, own, other, _) in FAMILIES {
                let (outside, host) =
                    if own.contains(':') { ("2001:db8::2", "2001:db8::1") } else { ("192.0.2.2", "192.0.2.1") };
                let (pod, server) = (a.udp(any), udp(Some(&beyond), any, 0));
                assert_eq!(send(&pod, &server, outside), host.parse().ok(), "outside sees the host's address");
                let port = server.local_addr().unwrap().port();
                pod.send_to(b"hello", (outside.parse::<IpAddr>().unwrap(), port)).unwrap();
                let mut buffer = [0; 16];
                let (_, seen) = server.recv_from(&mut buffer).unwrap();
                server.send_to(b"answer", seen).unwrap();
                pod.set_read_timeout(Some(timeout())).unwrap();
                assert_eq!(pod.recv(&mut buffer).unwrap(), 6, "the reply arrives");
                assert_eq!(send(&a.udp(any), &b.udp(any), other), own.parse().ok(), "pods see each other's address");
            }
            a.del(&config);
            b.del(&config);
            assert_clean(lab);
        }
    }
}

/// For both backends and both kinds of next hops. CHECK compares the rules with the key, and DEL does not need it.
#[test]
fn excluded_networks_see_the_address_of_the_pod() {
    for backend in ["nftables", "iptables"] {
        for mode in modes() {
            let lab = &Lab::new();
            let beyond = lab.outside();
            lab.sh(
                "ip -n outside route add 10.1.0.0/24 via 192.0.2.1; ip -n outside route add fd01::/64 via 2001:db8::1",
            );
            let masqueraded = dual_stack(with(mode, json!({ "ipMasq": true, "ipMasqBackend": backend })));
            let excluded = with(masqueraded.clone(), json!({ "ipMasqExclude": ["192.0.2.0/24", "2001:db8::/64"] }));
            let pod = Pod::new(lab, "a");
            let result = pod.add(&excluded);
            pod.check_result(&excluded, &result).ok();
            for (any, own, ..) in FAMILIES {
                let outside = if own.contains(':') { "2001:db8::2" } else { "192.0.2.2" };
                assert_eq!(send(&pod.udp(any), &udp(Some(&beyond), any, 0), outside), own.parse().ok(), "{backend}");
            }
            pod.del(&masqueraded);
            assert_clean(lab);
        }
    }
}
