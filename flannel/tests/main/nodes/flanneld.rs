//! What flanneld does on a node: the subnet file, the rules, and the routes to other nodes.

use std::fs;

use super::cluster::{Backend, Family};
use super::node::Node;

/// The MTU of the local network.
const MTU: u32 = 1500;

/// Returns the MTU that flanneld writes to the subnet file. For VXLAN it is that of the IPv4 tunnel.
pub(crate) fn mtu(backend: Backend) -> u32 {
    match backend {
        Backend::Vxlan => MTU - 50,
        Backend::HostGw => MTU,
    }
}

/// Returns the name of the tunnel device.
fn tunnel(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "flannel.1",
        Family::Ipv6 => "flannel-v6.1",
    }
}

/// Starts flanneld with a lease of subnet `number`. The node may have another subnet from before.
pub(crate) fn start(node: &Node<'_>, number: u8) {
    let settings = node.cluster.settings;
    node.subnet.set(Some(number));
    for family in settings.families() {
        if settings.backend == Backend::Vxlan {
            set_tunnel(node, *family);
        }
        if settings.ip_masq {
            set_rules(node, *family);
        }
    }
    write_subnet_file(node);
}

/// Creates the tunnel device if there is none, and replaces its address.
fn set_tunnel(node: &Node<'_>, family: Family) {
    let (link, local) = (tunnel(family), node.ip(family));
    let ip = family.in_subnet(node.subnet(), 0);
    let (prefix, nodad) = if family == Family::Ipv4 { (32, "") } else { (128, "nodad") };
    node.sh(&format!(
        "ip link show {link} 2>/dev/null ||
             ip link add {link} type vxlan id 1 dev eth0 local {local} dstport 8472 nolearning
         ip address flush dev {link} scope global
         ip address add {ip}/{prefix} dev {link} {nodad}
         ip link set {link} up"
    ));
}

/// Masquerades what leaves the cluster, as flanneld does with `EnableNFTables`.
fn set_rules(node: &Node<'_>, family: Family) {
    let (nft, multicast) = if family == Family::Ipv4 { ("ip", "224.0.0.0/4") } else { ("ip6", "ff00::/8") };
    let (cluster, subnet) = (family.cluster(), family.subnet(node.subnet()));
    node.sh(&format!(
        "nft 'add table {nft} flannel; delete table {nft} flannel'
         nft 'table {nft} flannel {{ chain postrtg {{
             type nat hook postrouting priority srcnat;
             meta mark 0x4000 return
             {nft} saddr {subnet} {nft} daddr {cluster} return
             {nft} saddr {cluster} {nft} daddr {subnet} return
             {nft} saddr != {subnet} {nft} daddr {cluster} return
             {nft} saddr {cluster} {nft} daddr != {multicast} masquerade fully-random
             {nft} saddr != {cluster} {nft} daddr {cluster} masquerade fully-random; }}; }}'"
    ));
}

fn write_subnet_file(node: &Node<'_>) {
    let settings = node.cluster.settings;
    let networks = settings.families().iter().map(|family| {
        let prefix = if *family == Family::Ipv4 { "FLANNEL" } else { "FLANNEL_IPV6" };
        let gateway = family.in_subnet(node.subnet(), 1);
        format!("{prefix}_NETWORK={}\n{prefix}_SUBNET={gateway}/{}\n", family.cluster(), family.prefix())
    });
    let mut text: String = networks.collect();
    text += &format!("FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", mtu(settings.backend), settings.ip_masq);
    node.within(|| {
        fs::create_dir_all("/run/flannel").unwrap();
        fs::write("/run/flannel/.subnet.env", text).unwrap();
        fs::rename("/run/flannel/.subnet.env", "/run/flannel/subnet.env").unwrap();
    });
}

/// Adds the routes from each of the nodes to all others.
pub(crate) fn connect(nodes: &[&Node<'_>]) {
    for node in nodes {
        for other in nodes.iter().filter(|other| other.number != node.number) {
            add_routes(node, other);
        }
    }
}

fn add_routes(node: &Node<'_>, other: &Node<'_>) {
    let settings = node.cluster.settings;
    for family in settings.families() {
        let (subnet, next_hop) = (family.subnet(other.subnet()), other.ip(*family));
        match settings.backend {
            Backend::HostGw => node.sh(&format!("ip route replace {subnet} via {next_hop} dev eth0")),
            Backend::Vxlan => {
                let (link, inner) = (tunnel(*family), family.in_subnet(other.subnet(), 0));
                let mac = other.mac(link);
                node.sh(&format!(
                    "ip neighbour replace {inner} lladdr {mac} dev {link} nud permanent
                     bridge fdb replace {mac} dev {link} dst {next_hop}
                     ip route replace {subnet} via {inner} dev {link} onlink"
                ))
            }
        };
    }
}

/// Removes the routes to `lost`, whose lease has ended, from other nodes.
pub(crate) fn disconnect(lost: &Node<'_>, nodes: &[&Node<'_>]) {
    let settings = lost.cluster.settings;
    for (node, family) in nodes.iter().flat_map(|node| settings.families().iter().map(move |family| (node, *family))) {
        if settings.backend == Backend::Vxlan {
            let (link, inner) = (tunnel(family), family.in_subnet(lost.subnet(), 0));
            node.sh(&format!(
                "ip neighbour delete {inner} dev {link}
                 bridge fdb delete {} dev {link} dst {}",
                lost.mac(link),
                lost.ip(family)
            ));
        }
        node.sh(&format!("ip route delete {}", family.subnet(lost.subnet())));
    }
}
