//! `setup` and `teardown`: what containers can reach, and that nothing is left of them.

use serde_json::{Value, json};
use testing::packets::{Client, Delivery, HOST, Server, from};
use testing::{Lab, skip};

use crate::support::{Container, assert_clean, call, failure, network, with};

#[test]
fn containers_reach_each_other_the_host_and_the_outside() {
    let lab = &Lab::without_plugins();
    let outside = lab.outside();
    let (net, a, b) = (network(1), Container::new(lab, 2), Container::new(lab, 3));
    let status = a.set_up(&net);
    let mac = a.sh("cat /sys/class/net/eth0/address");
    let interface = json!({
        "mac_address": mac.trim(),
        "subnets": [{"ipnet": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"ipnet": "fd01::2/64", "gateway": "fd01::1"}],
    });
    assert_eq!(status, json!({"dns_search_domains": [], "dns_server_ips": [], "interfaces": {"eth0": interface}}));
    b.set_up(&net);
    for (any, own, neighbour, gateway, uplink, there) in [
        ("0.0.0.0", "10.1.0.2", "10.1.0.3", "10.1.0.1", "192.0.2.1", "192.0.2.2"),
        ("::", "fd01::2", "fd01::3", "fd01::1", "2001:db8::1", "2001:db8::2"),
    ] {
        let server = Server::start("tcp", Some(&b.netns), any, 80);
        a.client().expect(&from(own), neighbour, 80, &server);
        HOST.expect(&from(gateway), neighbour, 80, &server);
        let server = Server::start("udp", Some(&outside), any, 80);
        a.client().expect(&from(uplink), there, 80, &server);
    }
    for container in [&a, &b, &a] {
        container.tear_down(&net);
    }
    assert_clean(lab);
}

