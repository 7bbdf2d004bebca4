//! Three nodes that route each other's containers, with the networks and the files of BIRD in `docs/routing.md`.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use linux::Deadline;
use linux::ip::Cidr;
use linux::netlink::{Event, Netlink, Watch};
use serde_json::Value;
use testing::dhcp::{Service, start};
use testing::document::{blocks, read, section};
use testing::packets::{Client, Delivery, Server, from};
use testing::{Lab, Process, program_path, skip, timeout};

const BIRD: &str = "/usr/sbin/bird";
const PORT: u16 = 5000;

/// The address families, by what is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    fn either(self, v4: String, v6: String) -> String {
        if self == Family::V4 { v4 } else { v6 }
    }

    /// The address of a node, or of the host outside of the cluster.
    fn node(self, number: u8) -> String {
        self.either(format!("192.0.2.{number}"), format!("2001:db8::{number}"))
    }

    /// An address in the range that node `number` has at first.
    fn in_range(self, number: u8, host: u8) -> String {
        self.either(format!("10.99.{number}.{host}"), format!("fd99:0:0:{number}::{host}"))
    }

    fn range(self, number: u8) -> String {
        self.either(format!("10.99.{number}.0/24"), format!("fd99:0:0:{number}::/64"))
    }

    /// The address of the container that moves.
    fn moving(self) -> String {
        self.either("10.99.128.5".to_owned(), "fd99:0:0:80::5".to_owned())
    }

    /// The same as a destination of routes.
    fn moving_host(self) -> String {
        self.moving() + if self == Family::V4 { "/32" } else { "/128" }
    }

    fn any(self) -> &'static str {
        if self == Family::V4 { "0.0.0.0" } else { "::" }
    }
}

/// The number of the host outside of the cluster, which is on the network of the nodes and has no routes to containers.
const OUTSIDE: u8 = 99;

/// Makes the configuration of node 1 that of another node.
fn for_node(number: u8, text: &str) -> String {
    let names = |number: u8| {
        let [range4, range6] = Family::BOTH.map(|family| family.range(number));
        let [node4, node6] = Family::BOTH.map(|family| family.node(number));
        [range4, range6, node4, node6, format!("node{number}_")]
    };
    let own = names(1).into_iter().zip(names(number));
    own.fold(text.to_owned(), |text, (of_one, of_other)| {
        text.replace(&of_one, "\0").replace(&of_other, &of_one).replace('\0', &of_other)
    })
}

/// Three nodes, each of which is a host of its own. A cable leads from its `eth0` to a switch.
struct Cluster<'a> {
    lab: &'a Lab,
    /// The switch, and the host outside of the cluster.
    lan: Lab,
    nodes: Vec<Node<'a>>,
}

struct Node<'a> {
    lab: &'a Lab,
    host: Lab,
    number: u8,
    bird: Service,
}

impl<'a> Cluster<'a> {
    /// Creates the nodes, whose containers `plugin` attaches. Returns when all know the ranges of all; `None` without
    /// BIRD, which skips the test.
    fn new(lab: &'a Lab, plugin: &str, test: &str) -> Option<Cluster<'a>> {
        if !Path::new(BIRD).exists() {
            skip(test, "bird2 is not installed");
            return None;
        }
        let lan = lab.another();
        // An address that was set does not change with the ports.
        lan.within(|| lab.sh("ip link add lan address 0a:58:c0:00:02:63 type bridge mcast_snooping 0"));
        set_addresses(lab, &lan, "lan", OUTSIDE);
        let mut cluster = Cluster { lab, lan, nodes: Vec::new() };
        cluster.nodes = [1, 2, 3].map(|number| cluster.create_node(number, plugin)).into();
        for node in &cluster.nodes {
            for other in cluster.nodes.iter().filter(|other| other.number != node.number) {
                node.await_range(other.number, Some(other.number));
            }
        }
        Some(cluster)
    }

    fn create_node(&self, number: u8, plugin: &str) -> Node<'a> {
        let (lab, host) = (self.lab, self.lab.another());
        self.lan.within(|| {
            lab.sh(&format!(
                "ip link add port{number} type veth peer name eth0 netns {}
                 ip link set port{number} master lan up",
                host.network().display()
            ))
        });
        set_addresses(lab, &host, "eth0", number);
        let page = read("docs/routing.md");
        let pods = blocks(section(&page, "The network"), "json");
        let pods = pods.iter().find(|network| network.contains(&format!("\"type\": \"{plugin}\""))).unwrap();
        let [web] = &blocks(section(&page, "Move a container"), "json")[..] else { panic!("one network that moves") };
        let [bird, node] = &blocks(section(&page, "BIRD"), "bird")[..] else { panic!("two files of BIRD") };
        let files = [("pods.conflist", pods), ("web.conflist", web), ("bird.conf", bird), ("node.conf", node)];
        for (name, text) in files {
            fs::write(host.dir().join(name), for_node(number, text)).unwrap();
        }
        let bird = host.within(|| {
            for family in Family::BOTH {
                let gateway = family.node(OUTSIDE);
                // On a busy machine it takes a while until both ends are ready.
                lab.sh(&format!("ip route add default via {gateway}; until ping -q -c 1 -W 5 {gateway}; do :; done"));
            }
            lab.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1; mkdir /run/bird");
            start(&host, "bird", BIRD, &["-f", "-c", host.dir().join("bird.conf").to_str().unwrap()])
        });
        Node { lab, host, number, bird }
    }

