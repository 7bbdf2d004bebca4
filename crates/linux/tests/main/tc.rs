//! Traffic control against the kernel, verified with `tc` and `ip`, and with packets.

use std::time::Duration;

use linux::netlink::{
    Change, Classifier, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, QdiscPlace, TokenBucket, VethPeer,
};
use linux::{Netns, Result};
use serde_json::Value;
use testing::{Lab, skip, wait_until};

const LATENCY: Duration = Duration::from_millis(25);

/// Creates a container with `eth0`, 10.1.0.2. Returns the socket of the host and the host veth, 10.1.0.1.
fn attached(lab: &Lab) -> (Netlink, LinkIndex) {
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let mut netlink = Netlink::open().unwrap();
    let peer = VethPeer { name: "eth0", mac: None, netns: &guest, index: None };
    let new = NewLink { name: Some("veth0"), mtu: Some(1400), ..NewLink::of(LinkKind::Veth(peer)) };
    let veth = netlink.create(&[Change::create_link(&new)]).unwrap().index;
    lab.sh("ip link set veth0 up; ip address add 10.1.0.1/24 dev veth0
            ip -n c1 link set eth0 up; ip -n c1 address add 10.1.0.2/24 dev eth0");
    (netlink, veth)
}

/// Returns the output of `tc -j ARGUMENTS`. `tc` prints nothing instead of an empty list.
fn tc(lab: &Lab, arguments: &str) -> Value {
    serde_json::from_str(&lab.sh(&format!("tc -j {arguments}"))).unwrap_or(Value::Null)
}

/// Limits a link; returns `false`, and skips the test, if the kernel has no token bucket filter.
fn limit(netlink: &mut Netlink, link: LinkIndex, bucket: TokenBucket, test: &str) -> bool {
    match netlink.apply(&[Change::set_token_bucket(link, bucket)]) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            skip(test, "this kernel has no token bucket filter");
            false
        }
        outcome => outcome.is_ok() || panic!("{outcome:?}"),
    }
}

/// Creates an ifb link; returns `None`, and skips the test, if the kernel cannot.
fn ifb(netlink: &mut Netlink, test: &str) -> Option<Link> {
    let set = LinkChange { up: Some(true), alias: Some("net1 c1 eth0"), ..LinkChange::default() };
    let new = NewLink { name: Some("bwp0"), mtu: Some(1400), ..NewLink::of(LinkKind::Ifb) };
    match netlink.create(&[Change::create_link(&new), Change::set_link("bwp0", &set)]) {
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {
            skip(test, "this kernel has no ifb links");
            None
        }
        outcome => Some(outcome.unwrap()),
    }
}

/// Redirects a link; returns `false`, and skips the test, if the kernel has no such classifier.
fn redirect(netlink: &mut Netlink, link: LinkIndex, to: LinkIndex, classifier: Classifier, test: &str) -> bool {
    match netlink.apply(&[Change::redirect(link, to, classifier)]) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            skip(test, &format!("this kernel has no classifier {classifier:?}"));
            false
        }
        outcome => outcome.is_ok() || panic!("{outcome:?}"),
    }
}

/// Returns the links to which a link is redirected.
fn targets(netlink: &mut Netlink, link: LinkIndex) -> Vec<LinkIndex> {
    netlink.redirects(link).unwrap().iter().filter_map(|redirect| redirect.to).collect()
}

#[track_caller]
fn errno<T: std::fmt::Debug>(outcome: Result<T>) -> Option<i32> {
    outcome.unwrap_err().errno()
}