#[test]
fn ports_are_published_until_teardown() {
    let lab = &Lab::without_plugins();
    let outside = lab.outside();
    let net = network(1);
    let a = Container::new(lab, 2).publishing(json!([
        {"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1},
        {"host_ip": "", "host_port": 9000, "container_port": 90, "protocol": "tcp,udp", "range": 3},
        {"host_ip": "192.0.2.9", "host_port": 8443, "container_port": 443, "protocol": "", "range": 0},
    ]));
    let b = Container::new(lab, 3);
    a.set_up(&net);
    b.set_up(&net);
    let there = Client::in_netns(&outside);
    let reach = |port: u16, inside: u16, protocol: &str, ip: &str, want: &Delivery| {
        let any = if ip.contains(':') { "::" } else { "0.0.0.0" };
        let server = Server::start(protocol, Some(&a.netns), any, inside);
        there.expect(want, ip, port, &server);
    };
    reach(8080, 80, "tcp", "192.0.2.1", &from("192.0.2.2"));
    reach(8080, 80, "tcp", "2001:db8::1", &from("2001:db8::2"));
    reach(9002, 92, "tcp", "192.0.2.1", &from("192.0.2.2"));
    reach(9001, 91, "udp", "192.0.2.1", &from("192.0.2.2"));
    reach(8443, 443, "tcp", "192.0.2.9", &from("192.0.2.2"));
    reach(8443, 443, "tcp", "192.0.2.1", &Delivery::Refused);
    reach(9003, 93, "tcp", "192.0.2.1", &Delivery::Refused);
    // From the neighbour and from itself, and from the host by a loopback address.
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    b.client().expect(&from("10.1.0.1"), "192.0.2.1", 8080, &server);
    a.client().expect(&from("10.1.0.1"), "192.0.2.1", 8080, &server);
    HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
    drop(server);
    a.tear_down(&net);
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    there.expect(&Delivery::Refused, "192.0.2.1", 8080, &server);
    b.tear_down(&net);
    assert_clean(lab);
}

#[test]
fn a_container_has_the_name_and_the_mac_address_that_podman_chose() {
    let lab = &Lab::without_plugins();
    let (net, a) = (network(1), Container::new(lab, 2));
    let mut input = a.input(&net, "lan7");
    input["network_options"]["static_mac"] = "02:11:22:33:44:55".into();
    let status = a.set_up_as(&input);
    assert_eq!(status["interfaces"]["lan7"]["mac_address"], "02:11:22:33:44:55");
    assert_eq!(a.sh("cat /sys/class/net/lan7/address"), "02:11:22:33:44:55\n");
    a.call("teardown", &input).run().silent();
    assert_clean(lab);
}

#[test]
fn a_container_has_several_networks() {
    let lab = &Lab::without_plugins();
    let outside = lab.outside();
    let (first, second, a) = (
        network(1),
        network(2),
        Container::new(lab, 2).publishing(json!([
            {"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1},
        ])),
    );
    a.set_up(&first);
    let input = a.input(&second, "eth1");
    a.set_up_as(&input);
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    HOST.expect(&from("10.1.0.1"), "10.1.0.2", 80, &server);
    HOST.expect(&from("10.2.0.1"), "10.2.0.2", 80, &server);
    let there = Client::in_netns(&outside);
    there.expect(&from("192.0.2.2"), "192.0.2.1", 8080, &server);
    a.call("teardown", &input).run().silent();
    // It still is on the first network, with its route and its port.
    there.expect(&from("192.0.2.2"), "192.0.2.1", 8080, &server);
    drop(server);
    a.tear_down(&first);
    assert_clean(lab);
}

/// Returns the default routes in a container, as `GATEWAY METRIC`.
fn default_routes(container: &Container<'_>) -> Vec<String> {
    let of = |family: &str| {
        let routes: Value = serde_json::from_str(&container.sh(&format!("ip -j {family} route show default"))).unwrap();
        let line = |route: &Value| format!("{} {}", route["gateway"].as_str().unwrap(), route["metric"]);
        routes.as_array().unwrap().iter().map(line).collect::<Vec<_>>()
    };
    [of("-4"), of("-6")].concat()
}

#[test]
fn routes_are_as_the_network_says() {
    let lab = &Lab::without_plugins();
    for (options, internal, wanted) in [
        (json!({}), false, vec!["10.1.0.1 100", "fd01::1 100"]),
        (json!({"metric": "7"}), false, vec!["10.1.0.1 7", "fd01::1 7"]),
        (json!({"no_default_route": "true"}), false, vec![]),
        (json!({}), true, vec![]),
    ] {
        let routes = json!([
            {"destination": "10.8.0.0/16", "gateway": "10.1.0.8", "metric": 5},
            {"destination": "fd08::/64", "gateway": "fd01::8"},
        ]);
        let net = with(network(1), &json!({"options": options, "internal": internal, "routes": routes}));
        let a = Container::new(lab, 2);
        a.set_up(&net);
        assert_eq!(default_routes(&a), wanted, "{options} {internal}");
        assert!(a.sh("ip route show 10.8.0.0/16").contains("via 10.1.0.8 dev eth0 metric 5"));
        assert!(a.sh("ip -6 route show fd08::/64").contains("via fd01::8 dev eth0"));
        a.tear_down(&net);
        assert_clean(lab);
        lab.sh("ip netns del netns-2");
    }
}

#[test]
fn an_internal_network_has_no_way_to_the_outside() {
    let lab = &Lab::without_plugins();
    let outside = lab.outside();
    let subnets = json!([{"subnet": "10.1.0.0/24"}, {"subnet": "fd01::/64"}]);
    let net = with(network(1), &json!({"internal": true, "subnets": subnets}));
    let ports = json!([{"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1}]);
    let (a, b) = (Container::new(lab, 2).publishing(ports), Container::new(lab, 3));
    a.set_up(&net);
    b.set_up(&net);
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    b.client().expect(&from("10.1.0.3"), "10.1.0.2", 80, &server);
    Client::in_netns(&outside).expect(&Delivery::Refused, "192.0.2.1", 8080, &server);
    let server = Server::start("tcp", Some(&outside), "0.0.0.0", 80);
    a.client().expect(&Delivery::Lost, "192.0.2.2", 80, &server);
    // The host has no address there.
    assert_eq!(lab.sh("ip -br -4 address show pod1 | grep -c 10.1 || true"), "0\n");
    assert!(!lab.sh("nft list ruleset").contains("masquerade comment"));
    a.tear_down(&net);
    b.tear_down(&net);
    assert_clean(lab);
}

#[test]
fn isolated_networks_do_not_reach_each_other() {
    let lab = &Lab::without_plugins();
    let isolated = |number| with(network(number), &json!({"options": {"isolate": "true"}}));
    let (first, second, open) = (isolated(1), isolated(2), network(3));
    let (a, b, c) = (Container::new(lab, 2), Container::new(lab, 3), Container::new(lab, 4));
    a.set_up(&first);
    b.set_up(&second);
    c.set_up(&open);
    for (any, to_b, masqueraded, to_c) in
        [("0.0.0.0", "10.2.0.3", "10.3.0.1", "10.3.0.4"), ("::", "fd02::3", "fd03::1", "fd03::4")]
    {
        let server = Server::start("tcp", Some(&b.netns), any, 80);
        a.client().expect(&Delivery::Lost, to_b, 80, &server);
        let server = Server::start("tcp", Some(&c.netns), any, 80);
        a.client().expect(&from(masqueraded), to_c, 80, &server);
    }
    for (container, net) in [(&a, &first), (&b, &second), (&c, &open)] {
        container.tear_down(net);
    }
    assert_clean(lab);
}

#[test]
fn containers_of_a_network_can_be_isolated_from_each_other() {
    let lab = &Lab::without_plugins();
    let net = with(network(1), &json!({"options": {"isolate": "containers"}}));
    let (a, b) = (Container::new(lab, 2), Container::new(lab, 3));
    a.set_up(&net);
    b.set_up(&net);
    let server = Server::start("tcp", Some(&b.netns), "0.0.0.0", 80);
    a.client().expect(&Delivery::Lost, "10.1.0.3", 80, &server);
    HOST.expect(&from("10.1.0.1"), "10.1.0.3", 80, &server);
    drop(server);
    a.tear_down(&net);
    b.tear_down(&net);
    assert_clean(lab);
}

#[test]
fn options_reach_the_plugins() {
    let lab = &Lab::without_plugins();
    let net = with(
        network(1),
        &json!({"options": {
            "mtu": "1400", "hairpin": "false", "masquerade": "false", "sysctl.net.ipv4.conf.IFNAME.arp_filter": "1",
            "promisc": "true", "tx_queue_length": "77", "firewall_backend": "nftables",
        }}),
    );
    let a = Container::new(lab, 2);
    a.set_up(&net);
    assert_eq!(a.sh("cat /sys/class/net/eth0/mtu /proc/sys/net/ipv4/conf/eth0/arp_filter"), "1400\n1\n");
    assert_eq!(a.sh("cat /sys/class/net/eth0/tx_queue_len"), "77\n");
    assert!(a.sh("ip link show eth0").contains("PROMISC"));
    assert!(lab.sh("bridge -d link").contains("hairpin off"));
    assert!(!lab.sh("nft list ruleset").contains("masquerade comment"));
    a.tear_down(&net);
    assert_clean(lab);
    let net = with(network(1), &json!({"options": {"masquerade": "iptables"}}));
    a.set_up(&net);
    assert!(lab.sh("iptables-save -t nat").contains("MASQUERADE"));
    a.tear_down(&net);
    assert_eq!(lab.sh("iptables-save -t nat | grep -c MASQUERADE || true"), "0\n");
}

#[test]
fn the_vlan_of_a_network_is_that_of_its_ports() {
    let lab = &Lab::without_plugins();
    if !testing::can_create_link("type bridge vlan_filtering 1") {
        return skip("the_vlan_of_a_network_is_that_of_its_ports", "the kernel cannot filter VLANs");
    }
    let net =
        with(network(1), &json!({"options": {"vlan": "7"}, "internal": true, "subnets": [{"subnet": "10.1.0.0/24"}]}));
    let (a, b) = (Container::new(lab, 2), Container::new(lab, 3));
    a.set_up(&net);
    let other = with(net.clone(), &json!({"options": {"vlan": "8"}}));
    b.set_up(&other);
    let server = Server::start("tcp", Some(&b.netns), "0.0.0.0", 80);
    a.client().expect(&Delivery::Lost, "10.1.0.3", 80, &server);
    drop(server);
    a.tear_down(&net);
    b.tear_down(&other);
    assert_clean(lab);
}

/// The gateway of a VLAN is a port of the bridge, which goes with the last container all the same.
#[test]
fn a_network_with_a_vlan_has_a_gateway() {
    let lab = &Lab::without_plugins();
    if !testing::can_create_link("type bridge vlan_filtering 1") {
        return skip("a_network_with_a_vlan_has_a_gateway", "the kernel cannot filter VLANs");
    }
    let vlan = json!({"options": {"vlan": "4094"}, "network_interface": ""});
    let created = call("create").stdin(with(network(1), &vlan).to_string()).run().ok();
    assert_eq!(created["network_interface"].as_str().unwrap().len(), "cni-2f259b".len());
    let a = Container::new(lab, 2);
    a.set_up(&created);
    let server = Server::start("tcp", Some(&a.netns), "0.0.0.0", 80);
    HOST.expect(&from("10.1.0.1"), "10.1.0.2", 80, &server);
    drop(server);
    a.tear_down(&created);
    assert_clean(lab);
}

/// What is edited while a container is attached does not keep its ports from being removed.
#[test]
fn teardown_needs_no_valid_network() {
    let lab = &Lab::without_plugins();
    let net = network(1);
    let ports = json!([{"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1}]);
    for edited in [
        json!({"network_interface": "a/b"}),
        json!({"options": {"mtu": "x"}}),
        json!({"subnets": [{"subnet": "10.9.0.0/24", "gateway": "10.9.0.1"}]}),
        json!({"subnets": null}),
        json!({"ipam_options": {"driver": "dhcp"}}),
    ] {
        let a = Container::new(lab, 2).publishing(ports.clone());
        a.set_up(&net);
        // The addresses are those of podman's own records.
        let mut input = a.input(&net, "eth0");
        input["network"] = with(net.clone(), &edited);
        a.call_plugin("teardown", &input).run();
        let left = lab.sh("ip -br link show type veth; nft list ruleset | grep -e ' id: ' -e 'net: ' || true");
        assert_eq!(left, "", "{edited}");
        a.tear_down(&net);
        assert_clean(lab);
        lab.sh("ip netns del netns-2");
    }
}

#[test]
fn a_network_without_addresses_connects_by_layer_2() {
    let lab = &Lab::without_plugins();
    let none = json!({"ipam_options": {"driver": "none"}, "subnets": null});
    let net = with(network(1), &none);
    let a = Container::new(lab, 2);
    assert_eq!(a.set_up(&net)["interfaces"]["eth0"]["subnets"], json!([]));
    assert!(a.sh("ip -br link show eth0").contains("UP"));
    a.tear_down(&net);
    assert_clean(lab);
}

/// A namespace is gone, or its path leads to another container by now.
#[test]
fn teardown_removes_only_what_belongs_to_the_container() {
    let lab = &Lab::without_plugins();
    let net = network(1);
    let ports = json!([{"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1}]);
    let a = Container::new(lab, 2).publishing(ports.clone());
    a.set_up(&net);
    lab.sh("ip netns del netns-2");
    // Its addresses and its port are free again as soon as the namespace is gone, and podman gives them to another one.
    let mut b = Container::new(lab, 2).publishing(ports);
    b.id = "b".repeat(64);
    a.tear_down(&net);
    b.set_up(&net);
    a.tear_down(&net);
    lab.sh("ip link set lo up; ip address add 192.0.2.9/32 dev lo");
    let server = Server::start("tcp", Some(&b.netns), "0.0.0.0", 80);
    HOST.expect(&from("192.0.2.9"), "192.0.2.9", 8080, &server);
    drop(server);
    b.tear_down(&net);
    assert_clean(lab);
}

#[test]
fn a_network_of_cni_with_the_same_name_keeps_its_hands_off() {
    let lab = &Lab::new();
    let (net, a) = (network(1), Container::new(lab, 2));
    a.set_up(&net);
    let before = lab.sh("ip -br link; nft list ruleset");
    let config = json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "pod1", "ipMasq": true,
        "cni.dev/valid-attachments": [],
    });
    for plugin in ["bridge", "portmap", "firewall"] {
        lab.plugin(plugin, "GC").stdin(with(config.clone(), &json!({"type": plugin})).to_string()).run().ok();
    }
    assert_eq!(lab.sh("ip -br link; nft list ruleset"), before);
    a.tear_down(&net);
    assert_clean(lab);
}

#[test]
fn setup_in_the_own_namespace_is_refused() {
    let lab = &Lab::without_plugins();
    let (net, a) = (network(1), Container::new(lab, 2));
    let own = |command| call(command).arg("/proc/self/ns/net").stdin(a.input(&net, "eth0").to_string()).run();
    assert!(failure(&own("setup")).contains("own network namespace"));
    assert_clean(lab);
    // After a reboot, or when the ID of a process is reused.
    let outcome = own("teardown");
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
}
