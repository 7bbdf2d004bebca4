//! Requests, answers and errors, whatever they are about.

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use linux::netlink::nft::{BaseChain, Family, Nftables};
use linux::netlink::{Change, DuplicateDetection, Event, LinkChange, Netlink, Watch};
use linux::{Deadline, Kind, Netns};
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sendto, socket};
use testing::{Lab, timeout};

use super::{UP, bridge, cidr};

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
fn base_chains_are_listed_with_their_policy() {
    let lab = Lab::without_plugins();
    let mut nft = Nftables::open().unwrap();
    assert!(nft.is_available().unwrap());
    assert_eq!(nft.base_chains().unwrap(), []);
    lab.sh("nft 'table inet strict {
             chain passing { type filter hook forward priority 0; policy drop; }
             chain mine { type filter hook input priority -150; }
             chain helper { }
         }
         table ip6 six { chain passing { type filter hook forward priority 0; policy accept; }; }'");
    let chains = nft.base_chains().unwrap();
    let seen = |name: &str| chains.iter().find(|chain| chain.to_string() == name);
    assert_eq!(chains.len(), 3, "{chains:?}");
    let strict = seen("inet strict passing").unwrap();
    assert!(strict.drops && strict.place == BaseChain::FORWARD);
    assert_eq!((strict.priority, seen("inet strict mine").unwrap().priority), (0, -150));
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
