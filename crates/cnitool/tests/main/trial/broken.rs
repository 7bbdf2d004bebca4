//! Situations in which packets do not arrive. `test` names the probe that fails, and the place.

use serde_json::Value;

use super::{answer, assert_clean, host, on, probes};
use crate::support::Host;

/// Runs a test of a host that a shell script has broken when container `number` was attached. Asserts that the probe
/// fails, with a cause of this kind that has the text.
#[track_caller]
fn broken(number: u32, script: &str, probe: &str, kind: &str, text: &str) {
    let host = host();
    on(&host, "ADD", &format!("[ $number != {number} ] || {{ {script}\n}}"));
    fails(&host, probe, kind, text);
    assert_clean(&host);
}

#[track_caller]
fn fails(host: &Host, probe: &str, kind: &str, text: &str) {
    let outcome = host.run("test pods --json --outside 192.0.2.2");
    let answer = answer(&outcome);
    assert_eq!(outcome.status, Some(3), "{answer:#}");
    let failed: Vec<&Value> =
        probes(&answer).iter().filter(|found| found["id"] == probe && found["outcome"] == "fail").collect();
    assert!(!failed.is_empty(), "{probe} does not fail: {answer:#}");
    let causes = failed.iter().flat_map(|failed| failed["causes"].as_array().unwrap());
    let causes: Vec<(&Value, String)> = causes
        .map(|cause| {
            (&cause["kind"], format!("{}: {}", cause["place"].as_str().unwrap(), cause["text"].as_str().unwrap()))
        })
        .collect();
    let is_named = causes.iter().any(|(found, what)| *found == kind && what.contains(text));
    assert!(is_named, "{kind} {text:?} is not in {causes:#?}");
}

macro_rules! broken {
    ($($name:ident: $number:literal, $script:expr, $probe:literal, $kind:literal, $text:literal;)*) => {
        $(#[test]
        fn $name() {
            broken($number, $script, $probe, $kind, $text);
        })*
    };
}

