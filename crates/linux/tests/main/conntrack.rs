//! Deleting connection tracking entries, with real flows between namespaces.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use linux::netlink::{Conntrack, FlowFilter};
use linux::{Error, Netns};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket};
use testing::{Lab, wait_until};

const SCTP: u8 = 132;
const UDP: u8 = 17;

/// A host between a client and two containers. Port 53 of the host leads to the first container, port 54 to the second.
const NETWORK: &str = "
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip link set lo up
    for name in client:1 c1:2 c2:3; do
        n=${name#*:}; name=${name%:*}
        ip link add $name type veth peer name eth0 netns $name
        ip address add 10.$n.0.1/24 dev $name; ip address add fd0$n::1/64 dev $name nodad; ip link set $name up
        ip -n $name address add 10.$n.0.2/24 dev eth0; ip -n $name address add fd0$n::2/64 dev eth0 nodad
        ip -n $name link set eth0 up
        ip -n $name route add default via 10.$n.0.1; ip -n $name -6 route add default via fd0$n::1
    done
    nft '
        table ip nat { chain in { type nat hook prerouting priority -100
            udp dport 53 dnat to 10.2.0.2:1053; udp dport 54 dnat to 10.3.0.2:1053; }; }
        table ip6 nat { chain in { type nat hook prerouting priority -100
            udp dport 53 dnat to [fd02::2]:1053; udp dport 54 dnat to [fd03::2]:1053; }; }
        table inet tracked { chain out { type filter hook output priority 0; ct state new accept; }; }'
    # On a slow machine, entries of flows without a reply would expire during a test.
    sysctl -qw net.netfilter.nf_conntrack_udp_timeout=3600";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Creates the network. Returns it with a UDP socket of the client for each family.
fn network() -> (Lab, UdpSocket, UdpSocket) {
    let lab = Lab::without_plugins();
    let client = Netns::open(&lab.netns("client")).unwrap();
    lab.netns("c1");
    lab.netns("c2");
    lab.sh(NETWORK);
    let bind =
        |any: &str| client.run(&Netns::current().unwrap(), || UdpSocket::bind(any).map_err(Error::from)).unwrap();
    let (ipv4, ipv6) = (bind("0.0.0.0:0"), bind("[::]:0"));
    (lab, ipv4, ipv6)
}

/// Sends a packet of `socket` to each of `destinations`, and waits until all flows have entries.
fn start(socket: &UdpSocket, destinations: &[&str]) {
    for destination in destinations {
        socket.send_to(b"packet", destination).unwrap();
        wait_until("an entry", || flows().iter().any(|flow| flow.contains(&format!("to {destination} "))));
    }
}

/// Returns the entries that the kernel shows, without those of other protocols such as neighbour discovery.
fn flows() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let mut flows: Vec<_> = table.lines().filter_map(flow).collect();
    flows.sort();
    // While the table changes, the kernel may show an entry twice.
    flows.dedup();
    flows
}

/// Returns protocol, destination and source of replies of an entry.
fn flow(line: &str) -> Option<String> {
    let protocol = line.split_whitespace().nth(2)?;
    let value = |name: &str, nth: usize| {
        line.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).nth(nth)
    };
    let ip = |name: &str, nth| value(name, nth)?.parse::<IpAddr>().ok();
    let destination = SocketAddr::new(ip("dst", 0)?, value("dport", 0)?.parse().ok()?);
    Some(format!("{protocol} to {destination} by {}", ip("src", 1)?))
}

#[track_caller]
fn delete(filters: &[FlowFilter]) {
    Conntrack::open().unwrap().delete(filters).unwrap();
}

fn sent_to(protocol: u8, destination: &str) -> FlowFilter {
    FlowFilter { protocol, destination: address(destination), reply_source: None }
}

fn answered_by(destination: &str, source: &str) -> FlowFilter {
    FlowFilter { reply_source: source.parse().ok(), ..sent_to(UDP, destination) }
}

