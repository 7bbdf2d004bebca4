//! Traffic: packets prove who reaches whom, for each policy of the chain FORWARD and each ingress policy.

use std::path::Path;

use serde_json::{Value, json};
use testing::config::on_network;
use testing::network::{Family, IPV4, IPV6, Network, filter_bridged_frames};
use testing::packets::{Client, Delivery, HOST, Server, assert_nothing_arrives, from, send, udp};
use testing::{Lab, Pod, skip};

use crate::support::{config, rules};

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

/// Runs `test` for each of these policies of FORWARD, with bridged frames in netfilter and without, and for each
/// family.
fn for_each_condition(lab: &Lab, policies: &[&str], test: impl Fn(&Condition)) {
    for bridged in [false, true].into_iter().filter(|bridged| filter_bridged_frames(lab, *bridged)) {
        for policy in policies {
            lab.sh(&format!("iptables -P FORWARD {policy}; ip6tables -P FORWARD {policy}"));
            for family in [IPV4, IPV6] {
                test(&Condition { family, drops: *policy == "DROP", bridged });
            }
        }
    }
}

/// The policies of FORWARD.
const POLICIES: [&str; 2] = ["ACCEPT", "DROP"];

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

/// A program of the host may set the same bit of the packet mark, and must not see it on other packets.
#[test]
fn the_packet_mark_is_only_for_this_plugin() {
    let lab = &Lab::new();
    let network = network(lab);
    network.a.add(&config(json!({})));
    lab.sh("iptables -P FORWARD DROP
            iptables -t mangle -A PREROUTING -j MARK --set-mark 0x1000
            iptables -t mangle -A POSTROUTING -m mark --mark 0x1000/0x1000 -j DROP");
    let server = Server::start("udp", Some(&network.outside), IPV4.outside, 80);
    request(true, network.a.client(), IPV4.pods[0], IPV4.outside, 80, &server);
    request(false, network.b.client(), IPV4.pods[1], IPV4.outside, 80, &server);
}

fn test_policy(ingress: &str) {
    let lab = &Lab::new();
    let network = network(lab);
    let keys = json!({ "ingressPolicy": ingress });
    call(&network, "ADD", &keys);
    if !Path::new("/proc/sys/net/bridge").exists() {
        skip(&format!("{ingress} with bridged frames"), "no br_netfilter");
    }
    for_each_condition(lab, &POLICIES, |condition| expect_policy(&network, ingress, condition));
    call(&network, "CHECK", &keys);
    call(&network, "DEL", &keys);
    for_each_condition(lab, &POLICIES, |condition| {
        let Condition { family, drops, .. } = condition;
        let server = Server::start("udp", Some(&network.outside), family.outside, 80);
        request(!drops, network.a.client(), family.pods[0], family.outside, 80, &server);
    });
}

/// Expects that packets reach whom an ingress policy lets them reach.
fn expect_policy(network: &Network<'_>, ingress: &str, condition: &Condition) {
    let Network { a, b, c, outside } = network;
    let Condition { family, drops, bridged } = condition;
    let Family { pods, bridge, uplink, outside: far, .. } = family;
    eprintln!("--- {ingress}, {}, drops: {drops}, bridged: {bridged}", pods[0]);
    let (is_open, is_isolated) = (ingress == "open", ingress == "isolated");
    let server = &Server::start("udp", Some(&a.netns), pods[0], 80);
    // A published port is reachable from everywhere.
    request(true, network.outside(), far, uplink, PORT, server);
    request(true, c.client(), pods[2], uplink, PORT, server);
    request(true, HOST, uplink, uplink, PORT, server);
    request(true, b.client(), bridge, uplink, PORT, server);
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
}

/// The chains of Docker 28, of which no rule is about the bridges of the test. The daemon inserts both jumps as the
/// first rules when it starts, and again after each reload of the host's firewall.
const DOCKER: &str = "
    for tool in iptables ip6tables; do
        if $tool -N DOCKER-USER; then
            for chain in DOCKER DOCKER-BRIDGE DOCKER-CT DOCKER-FORWARD DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2; do
                $tool -N $chain
            done
            $tool -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            $tool -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
            $tool -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
            $tool -A DOCKER-BRIDGE -o docker0 -j DOCKER
            $tool -A DOCKER ! -i docker0 -o docker0 -j DROP
            for chain in DOCKER-CT DOCKER-ISOLATION-STAGE-1 DOCKER-BRIDGE; do
                $tool -A DOCKER-FORWARD -j $chain
            done
            $tool -A DOCKER-FORWARD -i docker0 -j ACCEPT
        fi
        for chain in DOCKER-FORWARD DOCKER-USER; do
            $tool -D FORWARD -j $chain || true
            $tool -I FORWARD -j $chain
        done
    done 2>/dev/null";

/// The daemon starts before the containers of the test, and once more while they run.
#[test]
fn docker_may_insert_its_chains_before_and_after() {
    let lab = &Lab::new();
    let network = network(lab);
    let keys = json!({ "ingressPolicy": "isolated" });
    let is_first = |chain: &str| lab.sh("iptables -S FORWARD 1").trim_end().ends_with(chain);
    lab.sh(DOCKER);
    call(&network, "ADD", &keys);
    assert!(is_first("-j CNI-ISOLATION-STAGE-1"));
    for_each_condition(lab, &["DROP"], |condition| expect_policy(&network, "isolated", condition));
    lab.sh(DOCKER);
    assert!(is_first("-j DOCKER-USER"));
    call(&network, "CHECK", &keys);
    for_each_condition(lab, &["DROP"], |condition| expect_policy(&network, "isolated", condition));
    // A repeated ADD leaves the jumps where they are.
    let before = rules(lab, "iptables", "FORWARD");
    call(&network, "ADD", &keys);
    assert_eq!(rules(lab, "iptables", "FORWARD"), before);
    // An administrator's rule for Docker comes before all others.
    lab.sh("iptables -A DOCKER-USER -s 10.1.0.2 -j DROP");
    let server = Server::start("udp", Some(&network.outside), IPV4.outside, 80);
    network.a.client().expect(&Delivery::Lost, IPV4.outside, 80, &server);
}

/// `tuning`, which comes after this plugin in the lists of podman and nerdctl, can change the MAC address.
#[test]
fn another_mac_address_changes_nothing_for_isolated_containers() {
    let lab = &Lab::new();
    let network = network(lab);
    let keys = json!({ "ingressPolicy": "isolated" });
    call(&network, "ADD", &keys);
    for (n, pod) in [&network.a, &network.b].into_iter().enumerate() {
        pod.sh(&format!("ip link set eth0 address 02:00:00:00:00:0{n}"));
    }
    lab.sh("ip neigh flush all");
    for_each_condition(lab, &["DROP"], |condition| expect_policy(&network, "isolated", condition));
    call(&network, "CHECK", &keys);
}

/// The kernel forwards frames that are addressed to the bridge to all ports of a VLAN in which the bridge itself is
/// not. So a container could take the address of the bridge.
#[test]
fn isolated_containers_do_not_reach_each_other_by_the_address_of_the_bridge() {
    let test = "isolated_containers_do_not_reach_each_other_by_the_address_of_the_bridge";
    let lab = &Lab::new();
    let pods = [("c1", "10.9.0.2/24"), ("c2", "10.9.0.3/24")].map(|(id, ip)| Pod::on_bridge(lab, "br0", id, &[ip]));
    if lab.sh("ip link set br0 type bridge vlan_filtering 1 2>/dev/null && echo yes || echo no") == "no\n" {
        skip(test, "this kernel cannot filter VLANs");
        return;
    }
    // Otherwise the rules of iptables would drop these frames, too.
    filter_bridged_frames(lab, false);
    for Pod { port, .. } in &pods {
        lab.sh(&format!("bridge vlan add dev {port} vid 100 pvid untagged; bridge vlan delete dev {port} vid 1"));
    }
    let [a, b] = &pods;
    let mac = lab.ip("link show br0")[0]["address"].as_str().unwrap().to_owned();
    b.sh(&format!("ip link set eth0 address {mac}"));
    a.sh(&format!("ip neigh replace 10.9.0.3 lladdr {mac} dev eth0"));
    // Not even in one direction.
    let (sender, receiver) = (udp(Some(&a.netns), "10.9.0.2", 81), udp(Some(&b.netns), "10.9.0.3", 80));
    let config = config(json!({ "ingressPolicy": "isolated" }));
    let call = |command: &str| pods.iter().for_each(|pod| drop(pod.call(command, &config).run().ok()));
    assert_eq!(send(&sender, &receiver, "10.9.0.3"), "10.9.0.2".parse().ok());
    call("ADD");
    assert_nothing_arrives(&sender, &receiver, "10.9.0.3");
    call("CHECK");
    call("DEL");
    assert_eq!(send(&sender, &receiver, "10.9.0.3"), "10.9.0.2".parse().ok());
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

/// On a kernel without IPv6 (`ipv6.disable=1`), or with IPv6 disabled.
#[test]
fn without_ipv6_there_is_ipv4() {
    let lab = &Lab::new();
    let outside = lab.outside();
    lab.sh("! [ -e /proc/sys/net/ipv6 ] || \
            sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
            ip -n outside route add default via 192.0.2.1; iptables -P FORWARD DROP");
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let server = &Server::start("udp", Some(&outside), "192.0.2.2", 80);
    for ingress in ["open", "same-bridge", "isolated"] {
        let config = config(json!({ "ingressPolicy": ingress }));
        request(false, pod.client(), "", "192.0.2.2", 80, server);
        lab.plugin("firewall", "STATUS").stdin(config.to_string()).run().ok();
        pod.add(&config);
        pod.check(&config).ok();
        request(true, pod.client(), "10.1.0.2", "192.0.2.2", 80, server);
        pod.del(&config);
    }
}
