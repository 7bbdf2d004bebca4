//! `create`: what podman leaves to the driver of a network.

use std::fs;

use serde_json::{Value, json};
use testing::Lab;

use crate::support::{BRIDGE, ID, call, failure, request, with};

fn create(request: &Value) -> Value {
    call("create").stdin(request.to_string()).run().ok()
}

#[test]
fn a_network_gets_a_bridge_and_a_subnet() {
    let _lab = Lab::without_plugins();
    let created = create(&request("web"));
    let wanted = with(
        request("web"),
        &json!({
            "network_interface": BRIDGE, "subnets": [{"subnet": "10.89.0.0/24"}], "dns_enabled": false,
            "ipam_options": {"driver": "host-local"},
        }),
    );
    assert_eq!(created, wanted, "podman refuses another name, ID or driver");
    // The name of the bridge is unique.
    let other = with(request("db"), &json!({"id": ID.chars().rev().collect::<String>()}));
    assert_ne!(create(&other)["network_interface"], BRIDGE);
}

#[test]
fn what_the_user_chose_is_kept() {
    let _lab = Lab::without_plugins();
    let chosen = json!({
        "network_interface": "br9", "options": {"mtu": "1400", "isolate": "true"}, "labels": {"a": "b"}, "internal": true,
        "subnets": [{"subnet": "10.7.0.0/16", "gateway": "10.7.0.9", "lease_range": {"start_ip": "10.7.1.1"}}],
        "routes": [{"destination": "10.8.0.0/16", "gateway": "10.7.0.8", "metric": 5}],
    });
    let created = create(&with(request("web"), &chosen));
    for (key, value) in chosen.as_object().unwrap() {
        assert_eq!(created[key], *value);
    }
}

#[test]
fn a_network_for_ipv6_gets_a_random_ipv6_subnet() {
    let _lab = Lab::without_plugins();
    let subnets = |request: &Value| -> Vec<String> {
        let subnets = create(request)["subnets"].as_array().unwrap().clone();
        subnets.iter().map(|subnet| subnet["subnet"].as_str().unwrap().to_owned()).collect()
    };
    let both = with(request("web"), &json!({"ipv6_enabled": true}));
    let [v4, v6] = &subnets(&both)[..] else { panic!("two subnets") };
    assert!(v4 == "10.89.0.0/24" && v6.starts_with("fd") && v6.ends_with("::/64"), "{v4} {v6}");
    assert_ne!(*v6, subnets(&both)[1]);
    // A subnet that the user chose is enough, of either family.
    let given = with(both, &json!({"subnets": [{"subnet": "fd09::/64"}]}));
    assert_eq!(subnets(&given), ["fd09::/64"]);
    let given = with(request("web"), &json!({"subnets": [{"subnet": "fd09::/64"}]}));
    assert_eq!(create(&given)["ipv6_enabled"], true);
}

#[test]
fn a_subnet_that_is_in_use_is_not_chosen() {
    let lab = &Lab::without_plugins();
    lab.sh("ip link set lo up; ip address add 10.89.0.5/24 dev lo; ip route add unreachable 10.89.2.0/23");
    let home = lab.dir().join("home");
    let networks = home.join("containers/storage/networks");
    fs::create_dir_all(&networks).unwrap();
    let saved = json!({"name": "x", "id": ID, "driver": "bridge", "subnets": [{"subnet": "10.89.1.0/24"}]});
    fs::write(networks.join("x.json"), saved.to_string()).unwrap();
    fs::write(networks.join("broken.json"), "{").unwrap();
    let created = call("create").env("XDG_DATA_HOME", &home).stdin(request("web").to_string()).run().ok();
    assert_eq!(created["subnets"], json!([{"subnet": "10.89.4.0/24"}]));
}

/// podman itself compares only networks of the driver `bridge`.
#[test]
fn what_another_network_has_is_refused() {
    let lab = &Lab::without_plugins();
    lab.sh("ip link set lo up; ip address add 10.5.0.1/24 dev lo");
    let networks = lab.dir().join("containers/storage/networks");
    fs::create_dir_all(&networks).unwrap();
    let saved = json!({
        "name": "x", "id": ID, "driver": "cni0", "network_interface": "br9", "subnets": [{"subnet": "10.6.0.0/16"}],
    });
    fs::write(networks.join("x.json"), saved.to_string()).unwrap();
    // It is never opened.
    lab.sh(&format!("mkfifo {}", networks.join("pipe.json").display()));
    for (wrong, message) in [
        (json!({"network_interface": "br9"}), r#"bridge "br9" is that of network "x" (choose another"#),
        (
            json!({"subnets": [{"subnet": "10.6.1.0/24"}]}),
            r#"subnet 10.6.1.0/24 is in use: podman has the network "x""#,
        ),
        (
            json!({"subnets": [{"subnet": "10.5.0.0/16"}]}),
            "subnet 10.5.0.0/16 is in use: link lo has the address 10.5.0.1/24",
        ),
    ] {
        let outcome =
            call("create").env("XDG_DATA_HOME", lab.dir()).stdin(with(request("web"), &wrong).to_string()).run();
        let error = failure(&outcome);
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_network_without_addresses_gets_no_subnet() {
    let _lab = Lab::without_plugins();
    let none = json!({"ipam_options": {"driver": "none"}});
    assert_eq!(create(&with(request("web"), &none)).get("subnets"), None);
}

#[test]
fn what_the_driver_cannot_do_is_refused() {
    let _lab = Lab::without_plugins();
    for (wrong, message) in [
        (json!({"options": {"mode": "unmanaged"}}), r#"unknown option "mode""#),
        (json!({"options": {"mtu": "big"}}), r#"option "mtu": "big" is not a valid value"#),
        (
            json!({"options": {"vlan": "4094"}, "network_interface": "a-longer-name"}),
            r#"gateway of the VLAN would be named "a-longer-name.4094""#,
        ),
        (json!({"options": {"mtu": "1279"}, "ipv6_enabled": true}), "1279 is too small for IPv6"),
        (
            json!({"internal": true, "subnets": [{"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"}, {"subnet": "fd01::/64"}]}),
            "some subnets of the network have a gateway",
        ),
        (json!({"ipam_options": {"driver": "dhcp"}}), r#"IPAM driver "dhcp" is not supported"#),
        (json!({"network_interface": "a/b"}), r#"network_interface "a/b" is not a valid bridge name"#),
        (json!({"name": "a b"}), r#"invalid network name "netavark-a b""#),
        (json!({"id": "short"}), r#"network id "short" is not one of podman"#),
        (
            json!({"subnets": [{"subnet": "10.1.0.0/16"}, {"subnet": "10.1.2.0/24"}]}),
            "10.1.0.0/16 and 10.1.2.0/24 overlap",
        ),
        (json!({"subnets": [{"subnet": "10.1.0.0/33"}]}), "10.1.0.0/33"),
        (json!({"subnets": [{"subnet": "10.1.0.0/24"}], "ipam_options": {"driver": "none"}}), "there are subnets"),
        (json!({"routes": [{"destination": "10.8.0.0/16", "route_type": "blackhole"}]}), r#"type "blackhole""#),
        (json!({"routes": [{"destination": "10.8.0.0/16", "gateway": "fd01::1"}]}), "one is IPv4, the other IPv6"),
    ] {
        let outcome = call("create").stdin(with(request("web"), &wrong).to_string()).run();
        let error = failure(&outcome);
        assert!(error.contains(message), "{error}");
    }
}