const IPV4: [&str; 4] = ["10.1.0.1:53", "10.1.0.1:54", "10.2.0.1:53", "10.2.0.2:1053"];
const IPV6: [&str; 4] = ["[fd01::1]:53", "[fd01::1]:54", "[fd02::1]:53", "[fd02::2]:1053"];

const ALL: [&str; 8] = [
    "udp to 10.1.0.1:53 by 10.2.0.2",
    "udp to 10.1.0.1:54 by 10.3.0.2",
    "udp to 10.2.0.1:53 by 10.2.0.2",
    "udp to 10.2.0.2:1053 by 10.2.0.2",
    "udp to [fd01::1]:53 by fd02::2",
    "udp to [fd01::1]:54 by fd03::2",
    "udp to [fd02::1]:53 by fd02::2",
    "udp to [fd02::2]:1053 by fd02::2",
];

#[test]
fn only_matching_flows_are_deleted() {
    let (_lab, ipv4, ipv6) = network();
    for (filters, gone) in [
        // A port, as a runtime maps it: on one address, or on all of a family.
        (vec![sent_to(UDP, "10.1.0.1:53")], &[0][..]),
        (vec![sent_to(UDP, "0.0.0.0:53")], &[0, 2]),
        (vec![sent_to(UDP, "[fd01::1]:53")], &[4]),
        (vec![sent_to(UDP, "[::]:53")], &[4, 6]),
        // A container that goes away.
        (vec![answered_by("0.0.0.0:0", "10.2.0.2")], &[0, 2, 3]),
        (vec![answered_by("[::]:0", "fd02::2")], &[4, 6, 7]),
        (vec![answered_by("0.0.0.0:53", "10.2.0.2"), answered_by("[::]:53", "fd02::2")], &[0, 2, 4, 6]),
        (vec![answered_by("10.1.0.1:54", "10.3.0.2"), answered_by("[fd01::1]:54", "fd03::2")], &[1, 5]),
        // Some filters for the kernel, and more than those.
        ((50..54).map(|port| sent_to(UDP, &format!("0.0.0.0:{port}"))).collect(), &[0, 2]),
        ((50..90).map(|port| sent_to(UDP, &format!("0.0.0.0:{port}"))).collect(), &[0, 1, 2]),
        ((50..90).map(|port| sent_to(UDP, &format!("[::]:{port}"))).collect(), &[4, 5, 6]),
        // No flow matches.
        (vec![], &[]),
        (vec![sent_to(6, "10.1.0.1:53"), sent_to(UDP, "10.9.0.1:53"), sent_to(UDP, "[fd09::1]:53")], &[]),
        (vec![sent_to(UDP, "0.0.0.0:55"), sent_to(UDP, "[::]:55"), answered_by("0.0.0.0:0", "10.9.0.2")], &[]),
        (vec![answered_by("10.1.0.1:53", "10.3.0.2"), answered_by("[fd01::1]:53", "fd03::2")], &[]),
        (vec![answered_by("0.0.0.0:0", "fd02::2"), answered_by("[::]:0", "10.2.0.2")], &[]),
    ] {
        start(&ipv4, &IPV4);
        start(&ipv6, &IPV6);
        wait_until(&format!("all flows before {filters:?}"), || flows() == ALL);
        delete(&filters);
        let left: Vec<_> = ALL.iter().enumerate().filter(|(at, _)| !gone.contains(at)).map(|(_, flow)| *flow).collect();
        wait_until(&format!("flows after {filters:?}: {left:?}"), || flows() == left);
    }
}

