//! The bridge of a network: created by the first container, removed with the last one.

use serde_json::json;
use testing::{Lab, Outcome, parallel};

use crate::support::{BRIDGE, Container, ID, assert_clean, network, with};

#[test]
fn the_last_container_removes_the_bridge() {
    let lab = &Lab::without_plugins();
    for name in ["pod1", BRIDGE] {
        let net = with(network(1), &json!({"network_interface": name, "id": ID}));
        let containers = [2, 3].map(|host| Container::new(lab, host));
        containers.iter().for_each(|container| drop(container.set_up(&net)));
        let alias = format!("netavark-network {ID}");
        assert_eq!(lab.ip(&format!("link show {name}"))[0]["ifalias"], alias.as_str());
        containers[0].tear_down(&net);
        assert_eq!(lab.ip(&format!("link show {name}"))[0]["ifname"], name);
        containers[1].tear_down(&net);
        assert_clean(lab);
        lab.sh("ip netns del netns-2; ip netns del netns-3");
    }
}

#[test]
fn a_bridge_of_somebody_else_stays() {
    let lab = &Lab::without_plugins();
    let (net, a) = (network(1), Container::new(lab, 2));
    lab.sh("ip link add pod1 type bridge");
    a.set_up(&net);
    a.tear_down(&net);
    assert_eq!(lab.ip("link show pod1")[0]["ifname"], "pod1");
    // That of another network of podman.
    lab.sh("ip link set pod1 alias 'netavark-network 0123'");
    a.set_up(&net);
    a.tear_down(&net);
    assert_eq!(lab.ip("link show pod1")[0]["ifname"], "pod1");
    // The administrator connected a link of this host.
    lab.sh("ip link del pod1");
    a.set_up(&net);
    lab.sh("ip link add port type veth peer name end; ip link set port master pod1");
    a.tear_down(&net);
    assert_eq!(lab.ip("link show pod1")[0]["ifname"], "pod1");
}

#[test]
fn a_failed_setup_leaves_no_bridge() {
    let lab = &Lab::without_plugins();
    let (net, a, b) = (network(1), Container::new(lab, 2), Container::new(lab, 3));
    let taken = json!([{"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "nothing", "range": 1}]);
    let a = a.publishing(taken);
    a.call("setup", &a.input(&net, "eth0")).run();
    assert_eq!(lab.sh("ip -br link | grep -v '^lo ' || true"), "");
    b.set_up(&net);
    a.call("setup", &a.input(&net, "eth0")).run();
    assert_eq!(lab.ip("link show pod1")[0]["ifname"], "pod1", "the bridge is in use");
    b.tear_down(&net);
    assert_clean(lab);
}

/// While some containers are attached, others are detached. No container loses the bridge, and the last one removes it.
#[test]
fn containers_come_and_go_at_the_same_time() {
    let lab = &Lab::without_plugins();
    let net = network(1);
    let containers: Vec<_> = (2..22).map(|host| Container::new(lab, host)).collect();
    let call = |command: &'static str| {
        let net = &net;
        move |container: &Container<'_>| container.call(command, &container.input(net, "eth0"))
    };
    let (these, those) = containers.split_at(10);
    for _ in 0..3 {
        parallel::run(these.iter().map(call("setup")).collect()).iter().for_each(|outcome| drop(outcome.ok()));
        let mixed = these.iter().map(call("teardown")).chain(those.iter().map(call("setup"))).collect();
        parallel::run(mixed).iter().for_each(|outcome| drop(outcome.ok()));
        assert_eq!(lab.sh("ip -o link show master pod1 | grep -c 'state UP'"), "10\n");
        parallel::run(those.iter().map(call("teardown")).collect()).iter().for_each(Outcome::silent);
        assert_clean(lab);
    }
}

/// A setup was killed before it marked the bridge.
#[test]
fn a_bridge_with_the_network_s_own_name_needs_no_mark() {
    let lab = &Lab::without_plugins();
    let net = with(network(1), &json!({"network_interface": BRIDGE, "id": ID}));
    lab.sh(&format!("ip link add {BRIDGE} type bridge"));
    Container::new(lab, 2).tear_down(&net);
    assert_clean(lab);
}
