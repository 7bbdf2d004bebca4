//! ADD: limits, names, versions, and repeated calls.

use serde_json::{Value, json};
use testing::{Lab, Pod};

use crate::pod::{IFB, both, config, container, container_named, ifbs, limit, redirect, second, state, text, with};

#[test]
fn both_directions_are_limited_in_every_version() {
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let lab = &Lab::new();
        let pod = container(lab);
        let config = with(both(), json!({ "cniVersion": version }));
        let result = pod.add(&config);
        assert_eq!(limit(lab, "vethc1"), Some([1_000_000, 100_000, 25_000]), "{version}");
        assert_eq!(limit(lab, IFB), Some([2_000_000, 100_000, 25_000]), "{version}");
        assert_eq!(redirect(lab, "vethc1").as_deref(), Some(IFB));
        let ifb = &lab.ip(&format!("link show {IFB}"))[0];
        assert_eq!((&ifb["mtu"], &ifb["ifalias"]), (&1500.into(), &"cni-attachment net1 c1 eth0".into()), "{ifb}");
        if version > "0.2.0" {
            assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "{result}");
            assert_eq!(result["interfaces"][2]["name"], IFB, "{result}");
            assert_eq!(result["interfaces"][2]["mac"], ifb["address"], "{result}");
            assert_eq!(result["interfaces"][2].get("sandbox"), None, "{result}");
        }
        pod.sh("ping -q -c 2 -i 0.2 -w 60 10.9.0.1");
        if version >= "0.4.0" {
            pod.check(&config).ok();
        }
        pod.del(&with(config, json!({ "prevResult": null })));
        assert_eq!(ifbs(lab), [""; 0]);
        pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    }
}

#[test]
fn the_mtu_is_that_of_the_veth() {
    let lab = &Lab::new();
    let pod = container(lab);
    lab.sh("ip link set vethc1 mtu 1400");
    pod.add(&both());
    assert_eq!(lab.ip(&format!("link show {IFB}"))[0]["mtu"], 1400);
}

#[test]
fn one_direction_is_limited() {
    let lab = &Lab::new();
    let pod = container(lab);
    let result = pod.add(&config(json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000 })));
    assert_eq!((limit(lab, "vethc1").is_some(), ifbs(lab).len(), redirect(lab, "vethc1")), (true, 0, None));
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2, "{result}");
    lab.sh("tc qdisc del dev vethc1 root");
    pod.add(&config(json!({ "egressRate": 8_000_000, "egressBurst": 800_000 })));
    assert_eq!((limit(lab, "vethc1"), ifbs(lab)), (None, vec![IFB.to_owned()]));
}

/// The plugin does not even open the namespace.
#[test]
fn without_rates_the_result_is_passed_on() {
    let lab = &Lab::new();
    let pod = container(lab);
    let before = state(lab);
    for keys in
        [json!({}), json!({ "ingressRate": 0, "egressBurst": 0 }), json!({ "runtimeConfig": { "bandwidth": {} } })]
    {
        let config = config(keys);
        let mut expected = pod.result("1.1.0");
        expected["cniVersion"] = json!("1.1.0");
        let result = pod.add(&config);
        assert_eq!(result["interfaces"], expected["interfaces"]);
        assert_eq!(result["ips"], expected["ips"]);
        pod.check(&config).ok();
        assert_eq!(state(lab), before);
    }
}

#[test]
fn the_runtime_limits_a_container_unless_the_network_does() {
    let lab = &Lab::new();
    let pod = container(lab);
    let rates =
        json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000 });
    let runtime = json!({ "runtimeConfig": { "bandwidth": rates } });
    pod.add(&config(runtime.clone()));
    assert_eq!(limit(lab, "vethc1"), Some([1_000_000, 100_000, 25_000]));
    assert_eq!(limit(lab, IFB), Some([1_000_000, 100_000, 25_000]));
    let network = with(runtime, json!({ "ingressRate": 16_000_000, "ingressBurst": 800_000 }));
    pod.del(&config(json!({})));
    pod.add(&config(network));
    assert_eq!((limit(lab, "vethc1"), ifbs(lab)), (Some([2_000_000, 100_000, 25_000]), vec![]));
}

/// The reference overflows with these numbers.
#[test]
fn large_numbers_do_not_overflow() {
    let lab = &Lab::new();
    let pod = container(lab);
    for (rate, burst) in [
        (8, 8_000_000_000_u64),
        (100_000_000_000, 34_359_738_352),
        (1_000_000, 2_147_483_640),
        (u64::MAX, 80_000),
        (10_000_000_000, 16_000),
    ] {
        let config =
            config(json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst }));
        pod.add(&config);
        pod.check(&config).ok();
        for link in ["vethc1", IFB] {
            let [seen, _, _] = limit(lab, link).unwrap();
            assert_eq!(seen, rate / 8, "{link}");
        }
        // At the largest rate, the kernel reports no time for a burst, and the largest queue for each.
        if rate < u64::MAX {
            pod.check(&with(config, json!({ "ingressBurst": burst / 4 * 3 }))).error(999);
        }
    }
}

#[test]
fn a_repeated_add_applies_what_changed() {
    let lab = &Lab::new();
    let pod = container(lab);
    let first = pod.add(&both());
    let before = state(lab);
    assert_eq!(pod.add(&both()), first);
    assert_eq!(state(lab), before);
    let faster = with(both(), json!({ "ingressRate": 80_000_000, "egressRate": 160_000_000 }));
    pod.add(&faster);
    assert_eq!((limit(lab, "vethc1").unwrap()[0], limit(lab, IFB).unwrap()[0]), (10_000_000, 20_000_000));
    pod.check(&faster).ok();
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
}