/// The purpose of a deletion: a client that keeps sending reaches the new container.
#[test]
fn a_deleted_flow_is_translated_anew() {
    let (lab, client, _) = network();
    start(&client, &["10.1.0.1:53"]);
    lab.sh("nft 'flush chain ip nat in; add rule ip nat in udp dport 53 dnat to 10.3.0.2:1053'");
    start(&client, &["10.1.0.1:53"]);
    assert_eq!(flows(), ["udp to 10.1.0.1:53 by 10.2.0.2"], "the entry decides, not the rule");
    delete(&[answered_by("0.0.0.0:0", "10.2.0.2")]);
    start(&client, &["10.1.0.1:53"]);
    assert_eq!(flows(), ["udp to 10.1.0.1:53 by 10.3.0.2"]);
}

/// The kernel's filter ignores the ports of SCTP.
#[test]
fn ports_of_other_protocols_are_compared() {
    let (lab, ..) = network();
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).unwrap();
    for port in [7000_u16, 7001] {
        sendto(raw.as_raw_fd(), &sctp_init(port), &SockaddrIn::new(10, 1, 0, 2, 0), MsgFlags::empty()).unwrap();
    }
    let both = ["sctp to 10.1.0.2:7000 by 10.1.0.2", "sctp to 10.1.0.2:7001 by 10.1.0.2"];
    if flows().is_empty() && lab.sh("sysctl -e net.netfilter.nf_conntrack_sctp_timeout_cookie_wait").is_empty() {
        return testing::skip("conntrack::ports_of_other_protocols_are_compared", "this kernel does not track SCTP");
    }
    assert_eq!(flows(), both);
    delete(&[sent_to(SCTP, "0.0.0.0:7000")]);
    assert_eq!(flows(), both[1..]);
    delete(&[sent_to(SCTP, "0.0.0.0:0")]);
    assert_eq!(flows(), [""; 0]);
}

/// Returns an IPv4 packet that starts an SCTP connection from this host to the client.
fn sctp_init(port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 52, 0, 0, 0, 0, 64, SCTP, 0, 0]; // The kernel writes the checksum.
    packet.extend(Ipv4Addr::new(10, 1, 0, 1).octets());
    packet.extend(Ipv4Addr::new(10, 1, 0, 2).octets());
    packet.extend(6000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 8]); // Verification tag and checksum.
    packet.extend([1, 0, 0, 20]); // INIT of 20 bytes: tag, window, streams, sequence number.
    packet.extend([0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    packet
}

/// Of IPv4 by a filter, if the kernel can; of IPv6 one by one.
#[test]
fn entries_of_a_zone_are_deleted() {
    let (lab, ipv4, ipv6) = network();
    lab.sh("nft 'table inet zones { chain in { type filter hook prerouting priority -300; udp dport 54 ct zone set 7; }; }'");
    start(&ipv4, &IPV4);
    start(&ipv6, &IPV6);
    delete(&[answered_by("0.0.0.0:0", "10.3.0.2"), answered_by("[::]:0", "fd03::2")]);
    assert_eq!(flows(), [ALL[0], ALL[2], ALL[3], ALL[4], ALL[6], ALL[7]]);
}

/// Also succeeds on a kernel without connection tracking.
#[test]
fn nothing_to_delete_is_not_an_error() {
    let _lab = Lab::without_plugins();
    delete(&[sent_to(UDP, "0.0.0.0:53"), sent_to(UDP, "[fd01::1]:53"), answered_by("0.0.0.0:0", "10.2.0.2")]);
}

#[test]
fn many_flows_are_deleted() {
    let (_lab, ..) = network();
    let socket = UdpSocket::bind("10.1.0.1:0").unwrap();
    let six = UdpSocket::bind("[fd01::1]:0").unwrap();
    for port in 2000..2500 {
        socket.send_to(b"packet", ("10.1.0.2", port)).unwrap();
        six.send_to(b"packet", ("fd01::2", port)).unwrap();
    }
    // While the table changes, the kernel may also leave an entry out.
    wait_until("a thousand flows", || flows().len() == 1000);
    delete(&[answered_by("0.0.0.0:0", "10.1.0.2"), answered_by("[::]:0", "fd01::2")]);
    wait_until("no flows", || flows().is_empty());
}
