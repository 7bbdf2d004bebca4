//! The rules of ingress policies: in which families they are, and how long they stay.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::packets::{Delivery, Server, from};
use testing::parallel::{assert_added, assert_silent};
use testing::{Lab, Pod, legacy, parallel, reference};

use crate::support::{config, containers, isolated, rules};

/// The chains of the policies.
const CHAINS: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

fn policy(ingress: &str) -> Value {
    config(json!({ "ingressPolicy": ingress }))
}

/// Returns the rules of policies that name a bridge, of both families.
fn policies(lab: &Lab) -> Vec<String> {
    let listed = ["iptables", "ip6tables"].map(|tool| CHAINS.map(|chain| rules(lab, tool, chain)).concat()).concat();
    listed.into_iter().filter(|rule| rule.starts_with("-i ") || rule.starts_with("-o ")).collect()
}

/// Returns a container that `bridge` attaches to a network with its own bridge, or to the bridge `br0`.
fn attached<'a>(lab: &'a Lab, network: &str, bridge: &str, id: &str) -> Pod<'a> {
    let number = network.trim_start_matches("net");
    let ipam = json!({ "type": "host-local", "subnet": format!("10.{number}.0.0/24") });
    let network = json!({ "cniVersion": "1.1.0", "name": network, "type": "bridge", "bridge": bridge, "ipam": ipam });
    Pod::attached(lab, id, &network)
}

