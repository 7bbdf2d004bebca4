//! Every operation of `linux::netlink` against the kernel, verified with iproute2.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use linux::ip::{Cidr, MacAddr};
use linux::netlink::Route;
use linux::netlink::nft::{BaseChain, Family, Nftables};
use linux::netlink::{
    BridgeSpec, Change, DuplicateDetection, Event, Link, LinkChange, LinkIndex, Netlink, OperState, Port, VethEnd,
    VethSpec, Vlan, VlanRange, Watch,
};
use linux::{Deadline, Kind, Netns, Result};
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sendto, socket};
use testing::{Lab, skip, timeout, wait_until};

const MAC: MacAddr = MacAddr([0x0a, 0x58, 1, 2, 3, 4]);
const UP: LinkChange<'_> = LinkChange {
    up: Some(true),
    promiscuous: None,
    all_multicast: None,
    mtu: None,
    mac: None,
    tx_queue: None,
    bridge: None,
    alias: None,
    arp_notify: None,
};

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn bridge(netlink: &mut Netlink, name: &str) -> Link {
    let spec = BridgeSpec { name, mac: MAC, mtu: None, vlan_filtering: false };
    netlink.create(&[Change::create_bridge(&spec)]).unwrap()
}

/// Creates a veth pair whose host end is up, and is a port if there is a bridge.
fn veth(netlink: &mut Netlink, host: &str, guest: &Netns, bridge: Option<LinkIndex>) -> Result<Link> {
    let spec = VethSpec {
        host: VethEnd { name: host, mac: None },
        guest: VethEnd { name: "eth0", mac: None },
        netns: guest,
        bridge,
        mtu: None,
    };
    netlink.create(&[Change::create_veth(&spec), Change::set_link(host, &UP)])
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

#[test]
fn a_bridge_is_created_as_specified_and_keeps_its_mac() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let spec = BridgeSpec { name: "cni0", mac: MAC, mtu: Some(1400), vlan_filtering: false };
    let made = netlink.create(&[Change::create_bridge(&spec)]).unwrap();
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
fn a_link_with_a_carrier_runs_in_any_state() {
    let _lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let state = |link: Link| (link.up, link.state, link.running);
    netlink.apply(&[Change::set_link("lo", &LinkChange { up: Some(false), ..LinkChange::default() })]).unwrap();
    assert!(!netlink.link("lo").unwrap().unwrap().running);
    netlink.apply(&[Change::set_link("lo", &UP)]).unwrap();
    assert_eq!(state(netlink.link("lo").unwrap().unwrap()), (true, OperState::Unknown, true));
    let bridge = bridge(&mut netlink, "cni0").index;
    netlink.apply(&[Change::set_link(bridge, &UP)]).unwrap();
    let without_ports = netlink.link(bridge).unwrap().unwrap();
    assert!(without_ports.up && !without_ports.running, "{without_ports:?}");
}

#[test]
fn a_veth_pair_is_created_in_its_final_place() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut netlink = Netlink::open().unwrap();
    let bridge = bridge(&mut netlink, "cni0");
    let (host_mac, guest_mac) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let spec = VethSpec {
        host: VethEnd { name: "veth0", mac: Some(host_mac) },
        guest: VethEnd { name: "eth0", mac: Some(guest_mac) },
        netns: &guest,
        bridge: Some(bridge.index),
        mtu: Some(1300),
    };
    let port = Port { hairpin: true, isolated: true };
    let alias = LinkChange { alias: Some("net1 c1 eth0"), ..LinkChange::default() };
    let made = netlink
        .create(&[Change::create_veth(&spec), Change::set_port("veth0", port), Change::set_link("veth0", &alias)])
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
fn the_kernels_explanation_is_kept() {
    let _lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let index = bridge(&mut netlink, "cni0").index;
    let small = LinkChange { mtu: Some(10), ..LinkChange::default() };
    let error = netlink.apply(&[Change::set_link(index, &small)]).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(format!("{error:?}").contains("kernel: mtu less than device minimum"), "{error:?}");
}

#[test]
fn a_failing_change_is_named_and_the_others_are_applied() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let index = bridge(&mut netlink, "cni0").index;
    let add = |address| Change::add_address(index, cidr(address), DuplicateDetection::Off);
    let changes = [add("10.1.0.1/24"), add("10.1.0.1/24"), Change::delete_link("absent"), add("10.2.0.1/24")];
    let error = netlink.apply(&changes).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    assert!(error.to_string().starts_with("add address 10.1.0.1/24 to link #"), "{error}");
    assert_eq!(lab.ip("address show dev cni0")[0]["addr_info"].as_array().unwrap().len(), 2);
    assert_eq!(netlink.addresses(index).unwrap().len(), 2, "the socket is usable for the next request");
    netlink.apply(&[]).unwrap();
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

#[test]
fn addresses_come_and_go() {
    let lab = Lab::without_plugins();
    let (mut host, mut guest, bridge, _, eth0) = attached(&lab);
    let add = |address| Change::add_address(eth0.index, cidr(address), DuplicateDetection::Off);
    guest.apply(&[add("10.1.0.2/24"), add("10.9.0.2/32"), add("fd00::2/64")]).unwrap();
    host.apply(&[Change::add_address(bridge.index, cidr("10.1.0.1/24"), DuplicateDetection::Off)]).unwrap();

    let found = guest.addresses(eth0.index).unwrap();
    let global: Vec<String> = found.iter().filter(|a| a.global).map(|a| a.cidr.to_string()).collect();
    assert_eq!(global, ["10.1.0.2/24", "10.9.0.2/32", "fd00::2/64"], "only those of this link, IPv4 first");
    assert!(found.iter().filter(|a| a.global).all(|a| !a.tentative && !a.duplicate), "{found:?}");
    let seen = lab.sh("ip -n c1 -4 address show dev eth0");
    assert!(seen.contains("inet 10.1.0.2/24 brd 10.1.0.255") && seen.contains("inet 10.9.0.2/32 scope"), "{seen}");

    guest.apply(&[Change::delete_address(eth0.index, cidr("10.1.0.2/24"))]).unwrap();
    assert!(guest.addresses(eth0.index).unwrap().iter().all(|a| a.cidr != cidr("10.1.0.2/24")));
    let again = guest.apply(&[Change::delete_address(eth0.index, cidr("10.1.0.2/24"))]).unwrap_err();
    assert_eq!(again.errno(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn duplicate_detection_can_be_waited_for() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    // While the link is down, the kernel does not start duplicate address detection.
    lab.sh("ip -n c1 link set eth0 down");
    guest.apply(&[Change::add_address(eth0.index, cidr("fd00::2/64"), DuplicateDetection::Default)]).unwrap();
    let inside = Netns::open(Path::new("/run/netns/c1")).unwrap();
    let mut watch = inside.run(&Netns::current().unwrap(), || Watch::open(Event::Ipv6Address)).unwrap();
    let mut looks = 0;
    let deadline = Deadline::after(timeout());
    let found = watch.wait_for("address fd00::2/64 of \"eth0\"", deadline, || {
        looks += 1;
        let found = guest.addresses(eth0.index)?;
        if looks == 1 {
            guest.apply(&[Change::set_link("eth0", &UP)])?;
        }
        Ok(found.into_iter().find(|a| a.cidr == cidr("fd00::2/64") && !a.tentative))
    });
    assert!(!found.unwrap().duplicate);
    assert!((2..50).contains(&looks), "{looks} looks: it waits for notifications instead of polling");
}

/// The kernel lists an address at once, but it is unusable until the kernel notifies that it is ready.
#[test]
fn an_address_is_waited_for_until_it_is_ready() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    let address = cidr("fd00::2/64");
    let inside = Netns::open(Path::new("/run/netns/c1")).unwrap();
    let mut watch = inside.run(&Netns::current().unwrap(), || Watch::open(Event::Ipv6Address)).unwrap();
    let never = watch.await_addresses(eth0.index, [address.ip()], Deadline::after(Duration::from_millis(100)));
    assert_eq!(never.unwrap_err().kind(), Kind::Transient, "the address was never added");
    // Duplicate address detection takes a second; the kernel sends notifications before and after.
    guest.apply(&[Change::add_address(eth0.index, address, DuplicateDetection::Default)]).unwrap();
    watch.await_addresses(eth0.index, [address.ip()], Deadline::after(Duration::from_secs(20))).unwrap();
    let found = guest.addresses(eth0.index).unwrap().into_iter().find(|found| found.cidr == address).unwrap();
    assert!(!found.tentative && !found.duplicate, "{found:?}");
}

/// Kernels before 5.18 ignore the mark.
#[test]
fn the_mark_of_an_address_is_stored() {
    let _lab = Lab::without_plugins();
    let mut host = Netlink::open().unwrap();
    let link = bridge(&mut host, "cni0").index;
    for address in ["10.1.0.1/24", "fd00::1/64"].map(cidr) {
        let add = Change::add_marked_address(link, address, DuplicateDetection::Off, 200);
        host.apply(&[add]).unwrap();
        let found = host.addresses(link).unwrap().into_iter().find(|found| found.cidr == address).unwrap();
        assert_eq!(found.mark, Some(200));
    }
}

#[test]
fn a_duplicate_address_is_recognised() {
    let lab = Lab::without_plugins();
    let (mut host, mut guest, bridge, _, eth0) = attached(&lab);
    let address = cidr("fd00::2/64");
    let settled = |netlink: &mut Netlink, link| {
        let mut watch = Watch::open(Event::Ipv6Address).unwrap();
        let deadline = Deadline::after(timeout());
        let found = watch.wait_for("duplicate detection", deadline, || {
            let found = netlink.addresses(link)?;
            Ok(found.into_iter().find(|a| a.cidr == address && (!a.tentative || a.duplicate)))
        });
        found.unwrap()
    };
    host.apply(&[Change::add_address(bridge.index, address, DuplicateDetection::Off)]).unwrap();
    assert!(!settled(&mut host, bridge.index).duplicate);
    guest.apply(&[Change::add_address(eth0.index, address, DuplicateDetection::Default)]).unwrap();
    let home = Netns::current().unwrap();
    let inside = Netns::open(Path::new("/run/netns/c1")).unwrap();
    let found = inside.run(&home, || Ok::<_, linux::Error>(settled(&mut guest, eth0.index))).unwrap();
    assert!(found.duplicate, "the host has it already: {found:?}");
}

/// Notifications have the sequence number of the request that caused them, and all sockets start with the same number.
#[test]
fn notifications_of_others_are_never_taken_for_answers() {
    let _lab = Lab::without_plugins();
    let mut watch = Watch::open(Event::Link).unwrap();
    let (mut ours, mut theirs) = (Netlink::open().unwrap(), Netlink::open().unwrap());
    let mut round = 0;
    let found = watch.wait_for("the third bridge", Deadline::after(timeout()), || {
        bridge(&mut theirs, &format!("br{round}"));
        round += 1;
        assert_eq!(ours.link("lo")?.unwrap().name, "lo");
        Ok((round == 3).then_some(()))
    });
    found.unwrap();
    assert_eq!(ours.links(None).unwrap().len(), 4);
}

#[test]
fn routes_with_all_their_fields() {
    let lab = Lab::without_plugins();
    let (_, mut guest, _, _, eth0) = attached(&lab);
    let gw = "10.1.0.1".parse().ok();
    let routes = [
        Route::new(cidr("0.0.0.0/0"), gw),
        Route { mtu: 1300, advmss: 1200, priority: 5, ..Route::new(cidr("10.2.0.0/16"), gw) },
        Route { table: Some(1000), scope: Some(253), ..Route::new(cidr("10.3.0.0/16"), None) },
        Route::new(cidr("::/0"), "fd00::1".parse().ok()),
        Route { table: Some(99), priority: 7, ..Route::new(cidr("fd02::/64"), "fd00::1".parse().ok()) },
    ];
    let mut changes: Vec<Change<'_>> = ["10.1.0.2/24", "fd00::2/64"]
        .map(|address| Change::add_address(eth0.index, cidr(address), DuplicateDetection::Off))
        .into();
    changes.extend(routes.iter().map(|route| Change::add_route(eth0.index, route)));
    guest.apply(&changes).unwrap();

    let found = guest.routes(eth0.index).unwrap();
    for wanted in &routes {
        let matching = found.iter().filter(|r| r.leads_to(wanted.dst) && r.route.gw == wanted.gw);
        let matching: Vec<_> = matching.filter(|r| r.route.table == Some(wanted.table.unwrap_or(254))).collect();
        let [one] = matching[..] else { panic!("{wanted:?} in {found:#?}") };
        assert_eq!((one.route.mtu, one.route.advmss), (wanted.mtu, wanted.advmss), "{wanted:?}");
        // IPv6 routes always have a metric.
        let metric = if wanted.dst.ip().is_ipv6() && wanted.priority == 0 { 1024 } else { wanted.priority };
        assert_eq!(one.route.priority, metric, "{wanted:?}");
        assert_eq!(one.link, Some(eth0.index));
    }
    let again = guest.apply(&[Change::add_route(eth0.index, &routes[0])]).unwrap_err();
    assert_eq!(again.errno(), Some(libc::EEXIST));
    let unreachable = Route::new(cidr("10.5.0.0/16"), "192.0.2.1".parse().ok());
    let error = guest.apply(&[Change::add_route(eth0.index, &unreachable)]).unwrap_err();
    assert!(error.to_string().starts_with("add route to 10.5.0.0/16 via 192.0.2.1 by link #"), "{error}");
    assert!(format!("{error:?}").contains("kernel: Nexthop has invalid gateway"), "{error:?}");
    assert!(lab.sh("ip -n c1 route show").contains("10.2.0.0/16 via 10.1.0.1 dev eth0 metric 5 mtu 1300 advmss 1200"));
}

#[test]
fn neighbours_are_set_and_deleted() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, _, _) = attached(&lab);
    host.apply(&[Change::add_address(bridge.index, cidr("10.1.0.1/24"), DuplicateDetection::Off)]).unwrap();
    let ip = "10.1.0.2".parse().unwrap();
    for mac in [MAC, MacAddr([2, 0, 0, 0, 0, 9])] {
        host.apply(&[Change::set_neighbour(bridge.index, ip, mac)]).unwrap();
        let found = host.neighbours(bridge.index).unwrap();
        assert!(found.iter().any(|n| n.ip == ip && n.mac == Some(mac)), "{found:?}");
    }
    host.apply(&[Change::delete_neighbour(bridge.index, ip)]).unwrap();
    let seen = lab.sh("ip neigh show dev cni0 nud reachable");
    assert!(!seen.contains("10.1.0.2"), "{seen}");
}

