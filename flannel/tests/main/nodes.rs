//! Containers on several nodes, connected as flanneld connects them, and attached with the list of kube-flannel.
//! Packets prove that they reach each other, and which addresses they see.

mod cluster;
mod flanneld;
mod node;
mod packets;

use linux::Netns;
use serde_json::json;
use testing::Lab;

use cluster::{Backend, Cluster, Family, OUTSIDE, Settings};
use node::{Node, Pod};
use packets::{answers, source_seen, transfer};

const PORT: u16 = 5000;

impl<'a> Cluster<'a> {
    /// Creates connected nodes 1 and 2, with the subnets 1 and 2.
    fn two_nodes(&'a self) -> [Node<'a>; 2] {
        let nodes = [1, 2].map(|number| self.node(number));
        nodes.iter().for_each(|node| flanneld::start(node, node.number));
        flanneld::connect(&nodes.each_ref());
        nodes
    }
}

/// Asserts which source address `server` sees in packets of `client`.
#[track_caller]
fn assert_source(client: &Pod<'_>, server: &Pod<'_>, family: Family, want: std::net::IpAddr) {
    assert_eq!(source_seen(&client.netns, (server.ip(family), PORT), &server.netns, PORT), want);
}

/// Asserts that two containers reach each other in all families, and see each other's own addresses.
#[track_caller]
fn assert_connected(cluster: &Cluster<'_>, one: &Pod<'_>, other: &Pod<'_>) {
    for family in cluster.settings.families() {
        for (client, server) in [(one, other), (other, one)] {
            assert!(answers(&client.netns, server.ip(*family), 100), "{:?}", server.ip(*family));
            assert_source(client, server, *family, client.ip(*family));
        }
    }
}

#[test]
fn containers_of_two_nodes_reach_each_other() {
    Lab::for_each_way_to_delegate(|lab| {
        for settings in Settings::all() {
            let cluster = &Cluster::new(lab, settings);
            let [one, two] = &cluster.two_nodes();
            let (a, b) = (&one.attach("a", json!([])), &two.attach("b", json!([])));
            assert_connected(cluster, a, b);
            assert_connected(cluster, a, &one.attach("neighbour", json!([])));
            for family in settings.families() {
                transfer(&a.netns, b.ip(*family), &b.netns);
            }
        }
    });
}

#[test]
fn datagrams_of_the_whole_mtu_reach_the_other_node() {
    let lab = &Lab::new();
    for settings in Settings::all() {
        let cluster = &Cluster::new(lab, settings);
        let [one, two] = &cluster.two_nodes();
        let (a, b) = (&one.attach("a", json!([])), &two.attach("b", json!([])));
        let mtu = flanneld::mtu(settings.backend);
        assert_eq!(a.mtu(), u64::from(mtu));
        for family in settings.families() {
            let is_smaller_tunnel = settings.backend == Backend::Vxlan && *family == Family::Ipv6;
            let mtu = if is_smaller_tunnel { mtu - 20 } else { mtu };
            assert!(answers(&a.netns, b.ip(*family), mtu), "{family:?}");
            assert!(!answers(&a.netns, b.ip(*family), mtu + 1), "{family:?}");
        }
    }
}

/// flanneld knows only one MTU, that of the IPv4 tunnel. `delegate.mtu` replaces it.
#[test]
fn a_configured_mtu_fits_both_tunnels() {
    let lab = &Lab::new();
    let cluster = &Cluster::new(lab, Settings::dual_stack(Backend::Vxlan));
    let [one, two] = &cluster.two_nodes();
    one.configure(json!({ "delegate": { "isDefaultGateway": true, "mtu": 1430 } }));
    let (a, b) = (&one.attach("a", json!([])), &two.attach("b", json!([])));
    assert_eq!(a.mtu(), 1430);
    for family in Family::BOTH {
        assert!(answers(&a.netns, b.ip(family), 1430));
    }
}

