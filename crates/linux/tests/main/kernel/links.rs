//! Links are created, changed, found and deleted.

use std::fs;
use std::path::Path;

use linux::ip::MacAddr;
use linux::netlink::{Change, DuplicateDetection, LinkChange, LinkKind, LinkRef, Netlink, NewLink, Port, VethPeer};
use linux::{Netns, Sysfs};
use testing::{Lab, skip};

use super::{MAC, attached, bridge, cidr, veth};

#[test]
fn a_bridge_is_created_as_specified_and_keeps_its_mac() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let kind = LinkKind::Bridge { vlan_filtering: false };
    let new = NewLink { name: Some("cni0"), mac: Some(MAC), mtu: Some(1400), ..NewLink::of(kind) };
    let made = netlink.create(&[Change::create_link(&new)]).unwrap();
    assert_eq!((made.kind.as_str(), made.mac, made.mtu, made.up), ("bridge", Some(MAC), 1400, false));
    let seen = &lab.ip("link show dev cni0")[0];
    assert_eq!((&seen["address"], &seen["mtu"]), (&MAC.to_string().into(), &1400.into()));
    assert_eq!(seen["linkinfo"]["info_kind"], "bridge");

    let guest = Netns::open(&lab.netns("c1")).unwrap();
    for name in ["veth0", "veth1"] {
        let host = veth(&mut netlink, name, &guest, Some(made.index));
        let host = host.or_else(|_| {
            let guest = Netns::open(&lab.netns("c2"))?;
            veth(&mut netlink, name, &guest, Some(made.index))
        });
        let host = host.unwrap();
        let lowest = LinkChange { mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), ..LinkChange::default() };
        netlink.apply(&[Change::set_link(host.index, &lowest)]).unwrap();
        assert_eq!(netlink.link("cni0").unwrap().unwrap().mac, Some(MAC), "with {name}");
        netlink.apply(&[Change::delete_link(host.index)]).unwrap();
        assert_eq!(netlink.link("cni0").unwrap().unwrap().mac, Some(MAC), "without {name}");
    }
}

#[test]
fn a_veth_pair_is_created_in_its_final_place() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut netlink = Netlink::open().unwrap();
    let bridge = bridge(&mut netlink, "cni0");
    let (host_mac, guest_mac) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let new = NewLink {
        name: Some("veth0"),
        mac: Some(host_mac),
        bridge: Some(bridge.index),
        mtu: Some(1300),
        ..NewLink::of(LinkKind::Veth(VethPeer { name: "eth0", mac: Some(guest_mac), netns: &guest, index: None }))
    };
    let port = Port { hairpin: true, isolated: true };
    let alias = LinkChange { alias: Some("net1 c1 eth0"), ..LinkChange::default() };
    let made = netlink
        .create(&[Change::create_link(&new), Change::set_port("veth0", port), Change::set_link("veth0", &alias)])
        .unwrap();
    let host = netlink.link(made.index).unwrap().unwrap();
    assert_eq!((host.name.as_str(), host.kind.as_str(), host.mac, host.mtu), ("veth0", "veth", Some(host_mac), 1300));
    assert_eq!((host.up, host.master, host.port), (false, Some(bridge.index), Some(port)));
    assert_eq!((host.alias.as_str(), host.tx_queue), ("net1 c1 eth0", 1000));
    let ports: Vec<_> = netlink.links(Some(bridge.index)).unwrap().iter().map(|link| link.index).collect();
    assert_eq!(ports, [host.index], "its state may have changed meanwhile");

    let seen = &lab.ip("-n c1 link show dev eth0")[0];
    assert_eq!((&seen["address"], &seen["mtu"]), (&guest_mac.to_string().into(), &1300.into()));
    assert!(!seen["flags"].as_array().unwrap().contains(&"UP".into()), "{seen}");
    let port = &lab.ip("link show dev veth0")[0]["linkinfo"]["info_slave_data"];
    assert_eq!((&port["hairpin"], &port["isolated"]), (&true.into(), &true.into()));
}