    /// Connects the cable of a node to the switch, or disconnects it.
    fn set_cable(&self, number: u8, state: &str) {
        self.lan.within(|| self.lab.sh(&format!("ip link set port{number} {state}")));
    }

    /// Asserts that a container sends to hosts outside of the cluster with the address of its node.
    #[track_caller]
    fn assert_masqueraded(&self, client: &Container<'_>) {
        for family in Family::BOTH {
            let server = Server::start("udp", Some(&self.lan.network()), family.any(), PORT);
            let want = from(&family.node(client.node.number));
            Client::in_netns(&client.path()).expect(&want, &family.node(OUTSIDE), PORT, &server);
        }
    }
}

/// Sets a link up, with the addresses of host `number`.
fn set_addresses(lab: &Lab, host: &Lab, link: &str, number: u8) {
    let [v4, v6] = Family::BOTH.map(|family| family.node(number));
    host.within(|| {
        lab.sh(&format!(
            "ip link set lo up; sysctl -qw net.ipv6.conf.{link}.accept_dad=0; ip link set {link} up
             ip address add {v4}/24 dev {link}; ip address add {v6}/64 dev {link} nodad"
        ))
    });
}

impl<'a> Node<'a> {
    /// Waits until the routes of this node to a range lead to a node, or until there are none.
    #[track_caller]
    fn await_range(&self, range: u8, owner: Option<u8>) {
        for family in Family::BOTH {
            self.await_route(&family.range(range), owner.map(|owner| family.node(owner)).as_deref());
        }
    }

    /// Waits until the routes of this node to the container that moves lead to another node, or until there are none.
    #[track_caller]
    fn await_moving(&self, owner: Option<u8>) {
        for family in Family::BOTH {
            self.await_route(&family.moving_host(), owner.map(|owner| family.node(owner)).as_deref());
        }
    }

    #[track_caller]
    fn await_route(&self, network: &str, via: Option<&str>) {
        let wanted: Vec<IpAddr> = via.iter().map(|via| via.parse().unwrap()).collect();
        let destination: Cidr = network.parse().unwrap();
        let event = if destination.ip().is_ipv4() { Event::Ipv4Route } else { Event::Ipv6Route };
        let what = match via {
            Some(via) => format!("the route of node {} to {network} via {via}", self.number),
            None => format!("the end of the route of node {} to {network}", self.number),
        };
        self.host.within(|| {
            let (mut watch, mut netlink) = (Watch::open(event).unwrap(), Netlink::open().unwrap());
            let found = watch.wait_for(&what, Deadline::after(timeout()), || {
                let routes = netlink.all_routes()?.into_iter().filter(|route| route.leads_to(destination));
                let hops: Vec<IpAddr> = routes.filter_map(|route| route.route.gw).collect();
                Ok((hops == wanted).then_some(()))
            });
            if let Err(error) = found {
                panic!("{error}\n{}{}", self.lab.sh("ip route; ip -6 route; birdc show protocols"), self.bird.log());
            }
        });
    }

    /// Replaces a text in a file of this node, which must have it.
    fn edit(&self, file: &str, text: &str, by: &str) {
        let path = self.host.dir().join(file);
        let before = fs::read_to_string(&path).unwrap();
        assert!(before.contains(text), "{text:?} in {path:?}: {before}");
        fs::write(path, before.replace(text, by)).unwrap();
    }

    /// Lets BIRD read its files again.
    fn reconfigure(&self) {
        let answer = self.host.within(|| self.lab.sh("birdc configure"));
        assert!(answer.contains("Reconfigur"), "{answer}");
    }

