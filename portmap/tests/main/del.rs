//! DEL: removes everything of the attachment and nothing else, whatever the runtime still knows.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::packets::{Client, Delivery, Server, from};
use testing::{Lab, Pod};

use crate::support::{assert_clean, config, entries, published, table};

/// Returns the configuration without one key.
fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key);
    config
}

#[test]
fn del_removes_the_ports_whatever_the_configuration_says() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let full = config(&["8080:80/tcp", "10.0.0.1 8081:80/udp", "8082:80/sctp"]);
    let previous = |result: Value| with(full.clone(), json!({ "prevResult": result }));
    let ports = |ports: Value| with(full.clone(), json!({ "runtimeConfig": { "portMappings": ports } }));
    let key = |key: &str, value: Value| with(full.clone(), json!({ key: value }));
    for del in [
        full.clone(),
        previous(Value::Null),
        previous(json!({})),
        previous(json!("broken")),
        previous(json!({ "cniVersion": "0.4.0", "ips": [{ "version": "4", "address": "10.1.0.2" }] })),
        previous(json!({ "cniVersion": "9.9.9" })),
        previous(json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.7.7.7/24" }] })),
        without(full.clone(), "runtimeConfig"),
        without(previous(Value::Null), "runtimeConfig"),
        key("runtimeConfig", Value::Null),
        ports(json!([])),
        ports(json!([{ "hostPort": 1, "containerPort": 2, "protocol": "tcp" }])),
        ports(json!([{ "hostPort": 0, "containerPort": -1, "protocol": "none", "hostIP": "nowhere" }])),
        ports(json!("broken")),
        key("backend", json!("iptables")),
        key("backend", json!("nftables")),
        key("backend", json!("unknown")),
        key("backend", json!(5)),
        key("conditionsV4", json!(["-m", "state"])),
        key("conditionsV4", json!(["-s", "10.0.0.0/8"])),
        key("snat", json!(false)),
        key("markMasqBit", json!(99)),
        key("cniVersion", json!("0.3.1")),
    ] {
        pod.add(&full);
        assert_eq!(entries(lab).len(), 10);
        pod.del(&del);
        assert_clean(lab);
        // Twice.
        pod.del(&del);
    }
    pod.add(&full);
    pod.call("DEL", &full).without("CNI_NETNS").run().ok();
    assert_clean(lab);
    pod.add(&full);
    pod.call("DEL", &full).env("CNI_NETNS", "/nowhere").run().ok();
    assert_clean(lab);
}

#[test]
fn del_on_a_host_without_rules_creates_none() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    pod.del(&config(&["8080:80/tcp"]));
    pod.del(&config(&[]));
    assert_eq!(lab.sh("nft list ruleset"), "");
}

#[test]
fn other_attachments_of_the_container_stay() {
    let lab = &Lab::new();
    let eth0 = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let eth1 = eth0.interface("eth1", &["10.1.0.3/24"]);
    let first = config(&["8080:80/tcp"]);
    let other_interface = config(&["8081:80/tcp"]);
    let other_network = on_network("net2", config(&["8082:80/tcp"]));
    // The name and the ID together are the same text as above.
    let similar = on_network("net", config(&["8083:80/tcp"]));
    let twin = Pod { id: "1a".to_owned(), ..Pod::with_port(lab, "t", &["10.1.0.4/24"]) };
    eth0.add(&first);
    eth1.add(&other_interface);
    eth0.add(&other_network);
    twin.add(&similar);
    let left = |lab: &Lab| published(lab).iter().map(|line| line[4..8].to_owned()).collect::<Vec<_>>();
    assert_eq!(left(lab), ["8080", "8081", "8082", "8083"]);
    eth0.del(&first);
    assert_eq!(left(lab), ["8081", "8082", "8083"]);
    eth1.check(&other_interface).ok();
    eth0.check(&other_network).ok();
    twin.check(&similar).ok();
    eth0.del(&on_network("net3", first.clone()));
    eth0.del(&other_network);
    assert_eq!(left(lab), ["8081", "8083"]);
    eth1.del(&other_interface);
    twin.del(&similar);
    assert_clean(lab);
}