/// A link is the same after a new name and in another namespace, whatever is mounted at `/sys`. A name is not enough.
#[test]
fn a_link_keeps_its_identity() {
    let lab = Lab::without_plugins();
    let home = Netns::current().unwrap();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut netlink = Netlink::open().unwrap();
    lab.sh("mount -t tmpfs none /sys; ip link add one type veth peer name other");
    let one = netlink.link("one").unwrap().unwrap();
    let sysfs = Sysfs::open().unwrap();
    let identity = sysfs.identity(&one).unwrap();
    assert!(identity.is_some());
    lab.sh("ip link set one netns c1; ip -n c1 link set one name two; ip link add one type veth peer name peer");
    let two = guest.run(&home, || Netlink::open()?.link("two")).unwrap().unwrap();
    let in_guest = guest.run(&home, Sysfs::open).unwrap();
    assert_eq!(in_guest.identity(&two).unwrap(), identity);
    let another = netlink.link("one").unwrap().unwrap();
    assert_ne!(sysfs.identity(&another).unwrap(), identity);
    assert_eq!(sysfs.identity(&one).unwrap(), None, "another link has the name");
    assert_eq!(sysfs.identity(&two).unwrap(), None, "the namespace does not have the link");
}

#[test]
fn a_duplicate_name_fails_with_the_operation_in_the_error() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut netlink = Netlink::open().unwrap();
    veth(&mut netlink, "veth0", &guest, None).unwrap();
    let error = veth(&mut netlink, "veth0", &guest, None).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    assert!(error.to_string().starts_with("create veth \"veth0\" with \"eth0\" in \"/run/netns/c1\": "), "{error}");
}

#[test]
fn a_missing_link_is_none() {
    let _lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    assert_eq!(netlink.link("absent").unwrap(), None);
    let index = bridge(&mut netlink, "cni0").index;
    netlink.apply(&[Change::delete_link("cni0")]).unwrap();
    assert_eq!(netlink.link(index).unwrap(), None);
    assert_eq!(netlink.apply(&[Change::delete_link(index)]).unwrap_err().errno(), Some(libc::ENODEV));
}

#[test]
fn settings_of_a_link() {
    let lab = Lab::without_plugins();
    let (mut host, mut guest, _, port, eth0) = attached(&lab);
    let port = host.link(port.index).unwrap().unwrap();
    assert!(!port.promiscuous, "the bridge makes it promiscuous, but it was not set so");
    let change = LinkChange {
        promiscuous: Some(true),
        all_multicast: Some(true),
        mtu: Some(1280),
        mac: Some(MAC),
        tx_queue: Some(7),
        alias: Some("who am I"),
        arp_notify: Some(true),
        ..LinkChange::default()
    };
    guest.apply(&[Change::set_link(eth0.index, &change)]).unwrap();
    let now = guest.link("eth0").unwrap().unwrap();
    assert_eq!((now.mtu, now.mac, now.alias.as_str(), now.promiscuous), (1280, Some(MAC), "who am I", true));
    assert_eq!((now.all_multicast, now.tx_queue), (true, 7));
    assert_eq!((now.min_mtu, now.max_mtu), (68, 65535), "the limits of a veth");
    assert!(now.up, "other settings stay");
    let notify = "ip netns exec c1 cat /proc/sys/net/ipv4/conf/eth0/arp_notify";
    assert_eq!(lab.sh(notify).trim(), "1");
    let off = LinkChange {
        up: Some(false),
        promiscuous: Some(false),
        all_multicast: Some(false),
        arp_notify: Some(false),
        ..LinkChange::default()
    };
    guest.apply(&[Change::set_link("eth0", &off)]).unwrap();
    let now = guest.link("eth0").unwrap().unwrap();
    assert_eq!((now.up, now.promiscuous, now.all_multicast), (false, false, false));
    assert_eq!(lab.sh(notify).trim(), "0");
}

#[test]
fn the_name_of_a_link_is_looked_up() {
    let lab = Lab::without_plugins();
    let (host, guest, bridge, _, eth0) = attached(&lab);
    assert_eq!(host.link_name(bridge.index).unwrap().as_deref(), Some("cni0"));
    assert_eq!(guest.link_name(eth0.index).unwrap().as_deref(), Some("eth0"));
    let longest = "n".repeat(15);
    // Kernels before 6.3 do not rename a link that is up.
    lab.sh(&format!("ip link set cni0 down; ip link set cni0 name {longest}"));
    assert_eq!(host.link_name(bridge.index).unwrap(), Some(longest.clone()));
    lab.sh(&format!("ip link delete {longest}"));
    assert_eq!(host.link_name(bridge.index).unwrap(), None);
}

#[test]
fn many_links_are_listed_by_their_bridge() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let bridge = bridge(&mut netlink, "cni0").index;
    let mut script = String::new();
    for n in 0..120 {
        let master = if n % 2 == 0 { "master cni0" } else { "" };
        script += &format!("link add v{n} {master} type veth peer name p{n}\n");
    }
    let batch = lab.dir().join("batch");
    fs::write(&batch, script).unwrap();
    lab.sh(&format!("ip -batch {}", batch.display()));
    assert_eq!(netlink.links(Some(bridge)).unwrap().len(), 60);
    assert_eq!(netlink.links(None).unwrap().len(), 242, "with lo and the bridge");
}

