//! Every operation of `linux::netlink` against the kernel, verified with iproute2.

mod addresses;
mod links;
mod messages;
mod ports;
mod routes;

use linux::ip::{Cidr, MacAddr};
use linux::netlink::{Change, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, VethPeer};
use linux::{Netns, Result};
use testing::Lab;

const MAC: MacAddr = MacAddr([0x0a, 0x58, 1, 2, 3, 4]);
const UP: LinkChange<'_> = LinkChange {
    name: None,
    up: Some(true),
    promiscuous: None,
    all_multicast: None,
    mtu: None,
    mac: None,
    tx_queue: None,
    bridge: None,
    alias: None,
    arp_notify: None,
    frames: None,
};

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn bridge(netlink: &mut Netlink, name: &str) -> Link {
    let kind = LinkKind::Bridge { vlan_filtering: false };
    let new = NewLink { name: Some(name), mac: Some(MAC), ..NewLink::of(kind) };
    netlink.create(&[Change::create_link(&new)]).unwrap()
}

/// Creates a veth pair whose host end is up, and is a port if there is a bridge.
fn veth(netlink: &mut Netlink, host: &str, guest: &Netns, bridge: Option<LinkIndex>) -> Result<Link> {
    let peer = VethPeer { name: "eth0", mac: None, netns: guest, index: None };
    let new = NewLink { name: Some(host), bridge, ..NewLink::of(LinkKind::Veth(peer)) };
    netlink.create(&[Change::create_link(&new), Change::set_link(host, &UP)])
}

/// Creates a bridge and a container on it. Returns the sockets of both namespaces, the bridge and the two ends.
fn attached(lab: &Lab) -> (Netlink, Netlink, Link, Link, Link) {
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut host_side = Netlink::open().unwrap();
    let mut guest_side = guest.run(&Netns::current().unwrap(), Netlink::open).unwrap();
    let bridge = bridge(&mut host_side, "cni0");
    host_side.apply(&[Change::set_link(bridge.index, &UP)]).unwrap();
    let host = veth(&mut host_side, "veth0", &guest, Some(bridge.index)).unwrap();
    let eth0 = guest_side.link("eth0").unwrap().unwrap();
    guest_side.apply(&[Change::set_link(eth0.index, &UP)]).unwrap();
    (host_side, guest_side, bridge, host, eth0)
}
