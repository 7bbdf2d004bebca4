//! Traffic: packets prove who reaches whom, for each policy of the chain FORWARD and each ingress policy.

use std::path::Path;

use serde_json::{Value, json};
use testing::config::on_network;
use testing::network::{Family, IPV4, IPV6, Network, filter_bridged_frames};
use testing::packets::{Client, Delivery, HOST, Server, from};
use testing::{Lab, skip};

use crate::support::config;

const PORT: u16 = 8080;

/// Returns the network, with routes to the pods from outside.
fn network(lab: &Lab) -> Network<'_> {
    let network = Network::new(lab);
    lab.sh("ip -n outside route add default via 192.0.2.1; ip -n outside route add default via 2001:db8::1");
    network
}

/// Calls a plugin for all pods; portmap only for the first.
fn call(network: &Network<'_>, command: &str, keys: &Value) {
    let (one, two) = (config(keys.clone()), on_network("net2", config(keys.clone())));
    for (pod, config) in [(&network.a, &one), (&network.b, &one), (&network.c, &two)] {
        pod.call(command, config).run().ok();
    }
    let ports = config(json!({
        "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": [{ "hostPort": PORT, "containerPort": 80, "protocol": "udp" }] },
    }));
    network.a.call(command, &ports).run().ok();
}

/// Runs `test` for each policy of FORWARD, with bridged frames in netfilter and without, and for each family.
fn for_each_condition(lab: &Lab, test: impl Fn(&Condition)) {
    for bridged in [false, true].into_iter().filter(|bridged| filter_bridged_frames(lab, *bridged)) {
        for drops in [false, true] {
            let policy = if drops { "DROP" } else { "ACCEPT" };
            lab.sh(&format!("iptables -P FORWARD {policy}; ip6tables -P FORWARD {policy}"));
            for family in [IPV4, IPV6] {
                test(&Condition { family, drops, bridged });
            }
        }
    }
}

struct Condition {
    family: Family,
    /// Whether the policy of FORWARD is DROP.
    drops: bool,
    /// Whether netfilter sees bridged frames.
    bridged: bool,
}

/// Sends a request over a path, which the server gets from `source` if it may pass.
#[track_caller]
fn request(passes: bool, client: Client<'_>, source: &str, ip: &str, port: u16, server: &Server) {
    client.expect(&if passes { from(source) } else { Delivery::Lost }, ip, port, server);
}

fn test_policy(ingress: &str) {
    let lab = &Lab::new();
    let network = network(lab);
    let keys = json!({ "ingressPolicy": ingress });
    call(&network, "ADD", &keys);
    let Network { a, b, c, outside } = &network;
    if !Path::new("/proc/sys/net/bridge").exists() {
        skip(&format!("{ingress} with bridged frames"), "no br_netfilter");
    }
    let (is_open, is_isolated) = (ingress == "open", ingress == "isolated");
    for_each_condition(lab, |condition| {
        let Condition { family, drops, bridged } = condition;
        let Family { pods, bridge, uplink, outside: far, .. } = family;
        eprintln!("--- {ingress}, {}, drops: {drops}, bridged: {bridged}", pods[0]);
        let server = &Server::start("udp", Some(&a.netns), pods[0], 80);
        // A published port is reachable from everywhere.
        request(true, network.outside(), far, uplink, PORT, server);
        request(true, c.client(), pods[2], uplink, PORT, server);
        request(true, HOST, uplink, uplink, PORT, server);
        // A limit: with isolated ports and bridged frames in netfilter, a neighbour does not reach a published port.
        request(!(is_isolated && *bridged), b.client(), bridge, uplink, PORT, server);
        // Other connections are subject to the policies.
        request(true, HOST, bridge, pods[0], 80, server);
        request(!drops, network.outside(), far, pods[0], 80, server);
        request(!is_isolated, b.client(), pods[1], pods[0], 80, server);
        request(is_open, c.client(), pods[2], pods[0], 80, server);
        request(is_open, a.client(), pods[0], pods[2], 80, &Server::start("udp", Some(&c.netns), pods[2], 80));
        let server = &Server::start("udp", Some(outside), far, 80);
        for (pod, ip) in [a, b, c].into_iter().zip(pods) {
            request(true, pod.client(), ip, far, 80, server);
        }
    });
    call(&network, "CHECK", &keys);
    call(&network, "DEL", &keys);
    for_each_condition(lab, |condition| {
        let Condition { family, drops, .. } = condition;
        let server = Server::start("udp", Some(outside), family.outside, 80);
        request(!drops, a.client(), family.pods[0], family.outside, 80, &server);
    });
}

#[test]
fn open_lets_containers_reach_each_other() {
    test_policy("open");
}

#[test]
fn same_bridge_separates_bridges() {
    test_policy("same-bridge");
}

#[test]
fn isolated_separates_containers() {
    test_policy("isolated");
}

/// The administrator's rules take precedence over those of containers.
#[test]
fn the_administrators_chain_comes_first() {
    let lab = &Lab::new();
    let network = network(lab);
    call(&network, "ADD", &json!({}));
    lab.sh("iptables -A CNI-ADMIN -s 10.1.0.2 -j DROP; ip6tables -A CNI-ADMIN -s fd01::2 -j DROP");
    for family in [IPV4, IPV6] {
        let server = Server::start("udp", Some(&network.outside), family.outside, 80);
        network.a.client().expect(&Delivery::Lost, family.outside, 80, &server);
        network.b.client().expect(&from(family.pods[1]), family.outside, 80, &server);
    }
}
