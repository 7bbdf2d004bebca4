//! The reference beside this plugin: the same effect, and each restores what the other changed.

use serde_json::{Value, json};
use testing::reference;

use testing::config::with;

use crate::support::{NEW_MAC, Tuned, config, lab, pod, untouched};

/// Returns a configuration that both implementations support.
fn common(keys: Value) -> Value {
    with(config(json!({ "cniVersion": "1.0.0" })), keys)
}

fn examples() -> [Value; 8] {
    [
        json!({ "mac": NEW_MAC }),
        json!({ "promisc": true }),
        json!({ "mtu": 1400 }),
        json!({ "allmulti": true }),
        json!({ "sysctl": { "net.core.somaxconn": "77", "net/ipv4/conf/all/log_martians": "1" } }),
        json!({ "mac": NEW_MAC, "promisc": true, "mtu": 1400, "allmulti": true, "sysctl": { "net.ipv4.conf.eth0.rp_filter": "2" } }),
        json!({ "mac": NEW_MAC, "promisc": true, "mtu": 1400, "args": { "cni": { "mac": "", "promisc": false, "mtu": 0 } } }),
        json!({ "allmulti": true, "args": { "cni": { "allmulti": false, "mtu": 1300 } } }),
    ]
}

#[test]
fn the_effect_is_that_of_the_reference() {
    if reference("tuning", "the_effect_is_that_of_the_reference").is_none() {
        return;
    }
    for keys in examples() {
        let config = common(keys);
        let [expected, found] = [false, true].map(|is_ours| {
            let lab = &lab();
            let pod = pod(lab, "c1");
            let result = if is_ours { pod.add(&config) } else { pod.call_reference("ADD", &config).run().ok() };
            let (mac, mtu, queue, promisc, allmulti, _) = pod.attributes();
            let mut file = pod.backed_up();
            if let Some(file) = file.as_object_mut() {
                file.remove("attachment");
            }
            let mode = lab.sh("stat -c %a /run/cni/tuning/* 2>/dev/null || true");
            let sysctls = pod.sh("cd /proc/sys/net; grep -r . core/somaxconn ipv4/conf 2>/dev/null || true");
            let mut interfaces = result["interfaces"].clone();
            // Only our result has the new MTU.
            for interface in interfaces.as_array_mut().unwrap() {
                interface.as_object_mut().unwrap().remove("mtu");
            }
            ((mac, mtu, queue, promisc, allmulti), file, mode, sysctls, interfaces, result["ips"].clone())
        });
        assert_eq!(found, expected, "{config}");
    }
}

#[test]
fn each_checks_and_restores_what_the_other_changed() {
    if reference("tuning", "each_checks_and_restores_what_the_other_changed").is_none() {
        return;
    }
    for keys in examples() {
        let config = common(keys);
        for is_ours in [false, true] {
            let lab = &lab();
            let pod = pod(lab, "c1");
            let result = if is_ours { pod.add(&config) } else { pod.call_reference("ADD", &config).run().ok() };
            let config = with(config.clone(), json!({ "prevResult": result }));
            pod.call_reference("CHECK", &config).run().ok();
            pod.check(&config).ok();
            if is_ours {
                drop(pod.call_reference("DEL", &config).run().ok())
            } else {
                pod.del(&config)
            }
            let (mac, mtu, queue, promisc, allmulti, _) = pod.attributes();
            let (was_mac, was_mtu, was_queue, was_promisc, was_allmulti, _) = untouched();
            assert_eq!((mac, mtu, queue), (was_mac, was_mtu, was_queue), "ours: {is_ours} {config}");
            assert_eq!((promisc, allmulti), (was_promisc, was_allmulti), "ours: {is_ours} {config}");
            assert_eq!(pod.backed_up(), Value::Null, "ours: {is_ours} {config}");
        }
    }
}

/// A file of the reference does not say whose it is.
#[test]
fn a_file_of_the_reference_is_only_used_for_its_interface() {
    if reference("tuning", "a_file_of_the_reference_is_only_used_for_its_interface").is_none() {
        return;
    }
    let lab = &lab();
    let (pod, other) = (pod(lab, "c1"), pod(lab, "c2"));
    let config = common(json!({ "mtu": 1400 }));
    // Another container of the network, which has the same MTU.
    other.sh("ip link set eth0 address 02:00:00:00:00:02 mtu 1400");
    let added = with(config.clone(), json!({ "prevResult": pod.call_reference("ADD", &config).run().ok() }));
    pod.call("DEL", &added).env("CNI_NETNS", &other.netns).run().ok();
    assert_eq!((other.link()["mtu"].clone(), pod.backed_up()), (json!(1400), Value::Null));
    // A file that the reference left, because the namespace was gone, and an ID that is used again.
    pod.sh("ip link set eth0 mtu 1450");
    for keys in [json!({}), json!({ "mtu": 1450, "promisc": true }), json!({ "mtu": 1300 })] {
        lab.sh("mkdir -p /run/cni/tuning; echo \"{\\\"mtu\\\": 1500}\" >/run/cni/tuning/c1_eth0.json");
        pod.del(&common(keys.clone()));
        assert_eq!((pod.link()["mtu"].clone(), pod.backed_up()), (json!(1450), Value::Null), "{keys}");
    }
}