#[test]
fn the_outside_sees_the_address_of_the_node() {
    let lab = &Lab::new();
    for backend in [Backend::Vxlan, Backend::HostGw] {
        // First flanneld masquerades, then bridge.
        for ip_masq in [true, false] {
            let cluster = &Cluster::new(lab, Settings { ip_masq, ..Settings::dual_stack(backend) });
            let node = &cluster.node(1);
            flanneld::start(node, 1);
            let pod = node.attach("a", json!([]));
            for family in Family::BOTH {
                let seen = source_seen(&pod.netns, (family.on_lan(OUTSIDE), PORT), &cluster.outside(), PORT);
                assert_eq!(seen, node.ip(family));
            }
        }
    }
}

/// As with the reference: bridge does not know that other nodes belong to the cluster.
#[test]
fn if_bridge_masquerades_other_nodes_see_the_address_of_the_node() {
    let lab = &Lab::new();
    for backend in [Backend::Vxlan, Backend::HostGw] {
        let cluster = &Cluster::new(lab, Settings { ip_masq: false, ..Settings::dual_stack(backend) });
        let [one, two] = &cluster.two_nodes();
        let (a, b) = (&one.attach("a", json!([])), &two.attach("b", json!([])));
        for family in Family::BOTH {
            let of_node = match backend {
                Backend::Vxlan => family.in_subnet(1, 0),
                Backend::HostGw => one.ip(family),
            };
            assert_source(a, b, family, of_node);
        }
    }
}

#[test]
fn with_ip_masq_exclude_cluster_other_nodes_see_the_address_of_the_container() {
    let lab = &Lab::new();
    for backend in [Backend::Vxlan, Backend::HostGw] {
        let cluster = &Cluster::new(lab, Settings { ip_masq: false, ..Settings::dual_stack(backend) });
        let nodes = &cluster.two_nodes();
        nodes.iter().for_each(|node| node.configure(json!({ "ipMasqExcludeCluster": true })));
        let [one, two] = nodes;
        let (a, b) = (&one.attach("a", json!([])), &two.attach("b", json!([])));
        assert_connected(cluster, a, b);
        for family in Family::BOTH {
            let seen = source_seen(&a.netns, (family.on_lan(OUTSIDE), PORT), &cluster.outside(), PORT);
            assert_eq!(seen, one.ip(family));
        }
    }
}

#[test]
fn a_published_port_is_reachable_from_other_nodes_and_outside() {
    let lab = &Lab::new();
    for backend in [Backend::Vxlan, Backend::HostGw] {
        let cluster = &Cluster::new(lab, Settings::dual_stack(backend));
        let [one, two] = &cluster.two_nodes();
        let a = &one.attach("a", json!([{ "hostPort": 8080, "containerPort": PORT, "protocol": "udp" }]));
        let b = &two.attach("b", json!([]));
        for family in Family::BOTH {
            let seen_by_a = |client: &Netns| source_seen(client, (one.ip(family), 8080), &a.netns, PORT);
            assert_eq!(seen_by_a(&cluster.outside()), family.on_lan(OUTSIDE));
            assert_eq!(seen_by_a(&two.netns()), two.ip(family));
            // The other node masquerades it, because the address of this node is not in the cluster network.
            assert_eq!(seen_by_a(&b.netns), two.ip(family));
        }
    }
}

/// A node rejoins the cluster and gets another subnet, while a container of the old one runs.
#[test]
fn a_node_whose_subnet_changes_stays_connected() {
    let lab = &Lab::new();
    for settings in Settings::all() {
        let cluster = &Cluster::new(lab, settings);
        let [one, two] = &cluster.two_nodes();
        let (old, b) = (&one.attach("old", json!([])), &two.attach("b", json!([])));
        flanneld::disconnect(one, &[two]);
        flanneld::start(one, 3);
        flanneld::connect(&[one, two]);
        let new = &one.attach("new", json!([]));
        for family in settings.families() {
            assert!(answers(&old.netns, family.in_subnet(1, 1), 100), "the old gateway");
            assert!(answers(&new.netns, family.in_subnet(3, 1), 100), "the new gateway");
            assert_eq!(new.ip(*family), family.in_subnet(3, 2));
        }
        assert_connected(cluster, new, b);
        assert_connected(cluster, new, old);
        if settings.version == "1.1.0" {
            [old, new].iter().for_each(|pod| pod.check());
        }
    }
}

/// Gives subnet 1 of node 1 to a new node 3. Node 1 has subnet 3 then.
struct Move<'a> {
    one: &'a Node<'a>,
    two: &'a Node<'a>,
    three: Node<'a>,
}

