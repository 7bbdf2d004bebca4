//! Addresses, and the detection of duplicates.

use std::path::Path;
use std::time::Duration;

use linux::netlink::{Change, DuplicateDetection, Event, Netlink, Watch};
use linux::{Deadline, Kind, Netns};
use testing::{Lab, timeout};

use super::{UP, attached, bridge, cidr};

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
