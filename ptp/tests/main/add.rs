//! What ADD creates, and what CHECK and STATUS find.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::{assert_clean, dual_stack, scripted};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Returns the name of the host veth.
fn host_veth(lab: &Lab) -> String {
    lab.sh("ip -o link show type veth").split_whitespace().nth(1).unwrap().split('@').next().unwrap().to_owned()
}

/// The addresses, routes and neighbours of the reference, apart from the scope of the host's routes.
#[test]
fn the_gateway_is_an_address_of_the_host() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let result = pod.add(&dual_stack(json!({ "mtu": 5000, "runtimeConfig": { "mac": "02:00:00:00:00:07" } })));
    let veth = host_veth(lab);
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 2);
    assert_eq!((&interfaces[0]["name"], interfaces[0].get("sandbox")), (&json!(veth), None));
    assert_eq!((&interfaces[1]["name"], &interfaces[1]["mac"]), (&json!("eth0"), &json!("02:00:00:00:00:07")));
    for (ip, address, gateway) in [(0, "10.1.0.2/24", "10.1.0.1"), (1, "fd01::2/64", "fd01::1")] {
        assert_eq!(result["ips"][ip], json!({ "address": address, "gateway": gateway, "interface": 1 }));
    }
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));

    assert_eq!(lab.ip(&format!("link show {veth}"))[0]["mtu"], 5000);
    assert_eq!(pod.ip("link show eth0")[0]["mtu"], 5000);
    let lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(lines(lab.sh("ip route")), [format!("10.1.0.2 dev {veth} scope link")]);
    let routes = lab.sh("ip -6 route");
    assert!(routes.contains(&format!("fd01::2 dev {veth} metric 1024")), "{routes}");
    let addresses = lab.sh(&format!("ip -o address show {veth}"));
    assert!(addresses.contains("10.1.0.1/32") && addresses.contains("fd01::1/128"), "{addresses}");
    assert!(!addresses.contains("tentative"), "{addresses}");
    assert_eq!(
        lines(pod.sh("ip route")),
        [
            "default via 10.1.0.1 dev eth0",
            "10.1.0.0/24 via 10.1.0.1 dev eth0 src 10.1.0.2",
            "10.1.0.1 dev eth0 scope link src 10.1.0.2"
        ]
    );
    let routes = pod.sh("ip -6 route");
    for route in
        ["fd01::1 dev eth0 src fd01::2", "fd01::/64 via fd01::1 dev eth0 src fd01::2", "default via fd01::1 dev eth0"]
    {
        assert!(routes.contains(route), "{route}: {routes}");
    }
    let addresses = pod.sh("ip -o address show eth0");
    assert!(addresses.contains("10.1.0.2/24") && addresses.contains("fd01::2/64"), "{addresses}");
    assert!(addresses.contains("noprefixroute") && !addresses.contains("tentative"), "{addresses}");
    let read = |key: &str| lab.sh(&format!("cat /proc/sys/net/{key}")).trim().to_owned();
    assert_eq!(read(&format!("ipv6/conf/{veth}/accept_ra")), "0");
    assert_eq!((read("ipv4/ip_forward").as_str(), read("ipv6/conf/all/forwarding").as_str()), ("1", "1"));
    pod.del(&dual_stack(json!({})));
    assert_clean(lab);
}

#[test]
fn a_link_local_gateway_needs_no_address_on_the_host() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let config = dual_stack(json!({ "linkLocalGateway": true }));
    let result = pod.add(&config);
    let veth = host_veth(lab);
    assert_eq!(result["ips"][0], json!({ "address": "10.1.0.2/32", "gateway": "169.254.1.1", "interface": 1 }));
    assert_eq!(result["ips"][1], json!({ "address": "fd01::2/128", "gateway": "fe80::1", "interface": 1 }));
    let addresses = lab.sh(&format!("ip -o address show {veth} scope global"));
    assert_eq!(addresses, "");
    // The host looks for the container from this address.
    let link_local = lab.sh(&format!("ip -o -6 address show {veth} scope link"));
    assert!(link_local.contains("fe80:") && !link_local.contains("tentative"), "{link_local}");
    let neighbours = pod.sh("ip neigh show nud permanent");
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    for hop in ["169.254.1.1", "fe80::1"] {
        assert!(neighbours.contains(&format!("{hop} dev eth0 lladdr {mac} PERMANENT")), "{neighbours}");
    }
    let routes = pod.sh("ip route; ip -6 route");
    for route in [
        "default via 169.254.1.1 dev eth0",
        "10.1.0.0/24 via 169.254.1.1 dev eth0",
        "169.254.1.1 dev eth0 scope link src 10.1.0.2",
        "default via fe80::1 dev eth0",
        "fd01::/64 via fe80::1 dev eth0",
    ] {
        assert!(routes.contains(route), "{route}: {routes}");
    }
    pod.check_result(&config, &result).ok();
    // What only this mode has, and CHECK must find missing.
    pod.sh("ip neigh del 169.254.1.1 dev eth0");
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("169.254.1.1"), "{error}");
    pod.del(&config);
    assert_clean(lab);
}

