//! Traffic: packets prove who reaches a published port, and which address the server sees. The first packet must always
//! arrive.

use std::net::IpAddr;

use serde_json::{Value, json};
use testing::config::with;
use testing::network::{Family, IPV4, IPV6, Network, filter_bridged_frames};
use testing::packets::{Client, Delivery, HOST, Server, from, udp};
use testing::{Lab, Pod, skip};

use crate::sctp::Sctp;
use crate::support::{config, route_localnet, table};

const PORT: u16 = 8080;

/// Starts a server in a pod, on the port that is published.
fn serve(pod: &Pod<'_>, protocol: &str, family: &Family) -> Server {
    Server::start(protocol, Some(&pod.netns), family.any, 80)
}

fn both() -> Value {
    config(&["8080:80/tcp", "8080:80/udp"])
}

#[test]
fn a_published_port_is_reachable_from_everywhere() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&both());
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = serve(&network.a, protocol, family);
            let expect = |client: Client<'_>, want: &str, ip: &str| client.expect(&from(want), ip, PORT, &server);
            // The server sees the client's own address.
            expect(network.outside(), family.outside, family.uplink);
            expect(network.outside(), family.outside, family.second);
            expect(network.c.client(), family.pods[2], family.uplink);
            expect(HOST, family.uplink, family.uplink);
            expect(HOST, family.bridge, family.bridge);
            // Replies must return through the host.
            for ip in [family.uplink, family.bridge] {
                expect(network.b.client(), family.bridge, ip);
                expect(network.a.client(), family.bridge, ip);
            }
            // Not through a published port.
            network.b.client().expect(&from(family.pods[1]), family.pods[0], 80, &server);
            network.c.client().expect(&from(family.pods[2]), family.pods[0], 80, &server);
        }
    }
    for protocol in ["tcp", "udp"] {
        let server = serve(&network.a, protocol, &IPV4);
        for ip in ["127.0.0.1", "127.0.0.2"] {
            HOST.expect(&from("10.1.0.1"), ip, PORT, &server);
            HOST.with_source("127.0.0.5").expect(&from("10.1.0.1"), ip, PORT, &server);
        }
    }
    network.a.del(&both());
    let server = serve(&network.a, "tcp", &IPV4);
    for (client, ip) in [(network.outside(), "192.0.2.1"), (HOST, "127.0.0.1"), (network.b.client(), "10.1.0.1")] {
        client.expect(&Delivery::Refused, ip, PORT, &server);
    }
}

#[test]
fn a_neighbour_reaches_a_published_port_if_netfilter_sees_bridged_frames() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    if !filter_bridged_frames(lab, true) {
        return skip("a_neighbour_reaches_a_published_port_if_netfilter_sees_bridged_frames", "no br_netfilter");
    }
    network.a.add(&both());
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = serve(&network.a, protocol, family);
            for ip in [family.uplink, family.bridge] {
                network.b.client().expect(&from(family.bridge), ip, PORT, &server);
            }
            network.b.client().expect(&from(family.pods[1]), family.pods[0], 80, &server);
            network.outside().expect(&from(family.outside), family.uplink, PORT, &server);
        }
    }
}

/// The kernel does not route such a frame but sends it back to the bridge's port.
#[test]
fn with_bridged_frames_in_netfilter_a_pod_reaches_its_own_port_only_in_hairpin_mode() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    if !filter_bridged_frames(lab, true) {
        return skip(
            "with_bridged_frames_in_netfilter_a_pod_reaches_its_own_port_only_in_hairpin_mode",
            "no br_netfilter",
        );
    }
    network.a.add(&both());
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = serve(&network.a, protocol, family);
            lab.sh("bridge link set dev vetha hairpin off");
            network.a.client().expect(&Delivery::Lost, family.uplink, PORT, &server);
            lab.sh("bridge link set dev vetha hairpin on");
            // A connection attempt of before may still be repeated.
            drop(server);
            let server = serve(&network.a, protocol, family);
            network.a.client().expect(&from(family.bridge), family.uplink, PORT, &server);
        }
    }
}

/// IPv6 has no `route_localnet`.
#[test]
fn localhost_of_ipv6_is_refused_at_once() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&both());
    for protocol in ["tcp", "udp"] {
        HOST.expect(&Delivery::Refused, "::1", PORT, &serve(&network.a, protocol, &IPV6));
    }
}