broken! {
    a_blackhole_route: 2, "ip route add blackhole 10.22.0.2/32", "host", "route", "this host: the route \"blackhole 10.22.0.2/32\" discards";
    a_prohibit_route: 2, "ip route add prohibit 10.22.0.2/32", "host", "route", "\"prohibit 10.22.0.2/32\"";
    an_unreachable_route_of_ipv6: 2, "ip -6 route add unreachable fd22::2/128", "host", "route", "\"unreachable fd22::2/128\"";
    a_rule_that_prohibits: 2, "ip rule add from 10.22.0.0/24 to 192.0.2.2 prohibit pref 10", "outside", "route", "`ip rule`";
    a_route_to_another_link: 2, "ip route add 10.22.0.2/32 dev uplink", "host", "route", "leads to link uplink, not to br-t";
    a_blackhole_in_the_container: 1, "$inside ip route add blackhole 192.0.2.0/24", "outside", "route", "container 1: the route \"blackhole 192.0.2.0/24\"";
    no_default_route_in_the_container: 1, "$inside ip route del default", "outside", "route", "container 1: there is no route to 192.0.2.2";

    a_drop_in_raw: 2, "nft 'add table inet x; add chain inet x raw { type filter hook prerouting priority -300; }; add rule inet x raw ip saddr 10.22.0.2 icmp type echo-request drop'", "gateway", "rule", "this host: the packet is dropped by rule \"ip saddr 10.22.0.2 icmp type echo-request drop\" (inet x raw handle ";
    a_drop_in_mangle: 2, "nft 'add table ip x; add chain ip x early { type filter hook prerouting priority -150; }; add rule ip x early ip saddr 10.22.0.0/24 drop'", "gateway", "rule", "(ip x early handle ";
    a_drop_in_input: 2, "nft 'add table inet x; add chain inet x in { type filter hook input priority 0; }; add rule inet x in iifname br-t ip protocol icmp drop'", "gateway", "rule", "iifname \"br-t\" ip protocol icmp drop";
    a_drop_in_output: 2, "nft 'add table inet x; add chain inet x out { type filter hook output priority 0; }; add rule inet x out oifname br-t icmp type echo-request drop'", "host", "rule", "inet x out handle";
    a_drop_by_the_name_of_the_uplink: 2, "nft 'add table inet x; add chain inet x pass { type filter hook forward priority 0; }; add rule inet x pass oifname uplink drop'", "outside", "rule", "oifname";
    a_drop_by_a_set: 2, "nft 'add table inet x; add set inet x bad { type ipv4_addr; flags interval; }; add element inet x bad { 10.22.0.0/24 }; add chain inet x pass { type filter hook forward priority 10; }; add rule inet x pass ip saddr @bad drop'", "outside", "rule", "ip saddr @bad drop";
    a_drop_of_new_connections: 2, "nft 'add table inet x; add chain inet x pass { type filter hook forward priority 0; }; add rule inet x pass ct state new drop'", "outside", "rule", "ct state new drop";
    a_drop_of_answers: 2, "nft 'add table inet x; add chain inet x pass { type filter hook forward priority 0; }; add rule inet x pass iifname uplink drop'", "outside", "rule", "this host: the answer is dropped by rule";
    a_drop_in_postrouting: 2, "nft 'add table inet x; add chain inet x post { type filter hook postrouting priority 0; }; add rule inet x post oifname uplink ip daddr 192.0.2.2 drop'", "outside", "rule", "inet x post handle";
    a_policy: 2, "nft 'add table inet x; add chain inet x pass { type filter hook forward priority 5; policy drop; }'", "outside", "rule", "the policy of chain inet x pass";
    a_reject: 2, "nft 'add table ip x; add chain ip x pass { type filter hook forward priority 0; }; add rule ip x pass ip daddr 192.0.2.2 reject'", "outside", "rule", "reject";
    a_policy_of_iptables: 2, "iptables-nft -P FORWARD DROP", "outside", "rule", "the policy of chain ip filter FORWARD";
    a_chain_of_docker: 2, "iptables-nft -N DOCKER-USER; iptables-nft -I FORWARD -j DOCKER-USER; iptables-nft -A DOCKER-USER -s 10.22.0.0/24 -j DROP", "outside", "rule", "ip filter DOCKER-USER handle";
    a_drop_of_frames: 2, "nft 'add table bridge x; add chain bridge x pass { type filter hook forward priority 0; }; add rule bridge x pass ip saddr 10.22.0.2 drop'", "neighbour-icmp", "rule", "(bridge x pass handle";
    a_drop_of_tcp_between_containers: 2, "nft 'add table bridge x; add chain bridge x pass { type filter hook forward priority 0; }; add rule bridge x pass ip protocol tcp drop'", "neighbour-tcp", "rule", "ip protocol tcp drop";
    a_firewall_in_the_container: 2, "$inside nft 'add table inet x; add chain inet x in { type filter hook input priority 0; }; add rule inet x in udp dport 8080 drop'", "neighbour-udp", "rule", "container 2: the packet is dropped by rule \"udp dport 8080 drop\"";
    a_firewall_of_the_sender: 1, "$inside nft 'add table inet x; add chain inet x out { type filter hook output priority 0; }; add rule inet x out icmp type echo-request drop'", "gateway", "rule", "container 1: ";
    a_firewall_of_ipv6_in_the_container: 2, "$inside nft 'add table ip6 x; add chain ip6 x in { type filter hook input priority 0; }; add rule ip6 x in icmpv6 type echo-request drop'", "neighbour-icmp", "rule", "container 2: ";

    forwarding_off_on_the_bridge: 2, "sysctl -qw net.ipv4.conf.br-t.forwarding=0", "outside", "forwarding", "net.ipv4.conf.br-t.forwarding is 0";
    forwarding_off_on_the_uplink: 2, "sysctl -qw net.ipv4.conf.uplink.forwarding=0", "outside", "forwarding", "net.ipv4.conf.uplink.forwarding is 0";
    an_uplink_that_is_down: 2, "ip link set uplink down", "outside", "route", "this host: ";

    a_translation_by_another_rule: 2, "nft 'add table ip x; add chain ip x out { type nat hook output priority -150; }; add rule ip x out tcp dport 1024-65535 dnat to 10.22.0.99'", "port-host", "translation", "ip x out handle";
    a_flushed_translation: 2, "nft flush map inet cni_hostport ipv4_ports", "port-host", "translation", "no rule translates";
    a_flushed_masquerade: 2, "nft flush chain inet cni_plugins_masquerade masq_checks", "outside", "translation", "no rule masquerades them";

    ports_isolated_by_hand: 2, "for port in $(ip -o link show master br-t | cut -d' ' -f2 | cut -d@ -f1); do bridge link set dev $port isolated on; done", "neighbour-icmp", "link", "is isolated, which the network does not ask for";
    arp_off_in_the_container: 2, "$inside ip link set eth0 arp off", "neighbour-icmp", "link", "container 2: link eth0 does not answer ARP";
    arp_off_on_the_bridge: 2, "ip link set br-t arp off; ip neigh flush dev br-t", "host", "link", "link br-t does not answer ARP";
    a_static_neighbour_of_the_host: 2, "ip neigh replace 10.22.0.2 lladdr 02:00:00:00:00:99 nud permanent dev br-t", "host", "neighbour", "this host: the static neighbour entry of 10.22.0.2";
    a_static_neighbour_of_the_container: 1, "$inside ip neigh replace 10.22.0.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0", "gateway", "neighbour", "container 1: the static neighbour entry of 10.22.0.1";
    a_static_neighbour_between_containers: 1, "$inside ip neigh replace 10.22.0.3 lladdr 02:00:00:00:00:99 nud permanent dev eth0", "neighbour-icmp", "neighbour", "entry of 10.22.0.3";

    a_port_that_is_down: 2, "ip link set $port down", "neighbour-icmp", "link", "is down";
    a_port_that_left_the_bridge: 2, "ip link set $port nomaster", "neighbour-icmp", "link", "is not a port of br-t";
    a_bridge_that_is_down: 2, "ip link set br-t down", "neighbour-icmp", "link", "link br-t is down";
    a_lost_gateway_address: 2, "ip address del 10.22.0.1/24 dev br-t", "gateway", "address", "br-t lost the gateway address 10.22.0.1";
    a_lost_address_of_the_container: 2, "$inside ip address flush dev eth0", "neighbour-icmp", "address", "container 2: interface eth0 lost the address 10.22.0.3/24";
    an_interface_that_is_down: 2, "$inside ip link set eth0 down", "neighbour-icmp", "link", "container 2: link eth0 is down";
    an_interface_that_is_gone: 1, "$inside ip link del eth0", "address", "link", "container 1: interface eth0 is gone";
    a_small_mtu: 2, "ip link set $port mtu 1400", "neighbour-mtu", "mtu", "has the MTU 1400";
}