/// Unlike the reference, which needs a gateway and a network.
#[test]
fn addresses_need_neither_a_gateway_nor_a_network() {
    for (address, gateway, hop) in [
        ("10.1.0.2/24", "", "169.254.1.1"),
        ("10.1.0.2/32", "", "169.254.1.1"),
        ("10.1.0.2/32", "10.1.0.1", "10.1.0.1"),
        ("fd01::2/64", "", "fe80::1"),
        ("fd01::2/128", "fd01::1", "fd01::1"),
        ("fd01::2/128", "fe80::1", "fe80::1"),
    ] {
        let lab = &Lab::new();
        let pod = Pod::new(lab, "a");
        let mut ip = json!({ "address": address });
        if !gateway.is_empty() {
            ip["gateway"] = json!(gateway);
        }
        let any = if address.contains(':') { "::/0" } else { "0.0.0.0/0" };
        pod.answer(json!({ "ips": [ip], "routes": [{ "dst": any }] }));
        let result = pod.add(&scripted(json!({})));
        assert_eq!(result["ips"], json!([{ "address": address, "gateway": hop, "interface": 1 }]), "{result}");
        let routes = pod.sh("ip route; ip -6 route");
        assert!(routes.contains(&format!("default via {hop} dev eth0")), "{address}: {routes}");
        pod.check_result(&scripted(json!({})), &result).ok();
        pod.del(&scripted(json!({})));
        assert_clean(lab);
    }
}

/// Two addresses of a family share a gateway, or have their own.
#[test]
fn several_addresses_of_a_family_are_configured() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.answer(json!({ "ips": [
        { "address": "10.1.0.2/24", "gateway": "10.1.0.1" }, { "address": "10.1.0.3/24", "gateway": "10.1.0.1" },
        { "address": "10.2.0.2/16", "gateway": "10.2.0.1" },
    ] }));
    let result = pod.add(&scripted(json!({})));
    assert_eq!(lab.sh("ip route").lines().count(), 3);
    pod.check_result(&scripted(json!({})), &result).ok();
    pod.del(&scripted(json!({})));
    assert_clean(lab);
}

/// Unlike the reference, which requires IPAM.
#[test]
fn without_ipam_the_pair_has_no_addresses() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let config = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "ptp" });
    let result = pod.add(&config);
    assert!(result.get("ips").is_none(), "{result}");
    assert!(pod.sh("ip -o link show eth0").contains("state UP"));
    assert_eq!(lab.sh("cat /proc/sys/net/ipv4/ip_forward").trim(), "0");
    pod.check_result(&config, &result).ok();
    lab.plugin("ptp", "STATUS").stdin(config.to_string()).run().ok();
    pod.del(&config);
    assert_clean(lab);
}

/// The tests of the reference: each backend of the masquerade in each version, with the network's own DNS settings.
#[test]
fn every_version_is_attached_checked_and_detached() {
    for backend in [json!({}), json!({ "ipMasqBackend": "iptables" }), json!({ "ipMasqBackend": "nftables" })] {
        for version in VERSIONS {
            let lab = &Lab::new();
            lab.sh("ip link set lo up");
            let pod = Pod::new(lab, "a");
            let dns = json!({ "nameservers": ["10.1.2.3"], "domain": "some.domain.test", "search": ["a", "b"] });
            let keys = with(json!({ "cniVersion": version, "ipMasq": true, "mtu": 5000, "dns": dns }), backend.clone());
            let config = dual_stack(keys);
            if version == "1.1.0" {
                lab.plugin("ptp", "STATUS").stdin(config.to_string()).run().ok();
            }
            let result = pod.add(&config);
            assert_eq!(result["dns"], dns);
            if version >= "0.3.0" {
                assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
            }
            lab.sh("ping -q -c 1 -W 5 10.1.0.2; ping -q -c 1 -W 5 fd01::2");
            if version >= "0.4.0" {
                pod.check_result(&config, &result).ok();
            }
            pod.del(&config);
            assert!(!pod.sh("ip -o link").contains("eth0"));
            pod.del(&config);
            assert_clean(lab);
        }
    }
}

