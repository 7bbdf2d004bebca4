//! A node gets another subnet, as from flannel: the network and its bridge stay the same. New containers work at once,
//! old ones keep working, and the old gateway goes with the last container that needs it.

use serde_json::{Value, json};
use testing::config::with;
use testing::packets::{send, udp};
use testing::{Lab, Pod};

use crate::stale::{collect, global_addresses, network};

/// Subnets of one node, by family.
#[derive(Clone, Copy)]
enum Families {
    V4,
    V6,
    Both,
}

use Families::{Both, V4, V6};

impl Families {
    /// Returns the configuration with the `n`th subnets.
    fn config(self, n: u8, more: Value) -> Value {
        let mut config = network(n, json!({ "isDefaultGateway": true }));
        let ranges = config["ipam"]["ranges"].as_array().unwrap().clone();
        config["ipam"]["ranges"] = match self {
            V4 => json!([ranges[0]]),
            V6 => json!([ranges[1]]),
            Both => json!(ranges),
        };
        with(config, more)
    }

    /// Returns the gateways of the `n`th subnets.
    fn gateways(self, subnets: &[u8]) -> Vec<String> {
        let v4 = subnets.iter().map(|n| format!("10.{n}.0.1/24")).filter(|_| !matches!(self, V6));
        let v6 = subnets.iter().map(|n| format!("fd0{n}::1/64")).filter(|_| !matches!(self, V4));
        v4.chain(v6).collect()
    }
}

/// Asserts that the bridge has the gateways of these subnets, with their connected routes, and no others.
#[track_caller]
fn assert_gateways(lab: &Lab, families: Families, subnets: &[u8]) {
    assert_eq!(global_addresses(lab, "br0"), families.gateways(subnets));
    let routes = lab.sh("ip -o route show dev br0; ip -o -6 route show dev br0 | grep -v '^fe80' || true");
    let mut nets: Vec<&str> = routes.lines().filter_map(|line| line.split(' ').next()).collect();
    nets.sort_unstable();
    let want = families
        .gateways(subnets)
        .iter()
        .map(|cidr| cidr.replace(".1/24", ".0/24").replace("::1/", "::/"))
        .collect::<Vec<_>>();
    assert_eq!(nets, want, "{routes}");
}

/// Asserts that a pod reaches its gateway.
#[track_caller]
fn assert_reaches_gateway(pod: &Pod<'_>, result: &Value) {
    for ip in result["ips"].as_array().unwrap() {
        let gateway = ip["gateway"].as_str().unwrap();
        let any = if gateway.contains(':') { "::" } else { "0.0.0.0" };
        assert!(send(&pod.udp(any), &udp(None, any, 0), gateway).is_some(), "{gateway}");
    }
}

fn with_result(config: &Value, result: &Value) -> Value {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    config
}

/// Attaches container a with the old subnets, then b with the new ones. Returns them with their configurations and
/// results.
fn attach_both(lab: &Lab, families: Families) -> [(Pod<'_>, Value, Value); 2] {
    lab.sh("ip link set lo up");
    [("a", 1), ("b", 2)].map(|(id, n)| {
        let (pod, config) = (Pod::new(lab, id), families.config(n, json!({})));
        let result = pod.add(&config);
        lab.pass_ticks();
        (pod, config, result)
    })
}

/// Attaches both containers, and asserts that both work.
fn both_attached(lab: &Lab, families: Families) -> [(Pod<'_>, Value, Value); 2] {
    let attached = attach_both(lab, families);
    assert_gateways(lab, families, &[1, 2]);
    for (pod, config, result) in &attached {
        pod.check_result(config, result).ok();
        assert_reaches_gateway(pod, result);
    }
    attached
}

#[test]
fn the_last_old_container_takes_the_old_gateway_along() {
    for families in [V4, V6, Both] {
        let lab = &Lab::new();
        let [(a, _, old), (b, new_config, new)] = both_attached(lab, families);
        a.del(&with_result(&new_config, &old));
        assert_gateways(lab, families, &[2]);
        assert_reaches_gateway(&b, &new);
        b.del(&with_result(&new_config, &new));
        assert_gateways(lab, families, &[2]);
    }
}

/// Before CNI 0.4.0, runtimes do not pass the result of ADD, and a plugin that generates the configuration may pass the
/// one of the ADD.
#[test]
fn the_old_gateway_goes_without_a_previous_result() {
    for families in [V4, V6, Both] {
        for n in [1, 2] {
            let lab = &Lab::new();
            let [(a, ..), (b, config, result)] = both_attached(lab, families);
            a.del(&families.config(n, json!({})));
            assert_gateways(lab, families, &[2]);
            b.check_result(&config, &result).ok();
            // The current gateway stays, whatever the configuration says.
            b.del(&config);
            a.del(&families.config(1, json!({})));
            assert_gateways(lab, families, &[2]);
        }
    }
}

/// With the result and the configuration of the ADD, nothing tells the DEL that the subnet changed. The next ADD
/// notices.
#[test]
fn the_next_add_removes_the_old_gateway() {
    for families in [V4, V6, Both] {
        let lab = &Lab::new();
        let [(a, old_config, old), (b, new_config, new)] = both_attached(lab, families);
        let c = Pod::new(lab, "c");
        c.add(&new_config);
        assert_gateways(lab, families, &[1, 2]);
        a.del(&with_result(&old_config, &old));
        c.del(&new_config);
        c.add(&new_config);
        assert_gateways(lab, families, &[2]);
        assert_reaches_gateway(&b, &new);
    }
}

#[test]
fn the_first_add_after_the_change_removes_a_gateway_without_containers() {
    for families in [V4, V6, Both] {
        let lab = &Lab::new();
        let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
        let old = families.config(1, json!({}));
        let result = a.add(&old);
        a.del(&with_result(&old, &result));
        assert_gateways(lab, families, &[1]);
        let new = families.config(2, json!({}));
        let result = b.add(&new);
        assert_gateways(lab, families, &[2]);
        b.check_result(&new, &result).ok();
    }
}

#[test]
fn an_address_by_hand_stays() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge; ip address add 10.9.0.1/24 dev br0; ip address add fd09::1/64 dev br0 nodad");
    let [(a, _, old), (_, new_config, _)] = attach_both(lab, Both);
    a.del(&with_result(&new_config, &old));
    collect(lab, &new_config, &["b"]);
    assert_eq!(global_addresses(lab, "br0"), ["10.2.0.1/24", "10.9.0.1/24", "fd02::1/64", "fd09::1/64"]);
}

#[test]
fn force_address_replaces_the_gateway_at_once() {
    for families in [V4, V6, Both] {
        let lab = &Lab::new();
        let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
        a.add(&families.config(1, json!({ "forceAddress": true })));
        let new = families.config(2, json!({ "forceAddress": true }));
        let result = b.add(&new);
        assert_gateways(lab, families, &[2]);
        assert_reaches_gateway(&b, &result);
    }
}

/// The runtime has lost its cache, so that it lists no attachment as valid.
#[test]
fn gc_collects_leases_and_gateways_of_the_old_subnet() {
    for families in [V4, V6, Both] {
        let lab = &Lab::new();
        let [_, (b, new_config, new)] = both_attached(lab, families);
        collect(lab, &new_config, &["b"]);
        assert_gateways(lab, families, &[2]);
        assert_reaches_gateway(&b, &new);
        collect(lab, &new_config, &[]);
        assert_gateways(lab, families, &[2]);
        crate::pod::assert_clean(lab);
    }
}
