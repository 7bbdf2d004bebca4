//! `route_localnet` and its guard: loopback services of the host stay out of reach of containers.

use std::net::UdpSocket;

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::network::filter_bridged_frames;
use testing::packets::{Client, Delivery, HOST, Server, from, udp};
use testing::{Lab, Pod, parallel, skip};

use crate::support::{assert_clean, config, entries, forget_inventory, route_localnet};

/// Lets a container send packets to and from loopback addresses.
fn prepare_attack(pod: &Pod<'_>) {
    pod.sh("ip address flush dev lo
            sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
            ip address add 127.0.0.9/32 dev eth0
            ip route add 127.0.0.1/32 via 10.1.0.1 src 10.1.0.2");
    pod.lab.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.br0.rp_filter=0");
}

/// Expects what becomes of the container's packets to 127.0.0.1 of the host, and of packets from a loopback address.
#[track_caller]
fn expect_attacks(pod: &Pod<'_>, is_open: bool) {
    let outcome = |ip: &str| if is_open { from(ip) } else { Delivery::Lost };
    let attacker = Client::in_netns(&pod.netns);
    for protocol in ["tcp", "udp"] {
        let service = Server::start(protocol, None, "127.0.0.1", 9999);
        HOST.expect(&from("127.0.0.1"), "127.0.0.1", 9999, &service);
        attacker.expect(&outcome("10.1.0.2"), "127.0.0.1", 9999, &service);
    }
    // A service that trusts loopback addresses. Its reply stays on the host.
    let service = udp(None, "0.0.0.0", 9998);
    let spoofing: UdpSocket = udp(Some(&pod.netns), "127.0.0.9", 0);
    spoofing.send_to(b"spoofed", "10.1.0.1:9998").unwrap();
    if !is_open {
        // It arrives later than the spoofed packet would.
        udp(Some(&pod.netns), "10.1.0.2", 0).send_to(b"honest", "10.1.0.1:9998").unwrap();
    }
    let (_, sender) = service.recv_from(&mut [0; 16]).unwrap();
    assert_eq!(sender.ip().is_loopback(), is_open);
}

/// Returns the handles of the guard of a link. Those of a link where the plugin has enabled `route_localnet` end with
/// 31.
fn guards(lab: &Lab, link: &str) -> Vec<String> {
    let listing = lab.sh(&format!("tc filter show dev {link} ingress"));
    let handles = listing.lines().filter_map(|line| line.split_once(" handle ")?.1.split(' ').next());
    handles.filter(|handle| handle.starts_with("0x636e69")).map(str::to_owned).collect()
}

/// With and without netfilter for the frames of the bridge, which then translates replies before the guard sees them.
#[test]
fn a_container_does_not_reach_loopback_services_of_the_host() {
    for (backend, filters_frames) in [("nftables", false), ("nftables", true), ("iptables", false), ("iptables", true)]
    {
        let lab = &Lab::new();
        if !filter_bridged_frames(lab, filters_frames) {
            return skip("a_container_does_not_reach_loopback_services_of_the_host", "br_netfilter is missing");
        }
        let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
        let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24"]);
        let config = with(config(&["8080:80/tcp", "8080:80/udp"]), json!({ "backend": backend }));
        let other = with(on_network("net2", crate::support::config(&["81:81/tcp"])), json!({ "backend": backend }));
        let expect_published = || {
            for protocol in ["tcp", "udp"] {
                let server = Server::start(protocol, Some(&a.netns), "0.0.0.0", 80);
                HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
            }
        };
        prepare_attack(&a);
        expect_attacks(&a, false);
        a.add(&config);
        assert_eq!(route_localnet(lab, "br0"), "1");
        expect_attacks(&a, false);
        expect_published();
        // A reload of nftables.service, and the control: without any guard, the attack succeeds.
        lab.sh("nft flush ruleset");
        expect_attacks(&a, false);
        lab.sh("tc filter del dev br0 ingress");
        expect_attacks(&a, true);
        // The next ADD restores the guards, also that of another attachment.
        b.add(&other);
        expect_attacks(&a, false);
        a.add(&config);
        expect_published();
        // Each of them alone.
        lab.sh("nft delete chain inet cni_hostport guard");
        expect_attacks(&a, false);
        expect_published();
        a.add(&config);
        lab.sh("tc qdisc del dev br0 clsact");
        expect_attacks(&a, false);
        expect_published();
        lab.sh("nft delete chain inet cni_hostport guard");
        expect_attacks(&a, true);
        a.check(&config).error(999);
        a.add(&config);
        a.check(&config).ok();
        expect_attacks(&a, false);
        expect_published();
        // The setting goes with the last port that needs it, if there is a record that the plugin has enabled it.
        lab.sh("tc qdisc del dev br0 clsact; sysctl -qw net.ipv4.conf.br0.route_localnet=0");
        a.add(&config);
        b.add(&other);
        a.del(&config);
        assert_eq!(route_localnet(lab, "br0"), "1");
        b.check(&other).ok();
        expect_attacks(&a, false);
        b.del(&other);
        assert_eq!(route_localnet(lab, "br0"), "0");
        expect_attacks(&a, false);
    }
}

/// Whatever removes the last port, and in whatever form it is.
#[test]
fn route_localnet_is_disabled_with_the_last_port_that_needs_it() {
    let lab = &Lab::new();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24"]);
    let (first, second) = (config(&["8080:80/tcp"]), config(&["8081:80/tcp"]));
    let of = |config: &Value, backend: &str| with(config.clone(), json!({ "backend": backend }));
    let del = |pod: &Pod<'_>, config: &Value| pod.del(config);
    let collect = |_: &Pod<'_>, _: &Value| {
        let gc = with(config(&[]), json!({ "cni.dev/valid-attachments": [] }));
        lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
    };
    let flush_and_del = |pod: &Pod<'_>, config: &Value| {
        lab.sh("nft flush ruleset");
        pod.del(config);
    };
    let add_without = |pod: &Pod<'_>, config: &Value| {
        // A repeated ADD after which loopback addresses do not reach the port.
        pod.add(&with(config.clone(), json!({ "snat": false, "backend": "nftables" })));
    };
    type End<'a> = &'a dyn Fn(&Pod<'_>, &Value);
    for end in [&del as End<'_>, &collect, &flush_and_del, &add_without] {
        for [one, other] in ["nftables", "iptables"].map(|x| ["nftables", "iptables"].map(|y| [x, y])).as_flattened() {
            a.add(&of(&first, one));
            b.add(&of(&second, other));
            a.del(&of(&first, one));
            assert_eq!(route_localnet(lab, "br0"), "1", "{one}, {other}");
            // Not for a port that does not need it.
            a.add(&of(&config(&["192.0.2.1 8080:80/tcp"]), one));
            end(&b, &of(&second, other));
            assert_eq!(route_localnet(lab, "br0"), "0", "{one}, {other}");
            a.del(&first);
            b.del(&second);
        }
    }
    assert_clean(lab);
}

