//! Traffic: packets prove who reaches whom, for each policy of the chain FORWARD and each ingress policy.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Process, skip};

use crate::packets::{Server, expect};
use crate::pod::{Pod, config, on_network};

const PORT: u16 = 8080;

/// The addresses of one family.
struct Family {
    /// The pod with the published port.
    a: &'static str,
    /// The pod on another bridge.
    c: &'static str,
    /// The host.
    uplink: &'static str,
    outside: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { a: "10.1.0.2", c: "10.2.0.2", uplink: "192.0.2.1", outside: "192.0.2.2" },
    Family { a: "fd01::2", c: "fd02::2", uplink: "2001:db8::1", outside: "2001:db8::2" },
];

/// `a` and its neighbour `b` on one bridge, `c` on another, and a namespace outside of the host.
struct Network<'a> {
    lab: &'a Lab,
    a: Pod<'a>,
    b: Pod<'a>,
    c: Pod<'a>,
    outside: PathBuf,
}

impl<'a> Network<'a> {
    fn new(lab: &'a Lab) -> Network<'a> {
        let outside = lab.netns("outside");
        lab.sh(&format!(
            "ip link set lo up
             ip link add uplink type veth peer name eth0 netns outside
             ip address add 192.0.2.1/24 dev uplink; ip address add 2001:db8::1/64 dev uplink nodad
             ip link set uplink up
             nsenter --net={} sh -ec '
                 ip address add 192.0.2.2/24 dev eth0; ip address add 2001:db8::2/64 dev eth0 nodad
                 ip link set eth0 up; ip route add default via 192.0.2.1; ip route add default via 2001:db8::1'
             # On a busy machine it takes a while until both ends are ready, and ping fails when a neighbour is unreachable.
             until ping -q -c 1 -W 5 192.0.2.2; do :; done
             until ping -6 -q -c 1 -W 5 2001:db8::2; do :; done",
            outside.display()
        ));
        Network {
            lab,
            a: Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]),
            b: Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24", "fd01::3/64"]),
            c: Pod::on_bridge(lab, "br1", "c", &["10.2.0.2/24", "fd02::2/64"]),
            outside,
        }
    }

    /// Calls a plugin for all pods; portmap only for the first.
    fn call(&self, command: &str, keys: &Value) {
        let (one, two) = (config(keys.clone()), on_network("net2", config(keys.clone())));
        for (pod, config) in [(&self.a, &one), (&self.b, &one), (&self.c, &two)] {
            pod.call(command, config).run().ok();
        }
        let ports = config(json!({
            "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": [{ "hostPort": PORT, "containerPort": 80, "protocol": "udp" }] },
        }));
        let portmap: Process = self.a.call_program(&self.lab.bin().join("portmap"), command, &ports);
        portmap.run().ok();
    }

    /// Runs `test` for each policy of FORWARD, with bridged frames in netfilter and without, and for each family.
    fn for_each_condition(&self, test: impl Fn(&Condition<'_>)) {
        let lab = self.lab;
        let can_filter = Path::new("/proc/sys/net/bridge").exists();
        for bridged in [false, true].into_iter().take(1 + usize::from(can_filter)) {
            if can_filter {
                let value = u8::from(bridged);
                lab.sh(&format!(
                    "sysctl -qw net.bridge.bridge-nf-call-iptables={value} net.bridge.bridge-nf-call-ip6tables={value}"
                ));
            }
            for drops in [false, true] {
                let policy = if drops { "DROP" } else { "ACCEPT" };
                lab.sh(&format!("iptables -P FORWARD {policy}; ip6tables -P FORWARD {policy}"));
                for family in &FAMILIES {
                    test(&Condition { family, drops, bridged });
                }
            }
        }
    }
}

struct Condition<'a> {
    family: &'a Family,
    /// Whether the policy of FORWARD is DROP.
    drops: bool,
    /// Whether netfilter sees bridged frames.
    bridged: bool,
}

fn test_policy(ingress: &str) {
    let lab = &Lab::new();
    let network = Network::new(lab);
    let keys = json!({ "ingressPolicy": ingress });
    network.call("ADD", &keys);
    let Network { a, b, c, outside, .. } = &network;
    if !Path::new("/proc/sys/net/bridge").exists() {
        skip(&format!("{ingress} with bridged frames"), "no br_netfilter");
    }
    let (is_open, is_isolated) = (ingress == "open", ingress == "isolated");
    network.for_each_condition(|condition| {
        let Condition { family, drops, bridged } = condition;
        let what = |path: &str| format!("{path}, {ingress}, {}, drops: {drops}, bridged: {bridged}", family.a);
        let server = Server::start(&a.netns, family.a);
        let request = |reaches: bool, from: Option<&Path>, ip: &str, port: u16, path: &str| {
            expect(reaches, from, ip, port, &server, &what(path));
        };
        // A published port is reachable from everywhere.
        request(true, Some(outside), family.uplink, PORT, "outside to published port");
        request(true, Some(&c.netns), family.uplink, PORT, "other bridge to published port");
        request(true, None, family.uplink, PORT, "host to published port");
        // A limit: with isolated ports and bridged frames in netfilter, a neighbour does not reach a published port.
        let is_reachable = !(is_isolated && *bridged);
        request(is_reachable, Some(&b.netns), family.uplink, PORT, "neighbour to published port");
        // Other connections are subject to the policies.
        request(true, None, family.a, 80, "host");
        request(!drops, Some(outside), family.a, 80, "outside");
        request(!is_isolated, Some(&b.netns), family.a, 80, "neighbour");
        request(is_open, Some(&c.netns), family.a, 80, "other bridge");
        drop(server);
        let server = Server::start(&c.netns, family.c);
        expect(is_open, Some(&a.netns), family.c, 80, &server, &what("to the other bridge"));
        let server = Server::start(outside, family.outside);
        for pod in [a, b, c] {
            expect(true, Some(&pod.netns), family.outside, 80, &server, &what("to the outside"));
        }
    });
    network.call("CHECK", &keys);
    network.call("DEL", &keys);
    network.for_each_condition(|condition| {
        let Condition { family, drops, .. } = condition;
        let server = Server::start(outside, family.outside);
        expect(!drops, Some(&a.netns), family.outside, 80, &server, "after DEL");
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
    let network = Network::new(lab);
    network.call("ADD", &json!({}));
    lab.sh("iptables -A CNI-ADMIN -s 10.1.0.2 -j DROP; ip6tables -A CNI-ADMIN -s fd01::2 -j DROP");
    for family in &FAMILIES {
        let server = Server::start(&network.outside, family.outside);
        expect(false, Some(&network.a.netns), family.outside, 80, &server, "forbidden");
        expect(true, Some(&network.b.netns), family.outside, 80, &server, "allowed");
    }
}
