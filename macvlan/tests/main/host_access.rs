//! `hostAccess`: the host reaches its containers by a link of its own, and they reach the host at its address.

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::{Effect, inject};
use testing::packets::send;
use testing::parallel::{self, assert_added, assert_silent};
use testing::{Lab, Pod, Scripted, packets};

const UPLINK: &str = "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up";
const IPS: [&[&str]; 2] = [&["10.1.0.2/24", "fd01::2/64"], &["10.1.0.3/24", "fd01::3/64"]];

/// A network whose addresses the test chooses.
fn scripted(more: Value) -> Value {
    let keys = json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "macvlan", "master": "uplink", "ipam": { "type": Scripted::NAME },
        "hostAccess": ["10.1.0.250", "fd01::250"],
    });
    with(keys, more)
}

/// A network with `host-local`.
fn leased(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    with(scripted(json!({ "ipam": ipam })), more)
}

fn lab() -> Lab {
    let lab = Lab::new();
    lab.sh(UPLINK);
    lab
}

/// Returns what `hostAccess` created on the host: links, addresses and routes.
fn traces(lab: &Lab) -> String {
    lab.sh(
        // The kernel reports the carrier of a new link later.
        "{ ip -o link show type macvlan; ip -o address | grep 250 || true; ip route; ip -6 route | grep -v fe80 || true; } |
            sed 's/ state [A-Z]*//; s/NO-CARRIER,//; s/,LOWER_UP//; s/ linkdown//'",
    )
}

fn gc(lab: &Lab, config: &Value, valid: Value) {
    let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("macvlan", "GC").stdin(config.to_string()).run().silent();
}

#[test]
fn host_and_containers_reach_each_other() {
    let lab = &lab();
    let before = traces(lab);
    let config = scripted(json!({}));
    let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
    let results = [&a, &b].map(|pod| pod.add(&config));
    for (pod, own) in [(&a, ["10.1.0.2", "fd01::2"]), (&b, ["10.1.0.3", "fd01::3"])] {
        for ((any, host), own) in [("0.0.0.0", "10.1.0.250"), ("::", "fd01::250")].into_iter().zip(own) {
            let on_host = packets::udp(None, any, 0);
            assert_eq!(send(&pod.udp(any), &on_host, host), own.parse().ok(), "{own} to the host");
            // Without a choice of the sender, the container sees the address at which it reaches the host.
            assert_eq!(send(&on_host, &pod.udp(any), own), host.parse().ok(), "the host to {own}");
        }
    }
    assert!(send(&a.udp("::"), &b.udp("::"), "fd01::3").is_some());
    [&a, &b].iter().zip(&results).for_each(|(pod, result)| drop(pod.check_result(&config, result).ok()));
    assert_eq!(lab.sh("ip -o link show type macvlan | wc -l"), "1\n");
    assert!(lab.sh("ip link show type macvlan").contains("alias cni-host-access net1"));
    // DEL does not depend on the keys.
    a.del(&scripted(json!({ "hostAccess": [], "master": "nope" })));
    assert!(!traces(lab).contains("10.1.0.2 ") && traces(lab).contains("10.1.0.3 "), "{}", traces(lab));
    b.check_result(&config, &results[1]).ok();
    // A second DEL, and one of another container, remove nothing.
    a.del(&config);
    b.check_result(&config, &results[1]).ok();
    b.del(&scripted(json!({ "hostAccess": 5 })));
    assert_eq!(traces(lab), before);
}

/// The host answers only for the addresses of its link there, as before.
#[test]
fn other_addresses_of_the_host_stay_where_they_are() {
    let lab = &Lab::new();
    lab.netns("outside");
    lab.sh("ip link add uplink type veth peer name far netns outside; ip link set uplink up; ip -n outside link set far up");
    lab.sh("ip address add 10.1.0.1/24 dev uplink");
    let a = Pod::with_ips(lab, "a", IPS[0]);
    a.add(&scripted(json!({})));
    packets::assert_nothing_arrives(&a.udp("0.0.0.0"), &packets::udp(None, "0.0.0.0", 0), "10.1.0.1");
    assert!(lab.sh("ip route get 10.1.0.2").contains("src 10.1.0.250"));
    assert!(lab.sh("ip route get 10.1.0.3").contains("dev uplink src 10.1.0.1"));
}