#[test]
fn a_port_of_the_hosts_loopback_address_is_reachable_from_the_host_only() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&config(&["127.0.0.1 8080:80/tcp", "127.0.0.1 8080:80/udp"]));
    for protocol in ["tcp", "udp"] {
        let server = serve(&network.a, protocol, &IPV4);
        HOST.expect(&from("10.1.0.1"), "127.0.0.1", PORT, &server);
        HOST.with_source("127.0.0.5").expect(&from("10.1.0.1"), "127.0.0.1", PORT, &server);
        HOST.expect(&Delivery::Refused, "127.0.0.2", PORT, &server);
        HOST.expect(&Delivery::Refused, "192.0.2.1", PORT, &server);
        network.outside().expect(&Delivery::Refused, "192.0.2.1", PORT, &server);
        network.b.client().expect(&Delivery::Refused, "10.1.0.1", PORT, &server);
        HOST.expect(&Delivery::Refused, "2001:db8::1", PORT, &server);
    }
}

#[test]
fn a_port_of_one_address_is_not_reachable_by_another() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&config(&["192.0.2.1 8080:80/tcp", "2001:db8::1 8080:80/udp", "192.0.2.1 8080:80/udp"]));
    assert_eq!(route_localnet(lab, "br0"), "0", "no loopback address is published");
    for (protocol, family) in [("tcp", &IPV4), ("udp", &IPV4), ("udp", &IPV6)] {
        let server = serve(&network.a, protocol, family);
        network.outside().expect(&from(family.outside), family.uplink, PORT, &server);
        HOST.expect(&from(family.uplink), family.uplink, PORT, &server);
        network.b.client().expect(&from(family.bridge), family.uplink, PORT, &server);
        network.outside().expect(&Delivery::Refused, family.second, PORT, &server);
        network.b.client().expect(&Delivery::Refused, family.bridge, PORT, &server);
    }
    let server = serve(&network.a, "tcp", &IPV4);
    network.outside().expect(&Delivery::Refused, "2001:db8::1", PORT, &server);
    HOST.expect(&Delivery::Refused, "127.0.0.1", PORT, &server);
}

#[test]
fn the_unspecified_address_stands_for_all_of_its_family() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&config(&["0.0.0.0 8080:80/tcp", ":: 8080:80/udp"]));
    for (protocol, family, other) in [("tcp", &IPV4, &IPV6), ("udp", &IPV6, &IPV4)] {
        let server = serve(&network.a, protocol, family);
        for ip in [family.uplink, family.second] {
            network.outside().expect(&from(family.outside), ip, PORT, &server);
        }
        network.outside().expect(&Delivery::Refused, other.uplink, PORT, &server);
    }
}

#[test]
fn a_port_of_one_address_wins_over_one_of_all_addresses() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    let special = ["192.0.2.9 8080:81/tcp", "2001:db8::9 8080:81/tcp"];
    network.a.add(&config(&["8080:80/tcp", special[0], special[1]]));
    for family in [&IPV4, &IPV6] {
        let all = serve(&network.a, "tcp", family);
        let one = Server::start("tcp", Some(&network.a.netns), family.pods[0], 81);
        network.outside().expect(&from(family.outside), family.second, PORT, &one);
        network.outside().expect(&from(family.outside), family.uplink, PORT, &all);
    }
    network.a.add(&both());
    let all = serve(&network.a, "tcp", &IPV4);
    network.outside().expect(&from("192.0.2.2"), "192.0.2.9", PORT, &all);
}

#[test]
fn without_snat_no_source_is_translated() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&with(both(), json!({ "snat": false })));
    assert_eq!(route_localnet(lab, "br0"), "0");
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = serve(&network.a, protocol, family);
            network.outside().expect(&from(family.outside), family.uplink, PORT, &server);
            network.c.client().expect(&from(family.pods[2]), family.uplink, PORT, &server);
            HOST.expect(&from(family.uplink), family.uplink, PORT, &server);
        }
        // The reply takes the direct way, and the client does not know its source.
        network.b.client().expect(&Delivery::Unanswered, family.uplink, PORT, &serve(&network.a, "udp", family));
    }
    HOST.expect(&Delivery::Lost, "127.0.0.1", PORT, &serve(&network.a, "udp", &IPV4));
}

#[test]
fn with_masq_all_every_source_is_translated() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&with(both(), json!({ "masqAll": true })));
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = serve(&network.a, protocol, family);
            for client in [network.outside(), network.c.client(), network.b.client(), network.a.client(), HOST] {
                client.expect(&from(family.bridge), family.uplink, PORT, &server);
            }
            network.b.client().expect(&from(family.pods[1]), family.pods[0], 80, &server);
        }
    }
    let server = serve(&network.a, "tcp", &IPV4);
    HOST.with_source("127.0.0.5").expect(&from("10.1.0.1"), "127.0.0.1", PORT, &server);
}