#[test]
fn a_setting_of_another_program_stays() {
    let lab = &Lab::new();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    prepare_attack(&a);
    lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=1");
    expect_attacks(&a, true);
    for _ in 0..2 {
        a.add(&config);
        a.check(&config).ok();
        assert_eq!(guards(lab, "br0"), ["0x636e6930"]);
        expect_attacks(&a, false);
        a.del(&config);
        assert_eq!(route_localnet(lab, "br0"), "1");
        expect_attacks(&a, false);
    }
    // Then it disables the setting, and the next ADD enables it.
    lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
    let error = a.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("missing"), "{error}");
    a.add(&config);
    assert_eq!(route_localnet(lab, "br0"), "1");
    a.del(&config);
    assert_eq!(route_localnet(lab, "br0"), "0");
}

/// While the last port is removed, another one is published, and the other way round.
#[test]
fn route_localnet_is_enabled_whenever_a_port_appears() {
    let lab = &Lab::new();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let b = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24"]);
    let (first, second) = (config(&["8080:80/tcp"]), config(&["8081:80/tcp"]));
    for name in ["sendto", "openat", "pwrite64"] {
        for n in 1.. {
            a.add(&first);
            let del = parallel::stopped_after(lab, a.call("DEL", &first), name, n, || drop(b.add(&second)));
            if let Some(outcome) = &del {
                outcome.ok();
                b.check(&second).ok();
                assert_eq!(
                    (route_localnet(lab, "br0"), guards(lab, "br0").len()),
                    ("1".to_owned(), 1),
                    "DEL, {name} {n}"
                );
                b.del(&second);
            }
            assert_eq!(route_localnet(lab, "br0"), "0", "DEL, {name} {n}");
            a.add(&first);
            let add = parallel::stopped_after(lab, b.call("ADD", &second), name, n, || a.del(&first));
            if let Some(outcome) = &add {
                outcome.ok();
                b.check(&second).ok();
                assert_eq!(route_localnet(lab, "br0"), "1", "ADD, {name} {n}");
            }
            a.del(&first);
            b.del(&second);
            assert_eq!(route_localnet(lab, "br0"), "0", "ADD, {name} {n}");
            if del.is_none() && add.is_none() {
                break;
            }
        }
    }
    assert_clean(lab);
}