#[test]
fn a_failed_add_leaves_nothing() {
    let lab = &lab();
    let a = Pod::with_ips(lab, "a", IPS[0]);
    let before = traces(lab);
    for (keys, text) in [
        (json!({ "hostAccess": ["10.1.0.2"] }), "the container has the address 10.1.0.2"),
        (
            json!({ "hostAccess": ["10.9.0.250"] }),
            "no address is in a network of the container: [10.1.0.0/24 fd01::/64]",
        ),
        (json!({ "hostAccess": ["10.1.0.9"] }), "link \"used\" of the host has the address 10.1.0.9"),
    ] {
        lab.sh("ip link add used type bridge; ip address add 10.1.0.9/32 dev used");
        let error = a.call("ADD", &scripted(keys.clone())).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert!(!error["details"].as_str().unwrap_or_default().is_empty(), "{keys}: {error}");
        lab.sh("ip link del used");
        assert_eq!(
            (traces(lab), a.sh("ip -o link | grep -c eth0 || true")),
            (before.clone(), "0\n".to_owned()),
            "{keys}"
        );
    }
    // Nor does it change what a neighbour has.
    let b = Pod::with_ips(lab, "b", IPS[1]);
    let result = b.add(&scripted(json!({})));
    let before = traces(lab);
    a.call("ADD", &scripted(json!({ "hostAccess": ["10.1.0.250", "10.1.0.2"] }))).run().error(7);
    assert_eq!(traces(lab), before);
    // Two containers that got the same address by mistake.
    a.answer(json!({ "ips": [{ "address": "10.1.0.3/24" }] }));
    a.add(&scripted(json!({})));
    a.del(&scripted(json!({})));
    assert_eq!(traces(lab), before);
    b.check_result(&scripted(json!({})), &result).ok();
}

#[test]
fn bad_input_is_refused() {
    let lab = &lab();
    let pod = Pod::with_ips(lab, "a", IPS[0]);
    let before = traces(lab);
    for (keys, code, text) in [
        (json!({ "hostAccess": "10.1.0.250" }), 6, "hostAccess"),
        (json!({ "hostAccess": ["x"] }), 7, "invalid address \"x\""),
        (json!({ "hostAccess": ["10.1.0.250/24"] }), 7, "invalid address \"10.1.0.250/24\""),
        (json!({ "hostAccess": ["10.1.0.250", "::"] }), 7, ":: cannot be an address of the host"),
        (json!({ "mode": "private" }), 7, "needs the mode \"bridge\""),
        (json!({ "mode": "vepa" }), 7, "needs the mode \"bridge\""),
        (json!({ "mode": "passthru" }), 7, "needs the mode \"bridge\""),
        (json!({ "linkInContainer": true }), 7, "needs a master on the host"),
        (json!({ "ipam": {} }), 7, "needs the addresses of containers"),
    ] {
        let error = pod.call("ADD", &scripted(keys.clone())).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert!(!error["details"].as_str().unwrap_or_default().is_empty(), "{keys}: {error}");
        pod.del(&scripted(keys));
    }
    assert_eq!(traces(lab), before);
}

#[test]
fn gc_removes_the_routes_of_containers_that_are_gone() {
    for config in [scripted, leased] {
        let lab = &lab();
        let before = traces(lab);
        let config = config(json!({}));
        let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
        let results = [&a, &b].map(|pod| pod.add(&config));
        lab.sh("ip netns del a");
        let b_only = json!([{ "containerID": "b", "ifname": "eth0" }]);
        gc(lab, &with(config.clone(), json!({ "hostAccess": [] })), b_only);
        assert!(!traces(lab).contains("10.1.0.2 "), "{}", traces(lab));
        b.check_result(&config, &results[1]).ok();
        gc(lab, &with(config.clone(), json!({ "name": "net2" })), json!([]));
        b.check_result(&config, &results[1]).ok();
        lab.sh("ip netns del b");
        gc(lab, &config, json!([]));
        assert_eq!(traces(lab), before);
    }
}

/// DEL finds the routes of an attachment without its addresses.
#[test]
fn del_does_not_need_the_namespace() {
    let lab = &lab();
    let before = traces(lab);
    let a = Pod::with_ips(lab, "a", IPS[0]);
    a.add(&scripted(json!({})));
    lab.sh("ip netns del a");
    a.del(&scripted(json!({})));
    assert_eq!(traces(lab), before);
}

