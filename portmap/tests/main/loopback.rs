//! `route_localnet` and its guard: loopback services of the host stay out of reach of containers.

use std::net::UdpSocket;

use serde_json::json;
use testing::config::{on_network, with};
use testing::packets::{Client, Delivery, HOST, Server, from, udp};
use testing::{Lab, Pod};

use crate::support::{assert_clean, config, entries, route_localnet};

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

#[test]
fn a_container_does_not_reach_loopback_services_of_the_host() {
    Lab::for_each_layout(|lab| {
        let a = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
        let config = config(&["8080:80/tcp"]);
        prepare_attack(&a);
        expect_attacks(&a, false);
        a.add(&config);
        assert_eq!(route_localnet(lab, "br0"), "1");
        expect_attacks(&a, false);
        // Control: without the guard, the attack succeeds.
        lab.sh("nft delete chain inet cni_hostport guard");
        expect_attacks(&a, true);
        let error = a.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains("chain inet cni_hostport guard"), "{error}");
        // The next ADD restores the guard, also that of another attachment.
        Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24"])
            .add(&on_network("net2", crate::support::config(&["81:81/tcp"])));
        expect_attacks(&a, false);
        a.check(&config).ok();
        // DEL leaves `route_localnet` to other attachments, so the guard stays too.
        a.del(&config);
        assert_eq!(route_localnet(lab, "br0"), "1");
        expect_attacks(&a, false);
    });
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
        let guard = lab.sh("nft list chain inet cni_hostport guard 2>/dev/null || true");
        assert_eq!(!guard.is_empty(), want == "1", "{ports:?} {more}");
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
    let error = pod.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("net.ipv4.conf.br0.route_localnet"), "{error}");
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(route_localnet(lab, "uplink") + &route_localnet(lab, "br0"), "01");

    // A link that the result does not name has the address of the gateway, such as that of a VLAN.
    lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
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
    assert!(last("add rule to chain inet cni_hostport guard") < last("set net.ipv4.conf.br0.route_localnet"), "{log}");
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