/// The outside has no route to a network that does not masquerade.
#[test]
fn an_outside_without_a_route_back() {
    let host = super::host_with(&super::PODS.replace("\"ipMasq\": true, ", ""));
    fails(&host, "outside", "route", "another machine: no answer comes back: it needs a route to 10.22.0.2");
    assert_clean(&host);
}

/// What needs no packets.
#[test]
fn failures_of_plugins_are_reported() {
    let host = host();
    let error = "echo '{\"code\": 7, \"msg\": \"asked to fail\"}' >&3; exit 1";
    host.lab.script("other", &super::OTHER.replacen("dir=", "exec 3>&1\ndir=", 1));
    for (command, probe) in [("ADD", "add"), ("CHECK", "check"), ("DEL", "del")] {
        on(&host, command, error);
        let outcome = host.run("test pods --json");
        on(&host, command, "");
        assert_eq!(outcome.status, Some(3), "{outcome:?}");
        let answer = answer(&outcome);
        let failed = probes(&answer).iter().find(|found| found["outcome"] == "fail").unwrap();
        assert_eq!(failed["id"], probe, "{answer:#}");
        assert!(failed["seen"].as_str().unwrap().contains("asked to fail"), "{failed}");
        // What a failed DEL has left is removed by the next test.
        host.run("test pods");
        assert_clean(&host);
    }
}