/// After an upgrade, a runtime may repeat the ADD. The interface already has the values of the configuration then.
#[test]
fn add_keeps_the_original_values_of_the_reference() {
    if reference("tuning", "add_keeps_the_original_values_of_the_reference").is_none() {
        return;
    }
    for keys in examples() {
        let config = common(keys);
        // The second configuration may tune more.
        for more in [json!({}), json!({ "txQLen": 20 })] {
            for restores in ["ours", "theirs"] {
                let lab = &lab();
                let pod = pod(lab, "c1");
                let result = pod.call_reference("ADD", &config).run().ok();
                let file = pod.backed_up();
                let second = with(with(config.clone(), more.clone()), json!({ "prevResult": result }));
                // An ADD that fails leaves the file of the reference.
                pod.refused(&with(second.clone(), json!({ "sysctl": { "net.core.somaxconn": "x" } })), 7);
                assert_eq!(pod.backed_up(), file, "{config}");
                let second = with(second.clone(), json!({ "prevResult": pod.add(&second) }));
                match restores {
                    "ours" => pod.del(&second),
                    _ => drop(pod.call_reference("DEL", &second).run().ok()),
                }
                let (mac, mtu, queue, promisc, allmulti, _) = pod.attributes();
                let (was_mac, was_mtu, was_queue, was_promisc, was_allmulti, _) = untouched();
                assert_eq!(
                    (mac, mtu, promisc, allmulti),
                    (was_mac, was_mtu, was_promisc, was_allmulti),
                    "{restores} {second}"
                );
                // The reference of Debian does not know this key.
                assert!(queue == was_queue || restores == "theirs", "{queue}");
                assert_eq!(pod.backed_up(), Value::Null, "{restores} {second}");
            }
        }
    }
}

/// An ID that is used again, whose earlier file the reference left.
#[test]
fn add_ignores_a_file_of_the_reference_for_another_interface() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    for keys in [json!({ "mtu": 1400 }), json!({ "mtu": 1400, "promisc": true }), json!({ "promisc": true })] {
        lab.sh("mkdir -p /run/cni/tuning; echo \"{\\\"mtu\\\": 1300}\" >/run/cni/tuning/c1_eth0.json");
        let config = common(keys.clone());
        pod.add(&config);
        pod.del(&config);
        assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{keys}");
    }
}

/// Without a previous result, a lease or the alias of the host veth proves whose interface it is.
#[test]
fn a_file_of_the_reference_is_used_without_a_previous_result() {
    if reference("tuning", "a_file_of_the_reference_is_used_without_a_previous_result").is_none() {
        return;
    }
    let lab = &lab();
    let (pod, other) = (pod(lab, "c1"), pod(lab, "c2"));
    let config = common(json!({ "mtu": 1400 }));
    let unknown = with(config.clone(), json!({ "prevResult": null }));
    let lease = |id: &str| {
        lab.sh(&format!(
            "mkdir -p /var/lib/cni/networks/net1; printf '{id}\\r\\neth0' >/var/lib/cni/networks/net1/10.9.0.2"
        ));
    };
    let alias = |id: &str| drop(lab.sh(&format!("ip link set vethc1 alias 'cni-attachment net1 {id} eth0'")));
    for (evidence, mtu) in [("", 1400), ("lease c2", 1400), ("lease c1", 1500), ("alias c2", 1400), ("alias c1", 1500)]
    {
        pod.call_reference("ADD", &config).run().ok();
        match evidence.split_once(' ') {
            Some(("lease", id)) => lease(id),
            Some((_, id)) => alias(id),
            None => {}
        }
        pod.call("DEL", &unknown).run().ok();
        assert_eq!((pod.link()["mtu"].clone(), pod.backed_up()), (json!(mtu), Value::Null), "{evidence:?}");
        lab.sh("rm -rf /var/lib/cni/networks; ip link set vethc1 alias ''");
        pod.sh("ip link set eth0 mtu 1500");
    }
    // The path leads to a neighbour, which has the same MTU and another address.
    other.sh("ip address flush dev eth0; ip address add 10.9.0.3/24 dev eth0; ip link set eth0 mtu 1400");
    pod.call_reference("ADD", &config).run().ok();
    lease("c1");
    alias("c1");
    pod.call("DEL", &unknown).env("CNI_NETNS", &other.netns).run().ok();
    assert_eq!(other.link()["mtu"], 1400);
}
