//! A cluster: nodes on a local network, and an outside host there that does not know the cluster's subnets.
//!
//! Every node is a [`Lab`] of its own. A cable leads from its `eth0` to the switch `lan`, which is a bridge on the
//! outside host.

use std::net::IpAddr;
use std::path::Path;

use linux::Netns;
use testing::Lab;

use super::node::Node;

/// How nodes reach the containers of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Vxlan,
    HostGw,
}

/// What the administrator of a cluster chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) backend: Backend,
    pub(crate) ipv6: bool,
    /// Whether flanneld masquerades traffic that leaves the cluster (`--ip-masq`).
    pub(crate) ip_masq: bool,
    /// The CNI version of the list. Before 0.4.0, DEL gets no previous result.
    pub(crate) version: &'static str,
}

impl Settings {
    /// The settings of a dual-stack cluster, with the list of kube-flannel.
    pub(crate) fn dual_stack(backend: Backend) -> Settings {
        Settings { backend, ipv6: true, ip_masq: true, version: "0.3.1" }
    }

    /// The settings of kube-flannel without IPv6.
    pub(crate) fn ipv4() -> Settings {
        Settings { ipv6: false, ..Settings::dual_stack(Backend::Vxlan) }
    }

    /// Settings with all backends and families, and with an old and a new CNI version.
    pub(crate) fn all() -> [Settings; 3] {
        let newest = Settings { version: "1.1.0", ..Settings::dual_stack(Backend::HostGw) };
        [Settings::ipv4(), Settings::dual_stack(Backend::Vxlan), newest]
    }

    /// The address families in use.
    pub(crate) fn families(&self) -> &'static [Family] {
        if self.ipv6 { &[Family::Ipv4, Family::Ipv6] } else { &[Family::Ipv4] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// Returns the address of a host on the local network.
    pub(crate) fn on_lan(self, number: u8) -> IpAddr {
        let text = match self {
            Family::Ipv4 => format!("192.168.77.{number}"),
            Family::Ipv6 => format!("2001:db8:77::{number}"),
        };
        text.parse().unwrap()
    }

    /// Returns the network of the whole cluster.
    pub(crate) fn cluster(self) -> &'static str {
        match self {
            Family::Ipv4 => "10.244.0.0/16",
            Family::Ipv6 => "fd00:244::/48",
        }
    }

    /// Returns an address of subnet `number`: 0 is the address of the tunnel, 1 the gateway.
    pub(crate) fn in_subnet(self, number: u8, host: u8) -> IpAddr {
        let text = match self {
            Family::Ipv4 => format!("10.244.{number}.{host}"),
            Family::Ipv6 => format!("fd00:244:0:{number}::{host}"),
        };
        text.parse().unwrap()
    }

    /// Returns subnet `number`.
    pub(crate) fn subnet(self, number: u8) -> String {
        format!("{}/{}", self.in_subnet(number, 0), self.prefix())
    }

    /// Returns the prefix length of a subnet, which is also that of the local network.
    pub(crate) fn prefix(self) -> u8 {
        match self {
            Family::Ipv4 => 24,
            Family::Ipv6 => 64,
        }
    }

    /// Returns whether an address is of this family.
    pub(crate) fn includes(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self == Family::Ipv4)
    }
}

/// The number of the outside host on the local network.
pub(crate) const OUTSIDE: u8 = 99;

pub(crate) struct Cluster<'a> {
    /// The host with the plugins.
    pub(crate) lab: &'a Lab,
    pub(crate) settings: Settings,
    /// The switch and the outside host.
    lan: Lab,
}

impl<'a> Cluster<'a> {
    /// Creates a local network without nodes.
    pub(crate) fn new(lab: &'a Lab, settings: Settings) -> Cluster<'a> {
        eprintln!("--- {settings:?}");
        let lan = lab.another();
        // An address that was set does not change with the ports, so that nodes can keep it in their tables.
        lan.within(|| {
            lab.sh("ip link add lan address 0a:58:c0:a8:4d:63 type bridge mcast_snooping 0; ip link set lan up")
        });
        let cluster = Cluster { lab, settings, lan };
        cluster.set_addresses(&cluster.lan, OUTSIDE, "lan");
        cluster
    }

    /// Creates a node without a subnet.
    pub(crate) fn node(&self, number: u8) -> Node<'_> {
        let host = self.lab.another();
        self.lan.within(|| {
            self.lab.sh(&format!(
                "ip link add port{number} type veth peer name eth0 netns {}
                 ip link set port{number} master lan up",
                host.network().display()
            ))
        });
        self.set_addresses(&host, number, "eth0");
        // On a busy machine it takes a while until both ends are ready, and ping fails when a neighbour is unreachable.
        for family in Family::BOTH {
            let ip = family.on_lan(OUTSIDE);
            host.within(|| self.lab.sh(&format!("until ping -q -c 1 -W 5 {ip}; do :; done")));
        }
        Node::new(self, host, number)
    }

    /// Brings `link` up and gives it the addresses of host `number`. Without the setting, the kernel would not look for
    /// IPv6 neighbours until it has made sure that the link's own address is unique.
    fn set_addresses(&self, host: &Lab, number: u8, link: &str) {
        let address = |family: Family| {
            let nodad = if family == Family::Ipv6 { "nodad" } else { "" };
            format!("ip address add {}/{} dev {link} {nodad}\n", family.on_lan(number), family.prefix())
        };
        let addresses = Family::BOTH.map(address).concat();
        host.within(|| {
            self.lab.sh(&format!(
                "ip link set lo up; sysctl -qw net.ipv6.conf.{link}.accept_dad=0
                 ip link set {link} up; {addresses}"
            ))
        });
    }

    /// Returns the network namespace of the outside host.
    pub(crate) fn outside(&self) -> Netns {
        open(&self.lan.network())
    }
}

/// Opens a network namespace, which must exist.
pub(crate) fn open(path: &Path) -> Netns {
    Netns::open(path).unwrap()
}