/// A container that gives itself an address of the family that its network does not have reaches no container of
/// another network with a policy.
#[test]
fn an_address_of_the_other_family_does_not_evade_the_policy() {
    for (own, hostile, source, target) in [
        (
            "10.1.0.2/24",
            "ip address add fd09::2/64 dev eth0 nodad; ip -6 route add default via fe80::1 dev eth0",
            "fd09::2",
            "fd02::2",
        ),
        (
            "fd01::2/64",
            "ip address add 10.9.0.2/24 dev eth0; ip route add default via 10.9.0.1; ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev eth0",
            "10.9.0.2",
            "10.2.0.2",
        ),
    ] {
        for ingress in ["open", "same-bridge", "isolated"] {
            let lab = &Lab::new();
            let pod = Pod::on_bridge(lab, "br0", "a", &[own]);
            let other = Pod::on_bridge(lab, "br1", "c", &["10.2.0.2/24", "fd02::2/64"]);
            lab.sh("ip link set br0 address 02:00:00:00:00:01; ip address add fe80::1/64 dev br0 nodad
                    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.br0.rp_filter=0
                    ip route add 10.9.0.0/24 dev br0; ip route add fd09::/64 dev br0");
            pod.add(&policy(ingress));
            other.add(&on_network("net2", policy(ingress)));
            pod.sh(hostile);
            let server = Server::start("udp", Some(&other.netns), target, 80);
            let wanted = if ingress == "open" { from(source) } else { Delivery::Lost };
            pod.client().expect(&wanted, target, 80, &server);
        }
    }
}

#[test]
fn the_policy_of_both_families_is_checked_and_replaced() {
    let lab = &Lab::new();
    let pod = attached(lab, "net1", "br0", "c1");
    for (ingress, count) in [("isolated", 6), ("same-bridge", 4)] {
        pod.add(&policy(ingress));
        assert_eq!(policies(lab).len(), count, "{ingress}");
        for damage in
            ["ip6tables -F CNI-ISOLATION-STAGE-1", "ip6tables -F CNI-ISOLATION-STAGE-2", "nft delete table ip6 filter"]
        {
            pod.check(&policy(ingress)).ok();
            lab.sh(damage);
            pod.check(&policy(ingress)).error(999);
            pod.add(&policy(ingress));
        }
    }
    pod.add(&policy("open"));
    assert_eq!(policies(lab), [""; 0]);
}

/// The kernel may lack IPv6.
#[test]
fn a_host_without_ipv6_needs_no_policy_for_it() {
    let lab = &Lab::new();
    let pod = attached(lab, "net1", "br0", "c1");
    lab.sh("mkdir /run/empty; mount --bind /run/empty /proc/sys/net/ipv6");
    pod.add(&policy("isolated"));
    assert_eq!(policies(lab).len(), 3);
    pod.check(&policy("isolated")).ok();
    pod.del(&policy("isolated"));
    assert_eq!(policies(lab), [""; 0]);
}

#[test]
fn the_policy_goes_with_the_last_attachment() {
    for ingress in ["same-bridge", "isolated"] {
        let lab = &Lab::new();
        let pods = ["c1", "c2"].map(|id| attached(lab, "net1", "br0", id));
        let other = attached(lab, "net2", "br0", "c3");
        for config in [
            policy(ingress),
            // Whatever the configuration says now.
            policy("open"),
            policy("nonsense"),
            with(policy(ingress), json!({ "prevResult": null })),
            with(policy("open"), json!({ "prevResult": null })),
        ] {
            pods.iter().for_each(|pod| drop(pod.add(&policy(ingress))));
            other.add(&on_network("net2", policy(ingress)));
            let all = policies(lab).len();
            pods[0].del(&config);
            assert_eq!(policies(lab).len(), all, "{config}");
            pods[1].check(&policy(ingress)).ok();
            for _ in 0..2 {
                pods[1].del(&config);
                assert_eq!(policies(lab).len(), all / 2, "{config}");
                other.check(&on_network("net2", policy(ingress))).ok();
            }
            other.del(&on_network("net2", config.clone()));
            assert_eq!((policies(lab), isolated(lab)), (vec![], vec![]), "{config}");
        }
    }
}

/// As many networks come and go.
#[test]
fn the_number_of_rules_does_not_grow_with_the_number_of_networks() {
    let lab = &Lab::new();
    let shared =
        |lab: &Lab| lab.sh("iptables -S; ip6tables -S").lines().filter(|line| line.contains("ISOLATION")).count();
    let mut before = None;
    for number in 1..=24 {
        let (network, bridge) = (format!("net{number}"), format!("br{}", number % 3));
        let pod = attached(lab, &network, &bridge, &format!("c{number}"));
        let config = on_network(&network, policy(if number % 2 == 0 { "isolated" } else { "same-bridge" }));
        pod.add(&config);
        pod.check(&config).ok();
        pod.del(&config);
        assert_eq!(*before.get_or_insert_with(|| shared(lab)), shared(lab), "after {number} networks");
    }
    assert_eq!(policies(lab), [""; 0]);
}

/// Without addresses, a container with `same-bridge` has nothing in nf_tables that names it.
#[test]
fn containers_without_addresses_keep_the_policy() {
    let lab = &Lab::new();
    let network = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0" });
    let pods = ["c1", "c2"].map(|id| Pod::attached(lab, id, &network));
    let config = policy("same-bridge");
    pods.iter().for_each(|pod| drop(pod.add(&config)));
    assert_eq!(policies(lab).len(), 4);
    pods[0].del(&config);
    assert_eq!(policies(lab).len(), 4);
    // The runtime calls bridge next.
    pods[0].call("DEL", &network).run().ok();
    pods[1].del(&config);
    assert_eq!(policies(lab), [""; 0]);
}

/// The reference, or another program, attached a container to the bridge. Its network is not known.
#[test]
fn a_container_of_an_unknown_network_keeps_the_policy() {
    let lab = &Lab::new();
    let pod = attached(lab, "net1", "br0", "c1");
    lab.sh("ip link add stranger type veth peer name peer; ip link set stranger master br0");
    pod.add(&policy("isolated"));
    pod.del(&policy("isolated"));
    assert_eq!(policies(lab).len(), 6);
    // An uplink of the bridge is not a container.
    lab.sh("ip link del stranger; ip link add uplink type bridge; ip link add vlan7 link uplink type macvlan; ip link set vlan7 master br0");
    pod.del(&policy("isolated"));
    assert_eq!(policies(lab), [""; 0]);
}

#[test]
fn all_attachments_may_end_at_once() {
    let lab = &Lab::new();
    for ingress in ["same-bridge", "isolated"] {
        let config = policy(ingress);
        let pods: Vec<_> = (0..12).map(|n| attached(lab, "net1", "br0", &format!("{ingress}{n}"))).collect();
        let call = |command: &str| parallel::run(pods.iter().map(|pod| pod.call(command, &config)).collect());
        for _ in 0..3 {
            assert_added(&call("ADD"));
            assert_silent(&call("CHECK"));
            assert_silent(&call("DEL"));
            assert_eq!((policies(lab), isolated(lab)), (vec![], vec![]));
        }
    }
}

/// Each of two DELs sees the rules of the other attachment when it lists them.
#[test]
fn the_last_two_attachments_may_end_at_once() {
    let lab = &Lab::new();
    let pods = ["c1", "c2"].map(|id| attached(lab, "net1", "br0", id));
    let config = policy("same-bridge");
    pods.iter().for_each(|pod| drop(pod.add(&config)));
    // The third message lists the rules of IPv6; then those of IPv4 are known, and none is deleted yet.
    let outcome = parallel::stopped_after(lab, pods[0].call("DEL", &config), "sendto", 3, || {
        assert_eq!(containers(lab).len(), 2, "it has deleted nothing");
        pods[1].del(&config);
        assert_eq!(policies(lab).len(), 4, "the first attachment still has its rules");
    });
    outcome.expect("the DEL did not send three messages").ok();
    assert_eq!((containers(lab), policies(lab)), (vec![], vec![]));
}

/// The last attachment ends while the next one starts: the policy must be there for it.
#[test]
fn an_attachment_that_starts_meanwhile_has_the_policy() {
    let lab = &Lab::new();
    for ingress in ["same-bridge", "isolated"] {
        let config = policy(ingress);
        let pods = ["a", "b"].map(|id| attached(lab, "net1", "br0", &format!("{ingress}{id}")));
        pods[0].add(&config);
        for n in 0..20 {
            let (ends, starts) = (&pods[n % 2], &pods[(n + 1) % 2]);
            let outcomes = parallel::run(vec![ends.call("DEL", &config), starts.call("ADD", &config)]);
            outcomes.iter().for_each(|outcome| drop(outcome.ok()));
            starts.check(&config).ok();
        }
        pods.iter().for_each(|pod| pod.del(&config));
        assert_eq!(policies(lab), [""; 0]);
    }
}

#[test]
fn gc_removes_the_policy_of_a_network_without_attachments() {
    let lab = &Lab::new();
    let network = |name: &str| {
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
        json!({ "cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": "br0", "ipam": ipam })
    };
    let collect = |config: Value, valid: Value| {
        let plugin = config["type"].as_str().unwrap().to_owned();
        let config = with(config, json!({ "cni.dev/valid-attachments": valid }));
        lab.plugin(&plugin, "GC").stdin(config.to_string()).run().ok();
    };
    let pod = attached(lab, "net1", "br0", "c1");
    let config = policy("isolated");
    pod.add(&config);
    collect(config.clone(), json!([{ "containerID": "c1", "ifname": "eth0" }]));
    pod.check(&config).ok();
    collect(on_network("net2", config.clone()), json!([]));
    pod.check(&config).ok();
    // The port of the container still exists: it may have been attached since the runtime made the list.
    collect(config.clone(), json!([]));
    assert_eq!(policies(lab).len(), 6);
    collect(network("net1"), json!([]));
    collect(config, json!([]));
    assert_eq!(policies(lab), [""; 0]);
}

#[test]
fn the_policy_in_a_legacy_table_goes_with_the_last_container_of_the_bridge() {
    let Some(lab) = &legacy::host("filter", "the_policy_in_a_legacy_table_goes_with_the_last_container_of_the_bridge")
    else {
        return;
    };
    let listed = || {
        let all =
            ["iptables-legacy", "ip6tables-legacy"].map(|tool| CHAINS.map(|chain| rules(lab, tool, chain)).concat());
        all.concat().into_iter().filter(|rule| rule.starts_with("-i ") || rule.starts_with("-o ")).count()
    };
    let pods = [attached(lab, "net1", "br0", "c1"), attached(lab, "net2", "br0", "c2")];
    let configs = ["net1", "net2"].map(|name| on_network(name, policy("same-bridge")));
    pods.iter().zip(&configs).for_each(|(pod, config)| drop(pod.add(config)));
    assert_eq!(listed(), 4);
    pods[0].del(&configs[0]);
    assert_eq!(listed(), 4);
    pods[1].check(&configs[1]).ok();
    let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
    let network = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0", "ipam": ipam });
    pods[0].call("DEL", &network).run().ok();
    pods[1].del(&configs[1]);
    assert_eq!(listed(), 0);
}

/// Those of the reference are not replaced in a family in which it has none.
#[test]
fn a_policy_of_the_reference_is_enough_for_check() {
    if reference("firewall", "a_policy_of_the_reference_is_enough_for_check").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "c1", &["10.9.0.2/24"]);
    let config = with(policy("same-bridge"), json!({ "cniVersion": "1.0.0" }));
    pod.call_reference("ADD", &config).run().ok();
    pod.check(&config).ok();
}