#[test]
fn what_a_link_sends_is_limited() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    let default = netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap();
    assert_eq!((default.kind.as_str(), default.is_default), ("noqueue", true));
    let usual = TokenBucket::with_latency(1_000_000, 10_000, LATENCY);
    if !limit(&mut netlink, veth, usual, "tc::what_a_link_sends_is_limited") {
        return;
    }
    let seen = &tc(&lab, "qdisc show dev veth0 root")[0];
    assert_eq!((&seen["kind"], &seen["handle"], &seen["root"]), (&"tbf".into(), &"1:".into(), &true.into()));
    let options = ["rate", "burst", "lat"].map(|name| seen["options"][name].as_u64().unwrap());
    assert_eq!(options, [1_000_000, 10_000, 25_000], "{seen}");
    lab.sh("ping -q -c 1 -w 60 10.1.0.2");

    // From one byte per second to 100 Gbit/s. The burst of the second is that of a pod annotation with a low rate.
    for (rate, burst) in [(1, u32::MAX), (125_000, 268_435_455), (12_500_000_000, 268_435_455), (2_500_000, 1_500)] {
        let bucket = TokenBucket::with_latency(rate, burst, LATENCY);
        netlink.apply(&[Change::set_token_bucket(veth, bucket)]).unwrap();
        let qdisc = netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap();
        assert!(qdisc.is_token_bucket(&bucket), "{bucket:?} is {qdisc:?}");
        assert!(!qdisc.is_token_bucket(&TokenBucket { rate: rate + 1, ..bucket }), "{qdisc:?}");
        assert!(!qdisc.is_token_bucket(&TokenBucket { burst: burst / 3 * 2, ..bucket }), "{qdisc:?}");
        assert!(!qdisc.is_token_bucket(&TokenBucket { limit: bucket.limit - 1, ..bucket }), "{qdisc:?}");
        assert_eq!(tc(&lab, "qdisc show dev veth0 root")[0]["options"]["rate"], rate, "{bucket:?}");
    }
    assert!(!netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap().is_default);
    // The parameters as tc sets them.
    lab.sh("tc qdisc replace dev veth0 root handle 1: tbf rate 8mbit burst 10000b latency 25ms");
    assert!(netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap().is_token_bucket(&usual));

    netlink.apply(&[Change::delete_qdisc(veth, QdiscPlace::Root)]).unwrap();
    assert_eq!(netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap().kind, "noqueue");
    assert_eq!(errno(netlink.apply(&[Change::delete_qdisc(veth, QdiscPlace::Root)])), Some(libc::ENOENT));
}

#[test]
fn another_queueing_discipline_is_replaced() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    lab.sh("tc qdisc add dev veth0 root pfifo limit 10");
    let bucket = TokenBucket::with_latency(1_000_000, 10_000, LATENCY);
    if limit(&mut netlink, veth, bucket, "tc::another_queueing_discipline_is_replaced") {
        assert!(netlink.qdisc(veth, QdiscPlace::Root).unwrap().unwrap().is_token_bucket(&bucket));
    }
}

#[test]
fn a_missing_queueing_discipline_is_none() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    assert_eq!(netlink.qdisc(veth, QdiscPlace::Ingress).unwrap(), None);
    assert_eq!(netlink.redirects(veth).unwrap(), []);
    lab.sh("ip link set veth0 down; ip link add br0 type bridge");
    let down = netlink.link("br0").unwrap().unwrap().index;
    assert_eq!(netlink.qdisc(down, QdiscPlace::Root).unwrap(), None, "the kernel answers with an acknowledgement only");
    lab.sh("ip link delete veth0");
    assert_eq!(errno(netlink.qdisc(veth, QdiscPlace::Root)), Some(libc::ENODEV));
}

#[test]
fn an_ifb_link_is_created_as_specified() {
    let lab = Lab::without_plugins();
    let mut netlink = Netlink::open().unwrap();
    let Some(made) = ifb(&mut netlink, "tc::an_ifb_link_is_created_as_specified") else { return };
    assert_eq!((made.name.as_str(), made.kind.as_str(), made.mtu), ("bwp0", "ifb", 1400));
    let link = netlink.link("bwp0").unwrap().unwrap();
    assert_eq!((link.index, link.alias.as_str(), link.tx_queue), (made.index, "net1 c1 eth0", 0));
    let seen = &lab.ip("link show dev bwp0")[0];
    assert_eq!((&seen["linkinfo"]["info_kind"], &seen["mtu"]), (&"ifb".into(), &1400.into()));
    assert!(seen["flags"].as_array().unwrap().contains(&"UP".into()), "{seen}");
    let names = |links: Vec<Link>| links.into_iter().map(|link| link.name).collect::<Vec<String>>();
    assert_eq!(names(netlink.links_of_kind("ifb").unwrap()), ["bwp0"]);
    assert_eq!(names(netlink.links_of_kind("veth").unwrap()), [""; 0]);
    assert_eq!(names(netlink.links_of_kind("unheard-of").unwrap()), [""; 0]);
    let new = NewLink { name: Some("bwp0"), mtu: Some(1400), ..NewLink::of(LinkKind::Ifb) };
    let again = netlink.create(&[Change::create_link(&new)]);
    assert_eq!(errno(again), Some(libc::EEXIST));
}