/// As with the reference, for example if the network limits one direction and the runtime the other.
#[test]
fn two_plugins_in_a_list_limit_one_direction_each() {
    let lab = &Lab::new();
    let ingress = config(json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000 }));
    let egress = config(json!({ "egressRate": 16_000_000, "egressBurst": 800_000 }));
    for (id, [first, second]) in [("c1", [&ingress, &egress]), ("c2", [&egress, &ingress])] {
        let pod = container_named(lab, id);
        pod.add(first);
        pod.add(second);
        pod.check(&ingress).ok();
        pod.check(&egress).ok();
        pod.del(second);
        assert_eq!(ifbs(lab), [] as [&str; 0], "{id}");
    }
}

#[test]
fn an_add_after_the_ifb_link_was_deleted_restores_it() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    lab.sh(&format!("ip link delete {IFB}"));
    pod.check(&both()).error(999);
    pod.add(&both());
    pod.check(&both()).ok();
    pod.sh("ping -q -c 1 -w 60 10.9.0.1");
    // A link that someone renamed is found by its alias.
    lab.sh(&format!("ip link set {IFB} down; ip link set {IFB} name renamed"));
    let result = pod.add(&both());
    assert_eq!((ifbs(lab), result["interfaces"][2]["name"].clone()), (vec!["renamed".to_owned()], json!("renamed")));
    pod.check(&both()).ok();
}

#[test]
fn two_interfaces_of_a_container_have_limits_of_their_own() {
    let lab = &Lab::new();
    let pod = container(lab);
    let second = second(&pod);
    pod.add(&both());
    let result = second.add(&with(both(), json!({ "egressRate": 32_000_000 })));
    let other = text(&result["interfaces"][2]["name"]);
    assert_ne!(other, IFB);
    assert_eq!((limit(lab, IFB).unwrap()[0], limit(lab, &other).unwrap()[0]), (2_000_000, 4_000_000));
    assert_eq!(redirect(lab, "vethc1b").unwrap(), other);
    // Also if the call is repeated.
    assert_eq!(second.add(&with(both(), json!({ "egressRate": 32_000_000 }))), result);
    pod.del(&both());
    assert_eq!(ifbs(lab), std::slice::from_ref(&other));
    assert_eq!(redirect(lab, "vethc1b"), Some(other));
    second.check(&with(both(), json!({ "egressRate": 32_000_000 }))).ok();
    second.del(&both());
    assert_eq!(ifbs(lab), [""; 0]);
}

/// `net1` with `1c` and `net` with `11c` have the same name in the reference.
#[test]
fn attachments_with_the_same_hash_are_kept_apart() {
    let lab = &Lab::new();
    let (a, b) = (container_named(lab, "1c"), container_named(lab, "11c"));
    let (net1, net) = (both(), with(both(), json!({ "name": "net" })));
    a.add(&net1);
    b.add(&net);
    assert_eq!(ifbs(lab).len(), 2);
    for (pod, config) in [(&a, &net1), (&b, &net)] {
        pod.check(config).ok();
    }
    a.del(&with(net1.clone(), json!({ "prevResult": null })));
    b.check(&net).ok();
    a.del(&net1);
    b.check(&net).ok();
    b.del(&net);
    assert_eq!(ifbs(lab), [""; 0]);
}

/// Specs of the reference about the host veth.
#[test]
fn only_a_veth_that_the_result_names_is_limited() {
    let lab = &Lab::new();
    let pod = container(lab);
    let before = state(lab);
    let refused = |pod: &Pod<'_>, interfaces: Value, wanted: &str| {
        let result = with(pod.result("1.1.0"), json!({ "interfaces": interfaces, "ips": [] }));
        let error = pod.call("ADD", &with(both(), json!({ "prevResult": result }))).run().error(7);
        assert!(text(&error["msg"]).contains(wanted) && !text(&error["details"]).is_empty(), "{error}");
        assert_eq!(state(lab), before);
    };
    let guest = json!({ "name": "eth0", "sandbox": pod.netns });
    refused(&pod, json!([]), "no interfaces provided");
    refused(&pod, json!([{ "name": "veth9" }, guest]), "no veth peer of container interface found in host ns");
    refused(&pod, json!([{ "name": "vethc1", "sandbox": "/x" }, guest]), "no veth peer of container interface");
    pod.sh("ip link add br0 type bridge; ip link add v1 type veth peer name v2");
    let bridge = Pod { ifname: "br0".to_owned(), ..pod.clone() };
    refused(&bridge, json!([{ "name": "vethc1" }]), "container interface br0 has no veth peer");
    let inside = Pod { ifname: "v1".to_owned(), ..pod.clone() };
    refused(&inside, json!([{ "name": "vethc1" }]), "is not in host ns");
    let many = json!([{ "name": "br9" }, { "name": "veth8" }, { "name": "vethc1" }, guest]);
    let result = with(pod.result("1.1.0"), json!({ "interfaces": many, "ips": [] }));
    pod.add(&with(both(), json!({ "prevResult": result })));
    assert!(limit(lab, "vethc1").is_some());
    let absent = Pod { ifname: "eth7".to_owned(), ..pod.clone() };
    absent.call("ADD", &both()).run().error(999);
}