/// Works in both ways: a kernel that cannot be made to finish the change sends a notification when it has.
#[test]
fn a_link_is_waited_for_until_it_runs() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut host = Netlink::open().unwrap();
    let made = veth(&mut host, "veth0", &guest, None).unwrap();
    let mut wait = |name: &str, millis| {
        host.await_running(made.index, name, Duration::from_millis(millis), || "the pair to be up".to_owned())
    };
    let error = wait("veth0", 50).unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (Kind::Transient, "the pair to be up: not seen within 50ms"));

    let mut inside = guest.run(&Netns::current().unwrap(), Netlink::open).unwrap();
    inside.apply(&[Change::set_link("eth0", &UP)]).unwrap();
    let long = timeout().as_millis().try_into().unwrap();
    wait("veth0", long).unwrap();
    wait("renamed", long).unwrap();
    inside.apply(&[Change::delete_link("eth0")]).unwrap();
    assert!(wait("veth0", long).unwrap_err().to_string().contains("vanished"));
}

#[test]
fn a_port_that_seems_to_run_forwards_when_the_next_change_is_made() {
    let lab = Lab::without_plugins();
    let (mut host, mut inside, bridge, ..) = attached(&lab);
    let guest = Netns::open(Path::new("/run/netns/c1")).unwrap();
    for round in 0..12 {
        host.apply(&[Change::delete_link("veth0")]).unwrap();
        let port = veth(&mut host, "veth0", &guest, Some(bridge.index)).unwrap();
        if round % 2 == 1 {
            // The kernel checks the carrier, at once if it can be made to, and the bridge notices that there is none.
            let mut watch = Watch::open(Event::Link).unwrap();
            let early = host.await_running(port.index, "veth0", Duration::from_millis(1), || "nothing".to_owned());
            early.unwrap_err();
            let no_carrier = |link: &Link| !matches!(link.state, OperState::Up | OperState::Unknown);
            let deadline = Deadline::after(timeout());
            watch.wait_for("no carrier", deadline, || Ok(host.link("veth0")?.filter(no_carrier))).unwrap();
            assert!(!host.is_probably_running("veth0"), "round {round}");
        }
        inside.apply(&[Change::set_link("eth0", &UP)]).unwrap();
        // Polled, because the notification is sent after the moment under test.
        wait_until("the port to seem running", || host.is_probably_running("veth0"));
        inside.apply(&[Change::set_link("eth0", &LinkChange { alias: Some("x"), ..UP })]).unwrap();
        assert_eq!(host.link("veth0").unwrap().unwrap().port_state, Some(3), "round {round}");
    }
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_gone() {
    let lab = Lab::without_plugins();
    let (mut host, _, _, port, _) = attached(&lab);
    let mut watch = Watch::open(Event::Link).unwrap();
    let (never, _open) = std::io::pipe().unwrap();
    let mut gone = |length| watch.await_gone(port.index, never.as_fd(), Deadline::after(length)).unwrap();
    lab.sh(&format!("ip link set {} nomaster", port.name));
    assert!(!gone(Duration::from_millis(100)));
    host.apply(&[Change::delete_link(port.index)]).unwrap();
    assert!(gone(timeout()));
}

#[test]
fn a_port_coming_up_is_notified() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let home = Netns::current().unwrap();
    let mut host = Netlink::open().unwrap();
    let made = veth(&mut host, "veth0", &guest, None).unwrap();
    let mut is_up = || Ok(host.link("veth0")?.filter(|link| link.state == OperState::Up));
    let mut watch = Watch::open(Event::Link).unwrap();

    let soon = Deadline::after(Duration::from_millis(50));
    let error = watch.wait_for("link \"veth0\" to be up", soon, &mut is_up).unwrap_err();
    assert_eq!(error.kind(), Kind::Transient);
    assert_eq!(error.to_string(), "link \"veth0\" to be up: not seen within 50ms");

    let mut inside = guest.run(&home, Netlink::open).unwrap();
    std::thread::scope(|scope| {
        let (looked, look) = mpsc::channel();
        scope.spawn(move || {
            // Waits until the other thread has looked once and is blocked.
            look.recv().unwrap();
            inside.apply(&[Change::set_link("eth0", &UP)]).unwrap();
        });
        let deadline = Deadline::after(timeout());
        let link = watch.wait_for("link \"veth0\" to be up", deadline, || {
            let found = is_up()?;
            let _ = looked.send(());
            Ok(found)
        });
        assert_eq!(link.unwrap().index, made.index);
    });
}

