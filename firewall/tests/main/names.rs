//! Long and unusual names: each rule still belongs to one attachment.

use serde_json::json;
use testing::config::{on_network, with};
use testing::{Lab, Pod};

use crate::support::{accepted, config, containers};

#[test]
fn attachments_with_long_and_similar_names_are_told_apart() {
    let lab = &Lab::new();
    let long = "n".repeat(200);
    let attachments = [
        ("1id".to_owned(), "net1".to_owned()),
        ("11id".to_owned(), "net".to_owned()),
        (format!("{}a", "c".repeat(250)), long.clone()),
        (format!("{}b", "c".repeat(250)), long.clone()),
        (format!("{}b", "c".repeat(250)), format!("{long}x")),
        ("id".to_owned(), "net.1_a-b".to_owned()),
    ];
    let pods: Vec<_> = attachments
        .iter()
        .enumerate()
        .map(|(n, (id, network))| {
            let pod = Pod { port: "host".to_owned(), ..Pod::absent(lab, id, &[&format!("10.9.0.{n}/24")]) };
            (pod, on_network(network, config(json!({}))))
        })
        .collect();
    for (removed, (gone, config)) in pods.iter().enumerate() {
        pods.iter().for_each(|(pod, config)| drop(pod.add(config)));
        gone.del(&with(config.clone(), json!({ "prevResult": null })));
        for (n, (pod, config)) in pods.iter().enumerate() {
            if n == removed { drop(pod.check(config).error(999)) } else { drop(pod.check(config).ok()) }
        }
    }
    pods.iter().for_each(|(pod, config)| pod.del(config));
    assert_eq!(containers(lab), [] as [&str; 0]);
}

#[test]
fn bridges_with_unusual_names_have_policies() {
    let lab = &Lab::new();
    for (n, bridge) in ["br-0.1", "abcdefghijklmno", "br_ä", "a=b,c;d"].iter().enumerate() {
        lab.sh(&format!("ip link add '{bridge}' type bridge"));
        let ip = format!("10.9.0.{n}");
        let pod = Pod { bridge: (*bridge).to_owned(), ..Pod::absent(lab, "c1", &[&format!("{ip}/24")]) };
        let config = config(json!({ "ingressPolicy": "isolated" }));
        for _ in 0..2 {
            pod.add(&config);
            pod.check(&config).ok();
            assert_eq!(containers(lab), accepted(&[&ip]));
            let text = lab.sh("iptables -S");
            assert_eq!(text.matches(bridge).count(), 5, "{text}");
        }
        lab.sh(&format!("ip link delete '{bridge}'"));
    }
}
