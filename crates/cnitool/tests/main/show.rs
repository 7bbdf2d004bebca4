//! `cnitool show`.

use serde_json::{Value, json};

use crate::node::{LONG_ID, attach, attach_with, host, host_with, json, lose_namespace, network, page, port};
use crate::support::failure;

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

#[test]
fn a_container_is_shown_by_whatever_names_it() {
    let host = host_with("172.20.60.0/24", &json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    let blue =
        attach_with(&host, "blue", r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#);
    let green = attach(&host, "green");
    let link = port(&blue);
    let beginning: String = (3..).map(|len| blue[..len].to_owned()).find(|id| !green.starts_with(id)).unwrap();
    for what in [&blue, &beginning, "172.20.60.2", "172.20.60.2/24", "8080", ":8080", "blue", "/run/netns/blue", &link]
    {
        let answer = json(&host, &format!("show {what} --json"));
        let all = answer["containers"].as_array().unwrap();
        assert_eq!(all.len(), 1, "{what}: {answer:#}");
        let one = &all[0];
        assert_eq!((&one["container"], &one["interface"]), (&json!(blue), &json!("eth0")), "{what}");
        assert_eq!((&one["network"], &one["state"]), (&json!("pods"), &json!("alive")));
        assert_eq!((&one["addresses"], &one["netns"]), (&json!(["172.20.60.2"]), &json!("/run/netns/blue")));
        assert_eq!((&one["hostSide"]["name"], &one["hostSide"]["master"]), (&json!(link), &json!("br-pods")));
        assert_eq!(one["mtus"].as_array().unwrap().len(), 3, "{answer:#}");
        assert_eq!(one["leases"][0]["address"], "172.20.60.2");
        let published = |object: &&Value| object["hostPort"] == 8080 && object["containerPort"] == 80;
        assert_eq!(one["objects"].as_array().unwrap().iter().filter(published).count(), 1, "{answer:#}");
        assert!(one["cache"].as_str().unwrap().starts_with("/var/lib/cni/results/pods-"), "{answer:#}");
    }
    let text = page(&host.run("show 8080"));
    for part in
        [&format!("container {blue}"), "172.20.60.2/24", "tcp 0.0.0.0:8080 -> 172.20.60.2:80", "s old)", "eth0 1500, "]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A network, and its bridge, mean the network.
    assert_eq!(json(&host, "show br-pods --json"), json(&host, "show pods --json"));
    let several = failure(&host.run("show eth0"));
    assert!(several.contains("\"eth0\" means 2 containers") && several.contains(&green), "{several}");
    let nothing = failure(&host.run("show 172.20.60.77"));
    assert!(nothing.contains("nor a container, an address"), "{nothing}");
    // Without its namespace, the container has only traces.
    lose_namespace(&host, "green", &green);
    let gone = json(&host, &format!("show {green} --json"));
    assert_eq!((&gone["containers"][0]["state"], &gone["containers"][0]["hostSide"]), (&json!("gone"), &json!(null)));
}