impl<'a> Move<'a> {
    fn new(cluster: &'a Cluster<'a>, [one, two]: &'a [Node<'a>; 2]) -> Move<'a> {
        flanneld::disconnect(one, &[two]);
        flanneld::start(one, 3);
        flanneld::connect(&[one, two]);
        let three = cluster.node(3);
        flanneld::start(&three, 1);
        Move { one, two, three }
    }

    fn connect_all(&self) {
        flanneld::connect(&[self.one, self.two, &self.three]);
    }

    /// Asserts that a container of node 1 reaches the others, and that the node does not have the old gateway
    /// addresses, which would make it take the subnet for its own.
    #[track_caller]
    fn assert_done(&self, new: &Pod<'_>) {
        let cluster = self.one.cluster;
        let (b, c) = (&self.two.attach("b", json!([])), &self.three.attach("c", json!([])));
        for (one, other) in [(new, c), (b, c), (new, b)] {
            assert_connected(cluster, one, other);
        }
        let addresses = self.one.sh("ip -o address show dev cni0 scope global");
        for family in cluster.settings.families() {
            let old = family.in_subnet(1, 1);
            assert!(!addresses.contains(&old.to_string()), "{addresses}");
            assert!(answers(&new.netns, old, 100), "node 3 has it");
            assert!(answers(&self.one.netns(), c.ip(*family), 100), "the node itself reaches the container");
        }
    }
}

/// Only with shared plugins: CNI has no command with which bridge could ask another program for leases in the old
/// subnet.
#[test]
fn another_node_can_get_the_old_subnet_after_the_last_container_is_gone() {
    let lab = &Lab::new();
    for settings in Settings::all() {
        let cluster = &Cluster::new(lab, settings);
        let nodes = &cluster.two_nodes();
        let old = nodes[0].attach("old", json!([]));
        let moved = Move::new(cluster, nodes);
        let new = &moved.one.attach("new", json!([]));
        old.del();
        moved.connect_all();
        moved.assert_done(new);
    }
}

/// Without IPv6 tunnels: the kernel refuses a route through one as long as the old gateway exists, because the next
/// hop, the zero address of the subnet, is then an address of the node itself. flanneld can add that route only later.
#[test]
fn another_node_can_get_the_old_subnet_before_the_last_container_is_gone() {
    let lab = &Lab::new();
    for settings in [Settings::ipv4(), Settings::dual_stack(Backend::HostGw)] {
        let cluster = &Cluster::new(lab, settings);
        let nodes = &cluster.two_nodes();
        let old = nodes[0].attach("old", json!([]));
        let moved = Move::new(cluster, nodes);
        let new = &moved.one.attach("new", json!([]));
        moved.connect_all();
        old.del();
        moved.assert_done(new);
    }
}

#[test]
fn the_next_container_frees_the_old_subnet_if_all_were_gone_before() {
    let lab = &Lab::new();
    for settings in Settings::all() {
        let cluster = &Cluster::new(lab, settings);
        let nodes = &cluster.two_nodes();
        nodes[0].attach("old", json!([])).del();
        let moved = Move::new(cluster, nodes);
        let new = &moved.one.attach("new", json!([]));
        moved.connect_all();
        moved.assert_done(new);
    }
}

#[test]
fn del_without_the_subnet_file_leaves_nothing() {
    Lab::for_each_way_to_delegate(|lab| {
        // Bridge has rules to remove only if flanneld does not masquerade.
        let cluster = &Cluster::new(lab, Settings { ip_masq: false, ..Settings::dual_stack(Backend::Vxlan) });
        let [one, two] = &cluster.two_nodes();
        let b = &two.attach("b", json!([]));
        for lost in ["/run/flannel/subnet.env", "/run/flannel/subnet.env /var/lib/cni/flannel"] {
            let a = one.attach("a", json!([{ "hostPort": 8080, "containerPort": PORT, "protocol": "tcp" }]));
            assert!(answers(&b.netns, a.ip(Family::Ipv4), 100));
            one.sh(&format!("rm -r {lost}"));
            a.del();
            one.assert_clean();
            one.sh("ip netns delete a");
            flanneld::start(one, 1);
            flanneld::connect(&[one, two]);
        }
    });
}
