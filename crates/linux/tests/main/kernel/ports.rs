//! Ports of bridges: their states, notifications and VLANs.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use linux::netlink::{Change, Event, Link, LinkChange, Netlink, OperState, Vlan, VlanRange, Watch};
use linux::{Deadline, Kind, Netns};
use testing::{Lab, skip, timeout};

use super::{UP, attached, bridge, veth};

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

/// The state of a new link is unknown, and it has no queue, until a worker has noticed its carrier.
#[test]
fn a_new_port_runs_only_once_it_is_up() {
    let lab = Lab::without_plugins();
    let (mut host, mut inside, bridge, ..) = attached(&lab);
    let guest = Netns::open(Path::new("/run/netns/c1")).unwrap();
    for round in 0..50 {
        host.apply(&[Change::delete_link("veth0")]).unwrap();
        let port = veth(&mut host, "veth0", &guest, Some(bridge.index)).unwrap();
        inside.apply(&[Change::set_link("eth0", &UP)]).unwrap();
        host.await_running(port.index, "veth0", timeout(), || "the port to be up".to_owned()).unwrap();
        let link = host.link(port.index).unwrap().unwrap();
        assert_eq!((link.state, link.port_state), (OperState::Up, Some(3)), "round {round}");
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
fn vlan_filtering_support_is_detected_without_a_bridge() {
    let lab = Lab::without_plugins();
    let create = "ip link add probe type bridge vlan_filtering 1 2>/dev/null && ip link del probe && echo yes || true";
    let can = lab.sh(create) == "yes\n";
    let mut host = Netlink::open().unwrap();
    // The name of the loopback interface does not matter.
    lab.sh("ip link set lo name other");
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    assert_eq!(host.can_filter_vlans().unwrap(), can);
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
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