#[test]
fn check_looks_at_the_host() {
    let lab = &lab();
    let config = scripted(json!({}));
    let a = Pod::with_ips(lab, "a", IPS[0]);
    for (damage, text) in [
        ("ip link del $l", "the host has no link on \"uplink\" to reach its containers"),
        ("ip link set $l down", "up of "),
        ("ip address del 10.1.0.250/32 dev $l", "lacks the address 10.1.0.250"),
        ("ip route del 10.1.0.2/32 dev $l", "the host has no route to 10.1.0.2 by "),
        ("ip -6 route del fd01::2/128 dev $l", "the host has no route to fd01::2 by "),
    ] {
        let result = a.add(&config);
        a.check_result(&config, &result).ok();
        lab.sh(&format!("l=$(ip -o link show type macvlan | sed 's/^[0-9]*: //; s/@.*//'); {damage}"));
        let error = a.check_result(&config, &result).error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{damage}: {error}");
        a.del(&config);
        assert_eq!(lab.sh("ip -o link show type macvlan"), "", "{damage}");
        // What is missing comes back with the next container.
        let result = a.add(&config);
        a.check_result(&config, &result).ok();
        a.del(&config);
    }
}

#[test]
fn what_the_administrator_added_stays() {
    let lab = &lab();
    let a = Pod::with_ips(lab, "a", IPS[0]);
    a.add(&scripted(json!({})));
    let link = lab.ip("link show type macvlan")[0]["ifname"].as_str().unwrap().to_owned();
    lab.sh(&format!("ip route add 10.8.0.0/16 dev {link}"));
    a.del(&scripted(json!({})));
    gc(lab, &scripted(json!({})), json!([]));
    assert_eq!(lab.sh(&format!("ip route show dev {link}")), "10.8.0.0/16 scope link \n");
    lab.sh("ip route del 10.8.0.0/16");
    gc(lab, &scripted(json!({})), json!([]));
    assert_eq!(lab.sh("ip -o link show type macvlan"), "");
}

#[test]
fn status_looks_for_the_addresses() {
    let lab = &lab();
    let status = || lab.plugin("macvlan", "STATUS").stdin(leased(json!({})).to_string()).run();
    status().silent();
    lab.sh("ip address add 10.1.0.250/24 dev uplink");
    let error = status().error(50);
    assert!(
        error["msg"].as_str().unwrap().contains("link \"uplink\" of the host has the address 10.1.0.250"),
        "{error}"
    );
}

#[test]
fn calls_at_the_same_time_keep_what_others_need() {
    let lab = &lab();
    let before = traces(lab);
    let config = leased(json!({}));
    let pods: Vec<_> = (0..8).map(|n| Pod::new(lab, &format!("p{n}"))).collect();
    let (half, others) = pods.split_at(4);
    let call =
        |command: &str, pods: &[Pod<'_>]| -> Vec<_> { pods.iter().map(|pod| pod.call(command, &config)).collect() };
    assert_added(&parallel::run(call("ADD", half)));
    for (gone, new) in [(half, others), (others, half)] {
        let mut calls = call("DEL", gone);
        calls.extend(call("ADD", new));
        let outcomes = parallel::run(calls);
        let (deleted, added) = outcomes.split_at(gone.len());
        assert_silent(deleted);
        assert_added(added);
        for (pod, outcome) in new.iter().zip(added) {
            pod.check_result(&config, &outcome.ok()).ok();
        }
    }
    assert_silent(&parallel::run(call("DEL", half)));
    assert_eq!(traces(lab), before);
}

/// A call that fails at any message leaves nothing, and one that is killed there nothing that DEL does not remove. The
/// neighbour keeps what it has.
#[test]
fn an_add_that_is_interrupted_leaves_nothing() {
    for (how, has_neighbour) in [("signal=KILL", false), ("error=EIO", true)] {
        let lab = &lab();
        let config = scripted(json!({}));
        let [a, b] = [("a", IPS[0]), ("b", IPS[1])].map(|(id, ips)| Pod::with_ips(lab, id, ips));
        let neighbour = has_neighbour.then(|| b.add(&config));
        let before = traces(lab);
        for n in 1.. {
            let effect = inject(lab, a.call("ADD", &config), "sendto", n, how);
            if effect != Effect::Failed || how == "signal=KILL" {
                a.del(&config);
            }
            assert_eq!(traces(lab), before, "{how} at message {n}");
            if effect == Effect::NotReached {
                break;
            }
        }
        neighbour.iter().for_each(|result| drop(b.check_result(&config, result).ok()));
    }
}
