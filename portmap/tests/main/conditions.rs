//! Conditions of a network limit which packets reach its published ports, and no other network's.

use std::path::PathBuf;

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::packets::{Client, Delivery, HOST, Server, from};
use testing::{Lab, Pod};

use crate::support::{config, published, table};

const PORT: u16 = 8080;

/// A host with two uplinks: `uplink` to 192.0.2.2 and 2001:db8::2, and `second` to 198.51.100.2 and 198.51.100.3.
struct Uplinks {
    first: PathBuf,
    second: PathBuf,
}

fn uplinks(lab: &Lab) -> Uplinks {
    let first = lab.outside();
    let second = lab.netns("second");
    lab.sh("ip link add second type veth peer name eth0 netns second
            ip address add 198.51.100.1/24 dev second; ip link set second up
            nsenter --net=/run/netns/second sh -ec 'ip address add 198.51.100.2/24 dev eth0
                ip address add 198.51.100.3/24 dev eth0; ip link set eth0 up'
            until ping -q -c 1 -W 5 198.51.100.2; do :; done");
    Uplinks { first, second }
}

fn conditions(words: &[&str]) -> Value {
    with(config(&["8080:80/tcp"]), json!({ "conditionsV4": words }))
}

#[test]
fn conditions_limit_who_reaches_a_port() {
    let lab = &Lab::new();
    let uplinks = uplinks(lab);
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let server = Server::start("tcp", Some(&pod.netns), "0.0.0.0", 80);
    let first = (Client::in_netns(&uplinks.first), "192.0.2.2", "192.0.2.1");
    let second = (Client::in_netns(&uplinks.second).with_source("198.51.100.2"), "198.51.100.2", "198.51.100.1");
    let third = (Client::in_netns(&uplinks.second).with_source("198.51.100.3"), "198.51.100.3", "198.51.100.1");
    let host = (HOST, "10.1.0.1", "127.0.0.1");
    // Who of the first, second, third and the host gets through.
    let cases: [(&[&str], [bool; 4]); 16] = [
        (&["-s", "192.0.2.0/24"], [true, false, false, false]),
        (&["ip", "saddr", "192.0.2.0/24"], [true, false, false, false]),
        (&["!", "-s", "192.0.2.0/24"], [false, true, true, true]),
        (&["ip saddr != 192.0.2.0/24"], [false, true, true, true]),
        (&["-s", "192.0.2.2,198.51.100.3"], [true, false, true, false]),
        (&["ip saddr { 192.0.2.2, 198.51.100.3 }"], [true, false, true, false]),
        (&["ip saddr != { 192.0.2.2, 198.51.100.3 }"], [false, true, false, true]),
        (&["-d", "198.51.100.0/24"], [false, true, true, false]),
        (&["!", "-d", "127.0.0.0/8"], [true, true, true, false]),
        (&["ip daddr != { 127.0.0.0/8, 198.51.100.0/25 }"], [true, false, false, false]),
        (&["-i", "second"], [false, true, true, false]),
        (&["iifname", "{ uplink, \"second\" }"], [true, true, true, false]),
        (&["!", "-i", "uplink"], [false, true, true, true]),
        (&["-i", "up+"], [true, false, false, false]),
        (&["iifname sec*", "ip saddr != 198.51.100.3"], [false, true, false, false]),
        (&["-s", "198.51.100.2,192.0.2.2", "-i", "second", "!", "-d", "10.0.0.0/8"], [false, true, false, false]),
    ];
    for (words, want) in cases {
        let config = conditions(words);
        pod.add(&config);
        pod.check(&config).ok();
        for ((client, source, to), passes) in [&first, &second, &third, &host].into_iter().zip(want) {
            let want = if passes { from(source) } else { Delivery::Refused };
            client.expect(&want, to, PORT, &server);
        }
        pod.del(&config);
        assert!(!table(lab).contains("ipv4_ports_"), "{words:?}: {}", table(lab));
    }
}

#[test]
fn conditions_of_one_family_leave_the_other_alone() {
    let lab = &Lab::new();
    let uplinks = uplinks(lab);
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]);
    let client = Client::in_netns(&uplinks.first);
    for (key, words, open) in [
        ("conditionsV4", json!(["-s", "203.0.113.0/24"]), "2001:db8::1"),
        ("conditionsV6", json!(["ip6 saddr 2001:db8:7::/64"]), "192.0.2.1"),
        ("conditionsV6", json!(["-i", "second"]), "192.0.2.1"),
        ("conditionsV6", json!(["!", "-s", "2001:db8::2"]), "192.0.2.1"),
    ] {
        pod.add(&with(config(&["8080:80/tcp"]), json!({ key: words })));
        let server = Server::start("tcp", Some(&pod.netns), if open.contains(':') { "::" } else { "0.0.0.0" }, 80);
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let source = if ip.contains(':') { "2001:db8::2" } else { "192.0.2.2" };
            client.expect(&if ip == open { from(source) } else { Delivery::Refused }, ip, PORT, &server);
        }
    }
    pod.add(&with(config(&["8080:80/tcp"]), json!({ "conditionsV6": ["ip6", "saddr", "2001:db8::/64"] })));
    client.expect(&from("2001:db8::2"), "2001:db8::1", PORT, &Server::start("tcp", Some(&pod.netns), "::", 80));
}

/// Unlike with the reference, where the last ADD decides for all networks.
#[test]
fn networks_with_different_conditions_share_a_port() {
    let lab = &Lab::new();
    let uplinks = uplinks(lab);
    let [a, b, c] = [("a", "10.1.0.2/24"), ("b", "10.1.0.3/24"), ("c", "10.1.0.4/24")]
        .map(|(id, ip)| Pod::on_bridge(lab, "br0", id, &[ip]));
    let first = conditions(&["-i", "uplink"]);
    let second = on_network("net2", conditions(&["iifname", "second"]));
    let general = on_network("net3", config(&["8080:80/tcp"]));
    let servers = [&a, &b, &c].map(|pod| Server::start("tcp", Some(&pod.netns), "0.0.0.0", 80));
    // The order of the ADDs does not matter.
    c.add(&general);
    a.add(&first);
    b.add(&second);
    for (pod, config) in [(&a, &first), (&b, &second), (&c, &general)] {
        pod.check(config).ok();
    }
    Client::in_netns(&uplinks.first).expect(&from("192.0.2.2"), "192.0.2.1", PORT, &servers[0]);
    Client::in_netns(&uplinks.second).expect(&from("198.51.100.2"), "198.51.100.1", PORT, &servers[1]);
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", PORT, &servers[2]);
    // The same conditions are one scope, in which a port exists once.
    let clash = on_network("net4", conditions(&["-i", "uplink"]));
    let error = Pod::with_port(lab, "d", &["10.1.0.5/24"]).call("ADD", &clash).run().error(101);
    assert!(error["msg"].as_str().unwrap().contains("id: a"), "{error}");
    a.del(&first);
    Client::in_netns(&uplinks.first).expect(&from("192.0.2.2"), "192.0.2.1", PORT, &servers[2]);
    Client::in_netns(&uplinks.second).expect(&from("198.51.100.2"), "198.51.100.1", PORT, &servers[1]);
    b.del(&second);
    c.del(&general);
    assert_eq!(published(lab), [] as [&str; 0]);
}