#[test]
fn sctp_is_published() {
    let lab = &Lab::new();
    if lab.sh("sysctl -e net.netfilter.nf_conntrack_sctp_timeout_cookie_wait").is_empty() {
        return skip("sctp_is_published", "this kernel does not track SCTP");
    }
    let network = Network::new(lab);
    network.a.add(&config(&["8080:80/sctp", "8080:81/tcp"]));
    for family in [&IPV4, &IPV6] {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let server = Sctp::open(Some(&network.a.netns), ip(family.any));
        Sctp::open(Some(&network.outside), ip(family.any)).send(ip(family.uplink), PORT);
        assert_eq!(server.receive(), (ip(family.outside), 80));
        Sctp::open(Some(&network.b.netns), ip(family.any)).send(ip(family.uplink), PORT);
        assert_eq!(server.receive(), (ip(family.bridge), 80));
    }
    let server = Sctp::open(Some(&network.a.netns), ip4("0.0.0.0"));
    Sctp::open(None, ip4("127.0.0.1")).send(ip4("127.0.0.2"), PORT);
    assert_eq!(server.receive(), (ip4("10.1.0.1"), 80));
}

fn ip4(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn ports_of_different_protocols_and_numbers_are_independent() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&config(&["8080:80/tcp", "8081:81/tcp", "8080:82/udp"]));
    for (protocol, host, container) in [("tcp", 8080, 80), ("tcp", 8081, 81), ("udp", 8080, 82)] {
        let server = Server::start(protocol, Some(&network.a.netns), "0.0.0.0", container);
        network.outside().expect(&from("192.0.2.2"), "192.0.2.1", host, &server);
    }
    network.outside().expect(&Delivery::Refused, "192.0.2.1", 8081, &serve(&network.a, "udp", &IPV4));
}

/// A host that routes, with a server behind it that has the same port.
#[test]
fn traffic_through_the_host_is_left_alone() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    lab.sh("nsenter --net=/run/netns/outside ip route add 10.2.0.0/24 via 192.0.2.1");
    network.a.add(&both());
    for protocol in ["tcp", "udp"] {
        let server = Server::start(protocol, Some(&network.outside), "0.0.0.0", PORT);
        network.c.client().expect(&from("10.2.0.2"), "192.0.2.2", PORT, &server);
    }
}

/// A service with the same port number as the published one, and with the pod behind it, as kube-proxy implements it.
#[test]
fn connections_to_a_service_keep_their_source() {
    let lab = &Lab::new();
    let network = Network::new(lab);
    network.a.add(&both());
    lab.sh("nft 'table inet service { chain prerouting { type nat hook prerouting priority -100;
             ip daddr 10.96.0.1 udp dport 8080 dnat ip to 10.1.0.2:80
             ip6 daddr fd96::1 udp dport 8080 dnat ip6 to [fd01::2]:80; }; }'");
    for (family, service) in [(&IPV4, "10.96.0.1"), (&IPV6, "fd96::1")] {
        // Only the request: without br_netfilter, the reply to a neighbour is not translated back.
        let server = udp(Some(&network.a.netns), family.any, 80);
        let client = udp(Some(&network.b.netns), family.any, 0);
        client.send_to(b"request", (service.parse::<IpAddr>().unwrap(), PORT)).unwrap();
        let (_, seen) = server.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(seen.ip(), family.pods[1].parse::<IpAddr>().unwrap());
    }
    // The addresses of the host that were reached are forgotten with the last published port.
    network.b.client().expect(&from(IPV4.bridge), IPV4.uplink, PORT, &serve(&network.a, "tcp", &IPV4));
    assert!(table(lab).contains(IPV4.uplink), "{}", table(lab));
    network.a.del(&both());
    assert!(!table(lab).contains(IPV4.uplink), "{}", table(lab));
}

/// On a kernel without IPv6 (`ipv6.disable=1`), or with IPv6 disabled.
#[test]
fn without_ipv6_there_is_ipv4() {
    let lab = &Lab::new();
    let outside = lab.outside();
    lab.sh("! [ -e /proc/sys/net/ipv6 ] || \
            sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    for backend in ["nftables", "iptables"] {
        let config = with(both(), json!({ "backend": backend }));
        lab.plugin("portmap", "STATUS").stdin(config.to_string()).run().ok();
        pod.add(&config);
        pod.check(&config).ok();
        let server = serve(&pod, "tcp", &IPV4);
        Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.1", PORT, &server);
        HOST.expect(&from("10.1.0.1"), "127.0.0.1", PORT, &server);
        let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
        lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
        HOST.expect(&Delivery::Refused, "127.0.0.1", PORT, &server);
    }
}