/// Redirects what the host veth receives, and checks that its packets pass the ifb link.
fn redirects(prepare: fn(LinkIndex) -> Change<'static>, kind: &str, classifier: Classifier, test: &str) {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    let Some(ifb) = ifb(&mut netlink, test) else { return };
    netlink.apply(&[prepare(veth), prepare(veth)]).unwrap();
    assert_eq!(netlink.qdisc(veth, QdiscPlace::Ingress).unwrap().unwrap().kind, kind);
    assert_eq!(tc(&lab, "qdisc show dev veth0 ingress")[0]["kind"], kind);
    if !redirect(&mut netlink, veth, ifb.index, classifier, test) {
        return;
    }
    assert_eq!(targets(&mut netlink, veth), [ifb.index]);
    let filters = tc(&lab, "filter show dev veth0 ingress");
    let actions =
        filters.as_array().unwrap().iter().find_map(|filter| filter["options"]["actions"].as_array()).unwrap();
    assert_eq!((actions.len(), &actions[0]["kind"]), (1, &"mirred".into()), "{filters}");
    let expected = [("mirred_action", "redirect"), ("direction", "egress"), ("to_dev", "bwp0")];
    assert!(expected.iter().all(|(key, value)| actions[0][key] == *value), "{filters}");
    let filter = filters.as_array().unwrap().iter().find(|filter| filter["options"]["actions"].is_array()).unwrap();
    assert_eq!((&filter["protocol"], &filter["pref"]), (&"all".into(), &65535.into()), "{filters}");

    lab.sh("ping -q -c 2 -i 0.2 -w 60 10.1.0.2");
    let passed = lab.ip("-s link show dev bwp0")[0]["stats64"]["tx"]["packets"].as_u64();
    assert!(passed >= Some(2), "{passed:?} packets passed the ifb link");

    let [redirect] = netlink.redirects(veth).unwrap()[..] else { panic!("one redirection") };
    netlink.apply(&[Change::delete_redirect(veth, &redirect)]).unwrap();
    assert_eq!(netlink.redirects(veth).unwrap(), []);
    assert_eq!(tc(&lab, "filter show dev veth0 ingress"), Value::Array(Vec::new()));
    assert_eq!(errno(netlink.apply(&[Change::delete_redirect(veth, &redirect)])), Some(libc::ENOENT));
    netlink.apply(&[Change::delete_qdisc(veth, QdiscPlace::Ingress)]).unwrap();
    assert_eq!(netlink.qdisc(veth, QdiscPlace::Ingress).unwrap(), None);
}

#[test]
fn what_a_link_receives_is_redirected_by_u32() {
    redirects(Change::add_ingress, "ingress", Classifier::U32, "tc::what_a_link_receives_is_redirected_by_u32");
}

#[test]
fn what_a_link_receives_is_redirected_by_u32_with_clsact() {
    let test = "tc::what_a_link_receives_is_redirected_by_u32_with_clsact";
    redirects(Change::add_clsact, "clsact", Classifier::U32, test);
}

#[test]
fn what_a_link_receives_is_redirected_by_matchall() {
    let test = "tc::what_a_link_receives_is_redirected_by_matchall";
    redirects(Change::add_ingress, "ingress", Classifier::Matchall, test);
}

#[test]
fn what_a_link_receives_is_redirected_by_matchall_with_clsact() {
    let test = "tc::what_a_link_receives_is_redirected_by_matchall_with_clsact";
    redirects(Change::add_clsact, "clsact", Classifier::Matchall, test);
}

#[test]
fn ingress_and_clsact_exclude_each_other() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    netlink.apply(&[Change::add_clsact(veth)]).unwrap();
    assert_eq!(errno(netlink.apply(&[Change::add_ingress(veth)])), Some(libc::EINVAL));
    netlink.apply(&[Change::delete_qdisc(veth, QdiscPlace::Ingress), Change::add_ingress(veth)]).unwrap();
    assert_eq!(errno(netlink.apply(&[Change::add_clsact(veth)])), Some(libc::EINVAL));
}

/// The reference writes the action twice. Other filters are not redirections.
#[test]
fn filters_of_other_programs_are_read() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    let Some(ifb) = ifb(&mut netlink, "tc::filters_of_other_programs_are_read") else { return };
    netlink.apply(&[Change::add_ingress(veth)]).unwrap();
    lab.sh("tc filter add dev veth0 parent ffff: prio 5 protocol all u32 match u32 0 0 flowid 1:1
            tc filter add dev veth0 parent ffff: prio 6 protocol all u32 match u32 0 0 \
                action mirred egress mirror dev bwp0");
    assert_eq!(netlink.redirects(veth).unwrap(), []);
    lab.sh("tc filter add dev veth0 parent ffff: prio 1 protocol all u32 match u32 0 0 flowid 1:1 \
                action mirred egress redirect dev bwp0 action mirred egress redirect dev bwp0");
    assert_eq!(targets(&mut netlink, veth), [ifb.index]);
    let [redirect] = netlink.redirects(veth).unwrap()[..] else { panic!("one redirection") };
    netlink.apply(&[Change::delete_redirect(veth, &redirect)]).unwrap();
    assert_eq!(netlink.redirects(veth).unwrap(), []);
    let left = lab.sh("tc filter show dev veth0 ingress");
    assert!(left.contains("pref 5") && left.contains("pref 6") && !left.contains("Redirect"), "{left}");
}