/// Another program uses the place of the guard, as if the kernel did not support it.
#[test]
fn without_a_guard_ports_are_not_reachable_from_loopback_addresses() {
    let lab = &Lab::new();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    lab.sh("tc qdisc add dev br0 clsact
            tc filter add dev br0 ingress pref 1 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo");
    let outcome = a.call("ADD", &config).env("CNI_LOG", "warn").run();
    outcome.ok();
    assert!(outcome.stderr.contains("not reachable from loopback addresses"), "{outcome:?}");
    assert_eq!((route_localnet(lab, "br0"), guards(lab, "br0").len()), ("0".to_owned(), 0));
    a.check(&config).ok();
    HOST.expect(&from("10.1.0.1"), "10.1.0.1", 8080, &server);
    a.del(&config);
    // What prepares a link for filters may be of another kind.
    lab.sh("tc qdisc del dev br0 clsact; tc qdisc add dev br0 ingress");
    a.add(&config);
    a.check(&config).ok();
    assert_eq!(guards(lab, "br0"), ["0x636e6931"]);
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
}

/// Earlier versions had a chain for all links, which a reload of a firewall removes.
#[test]
fn the_guard_of_earlier_versions_counts() {
    let lab = &Lab::new();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    a.add(&config);
    forget_inventory(lab);
    lab.sh("tc qdisc del dev br0 clsact; nft delete chain inet cni_hostport replies");
    prepare_attack(&a);
    expect_attacks(&a, false);
    a.check(&config).ok();
    a.del(&config);
    // It has not enabled the setting in a way that is recorded.
    assert_eq!(route_localnet(lab, "br0"), "1");
    expect_attacks(&a, false);
    a.add(&config);
    lab.sh("nft flush ruleset");
    expect_attacks(&a, false);
}

#[test]
fn the_guard_does_not_affect_published_ports() {
    let lab = &Lab::new();
    let outside = lab.outside();
    let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    a.add(&config(&["8080:80/tcp"]));
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    prepare_attack(&a);
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
    HOST.expect(&from("192.0.2.1"), "192.0.2.1", 8080, &server);
    Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.1", 8080, &server);
    // Neither a published port nor a service of 127.0.0.1 is reachable by that address from outside.
    lab.sh("nsenter --net=/run/netns/outside ip route add 127.0.0.1/32 via 192.0.2.1");
    Client::in_netns(&outside).expect(&Delivery::Lost, "127.0.0.1", 8080, &server);
}

#[test]
fn route_localnet_is_enabled_only_for_ports_that_loopback_addresses_reach() {
    for (ports, more, want) in [
        (["8080:80/tcp"], json!({}), "1"),
        (["0.0.0.0 8080:80/udp"], json!({}), "1"),
        (["127.0.0.1 8080:80/tcp"], json!({}), "1"),
        (["127.0.0.7 8080:80/tcp"], json!({}), "1"),
        (["8080:80/tcp"], json!({ "masqAll": true }), "1"),
        (["8080:80/tcp"], json!({ "snat": false }), "0"),
        (["192.0.2.1 8080:80/tcp"], json!({}), "0"),
        ([":: 8080:80/tcp"], json!({}), "0"),
        (["fd01::1 8080:80/tcp"], json!({}), "0"),
    ] {
        let lab = &Lab::new();
        lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
        let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
        pod.add(&with(config(&ports), more.clone()));
        assert_eq!(route_localnet(lab, "br0"), want, "{ports:?} {more}");
        assert_eq!(guards(lab, "br0").len(), usize::from(want == "1"), "{ports:?} {more}");
        assert_eq!(route_localnet(lab, "lo") + &route_localnet(lab, "all"), "00");
    }
}

/// On an uplink, the setting would open the loopback services of the host to the network outside.
#[test]
fn route_localnet_is_enabled_only_on_a_link_that_leads_to_the_container() {
    let lab = &Lab::new();
    lab.outside();
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    lab.sh("ip route add 10.1.0.2/32 dev uplink");
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(route_localnet(lab, "uplink") + &route_localnet(lab, "br0"), "00");
    lab.sh("ip route del 10.1.0.2/32 dev uplink");
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(route_localnet(lab, "uplink") + &route_localnet(lab, "br0"), "01");
    lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
    let error = pod.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.conf.br0.route_localnet"), "{error}");

    // A link that the result does not name has the address of the gateway, such as that of a VLAN.
    let mut result = pod.result("1.0.0");
    result["interfaces"].as_array_mut().unwrap().retain(|interface| interface["name"] != "br0");
    result["ips"][0].as_object_mut().unwrap().remove("interface");
    for (gateway, want) in [(json!("10.1.0.9"), "0"), (json!("10.1.0.1"), "1")] {
        result["ips"][0]["gateway"] = gateway;
        pod.add(&with(config.clone(), json!({ "prevResult": result })));
        assert_eq!(route_localnet(lab, "br0"), want);
    }
}

#[test]
fn route_localnet_that_cannot_be_set_fails_the_add_and_leaves_nothing() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0
            mount --bind /proc/sys/net /proc/sys/net; mount -o remount,bind,ro /proc/sys/net");
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let error = pod.call("ADD", &config(&["8080:80/tcp"])).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.conf.br0.route_localnet"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("read-only"), "{error}");
    assert_clean(lab);
    // Nothing has to be set for other ports, nor if the administrator has set it.
    pod.add(&config(&["10.1.0.1 8080:80/tcp"]));
    assert!(!entries(lab).is_empty());
    pod.del(&config(&[]));
    lab.sh("mount -o remount,bind,rw /proc/sys/net; sysctl -qw net.ipv4.conf.br0.route_localnet=1
            mount -o remount,bind,ro /proc/sys/net");
    pod.add(&config(&["8080:80/tcp"]));
}

#[test]
fn the_guard_exists_before_route_localnet_is_enabled() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let outcome = pod.call("ADD", &config(&["8080:80/tcp"])).env("CNI_LOG", "debug").run();
    outcome.ok();
    let log = &outcome.stderr;
    let last = |text: &str| log.rfind(text).unwrap_or_else(|| panic!("{text}: {log}"));
    let published = last("create elements of set inet cni_hostport ipv4_ports");
    let (guard, setting) = (last("to and from loopback addresses"), last("set net.ipv4.conf.br0.route_localnet"));
    assert!(published < guard && guard < setting, "{log}");
}