/// The network's settings replace all of the IPAM plugin's, if any is set, even to an empty list.
#[test]
fn dns_settings_of_the_network_replace_those_of_ipam() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let resolv = lab.dir().join("resolv.conf");
    fs::write(&resolv, "nameserver 192.0.2.3\ndomain local.test\nsearch example.test\noptions pong\n").unwrap();
    let of_ipam = json!({
        "nameservers": ["192.0.2.3"], "domain": "local.test", "search": ["example.test"], "options": ["pong"]
    });
    let mut config = dual_stack(json!({}));
    config["ipam"]["resolvConf"] = json!(resolv);
    let add = |dns: Value| {
        let config = with(config.clone(), json!({ "dns": dns }));
        let result = pod.add(&config);
        pod.del(&config);
        result.get("dns").cloned().unwrap_or_else(|| json!({}))
    };
    assert_eq!(add(json!({})), of_ipam);
    for own in [
        json!({ "nameservers": ["10.1.2.3"] }),
        json!({ "domain": "other.test" }),
        json!({ "search": ["other.test"] }),
        json!({ "options": ["ndots:1"] }),
    ] {
        assert_eq!(add(own.clone()), own);
    }
    assert_eq!(add(json!({ "nameservers": [] })), json!({}));
}

/// Unlike the reference, which succeeds, and leaves a container that cannot be reached.
#[test]
fn an_address_that_another_link_has_a_route_to_is_refused() {
    for keys in [json!({}), json!({ "linkLocalGateway": true })] {
        let lab = &Lab::new();
        let (a, b) = (Pod::new(lab, "a"), Pod::new(lab, "b"));
        let result = a.add(&dual_stack(keys.clone()));
        let veth = host_veth(lab);
        let other = dual_stack(with(keys.clone(), json!({ "name": "net2" })));
        let before = lab.sh("ip address; ip route; ip -6 route");
        let error = b.call("ADD", &other).run().error(999);
        let msg = error["msg"].as_str().unwrap();
        assert!(msg.contains("a route to 10.1.0.2") && msg.contains(&format!("{veth:?}")), "{msg}");
        assert!(error["details"].as_str().unwrap().contains("net1 a eth0"), "names the owner: {error}");
        assert_eq!(lab.sh("ip address; ip route; ip -6 route"), before);
        assert_eq!(lab.sh("find /var/lib/cni/networks/net2 -name '10.*'"), "");
        a.check_result(&dual_stack(keys), &result).ok();
    }
}

#[test]
fn check_finds_damage_on_the_host() {
    let lab = &Lab::new();
    for keys in [json!({}), json!({ "ipMasqBackend": "iptables" }), json!({ "linkLocalGateway": true })] {
        let config = dual_stack(with(keys, json!({ "ipMasq": true })));
        let has_gateway = config.get("linkLocalGateway").is_none();
        for (damage, named) in [
            ("ip address del 10.1.0.1/32 dev $veth", "10.1.0.1"),
            ("ip -6 address del fd01::1/128 dev $veth", "fd01::1"),
            ("ip route del $ip", "10.1.0."),
            ("ip -6 route del $ip6", "fd01::"),
            ("ip link set $veth down", "up of \"veth"),
            ("nft flush ruleset", "masq"),
            ("nsenter --net=/run/netns/a ip route del 10.1.0.1", "10.1.0.1"),
        ] {
            if !has_gateway && [".1/32", "::1/128", "nsenter"].iter().any(|part| damage.contains(part)) {
                continue;
            }
            let pod = Pod::new(lab, "a");
            let result = pod.add(&config);
            pod.check_result(&config, &result).ok();
            let ip = |n: usize| result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap();
            lab.sh(&damage.replace("$veth", &host_veth(lab)).replace("$ip6", ip(1)).replace("$ip", ip(0)));
            let error = pod.check_result(&config, &result).error(999);
            let msg = error["msg"].as_str().unwrap();
            assert!(msg.contains(named) || msg.contains("POSTROUTING"), "{damage}: {msg}");
            pod.del(&config);
            lab.sh("ip netns del a");
        }
    }
    assert_clean(lab);
}

#[test]
fn status_reports_what_an_add_needs() {
    let lab = &Lab::new();
    let status = |config: Value| lab.plugin("ptp", "STATUS").stdin(config.to_string()).run();
    status(dual_stack(json!({ "ipMasq": true }))).ok();
    status(dual_stack(json!({ "ipam": { "type": "absent" } }))).error(50);
    status(dual_stack(json!({ "ipMasqBackend": "ipfw" }))).error(7);
}