/// A prefix of an ID is another container.
#[test]
fn containers_with_similar_ids_stay() {
    let lab = &Lab::new();
    let pods = ["ab", "a", "abc"].map(|id| Pod::with_port(lab, id, &["10.1.0.2/24"]));
    for (n, pod) in pods.iter().enumerate() {
        let network = on_network(&format!("net{n}"), config(&[&format!("808{n}:80/tcp")]));
        pod.add(&with(network, json!({ "snat": false })));
    }
    pods[1].del(&on_network("net0", config(&[])));
    pods[2].del(&on_network("net1", config(&[])));
    assert_eq!(published(lab).len(), 3);
}

/// Chains and empty maps stay for the next container.
#[test]
fn the_chains_stay_and_have_no_effect() {
    let lab = &Lab::new();
    let outside = lab.outside();
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    pod.add(&config);
    let server = Server::start("tcp", Some(&pod.netns), "0.0.0.0", 80);
    Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.1", 8080, &server);
    pod.del(&config);
    Client::in_netns(&outside).expect(&Delivery::Refused, "192.0.2.1", 8080, &server);
    let host = Server::start("tcp", None, "0.0.0.0", 8080);
    Client::in_netns(&outside).expect(&from("192.0.2.2"), "192.0.2.1", 8080, &host);
    assert!(table(lab).contains("chain prerouting"));
}

/// The table may be gone, or hold less than expected.
#[test]
fn del_succeeds_if_rules_are_missing() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let config = with(config(&["8080:80/tcp"]), json!({ "conditionsV4": ["-i", "uplink"] }));
    for break_it in [
        "nft delete table inet cni_hostport",
        "nft flush table inet cni_hostport",
        "nft flush ruleset",
        "nft flush set inet cni_hostport ipv4_masquerade",
        "nft flush set inet cni_hostport attachments",
        "nft delete set inet cni_hostport attachments",
        "nft flush chain inet cni_hostport published",
        "for m in $(nft list maps | sed -n 's/.*map \\(.*\\) {/\\1/p'); do nft flush map inet cni_hostport $m; done",
    ] {
        pod.add(&config);
        lab.sh(break_it);
        pod.del(&config);
        assert_clean(lab);
        assert!(!table(lab).contains("_ports_"), "{break_it}: {}", table(lab));
    }
}

/// The administrator has deleted, or uses, a chain or a map of a network with conditions.
#[test]
fn del_succeeds_if_a_scope_cannot_be_deleted() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let config = with(config(&["8080:80/tcp"]), json!({ "conditionsV4": ["-i", "uplink"] }));
    for break_it in [
        "flush chain $table published; nft flush chain $table $chain; nft flush map $table inventory
         nft delete chain $table $chain",
        "flush chain $table published; nft flush chain $table $chain; nft delete map $table $map",
        "add rule $table output ip daddr 192.0.2.1 jump $chain",
        "'add rule $table output dnat ip to meta l4proto . th dport map @'$map",
    ] {
        pod.add(&config);
        lab.sh(&format!(
            "table='inet cni_hostport'
             chain=$(nft list table $table | sed -n 's/.*chain \\(ipv4_translate_.*\\) {{/\\1/p')
             map=$(nft list table $table | sed -n 's/.*map \\(ipv4_ports_.*\\) {{/\\1/p')
             nft {}",
            break_it.replace("'add rule $table", "\"add rule $table").replace("@'", "@\"")
        ));
        pod.del(&config);
        assert_clean(lab);
        pod.add(&config);
        pod.check(&config).ok();
        lab.sh("nft delete table inet cni_hostport");
    }
}
