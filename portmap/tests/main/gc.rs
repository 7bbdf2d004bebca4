//! GC: removes the ports of attachments that are not listed, keeps listed ones, and ignores other networks.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::{Lab, Outcome, Pod};

use crate::support::{assert_clean, config, entries, published, table};

/// Calls GC with a list of valid attachments.
fn collect(lab: &Lab, config: &Value, valid: Value) -> Outcome {
    let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("portmap", "GC").stdin(config.to_string()).run()
}

fn valid(attachments: &[(&str, &str)]) -> Value {
    attachments.iter().map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname })).collect()
}

#[test]
fn only_stale_attachments_of_the_network_are_removed() {
    let lab = &Lab::new();
    let pod = |n: usize| Pod::with_port(lab, &format!("c{n}"), &[&format!("10.1.0.{n}/24"), &format!("fd01::{n}/64")]);
    let pods: Vec<_> = (2..7).map(pod).collect();
    let ports = |n: usize| config(&[&format!("808{n}:80/tcp"), &format!("10.0.0.1 808{n}:80/udp")]);
    for (n, pod) in pods.iter().take(3).enumerate() {
        pod.add(&ports(n));
    }
    let second = Pod::with_port(lab, "x", &["10.2.0.2/24"]);
    let second = Pod { id: "c2".to_owned(), ifname: "eth1".to_owned(), ..second };
    second.add(&ports(3));
    let (foreign, similar) = (on_network("net2", ports(4)), on_network("net1-other", ports(5)));
    pods[3].add(&foreign);
    pods[4].add(&similar);
    let left = |lab: &Lab| {
        let mut ids: Vec<String> =
            published(lab).iter().map(|line| line.split_once("(net: ").unwrap().1.to_owned()).collect();
        ids.sort();
        ids.dedup();
        ids
    };
    // Whatever ports the configuration names.
    collect(lab, &config(&[]), valid(&[("c2", "eth0"), ("c4", "eth0"), ("absent", "eth0")])).ok();
    let foreigners = ["net1-other, if: eth0, id: c6)", "net2, if: eth0, id: c5)"];
    let kept = ["net1, if: eth0, id: c2)", "net1, if: eth0, id: c4)"];
    let mut want = [kept, foreigners].concat();
    want.sort_unstable();
    assert_eq!(left(lab), want);
    pods[0].check(&ports(0)).ok();
    pods[2].check(&ports(2)).ok();
    collect(lab, &ports(0), json!([])).ok();
    assert_eq!(left(lab), foreigners);
    pods[3].check(&foreign).ok();
    collect(lab, &foreign, json!([])).ok();
    collect(lab, &similar, json!([])).ok();
    assert_clean(lab);
    // Again, without anything to do.
    collect(lab, &foreign, json!([])).ok();
}

#[test]
fn without_a_list_nothing_is_removed() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    pod.add(&config(&["8080:80/tcp"]));
    let before = entries(lab);
    lab.plugin("portmap", "GC").stdin(config(&[]).to_string()).run().error(7);
    assert_eq!(entries(lab), before);
}

#[test]
fn a_host_without_rules_stays_so() {
    let lab = &Lab::new();
    collect(lab, &config(&["8080:80/tcp"]), json!([])).ok();
    assert_eq!(lab.sh("nft list ruleset"), "");
}

#[test]
fn conditional_scopes_vanish_with_their_last_mapping() {
    let lab = &Lab::new();
    let conditional = |port: &str| {
        with(
            config(&[port]),
            json!({ "conditionsV4": ["-i", "uplink"], "conditionsV6": ["ip6", "saddr", "{ fd07::1, fd07::2 }"] }),
        )
    };
    let a = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let b = Pod::with_port(lab, "b", &["10.1.0.3/24", "fd01::3/64"]);
    let plain = Pod::with_port(lab, "c", &["10.1.0.4/24", "fd01::4/64"]);
    plain.add(&on_network("net2", config(&["9090:80/tcp"])));
    let before = table(lab);
    let scopes = |lab: &Lab| table(lab).matches("chain ipv").count();
    assert_eq!(scopes(lab), 2);
    a.add(&conditional("8080:80/tcp"));
    b.add(&conditional("8081:80/tcp"));
    assert_eq!(scopes(lab), 4);
    a.del(&conditional("8080:80/tcp"));
    assert_eq!(scopes(lab), 4);
    b.check(&conditional("8081:80/tcp")).ok();
    collect(lab, &config(&[]), valid(&[("b", "eth0")])).ok();
    assert_eq!(scopes(lab), 4);
    collect(lab, &config(&[]), json!([])).ok();
    assert_eq!(table(lab), before);
    plain.check(&on_network("net2", config(&["9090:80/tcp"]))).ok();
}