#[test]
fn the_peer_is_queried_without_entering_its_namespace() {
    let lab = Lab::without_plugins();
    let (mut host, mut guest, _, port, eth0) = attached(&lab);
    guest
        .apply(&[
            Change::add_address(eth0.index, cidr("10.1.0.2/24"), DuplicateDetection::Off),
            Change::add_address(eth0.index, cidr("fd00::2/64"), DuplicateDetection::Off),
        ])
        .unwrap();
    let port = host.link(port.index).unwrap().unwrap();
    let netns = port.lower_netns.expect("the other end is elsewhere");
    assert_eq!(host.netns_id(&Netns::open(Path::new("/run/netns/c1")).unwrap()).unwrap(), Some(netns));
    assert_eq!(host.netns_id(&Netns::open(&lab.netns("c2")).unwrap()).unwrap(), None, "no link leads to it");
    let peer = host.link_in_netns(netns, port.lower.unwrap()).unwrap().unwrap();
    assert_eq!((peer.name.as_str(), peer.mac), ("eth0", eth0.mac));
    lab.sh("ip link add name far index 4000 type bridge");
    let far = host.link("far").unwrap().unwrap();
    assert_eq!(host.link_in_netns(netns, far.index).unwrap(), None, "the peer is in the same namespace");
    let addresses = host.addresses_in_netns(netns).unwrap();
    let on_peer: Vec<_> = addresses.iter().filter(|(link, address)| *link == peer.index && address.global).collect();
    assert_eq!(on_peer.iter().map(|(_, a)| a.cidr).collect::<Vec<_>>(), [cidr("10.1.0.2/24"), cidr("fd00::2/64")]);
    assert_eq!(host.link("lo").unwrap().unwrap().lower_netns, None);
}

#[test]
fn a_cookie_identifies_a_namespace() {
    let lab = Lab::without_plugins();
    let (host, guest, ..) = attached(&lab);
    let Some(cookie) = guest.netns_cookie().unwrap() else {
        return skip("kernel::a_cookie_identifies_a_namespace", "Linux 5.14 is needed");
    };
    assert_ne!(host.netns_cookie().unwrap(), Some(cookie));
    let other = Netns::open(Path::new("/run/netns/c1")).unwrap();
    let again = other.run(&Netns::current().unwrap(), Netlink::open).unwrap();
    assert_eq!(again.netns_cookie().unwrap(), Some(cookie));
}

/// The kernel moves a link, renames it and sets its alias with one message, and its alternative name goes with it.
#[test]
fn a_link_moves_with_its_marks() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    lab.sh("ip link add eth1 type veth peer name far; ip link set eth1 up; ip address add 10.1.0.1/24 dev eth1");
    lab.sh("ip route add 10.2.0.0/16 via 10.1.0.9");
    let mut netlink = Netlink::open().unwrap();
    let link = netlink.link("eth1").unwrap().unwrap();
    assert_eq!((link.hardware.as_str(), link.alternative_names.len()), ("", 0));
    assert!(netlink.addresses(link.index).unwrap()[0].permanent);
    let automatic: Vec<bool> = netlink.routes(link.index).unwrap().iter().map(|route| route.is_automatic).collect();
    assert_eq!(automatic, [true, false]);
    let mark = "cni-attachment-0123456789abcdef-0123456789abcdef";
    netlink.apply(&[Change::add_alternative_name(link.index, mark)]).unwrap();
    let change = LinkChange { name: Some("net1"), alias: Some("eth1"), ..LinkChange::default() };
    netlink.apply(&[Change::move_link(link.index, &guest, &change)]).unwrap();
    assert_eq!(netlink.link(LinkRef::AlternativeName(mark)).unwrap(), None);
    let mut inside = guest.run(&Netns::current().unwrap(), Netlink::open).unwrap();
    let moved = inside.link(LinkRef::AlternativeName(mark)).unwrap().unwrap();
    assert_eq!((moved.name.as_str(), moved.alias.as_str(), moved.up), ("net1", "eth1", false));
    assert_eq!(moved.alternative_names, [mark]);
    inside.apply(&[Change::delete_alternative_name(mark)]).unwrap();
    assert!(inside.link("net1").unwrap().unwrap().alternative_names.is_empty());
    let again = inside.apply(&[Change::delete_alternative_name(mark)]).unwrap_err();
    assert_eq!(again.errno(), Some(libc::ENODEV));
}