#[test]
fn flows_share_a_limited_link_fairly() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    let test = "tc::flows_share_a_limited_link_fairly";
    let bucket = TokenBucket::with_latency(1_000_000, 10_000, LATENCY);
    if !limit(&mut netlink, veth, bucket, test) {
        return;
    }
    match netlink.apply(&[Change::add_fair_queue(veth, bucket), Change::add_fair_queue(veth, bucket)]) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return skip(test, "this kernel has no fq_codel"),
        outcome => outcome.unwrap(),
    }
    let seen = tc(&lab, "qdisc show dev veth0");
    let has_queue = |qdisc: &Value| qdisc["kind"] == "fq_codel" && qdisc["parent"] == "1:1";
    assert!(seen.as_array().unwrap().iter().any(has_queue), "{seen}");
    // A change of the parameters keeps it.
    let bucket = TokenBucket::with_latency(2_000_000, 10_000, LATENCY);
    netlink.apply(&[Change::set_token_bucket(veth, bucket)]).unwrap();
    assert!(lab.sh("tc qdisc show dev veth0").contains("fq_codel"));
    lab.sh("ping -q -c 1 -w 60 10.1.0.2");
}

/// The kernel drops packets that are redirected to a link that is gone.
#[test]
fn a_redirection_to_a_link_that_is_gone_is_read() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    let Some(ifb) = ifb(&mut netlink, "tc::a_redirection_to_a_link_that_is_gone_is_read") else { return };
    netlink.apply(&[Change::add_clsact(veth), Change::redirect(veth, ifb.index, Classifier::U32)]).unwrap();
    netlink.delete_link(ifb.index).unwrap();
    let [redirect] = netlink.redirects(veth).unwrap()[..] else { panic!("one redirection") };
    assert_eq!(redirect.to, None);
    netlink.apply(&[Change::delete_redirect(veth, &redirect)]).unwrap();
    assert_eq!(netlink.redirects(veth).unwrap(), []);
    lab.sh("ping -q -c 1 -w 60 10.1.0.2");
}

#[test]
fn packets_to_and_from_loopback_addresses_are_dropped() {
    let lab = Lab::without_plugins();
    let (mut netlink, veth) = attached(&lab);
    assert!(netlink.loopback_filters(veth).unwrap().is_empty());
    assert_eq!(errno(netlink.apply(&[Change::drop_loopback(veth, 1)])), Some(libc::EINVAL), "without clsact");
    netlink.apply(&[Change::add_clsact(veth)]).unwrap();
    match netlink.apply(&[Change::drop_loopback(veth, 7)]) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            return skip("packets_to_and_from_loopback_addresses_are_dropped", "this kernel has no classifier bpf");
        }
        outcome => outcome.unwrap(),
    }
    assert_eq!(errno(netlink.apply(&[Change::drop_loopback(veth, 7)])), Some(libc::EEXIST));
    netlink.apply(&[Change::drop_loopback(veth, 9)]).unwrap();
    // Other programs, and filters of other kinds.
    lab.sh("tc filter add dev veth0 ingress bpf bytecode '1,6 0 0 4294967295,' direct-action
            tc filter add dev veth0 ingress u32 match u32 0 0 action mirred egress mirror dev lo");
    let mut handles = netlink.loopback_filters(veth).unwrap();
    handles.sort_unstable();
    assert_eq!(handles, [7, 9]);
    let send = |source: &str, destination: &str| {
        lab.sh(&format!(
            "ip -n c1 address replace {source}/32 dev eth0
             sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.veth0.rp_filter=0
             nsenter --net=/run/netns/c1 sysctl -qw net.ipv4.conf.all.route_localnet=1
             ip -n c1 route replace {destination}/32 via 10.1.0.1 dev eth0 src {source} onlink
             nsenter --net=/run/netns/c1 ping -q -c 1 -W 1 -I {source} {destination} >/dev/null || true"
        ))
    };
    let echo_requests = || {
        let text = lab.sh("cat /proc/net/snmp");
        let mut lines = text.lines().filter(|line| line.starts_with("Icmp: "));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.split(' ').position(|name| name == "InEchos").unwrap();
        values.split(' ').nth(place).unwrap().parse::<u64>().unwrap()
    };
    let arrives = |source: &str, destination: &str| {
        let before = echo_requests();
        send(source, destination);
        echo_requests() > before
    };
    lab.sh("ip link set lo up");
    wait_until("a packet", || arrives("10.1.0.2", "10.1.0.1"));
    assert!(!arrives("10.1.0.2", "127.0.0.1") && !arrives("127.0.0.9", "10.1.0.1"));
    lab.sh("tc filter del dev veth0 ingress");
    wait_until("a packet to a loopback address, without the filters", || arrives("10.1.0.2", "127.0.0.1"));
}
