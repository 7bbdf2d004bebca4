//! Compares our messages, byte for byte, with those that iproute2 and conntrack send for the same operation
//! (`testdata/wire`).
#![cfg(target_endian = "little")]

use std::path::Path;
use std::time::Duration;

use neli::consts::rtnl::RtAddrFamily;

use super::Route;
use super::link::{get_link, list_links, list_links_of_kind};
use super::*;
use crate::ip::{Cidr, MacAddr};
use crate::netns::Netns;

const MAC: MacAddr = MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, 1]);
const GUEST_MAC: MacAddr = MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, 2]);

fn bridge() -> LinkIndex {
    LinkIndex::read(2).unwrap()
}

fn vhost() -> LinkIndex {
    LinkIndex::read(4).unwrap()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Returns a captured message.
pub(super) fn captured(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wire").join(name).with_extension("hex");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// Returns the message without the parts that always differ: the sequence number, and the flags that request an answer.
fn comparable(message: &[u8]) -> Vec<String> {
    let mut message = message.to_vec();
    let is_question = message[4] % 4 == 2;
    let dump = if is_question { libc::NLM_F_DUMP } else { 0 };
    let asks = u16::try_from(libc::NLM_F_ACK | libc::NLM_F_ECHO | dump).unwrap();
    let flags = u16::from_ne_bytes([message[6], message[7]]) & !asks;
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[8..12].fill(0);
    message.chunks(4).map(|word| format!("{word:02x?}")).collect()
}

#[track_caller]
fn same(ours: &[u8], theirs: &[u8]) {
    assert_eq!(comparable(ours), comparable(theirs));
}

#[track_caller]
fn agrees(change: &Change<'_>, name: &str) {
    same(&change.message, &captured(name));
}

/// Replaces the only occurrence of `theirs`: an intended difference.
fn differing(mut message: Vec<u8>, theirs: &[u8], ours: &[u8]) -> Vec<u8> {
    let places: Vec<_> = (0..message.len()).filter(|at| message[*at..].starts_with(theirs)).collect();
    let [at] = places[..] else { panic!("{theirs:02x?} stands in {places:?}") };
    message.splice(at..at + theirs.len(), ours.iter().copied());
    message
}

#[test]
fn bridges() {
    let bridge = |vlan_filtering| NewLink { mac: Some(MAC), ..NewLink::of(LinkKind::Bridge { vlan_filtering }) };
    let new = NewLink { name: Some("br0"), mtu: Some(1400), ..bridge(false) };
    agrees(&Change::create_link(&new), "create_bridge");
    let new = NewLink { name: Some("br1"), ..bridge(true) };
    agrees(&Change::create_link(&new), "create_bridge_vlan");
}

#[test]
fn veth_pairs() {
    let netns = Netns::current().unwrap();
    let new = NewLink {
        name: Some("veth0"),
        mac: Some(MAC),
        bridge: Some(bridge()),
        mtu: Some(1400),
        ..NewLink::of(LinkKind::Veth(VethPeer { name: "eth0", mac: Some(GUEST_MAC), netns: &netns, index: None }))
    };
    // IFLA_NET_NS_FD contains a descriptor, which was 4 in the capture.
    let fd = [&[8, 0, 28, 0][..], &netns.fd().to_ne_bytes()].concat();
    let theirs = differing(captured("create_veth"), &[8, 0, 28, 0, 4, 0, 0, 0], &fd);
    same(&Change::create_link(&new).message, &theirs);

    let peer = VethPeer { name: "eth0", mac: None, netns: &netns, index: LinkIndex::optional(101) };
    let new = NewLink { name: Some("veth0"), index: LinkIndex::optional(100), ..NewLink::of(LinkKind::Veth(peer)) };
    let theirs = differing(captured("create_veth_index"), &[8, 0, 28, 0, 4, 0, 0, 0], &fd);
    same(&Change::create_link(&new).message, &theirs);
}

#[test]
fn links_on_top_of_another_one() {
    let new = |upper| NewLink { lower: Some(vhost()), ..NewLink::of(LinkKind::Upper(upper)) };
    let agrees = |new: &NewLink<'_>, file| agrees(&Change::create_link(new), file);
    let macvlan = new(Upper::Macvlan { mode: MacvlanMode::Bridge, broadcast_queue: 2000 });
    agrees(&NewLink { name: Some("mv0"), mac: Some(MAC), mtu: Some(1400), ..macvlan }, "create_macvlan");
    let ipvlan = new(Upper::Ipvlan { mode: IpvlanMode::L3s, isolation: IpvlanIsolation::Private });
    agrees(&NewLink { name: Some("iv0"), mtu: Some(1400), ..ipvlan }, "create_ipvlan");
    let vlan = |name, id, protocol| NewLink { name: Some(name), ..new(Upper::Vlan(VlanTag { id, protocol })) };
    agrees(&vlan("vl0", 100, VlanProtocol::Dot1q), "create_vlan");
    agrees(&vlan("vl1", 7, VlanProtocol::Dot1ad), "create_vlan_ad");
    let vrf = NewLink { name: Some("blue"), ..NewLink::of(LinkKind::Vrf { table: 1001 }) };
    agrees(&vrf, "create_vrf");
}

#[test]
fn changes_of_a_link() {
    let set = |change: LinkChange<'_>, name| agrees(&Change::set_link(vhost(), &change), name);
    let none = LinkChange::default();
    set(LinkChange { up: Some(true), ..none }, "set_link_up");
    set(LinkChange { up: Some(false), ..none }, "set_link_down");
    set(LinkChange { promiscuous: Some(true), ..none }, "set_link_promisc");
    set(LinkChange { mac: Some(MAC), mtu: Some(1400), ..none }, "set_link_mac_mtu");
    set(LinkChange { all_multicast: Some(true), ..none }, "set_link_allmulti");
    set(LinkChange { tx_queue: Some(500), ..none }, "set_link_txqueue");
    set(LinkChange { bridge: Some(bridge()), ..none }, "set_link_bridge");
    set(LinkChange { alias: Some("net1 c1 eth0"), ..none }, "set_link_alias");
    agrees(&Change::set_master(vhost(), Some(bridge())), "set_link_bridge");
    agrees(&Change::set_master(vhost(), None), "set_link_no_master");
    agrees(&Change::delete_link(vhost()), "delete_link");
}

#[test]
fn a_link_that_moves() {
    let netns = Netns::current().unwrap();
    let peer = LinkIndex::read(3).unwrap();
    let change = LinkChange { name: Some("net1"), alias: Some("eth1"), ..LinkChange::default() };
    let fd = [&[8, 0, 28, 0][..], &netns.fd().to_ne_bytes()].concat();
    let (name, alias) = (b"\x09\0\x03\0net1\0\0\0\0", b"\x08\0\x14\0eth1");
    // In another order.
    let theirs = differing(captured("move_link"), &[8, 0, 28, 0, 4, 0, 0, 0], &[]);
    let theirs = differing(theirs, &[&alias[..], name].concat(), &[&name[..], alias, &fd].concat());
    same(&Change::move_link(peer, &netns, &change).message, &theirs);
}

#[test]
fn alternative_names() {
    let name = "cni-attachment-1-2";
    agrees(&Change::add_alternative_name(vhost(), name), "add_alternative_name");
    // The link is given by the name instead of its index.
    let theirs = captured("delete_alternative_name");
    let mut theirs = differing(theirs, &[4, 0, 0, 0, 0, 0, 0, 0], &[0; 8]);
    theirs.splice(32..32, [&[23, 0, 53, 0][..], name.as_bytes(), &[0, 0]].concat());
    theirs[0] += 24;
    same(&Change::delete_alternative_name(name).message, &theirs);
}

#[test]
fn a_link_by_its_name() {
    let by_index = Change::set_link(vhost(), &LinkChange { up: Some(true), ..LinkChange::default() }).message;
    let by_name = Change::set_link("vhost", &LinkChange { up: Some(true), ..LinkChange::default() }).message;
    let mut expected = differing(by_index, &[4, 0, 0, 0, 1, 0, 0, 0], &[0, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend_from_slice(b"\x0a\0\x03\0vhost\0\0\0");
    expected[0] += 12;
    same(&by_name, &expected);
}

/// iproute2 has no command for it. The layout is from linux/if_link.h, and another test passes it to the kernel.
#[test]
fn arp_notify() {
    let change = Change::set_link(vhost(), &LinkChange { arp_notify: Some(true), ..LinkChange::default() });
    let mut expected = captured("set_link_alias")[..32].to_vec();
    // AF_SPEC { AF_INET { INET_CONF { ARP_NOTIFY: 1 } } }
    expected.extend_from_slice(&[20, 0, 26, 0, 16, 0, 2, 0, 12, 0, 1, 0, 8, 0, 22, 0, 1, 0, 0, 0]);
    expected[0] = 52;
    same(&change.message, &expected);
}

/// The layout is from linux/if_link.h: the iproute2 of the captures knows no cutoff, and other tests pass the rest to
/// the kernel.
#[test]
fn rules_for_frames() {
    let message = |rules| {
        let change = Change::set_link(vhost(), &LinkChange { frames: Some(rules), ..LinkChange::default() });
        change.message.get(32..).unwrap().to_vec()
    };
    let macvlan = message(FrameRules::Macvlan { sources: &[MAC], broadcast_cutoff: Some(-1) });
    // LINKINFO { KIND: "macvlan", DATA { MACADDR_MODE: SET, MACADDR_DATA { MACADDR }, BC_CUTOFF } }
    let mut expected = vec![52, 0, 18, 0, 11, 0, 1, 0];
    expected.extend_from_slice(b"macvlan\0");
    expected.extend_from_slice(&[36, 0, 2, 0, 8, 0, 3, 0, 3, 0, 0, 0, 16, 0, 5, 0, 10, 0, 4, 0]);
    expected.extend_from_slice(&MAC.0);
    expected.extend_from_slice(&[0, 0, 8, 0, 9, 0, 255, 255, 255, 255]);
    same(&macvlan, &expected);
    let rules = FrameRules::Vlan { reorders_headers: Some(false), ingress: &[(1, 6)], egress: &[(4, 2)] };
    // LINKINFO { KIND: "vlan", DATA { FLAGS, INGRESS_QOS { MAPPING }, EGRESS_QOS { MAPPING } } }
    let mut expected = vec![60, 0, 18, 0, 8, 0, 1, 0];
    expected.extend_from_slice(b"vlan");
    expected.extend_from_slice(&[48, 0, 2, 0, 12, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend_from_slice(&[16, 0, 4, 0, 12, 0, 1, 0, 1, 0, 0, 0, 6, 0, 0, 0]);
    expected.extend_from_slice(&[16, 0, 3, 0, 12, 0, 1, 0, 4, 0, 0, 0, 2, 0, 0, 0]);
    same(&message(rules), &expected);
}

/// Identical except for the kind: see `Change::set_port`.
#[test]
fn ports() {
    let change = Change::set_port(vhost(), Port { hairpin: true, isolated: true });
    let kind = |kind: u8, name: &[u8]| [&[u8::try_from(name.len()).unwrap() + 4, 0, kind, 0], name].concat();
    let ours = [kind(4, b"bridge"), vec![0, 0]].concat();
    let mut theirs = differing(captured("set_port_iproute2"), &kind(1, b"bridge_slave"), &ours);
    theirs[0] -= 4; // the message
    theirs[32] -= 4; // IFLA_LINKINFO
    same(&change.message, &theirs);
}

#[test]
fn addresses() {
    let add = |address, detection| Change::add_address(vhost(), cidr(address), detection);
    agrees(&add("10.1.0.2/24", DuplicateDetection::Off), "add_address4");
    agrees(&add("10.9.0.2/32", DuplicateDetection::Default), "add_address4_host");
    agrees(&add("fd00::2/64", DuplicateDetection::Off), "add_address6");
    agrees(&add("fd00::3/64", DuplicateDetection::Default), "add_address6_dad");
    let add = |address| Change::add_address_without_route(vhost(), cidr(address));
    agrees(&add("10.8.0.2/24"), "add_address4_without_route");
    agrees(&add("fd00::4/128"), "add_address6_without_route");
    agrees(&Change::delete_address(vhost(), cidr("10.1.0.2/24")), "delete_address");
}

#[test]
fn routes() {
    let add = |route: &Route, name| agrees(&Change::add_route(vhost(), route), name);
    let gw = "10.1.0.1".parse().ok();
    add(&Route::new(cidr("10.2.0.0/16"), gw), "add_route");
    add(&Route::new(cidr("0.0.0.0/0"), gw), "add_route_default");
    add(&Route { scope: Some(253), ..Route::new(cidr("10.3.0.0/16"), None) }, "add_route_link");
    let full = Route::new(cidr("10.4.0.0/16"), gw);
    add(&Route { mtu: 1300, advmss: 1200, priority: 5, table: Some(1000), ..full }, "add_route_full");
    add(&Route::new(cidr("fd01::/64"), "fd00::1".parse().ok()), "add_route6");
    let src = "10.1.0.2".parse().ok();
    let only =
        Change::add_only_route(vhost(), &Route { src, scope: Some(253), ..Route::new(cidr("10.5.0.1/32"), None) });
    agrees(&only, "add_only_route");
    for (dst, name) in [("10.5.0.2/32", "delete_route"), ("fd02::5/128", "delete_route6")] {
        let route = Route { priority: 9, ..Route::new(cidr(dst), None) };
        agrees(&Change::delete_route(vhost(), &route), name);
    }
    agrees(&Change::delete_route(vhost(), &Route { priority: 5, table: Some(1000), ..full }), "delete_route_full");
}

#[test]
fn rules() {
    let rule = SourceRule { src: [10, 1, 0, 2].into(), table: 1000, protocol: 142, mark: 0x1234_5678 };
    agrees(&Change::add_rule(&rule), "add_rule");
    // iproute2 deletes a rule with any action; ours must select a table.
    let theirs = differing(captured("delete_rule"), &[2, 0, 32, 0, 0, 0, 0, 0], &[2, 0, 32, 0, 0, 0, 0, 1]);
    same(&Change::delete_rule(&rule).message, &theirs);
    let rule = SourceRule { src: "fd00::2".parse().unwrap(), table: 100, mark: 0, ..rule };
    agrees(&Change::add_rule(&rule), "add_rule6");
    // iproute2 lists the rules of one family.
    let theirs = differing(captured("list_rules"), &[2, 0, 0, 0], &[0, 0, 0, 0]);
    same(&rule::list_rules(), &theirs);
}

#[test]
fn neighbours() {
    let ip = "10.1.0.9".parse().unwrap();
    agrees(&Change::set_neighbour(vhost(), ip, MAC), "set_neighbour");
    agrees(&Change::set_permanent_neighbour(vhost(), ip, MAC), "set_permanent_neighbour");
    agrees(&Change::delete_neighbour(vhost(), ip), "delete_neighbour");
}

#[test]
fn vlans() {
    agrees(&Change::filter_vlans(bridge()), "filter_vlans");
    let plain = |first, last| Vlan { range: VlanRange { first, last }, pvid: false, untagged: false };
    agrees(&Change::add_vlans(vhost(), &[Vlan { pvid: true, untagged: true, ..plain(100, 100) }]), "add_vlan");
    agrees(&Change::add_vlans(vhost(), &[plain(10, 20)]), "add_vlan_range");
    agrees(&Change::delete_vlans(vhost(), &[plain(1, 1)]), "delete_vlan");
}

#[test]
fn ifb_links() {
    let new = NewLink { name: Some("bwp0"), mtu: Some(1400), ..NewLink::of(LinkKind::Ifb) };
    agrees(&Change::create_link(&new), "create_ifb");
}

/// tc also sends a table of transmission times, which the kernel has not used since Linux 3.8, and how it is divided.
fn without_table(mut message: Vec<u8>) -> Vec<u8> {
    const TABLE: usize = 4 + 1024;
    let options = 44;
    message.truncate(message.len() - TABLE);
    for (at, len) in [(0, message.len()), (options, message.len() - options)] {
        message[at..at + 2].copy_from_slice(&u16::try_from(len).unwrap().to_ne_bytes());
    }
    differing(message, &[3, 1, 0, 0, 255, 255, 0, 0], &[0, 1, 0, 0, 0, 0, 0, 0])
}

#[test]
fn token_buckets() {
    let set = |rate, burst| {
        let bucket = TokenBucket::with_latency(rate, burst, Duration::from_millis(25));
        Change::set_token_bucket(vhost(), bucket).message
    };
    // tc repeats the burst in bytes. We do so only if its time is not precise, and bytes take precedence.
    let without_burst = |message: Vec<u8>, burst: u32| {
        let mut message = differing(message, &[&[8, 0, 6, 0], &burst.to_ne_bytes()[..]].concat(), &[]);
        message[0] -= 8;
        message[44] -= 8;
        message
    };
    let theirs = without_table(captured("set_token_bucket"));
    same(&set(1_000_000, 10_000), &without_burst(theirs, 10_000));
    // tc calculates the time of the burst (1 ms) with the largest rate of 32 bits.
    let theirs = without_table(captured("set_token_bucket_64bit"));
    let theirs = differing(theirs, &36375_u32.to_ne_bytes(), &15625_u32.to_ne_bytes());
    same(&set(10_000_000_000, 10_000_000), &without_burst(theirs, 10_000_000));
    let long = set(125_000, 268_435_455);
    assert_eq!(without_burst(long.clone(), 268_435_455).len(), long.len() - 8);
    let bucket = TokenBucket::with_latency(1_000_000, 10_000, Duration::from_millis(25));
    agrees(&Change::add_fair_queue(vhost(), bucket), "add_fair_queue");
    agrees(&Change::delete_qdisc(vhost(), QdiscPlace::Root), "delete_qdisc_root");
}

#[test]
fn redirections() {
    agrees(&Change::add_ingress(vhost()), "add_ingress");
    agrees(&Change::add_clsact(vhost()), "add_clsact");
    agrees(&Change::redirect(vhost(), bridge(), Classifier::Matchall), "redirect_matchall");
    agrees(&Change::redirect(vhost(), bridge(), Classifier::U32), "redirect_u32");
    // tc names the kind of the filter as well. Its header is that of the filter, as the kernel reports it.
    let mut theirs = captured("delete_redirect");
    theirs.truncate(36);
    theirs[0] = 36;
    let filter = [&theirs[16..], &captured("redirect_matchall")[36..]].concat();
    let redirect = tc::redirect::read_redirect(&filter).unwrap().unwrap();
    assert_eq!(redirect.to, Some(bridge()));
    same(&Change::delete_redirect(vhost(), &redirect).message, &theirs);
    // tc names the kind, and its handle; we delete any kind.
    let mut theirs = captured("delete_qdisc_ingress");
    theirs.truncate(36);
    theirs[0] = 36;
    theirs[24..28].fill(0);
    same(&Change::delete_qdisc(vhost(), QdiscPlace::Ingress).message, &theirs);
    same(&tc::redirect::list_filters(vhost()), &captured("list_filters"));
    agrees(&Change::drop_loopback(vhost(), 0x636e_6931), "drop_loopback");
    // tc lists the disciplines of all links and filters; the kernel can return one. struct tcmsg in linux/rtnetlink.h.
    let mut expected = captured("list_filters");
    expected[4] = 38; // RTM_GETQDISC
    expected[28] = 0xf1;
    same(&tc::get_qdisc(vhost(), QdiscPlace::Ingress), &expected);
}

#[test]
fn connection_tracking() {
    // Theirs is sent as a list request; the socket adds these flags to ours.
    let mut theirs = captured("list_flows");
    theirs[7] = 0;
    same(&conntrack::list_flows(2), &theirs);

    // conntrack sends everything that it knows about the entry; the original tuple and the ID identify it.
    let theirs = captured("delete_flow");
    let entry = [&theirs[16..72], &[8, 0, 12, 0, 1, 2, 3, 4]].concat();
    let ours = conntrack::Flow::read(&entry).unwrap().deletion().unwrap();
    let mut expected = [&theirs[..16], &entry].concat();
    expected[0] = 80;
    same(&ours, &expected);
    assert!(conntrack::Flow::read(&[2, 0, 0, 0, 8, 0, 12, 0, 1, 2, 3, 4]).unwrap().deletion().is_none());
}

/// conntrack 1.4 filters what it lists instead. The layout is from linux/netfilter/nfnetlink_conntrack.h, and other
/// tests pass it to the kernel.
#[test]
fn filtered_deletions() {
    let destination = "10.1.0.1:53".parse().unwrap();
    let reply_source = "10.2.0.2".parse().ok();
    let ours = conntrack::filtered_deletion(&FlowFilter { protocol: 17, destination, reply_source });
    let mut expected = captured("delete_flow")[..20].to_vec();
    // The original tuple: destination address; protocol 17, destination port
    expected.extend_from_slice(&[36, 0, 1, 128, 12, 0, 1, 128, 8, 0, 2, 0, 10, 1, 0, 1]);
    expected.extend_from_slice(&[20, 0, 2, 128, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0]);
    // The reply tuple: source address
    expected.extend_from_slice(&[16, 0, 2, 128, 12, 0, 1, 128, 8, 0, 1, 0, 10, 2, 0, 2]);
    // What to compare: destination address 2, protocol 8, destination port 32; of the reply, source address 1
    expected.extend_from_slice(&[20, 0, 25, 128, 8, 0, 1, 0, 42, 0, 0, 0, 8, 0, 2, 0, 1, 0, 0, 0]);
    expected[0] = u8::try_from(expected.len()).unwrap();
    same(&ours, &expected);
}

#[test]
fn questions() {
    // iproute2 requests virtual functions too (mask 1 | 8). We skip them and statistics (8).
    let theirs = differing(captured("get_link"), &[29, 0, 9, 0], &[29, 0, 8, 0]);
    same(&get_link(LinkRef::Name("absent")), &theirs);
    // iproute2 requests AF_PACKET; we accept any family.
    let theirs = differing(captured("list_links"), &[29, 0, 1, 0], &[29, 0, 8, 0]);
    let theirs = differing(theirs, &[17, 0, 0, 0], &[0, 0, 0, 0]);
    same(&list_links(Some(bridge())), &theirs);
    let theirs = differing(captured("list_links_of_kind"), &[29, 0, 1, 0], &[29, 0, 8, 0]);
    let theirs = differing(theirs, &[17, 0, 0, 0], &[0, 0, 0, 0]);
    same(&list_links_of_kind("ifb"), &theirs);
    let mut theirs = captured("list_addresses");
    same(&address::list_addresses(RtAddrFamily::Unspecified, vhost()), &theirs);
    theirs[16] = 2; // AF_INET
    same(&address::list_addresses(RtAddrFamily::Inet, vhost()), &theirs);
    same(&route::list_routes(Some(vhost())), &captured("list_routes"));
    // iproute2 also requests the number of the table (RTM_F_LOOKUP_TABLE), but only for IPv4.
    let theirs = differing(captured("get_route"), &[0, 0x10, 0, 0, 8, 0, 1, 0], &[0, 0, 0, 0, 8, 0, 1, 0]);
    same(&route::get_route([10, 1, 0, 9].into()), &theirs);
    same(&route::get_route("fd00::9".parse().unwrap()), &captured("get_route6"));
    let theirs = differing(captured("get_forwarding_route"), &[0, 0x10, 0, 0, 8, 0, 1, 0], &[0, 0, 0, 0, 8, 0, 1, 0]);
    same(&route::get_forwarding_route([10, 1, 0, 2].into(), vhost(), [10, 1, 0, 9].into()), &theirs);
    same(&neighbour::list_neighbours(vhost()), &captured("list_neighbours"));
    same(&neighbour::list_forwarding(vhost()), &captured("list_forwarding"));
    // iproute2 lists the VLANs of all ports and filters; the kernel can filter. struct br_vlan_msg in
    // linux/if_bridge.h.
    let request = [&[24, 0, 0, 0, 114, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[7, 0, 0, 0, 4, 0, 0, 0]].concat();
    same(&vlan::list_vlans(vhost()), &request);
}

/// iproute2 enters the namespace instead. The layouts are from linux/if_link.h, if_addr.h and net_namespace.h.
#[test]
#[cfg_attr(miri, ignore = "miri has no netlink")]
fn questions_about_other_namespaces() {
    let link = Link::read(
        &[
            &[0; 4][..],
            &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // struct ifinfomsg, link 9
            &[8, 0, 37, 0, 5, 0, 0, 0],            // IFLA_LINK_NETNSID 5
        ]
        .concat(),
    );
    let netns = link.unwrap().lower_netns.unwrap();
    let mut expected = vec![48, 0, 0, 0, 18, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(&[0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[8, 0, 29, 0, 8, 0, 0, 0, 8, 0, 46, 0, 5, 0, 0, 0]);
    same(&link::get_link_in_netns(netns, vhost()), &expected);
    let mut expected = vec![32, 0, 0, 0, 22, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(&[8, 0, 10, 0, 5, 0, 0, 0]);
    same(&address::list_all_addresses(Some(netns)), &expected);
    let own = Netns::current().unwrap();
    let mut expected = vec![28, 0, 0, 0, 90, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 3, 0];
    expected.extend_from_slice(&own.fd().to_ne_bytes());
    same(&link::get_netns_id(&own), &expected);
    let without_peer = Link::read(&[&[0; 4][..], &[9], &[0; 11], &[8, 0, 37, 0, 255, 255, 255, 255]].concat());
    assert_eq!(without_peer.unwrap().lower_netns, None, "negative is none");
}
