//! Connection tracking: a client that keeps sending from one socket follows the published port.

use std::net::UdpSocket;
use std::path::Path;

use serde_json::Value;
use testing::config::on_network;
use testing::packets::udp;
use testing::{Lab, Pod};

use crate::support::config;

/// Keeps connection tracking enabled whatever the plugin removes.
fn track(lab: &Lab) {
    lab.sh("nft 'table inet tracked {
                chain in { type filter hook prerouting priority 0; ct state new accept; }
                chain out { type filter hook output priority 0; ct state new accept; }; }'
            # Entries must outlive the test, also on a busy machine.
            sysctl -qw net.netfilter.nf_conntrack_udp_timeout=3600 net.netfilter.nf_conntrack_udp_timeout_stream=3600");
}

/// Sends a packet and returns whether `server` gets it and the client gets the reply.
#[track_caller]
fn assert_reaches(client: &UdpSocket, server: &UdpSocket) {
    client.send(b"request").unwrap();
    let mut buffer = [0; 16];
    let (_, peer) = server.recv_from(&mut buffer).unwrap();
    server.send_to(b"reply", peer).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 5);
}

fn connected(netns: Option<&Path>, any: &str, to: &str) -> UdpSocket {
    let client = udp(netns, any, 0);
    client.connect(to).unwrap();
    client
}

#[test]
fn a_client_that_keeps_sending_follows_the_published_port() {
    let lab = &Lab::new();
    let outside = lab.outside();
    track(lab);
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24", "fd01::3/64"]);
    for (any, to, from_host) in
        [("0.0.0.0", "192.0.2.1:8080", "127.0.0.1:8080"), ("::", "[2001:db8::1]:8080", "[fd01::1]:8080")]
    {
        let clients = [connected(Some(&outside), any, to), connected(None, any, to), connected(None, any, from_host)];
        let host = udp(None, any, 8080);
        let servers = [udp(Some(&a.netns), any, 80), udp(Some(&b.netns), any, 80)];
        let config = config(&["8080:80/udp"]);
        let all_reach = |server: &UdpSocket| clients.iter().for_each(|client| assert_reaches(client, server));
        all_reach(&host);
        a.add(&config);
        all_reach(&servers[0]);
        a.del(&config);
        b.add(&config);
        all_reach(&servers[1]);
        b.del(&config);
        all_reach(&host);
        // A container that died without a DEL.
        let dead = Pod::on_bridge(lab, "br0", "dead", &["10.1.0.4/24", "fd01::4/64"]);
        let server = udp(Some(&dead.netns), any, 80);
        dead.add(&config);
        all_reach(&server);
        lab.sh("ip link del vethdead; ip netns del dead");
        b.add(&config);
        all_reach(&servers[1]);
        b.del(&config);
    }
}

#[test]
fn many_ports_and_a_repeated_add_change_all_flows() {
    let lab = &Lab::new();
    let outside = lab.outside();
    track(lab);
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let ports: Vec<String> = (8000..8040).map(|port| format!("{port}:{port}/udp")).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let servers: Vec<[UdpSocket; 2]> =
        (8000..8040).map(|port| [udp(None, "0.0.0.0", port), udp(Some(&a.netns), "0.0.0.0", port)]).collect();
    let clients: Vec<UdpSocket> =
        (8000..8040).map(|port| connected(Some(&outside), "0.0.0.0", &format!("192.0.2.1:{port}"))).collect();
    let reach = |place: usize| clients.iter().zip(&servers).for_each(|(client, at)| assert_reaches(client, &at[place]));
    reach(0);
    a.add(&config(&ports));
    reach(1);
    // A repeated ADD with fewer ports unpublishes the others.
    a.add(&config(&ports[..20]));
    for (n, (client, at)) in clients.iter().zip(&servers).enumerate() {
        assert_reaches(client, &at[usize::from(n < 20)]);
    }
    a.del(&config(&[]));
    reach(0);
}

/// A flow of another container to a server outside has the same port, and is masqueraded by the host.
#[test]
fn flows_to_other_hosts_survive() {
    let lab = &Lab::new();
    let outside = lab.outside();
    track(lab);
    lab.sh("nft 'table inet other { chain post { type nat hook postrouting priority 100
                ip saddr 10.1.0.3 oifname uplink masquerade; ip6 saddr fd01::3 oifname uplink masquerade; }; }'");
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24", "fd01::3/64"]);
    for (any, to) in [("0.0.0.0", "192.0.2.2:8080"), ("::", "[2001:db8::2]:8080")] {
        let server = udp(Some(&outside), any, 8080);
        let client = connected(Some(&b.netns), any, to);
        client.send(b"request").unwrap();
        let (_, seen) = server.recv_from(&mut [0; 16]).unwrap();
        let config = config(&["8080:80/udp"]);
        let more = on_network("net2", crate::support::config(&["8080:80/tcp", "8081:8080/udp"]));
        let steps: [&dyn Fn(); 4] =
            [&|| drop(a.add(&config)), &|| drop(a.add(&more)), &|| a.del(&config), &|| a.del(&more)];
        for step in steps {
            step();
            // The server speaks first, which only the entry lets through.
            server.send_to(b"reply", seen).unwrap();
            assert_eq!(client.recv(&mut [0; 16]).unwrap(), 5);
        }
    }
}

/// Returns the entries of connection tracking that contain `text`; `None` if the kernel does not show them.
fn flows_with(text: &str) -> Option<Vec<String>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").ok()?;
    Some(table.lines().filter(|line| line.contains(text)).map(str::to_owned).collect())
}

#[test]
fn no_flow_leads_to_a_container_after_its_del() {
    let lab = &Lab::new();
    let outside = lab.outside();
    track(lab);
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]);
    let config: Value = config(&["8080:80/udp"]);
    a.add(&config);
    for (any, to) in [("0.0.0.0", "192.0.2.1:8080"), ("::", "[2001:db8::1]:8080")] {
        let server = udp(Some(&a.netns), any, 80);
        assert_reaches(&connected(Some(&outside), any, to), &server);
        assert_reaches(&connected(None, any, to), &server);
    }
    let Some(before) = flows_with("dport=8080") else {
        return testing::skip(
            "no_flow_leads_to_a_container_after_its_del",
            "this kernel has no /proc/net/nf_conntrack",
        );
    };
    assert_eq!(before.len(), 4, "{before:#?}");
    a.del(&config);
    assert_eq!(flows_with("dport=8080").unwrap(), [] as [&str; 0]);
}