#[test]
fn long_lists_are_complete_even_while_they_change() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let index = bridge(&mut netlink, "cni0").index;
    let addresses: Vec<Change<'_>> = (1..=250)
        .flat_map(|n| [format!("10.0.{n}.1/24"), format!("fd00::{n:x}/128")])
        .map(|text| Change::add_address(index, cidr(&text), DuplicateDetection::Off))
        .collect();
    for some in addresses.chunks(50) {
        netlink.apply(some).unwrap();
    }
    let home = Netns::current().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut netlink = home.run(&Netns::current().unwrap(), Netlink::open).unwrap();
            let address = cidr("10.200.0.1/24");
            // The deadline ends the loop if the other thread fails.
            let deadline = Deadline::after(timeout());
            while !stop.load(Ordering::Relaxed) && !deadline.has_passed() {
                netlink.apply(&[Change::add_address(index, address, DuplicateDetection::Off)]).unwrap();
                netlink.apply(&[Change::delete_address(index, address)]).unwrap();
            }
        });
        for _ in 0..50 {
            match netlink.addresses(index) {
                Ok(found) => {
                    let found = found.iter().filter(|a| a.cidr != cidr("10.200.0.1/24")).count();
                    assert_eq!(found, 500);
                }
                Err(error) => assert_eq!(error.kind(), Kind::Transient, "{error:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // During the changes every list may be interrupted; this one cannot.
    assert_eq!(netlink.addresses(index).unwrap().len(), 500);
    drop(lab);
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
fn an_answer_that_does_not_fit_is_requested_again() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let made = bridge(&mut netlink, "cni0");
    for n in 0..9 {
        let names: Vec<String> = (0..10).map(|m| format!("altname {}{n}{m}", "x".repeat(120))).collect();
        lab.sh(&format!("ip link property add dev cni0 {}", names.join(" ")));
    }
    // Enough for several datagrams after the one that does not fit.
    let links: String = (0..60).map(|n| format!("link add v{n} type veth peer name p{n}\n")).collect();
    let batch = lab.dir().join("batch");
    fs::write(&batch, links).unwrap();
    lab.sh(&format!("ip -batch {}", batch.display()));
    let said = lab.sh("ip -d link show dev cni0").len();
    assert!(said > 9_000, "more than the socket's buffer: {said}");
    assert_eq!(netlink.link("cni0").unwrap().unwrap().index, made.index);
    assert_eq!(Netlink::open().unwrap().links(None).unwrap().len(), 122, "with lo and the bridge");
    let up = netlink.apply(&[Change::set_link("cni0", &UP)]);
    assert_eq!((up.is_ok(), netlink.link(made.index).unwrap().unwrap().up), (true, true));
}

#[test]
fn vlan_filtering_support_is_detected_without_a_bridge() {
    let lab = Lab::without_plugins();
    let create = "ip link add probe type bridge vlan_filtering 1 2>/dev/null && ip link del probe && echo yes || true";
    let can = lab.sh(create) == "yes\n";
    let mut host = Netlink::open().unwrap();
    // The name of the loopback interface does not matter.
    lab.sh("ip link set lo name other");
    let before = lab.sh("ip -o link");
    assert_eq!(host.can_filter_vlans().unwrap(), can);
    assert_eq!(lab.sh("ip -o link"), before);
}

#[test]
fn vlans_of_a_port() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, port, _) = attached(&lab);
    if !lab.sh("ip link set cni0 type bridge vlan_filtering 1 2>&1 || true").is_empty() {
        return skip("kernel::vlans_of_a_port", "this kernel has no bridge VLAN filtering");
    }
    assert_eq!(host.link(bridge.index).unwrap().unwrap().vlan_filtering, Some(true));
    let plain = |first, last| Vlan { range: VlanRange { first, last }, pvid: false, untagged: false };
    let one = Vlan { pvid: true, untagged: true, ..plain(1, 1) };
    assert_eq!(host.vlans(port.index).unwrap(), [one]);
    let wanted = [Vlan { pvid: true, untagged: true, ..plain(100, 100) }, plain(200, 204), plain(300, 300)];
    host.apply(&[Change::delete_vlans(port.index, &[one]), Change::add_vlans(port.index, &wanted)]).unwrap();
    assert_eq!(host.vlans(port.index).unwrap(), wanted);
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
    let netns = port.peer_netns.expect("the other end is elsewhere");
    assert_eq!(host.netns_id(&Netns::open(Path::new("/run/netns/c1")).unwrap()).unwrap(), Some(netns));
    assert_eq!(host.netns_id(&Netns::open(&lab.netns("c2")).unwrap()).unwrap(), None, "no link leads to it");
    let peer = host.link_in_netns(netns, port.peer.unwrap()).unwrap().unwrap();
    assert_eq!((peer.name.as_str(), peer.mac), ("eth0", eth0.mac));
    lab.sh("ip link add name far index 4000 type bridge");
    let far = host.link("far").unwrap().unwrap();
    assert_eq!(host.link_in_netns(netns, far.index).unwrap(), None, "the peer is in the same namespace");
    let addresses = host.addresses_in_netns(netns).unwrap();
    let on_peer: Vec<_> = addresses.iter().filter(|(link, address)| *link == peer.index && address.global).collect();
    assert_eq!(on_peer.iter().map(|(_, a)| a.cidr).collect::<Vec<_>>(), [cidr("10.1.0.2/24"), cidr("fd00::2/64")]);
    assert_eq!(host.link("lo").unwrap().unwrap().peer_netns, None);
}