/// A link that is not a bridge: the host routes to the container through it.
#[test]
fn route_localnet_is_enabled_on_the_link_to_the_container() {
    let lab = &Lab::new();
    lab.sh("ip link add ptp0 up type bridge; ip route add 10.1.0.2/32 dev ptp0; ip link add br0 up type bridge");
    let pod = Pod { bridge: "ptp0".to_owned(), ..Pod::with_port(lab, "a", &["10.1.0.2/24"]) };
    pod.add(&config(&["8080:80/tcp"]));
    assert_eq!(route_localnet(lab, "ptp0") + &route_localnet(lab, "br0"), "10");
    pod.check(&config(&["8080:80/tcp"])).ok();
    // Without a route there is nothing to enable.
    let other = Pod::with_port(lab, "b", &["10.7.0.2/24"]);
    other.add(&on_network("net2", config(&["8081:80/tcp"])));
    other.check(&on_network("net2", config(&["8081:80/tcp"]))).ok();
}

/// As in many containers, in which a runtime is tested.
#[test]
fn with_read_only_sysctls_an_existing_setting_suffices() {
    let lab = &Lab::new();
    let (a, b) = (Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]), Pod::on_bridge(lab, "br1", "b", &["10.2.0.2/24"]));
    lab.sh("sysctl -qw net.ipv4.conf.br1.route_localnet=1
            mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys");
    let config = config(&["8080:80/tcp"]);
    let error = a.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.conf.br0.route_localnet is not 1"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("read-only"), "{error}");
    assert_clean(lab);
    // Without source NAT, loopback addresses do not reach the port anyway.
    let direct = with(config.clone(), json!({ "snat": false }));
    a.add(&direct);
    a.check(&direct).ok();
    a.del(&direct);
    b.add(&config);
    b.check(&config).ok();
    let server = Server::start("tcp", Some(&b.netns), "0.0.0.0", 80);
    HOST.expect(&from("10.2.0.1"), "127.0.0.1", 8080, &server);
}
