//! `cnitool show`.

use serde_json::{Value, json};

use crate::node::{LONG_ID, attach, host, json, lose_namespace, network, page, port};

fn shown(answer: &Value, id: &str) -> Value {
    let ports = answer["bridges"][0]["ports"].as_array().unwrap();
    ports.iter().find(|port| port["container"] == id).unwrap_or_else(|| panic!("{id} in {answer}")).clone()
}

#[test]
fn a_port_is_shown_with_its_container() {
    let host = host("10.118.0.0/24");
    let more = json!({ "hairpinMode": true, "macspoofchk": true, "mtu": 1400 });
    host.configure("10-pods.conflist", &network("pods", "10.118.0.0/24", &more).to_string());
    let id = attach(&host, "blue");
    let answer = json(&host, "show pods --json");
    let bridge = &answer["bridges"][0];
    assert_eq!((&bridge["name"], &bridge["link"]["mtu"]), (&"br-pods".into(), &1400.into()));
    assert_eq!(bridge["link"]["addresses"], json!(["10.118.0.1/24"]));
    let seen = shown(&answer, &id);
    for (key, value) in
        [("hairpin", true), ("isolated", false), ("masquerade", true), ("spoofCheck", true), ("up", true)]
    {
        assert_eq!(seen[key], value, "{key}");
    }
    assert_eq!((&seen["name"], &seen["network"]), (&port(&id).into(), &"pods".into()));
    let guest = &host.lab.ip("-n blue address show dev eth0")[0];
    assert_eq!(seen["guest"]["mac"], guest["address"]);
    assert_eq!(seen["guest"]["addresses"], json!(["10.118.0.2/24"]));
    assert_eq!(seen["guest"]["netns"], "/run/netns/blue");
    assert_eq!(bridge["masquerade"][0]["source"], "10.118.0.2");
    assert_eq!(bridge["masquerade"][0]["ofPort"], true);

    let text = page(&host.run("show"));
    let row = "10.118.0.2/24, hairpin masq spoofchk, in /run/netns/blue";
    for part in ["bridge br-pods\n", "10.118.0.1/24", row, "10-pods.conflist"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.contains("all of ports above"), "{text}");
}

#[test]
fn rules_without_a_port_are_listed() {
    let host = host("10.119.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    let text = page(&host.run("show pods"));
    assert!(text.contains("2 by nftables, 1 of no port above"), "{text}");
    assert!(text.contains(&format!("10.119.0.3: pods, if: eth0, id: {lost}")), "{text}");
}

#[test]
fn one_network_of_a_shared_bridge_is_shown_alone_and_all_are_shown_together() {
    let host = host("10.113.0.0/24");
    let other = network("other", "10.114.0.0/24", &json!({ "bridge": "br-pods" }));
    host.configure("20-other.conflist", &other.to_string());
    let id = attach(&host, "blue");
    host.lab.netns("green");
    host.run("add other /run/netns/green").ok();
    let ports = |answer: &Value| answer["bridges"][0]["ports"].as_array().unwrap().len();
    let answer = json(&host, "show --json");
    assert_eq!((answer["bridges"].as_array().unwrap().len(), ports(&answer)), (1, 2));
    let answer = json(&host, "show pods --json");
    assert_eq!(ports(&answer), 1);
    shown(&answer, &id);
    assert!(page(&host.run("show")).contains("network other"));
}

#[test]
fn a_bridge_that_does_not_exist_yet_and_one_without_a_configuration() {
    let host = host("10.115.0.0/24");
    assert!(page(&host.run("show")).contains("does not exist yet"));
    let id = attach(&host, "blue");
    std::fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    let answer = json(&host, "show --json");
    shown(&answer, &id);
    assert_eq!(answer["bridges"][0]["networks"][0]["file"], Value::Null);
    host.configure("10-pods.conflist", r#"{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}"#);
    assert_eq!(page(&host.run("show lo")), "network lo has no bridge\n");
}

#[test]
fn json_has_full_ids() {
    let host = host("10.116.0.0/24");
    let netns = host.lab.netns("blue");
    let mut config = network("pods", "10.116.0.0/24", &json!({}))["plugins"][0].clone();
    config["name"] = "pods".into();
    config["cniVersion"] = "1.1.0".into();
    host.lab.plugin("bridge", "ADD").attachment(LONG_ID, "eth0", netns).stdin(config.to_string()).run().ok();
    shown(&json(&host, "show --json"), LONG_ID);
    let text = page(&host.run("show"));
    assert!(!text.contains(LONG_ID) && text.contains("0123456789"), "{text}");
}

#[test]
fn ports_whose_bridge_was_deleted_are_shown() {
    let host = host("10.120.0.0/24");
    let id = attach(&host, "blue");
    let name = port(&id);
    host.lab.sh("ip link del br-pods");
    let answer = json(&host, "show --json");
    let bridge = &answer["bridges"][0];
    assert_eq!((&bridge["name"], &bridge["link"], &bridge["ports"]), (&"br-pods".into(), &Value::Null, &json!([])));
    let detached = &bridge["detachedPorts"][0];
    assert_eq!((&detached["name"], &detached["container"]), (&name.as_str().into(), &id.as_str().into()));
    assert_eq!(detached["guest"]["addresses"], json!(["10.120.0.2/24"]));
    assert_eq!(bridge["masquerade"][0]["ofPort"], true, "its rules belong to a port that is shown");
    let text = page(&host.run("show"));
    let (_, below) = text.split_once("\n  on no bridge:\n").unwrap_or_else(|| panic!("{text}"));
    assert!(below.contains(&name) && below.contains("detached"), "{text}");
    // Without a configuration, only the alias names the network.
    std::fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    let answer = json(&host, "show --json");
    assert_eq!(answer["bridges"], json!([]));
    assert_eq!(answer["otherNetworks"][0]["detachedPorts"][0]["name"], name.as_str());
    assert!(page(&host.run("show")).contains("on no bridge:"));
    // On a bridge again, even on another one, it is not detached.
    host.lab.sh(&format!("ip link add br9 type bridge; ip link set {name} master br9"));
    let answer = json(&host, "show --json");
    assert_eq!((&answer["bridges"][0]["name"], &answer["bridges"][0]["detachedPorts"]), (&"br9".into(), &json!([])));
}

#[test]
fn foreign_ports_are_not_shown_as_containers() {
    let host = host("10.117.0.0/24");
    let id = attach(&host, "blue");
    host.lab.netns("vm");
    host.lab.sh("ip link add other7 type ifb; ip link set other7 master br-pods
         ip link add tap7 type veth peer name inside7 netns vm; ip link set tap7 master br-pods up
         ip -n vm address add 10.117.0.77/24 dev inside7
         ip link add vethaaaaaaaa type veth peer name near; ip link set vethaaaaaaaa master br-pods");
    let answer = json(&host, "show pods --json");
    let ports = answer["bridges"][0]["ports"].as_array().unwrap();
    let foreign = |name: &str| ports.iter().find(|port| port["name"] == name).unwrap()["foreign"].clone();
    for name in ["other7", "tap7", "vethaaaaaaaa"] {
        assert_eq!(foreign(name), true, "{name}");
    }
    assert_eq!(foreign(&port(&id)), false);
    let text = page(&host.run("show"));
    assert_eq!(text.matches("(foreign)").count(), 3, "{text}");
    assert!(!text.contains("inside7") && !text.contains("10.117.0.77"), "its other end is not a container's: {text}");
}