#[test]
fn addresses_of_all_links_are_listed_with_their_links() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, port, _) = attached(&lab);
    host.apply(&[
        Change::add_address(bridge.index, cidr("10.1.0.1/24"), DuplicateDetection::Off),
        Change::add_address(port.index, cidr("10.2.0.1/24"), DuplicateDetection::Off),
    ])
    .unwrap();
    let all = host.all_addresses().unwrap();
    for (link, address) in [(bridge.index, "10.1.0.1/24"), (port.index, "10.2.0.1/24")] {
        assert!(all.iter().any(|(owner, found)| *owner == link && found.cidr == cidr(address)), "{address}: {all:?}");
    }
}

#[test]
fn the_preferred_default_route_comes_first() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, port, _) = attached(&lab);
    assert_eq!(host.default_routes().unwrap(), []);
    lab.sh(
        "ip address add 10.1.0.1/24 dev cni0; ip address add 10.2.0.1/24 dev veth0; ip link set veth0 nomaster
         ip route add default via 10.1.0.254 dev cni0 metric 200; ip route add default via 10.2.0.254 dev veth0 metric 100
         ip route add default via 10.2.0.253 dev veth0 table 99; ip -6 route add default dev cni0",
    );
    let links: Vec<_> = host.default_routes().unwrap().iter().map(|route| route.link).collect();
    assert_eq!(links, [Some(port.index), Some(bridge.index), Some(bridge.index)]);
}

