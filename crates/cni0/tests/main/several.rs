//! A container with several interfaces, each by another plugin, as Multus attaches them.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, can_create_link};

/// Returns the network of a plugin, with a subnet of its own.
fn network(plugin: &str, number: usize) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": format!("10.{number}.0.0/24") }]] });
    let keys = match plugin {
        "bridge" => json!({ "bridge": "br0", "isGateway": true, "ipMasq": true }),
        "ptp" => json!({ "ipMasq": true }),
        "vlan" => json!({ "master": "uplink", "vlanId": 5 }),
        _ => json!({ "master": "uplink" }),
    };
    with(json!({ "cniVersion": "1.1.0", "name": format!("net-{plugin}"), "type": plugin, "ipam": ipam }), keys)
}

/// Returns all orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for number in 0..count {
        let insert = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |place| [&order[..place], &[number], &order[place..]].concat())
        };
        all = all.iter().flat_map(insert).collect();
    }
    all
}

/// The attachments are independent: in any order each ADD adds its interface, each DEL removes it, and in the end
/// nothing is left.
#[test]
fn interfaces_come_and_go_in_every_order() {
    let lab = &Lab::new();
    lab.sh("ip link set lo up; ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up");
    let mut plugins = vec!["bridge", "macvlan", "ptp"];
    // A link has either macvlan or ipvlan interfaces.
    plugins.extend(can_create_link("link uplink type vlan id 9").then_some("vlan"));
    let networks: Vec<Value> = plugins.iter().zip(1..).map(|(plugin, number)| network(plugin, number)).collect();
    let orders = orders(networks.len());
    for (number, order) in orders.iter().enumerate() {
        let pod = Pod::new(lab, &format!("c{number}"));
        let interface = |index: usize| pod.interface(&format!("net{index}"), &[]);
        let results: Vec<Value> = order.iter().map(|index| interface(*index).add(&networks[*index])).collect();
        for (index, result) in order.iter().zip(&results) {
            interface(*index).check_result(&networks[*index], result).ok();
        }
        // They go in the order of another container.
        let mut left: Vec<usize> = order.clone();
        for index in &orders[orders.len() - 1 - number] {
            interface(*index).del(&networks[*index]);
            left.retain(|other| other != index);
            let links = pod.sh("ip -o link");
            let has = |index: &usize| links.contains(&format!("net{index}"));
            assert!(left.iter().all(has) && !has(index), "{order:?} without {index}: {links}");
        }
        assert_eq!(lab.sh("find /var/lib/cni -name '10.*'"), "", "{order:?}");
        assert!(!lab.sh("nft list ruleset").contains(&format!("id: c{number}")), "{order:?}");
    }
}