    /// Prepares a call of the runtime for a network and a container.
    fn runtime(&self, command: &str, network: &str, container: &str) -> Process {
        let call = Process::new(program_path("cnitool")).arg(command).arg(network);
        let call = call.arg(format!("/run/netns/{container}"));
        call.env("NETCONFPATH", self.host.dir()).env("CNI_PATH", self.lab.bin())
    }

    /// Attaches a new container, with these addresses if there are any.
    #[track_caller]
    fn attach(&self, network: &'static str, name: &str, ips: &[String]) -> Container<'_> {
        self.host.within(|| {
            let netns = File::open(self.lab.netns(name)).unwrap();
            let mut call = self.runtime("add", network, name);
            if !ips.is_empty() {
                call = call.env("CAP_ARGS", serde_json::json!({ "ips": ips }).to_string());
            }
            let result = call.run().ok();
            let ip = |entry: &Value| entry["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
            let ips = result["ips"].as_array().unwrap().iter().map(ip).collect();
            Container { node: self, network, name: name.to_owned(), netns, ips }
        })
    }
}

struct Container<'a> {
    node: &'a Node<'a>,
    network: &'static str,
    name: String,
    netns: File,
    ips: Vec<String>,
}

impl Container<'_> {
    /// The path of its network namespace, on all hosts.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.netns.as_raw_fd()))
    }

    /// Its address of a family.
    fn ip(&self, family: Family) -> &str {
        self.ips.iter().find(|ip| ip.contains(':') == (family == Family::V6)).unwrap()
    }

    /// Detaches it, and deletes its namespace.
    #[track_caller]
    fn del(self) {
        let Container { node, network, name, .. } = &self;
        node.host.within(|| {
            node.runtime("del", network, name).run().ok();
            node.lab.sh(&format!("ip netns del {name}"));
        });
    }
}

/// Asserts that containers reach each other with TCP and UDP, and see each other's own addresses.
#[track_caller]
fn assert_connected(one: &Container<'_>, other: &Container<'_>) {
    for family in Family::BOTH {
        for (client, server) in [(one, other), (other, one)] {
            for protocol in ["tcp", "udp"] {
                let listening = Server::start(protocol, Some(&server.path()), family.any(), PORT);
                let want = from(client.ip(family));
                Client::in_netns(&client.path()).expect(&want, server.ip(family), PORT, &listening);
            }
        }
    }
}

/// Asserts that no packet of a container reaches another one, and that the kernel of its node answers.
#[track_caller]
fn assert_unreachable(client: &Container<'_>, server: &Container<'_>) {
    for family in Family::BOTH {
        let listening = Server::start("udp", Some(&server.path()), family.any(), PORT);
        Client::in_netns(&client.path()).expect(&Delivery::Lost, server.ip(family), PORT, &listening);
        let ping = format!("nsenter --net={} ping -c 1 -W 60 {}", client.path().display(), server.ip(family));
        let answer = client.node.lab.sh(&format!("{ping} || [ $? = 1 ]"));
        assert!(answer.contains("nreachable"), "{answer}");
    }
}

/// Attaches a container on each node, one on a second, and compares the addresses that they see.
fn nodes_reach_each_other(plugin: &str, test: &str) {
    let lab = &Lab::new();
    let Some(cluster) = Cluster::new(lab, plugin, test) else { return };
    let containers: Vec<_> = cluster.nodes.iter().map(|node| node.attach("pods", "a", &[])).collect();
    for (index, one) in containers.iter().enumerate() {
        assert_eq!(one.ip(Family::V4).rsplit_once('.'), Some((&*format!("10.99.{}", index + 1), "2")));
        containers.iter().skip(index + 1).for_each(|other| assert_connected(one, other));
        assert_connected(one, &one.node.attach("pods", "neighbour", &[]));
        cluster.assert_masqueraded(one);
    }
    // No header is added on the way.
    for (family, payload) in [(Family::V4, 1472), (Family::V6, 1452)] {
        let (client, server) = (&containers[0], containers[1].ip(family));
        let netns = client.path();
        lab.sh(&format!("nsenter --net={} ping -c 1 -W 60 -M do -s {payload} {server}", netns.display()));
    }
    // The network of a node is as its configuration says, also for an excluded destination.
    let probe = Process::new(program_path("cnitool")).arg("test").arg("--outside").arg(containers[1].ip(Family::V4));
    let probe = probe.arg("pods").env("NETCONFPATH", cluster.nodes[0].host.dir()).env("CNI_PATH", lab.bin());
    let outcome = cluster.nodes[0].host.within(|| probe.run());
    assert!(outcome.status == Some(0) && outcome.stdout.contains("10.99.2.2 sees 10.99.1."), "{}", outcome.stdout);
    // The cable of a node is cut: a node without power says nothing, either.
    let [first, second, third] = &containers[..] else { panic!("three containers") };
    cluster.set_cable(3, "down");
    [first, second].iter().for_each(|container| container.node.await_range(3, None));
    assert_unreachable(first, third);
    assert_connected(first, second);
    cluster.set_cable(3, "up");
    for node in &cluster.nodes {
        (1..=3).filter(|other| *other != node.number).for_each(|other| node.await_range(other, Some(other)));
    }
    assert_connected(first, third);
}