#[test]
fn the_route_to_an_address_has_its_outgoing_link() {
    let lab = Lab::without_plugins();
    let (mut host, _, bridge, veth, _) = attached(&lab);
    let lo = host.link_index("lo").unwrap();
    lab.sh("ip link set lo up; ip link set veth0 nomaster
         ip address add 10.1.0.1/24 dev cni0; ip address add 10.2.0.1/24 dev veth0
         ip -6 address add fd01::1/64 dev cni0 nodad; ip -6 address add fd02::1/64 dev veth0 nodad");
    let (bridge, veth) = (Some(bridge.index), Some(veth.index));
    // The kernel adds the route to an IPv6 address of its own after the command that adds the address.
    let mut check = |ip: &str, link| {
        wait_until(&format!("{link:?} for {ip}"), || host.route_to(ip.parse().unwrap()).unwrap() == link);
    };
    for (ip, link) in [
        ("10.1.0.9", bridge),
        ("10.2.0.9", veth),
        ("10.1.0.1", lo),
        ("127.0.0.1", lo),
        ("10.3.0.1", None),
        ("fd01::9", bridge),
        ("fd02::9", veth),
        ("fd01::1", lo),
        ("fd03::1", None),
    ] {
        check(ip, link);
    }
    lab.sh("ip route add default via 10.2.0.9; ip -6 route add default via fd02::9
         for kind in unreachable:4 prohibit:5 blackhole:6; do
             n=${kind#*:}; kind=${kind%:*}; ip route add $kind 10.$n.0.0/16; ip -6 route add $kind fd0$n::/64
         done");
    for (n, link) in [(3, veth), (4, None), (5, None), (6, None)] {
        check(&format!("10.{n}.0.1"), link);
        check(&format!("fd0{n}::1"), link);
    }
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
fn base_chains_are_listed_with_their_policy() {
    let lab = Lab::without_plugins();
    let mut nft = Nftables::open().unwrap();
    assert!(nft.is_available().unwrap());
    assert_eq!(nft.base_chains().unwrap(), []);
    lab.sh("nft 'table inet strict {
             chain passing { type filter hook forward priority 0; policy drop; }
             chain mine { type filter hook input priority 0; }
             chain helper { }
         }
         table ip6 six { chain passing { type filter hook forward priority 0; policy accept; }; }'");
    let chains = nft.base_chains().unwrap();
    let seen = |name: &str| chains.iter().find(|chain| chain.to_string() == name);
    assert_eq!(chains.len(), 3, "{chains:?}");
    let strict = seen("inet strict passing").unwrap();
    assert!(strict.drops && strict.place == BaseChain::FORWARD);
    assert!(strict.sees(Family::Ipv4) && strict.sees(Family::Ipv6) && !strict.sees(Family::Bridge));
    assert!(!seen("inet strict mine").unwrap().drops && seen("inet strict mine").unwrap().place != BaseChain::FORWARD);
    let six = seen("ip6 six passing").unwrap();
    assert!(!six.drops && six.sees(Family::Ipv6) && !six.sees(Family::Ipv4));
}

#[test]
fn messages_of_other_senders_are_ignored() {
    let _lab = Lab::without_plugins();
    let mut host = Netlink::open().unwrap();
    host.links(None).unwrap();
    // The only socket in this namespace except the kernel's.
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let port = |line: &str| line.split_whitespace().nth(2).and_then(|port| port.parse::<u32>().ok());
    let port = sockets.lines().filter_map(port).find(|port| *port != 0).unwrap();
    let forger = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), SockProtocol::NetlinkRoute).unwrap();
    for seq in 2..5_u32 {
        // struct nlmsghdr, and the error of struct nlmsgerr: it would make the next request fail with EPERM.
        let mut refusal = Vec::new();
        for number in [36_u32, 2, seq, port, (-libc::EPERM).cast_unsigned(), 20, 0, 0, 0] {
            refusal.extend(number.to_ne_bytes());
        }
        sendto(forger.as_raw_fd(), &refusal, &NetlinkAddr::new(port, 0), MsgFlags::empty()).unwrap();
    }
    assert_eq!(host.links(None).unwrap().len(), 1);
}