#[test]
fn with_bridge_nodes_reach_each_other() {
    nodes_reach_each_other("bridge", "routing::with_bridge_nodes_reach_each_other");
}

#[test]
fn with_ptp_nodes_reach_each_other() {
    nodes_reach_each_other("ptp", "routing::with_ptp_nodes_reach_each_other");
}

/// Gives the range of node 3 to node 2, and range 4 to node 3.
fn a_range_moves(plugin: &str, test: &str) {
    let lab = &Lab::new();
    let Some(cluster) = Cluster::new(lab, plugin, test) else { return };
    let [one, two, three] = &cluster.nodes[..] else { panic!("three nodes") };
    let (first, second) = (one.attach("pods", "a", &[]), two.attach("pods", "a", &[]));
    let old = three.attach("pods", "a", &[]);
    let old_ips = old.ips.clone();
    assert_connected(&first, &old);
    old.del();
    for family in Family::BOTH {
        let [of_two, of_three, new] = [2, 3, 4].map(|number| family.range(number));
        three.edit("node.conf", &format!("route {of_three} "), &format!("route {new} "));
        three.edit("pods.conflist", &of_three, &new);
        let line = |range: &str| format!("route {range} unreachable;");
        two.edit("node.conf", &line(&of_two), &format!("{}\n{}", line(&of_two), line(&of_three)));
        let range = |range: &str| format!("{{ \"subnet\": \"{range}\" }}");
        two.edit("pods.conflist", &range(&of_two), &format!("{}, {}", range(&of_two), range(&of_three)));
    }
    [three, two].iter().for_each(|node| node.reconfigure());
    one.await_range(3, Some(2));
    for node in [one, two] {
        node.await_range(4, Some(3));
    }
    let new = two.attach("pods", "moved", &old_ips);
    assert_eq!(new.ips, old_ips);
    let replaced = three.attach("pods", "b", &[]);
    assert_eq!(replaced.ip(Family::V6), Family::V6.in_range(4, 2));
    three.await_range(3, Some(2));
    for other in [&first, &second, &replaced] {
        assert_connected(&new, other);
    }
    assert_connected(&first, &replaced);
    cluster.assert_masqueraded(&new);
}

#[test]
fn with_bridge_a_range_moves() {
    a_range_moves("bridge", "routing::with_bridge_a_range_moves");
}

#[test]
fn with_ptp_a_range_moves() {
    a_range_moves("ptp", "routing::with_ptp_a_range_moves");
}

/// Moves a container twice: it is attached on the second node before and after it is detached on the first one.
fn a_container_moves(plugin: &str, test: &str) {
    let lab = &Lab::new();
    let Some(cluster) = Cluster::new(lab, plugin, test) else { return };
    let [one, two, three] = &cluster.nodes[..] else { panic!("three nodes") };
    let others: Vec<_> = cluster.nodes.iter().map(|node| node.attach("pods", "a", &[])).collect();
    let assert_reached = |web: &Container<'_>| {
        assert!(Family::BOTH.iter().all(|family| web.ip(*family) == family.moving()), "{:?}", web.ips);
        others.iter().for_each(|other| assert_connected(web, other));
        cluster.assert_masqueraded(web);
    };
    let web = two.attach("web", "web", &[]);
    [one, three].iter().for_each(|node| node.await_moving(Some(2)));
    assert_reached(&web);
    web.del();
    cluster.nodes.iter().for_each(|node| node.await_moving(None));
    let web = three.attach("web", "web", &[]);
    [one, two].iter().for_each(|node| node.await_moving(Some(3)));
    assert_reached(&web);
    let copy = one.attach("web", "web", &[]);
    web.del();
    [two, three].iter().for_each(|node| node.await_moving(Some(1)));
    assert_reached(&copy);
}

#[test]
fn beside_bridge_a_container_moves() {
    a_container_moves("bridge", "routing::beside_bridge_a_container_moves");
}

#[test]
fn beside_ptp_a_container_moves() {
    a_container_moves("ptp", "routing::beside_ptp_a_container_moves");
}
