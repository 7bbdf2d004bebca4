//! Bridges: ports, gateways and MTUs.

use serde_json::{Value, json};

use super::{assert_healthy, follow, only_problem, problems, remedies, subjects};
use crate::node::{attach, attach_with, host, host_with, json, network, page, port};

#[test]
fn addresses_that_conflict_with_the_gateway() {
    let host = host("10.143.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    // The address belongs to another program, so no command removes it.
    host.lab
        .sh("ip link add docker0 up type veth peer name eth0 netns outside; ip address add 10.143.0.1/16 dev docker0");
    let what = only_problem(&host, "gateway", "fail");
    assert!(what.contains("docker0 has the gateway's address too (10.143.0.1/16)"), "{what}");
    assert!(what.contains("change the address of docker0") && what.contains("\"command\":null"), "{what}");
    host.lab.sh("ip address flush dev docker0; ip address add 10.143.0.200/24 dev docker0");
    assert!(only_problem(&host, "gateway", "fail").contains("docker0 has the subnet 10.143.0.0/24 too"));
    host.lab.sh("ip address flush dev docker0; ip address add 10.143.0.1/32 dev docker0");
    assert_healthy(&host, "an address of host length has no subnet");
    host.lab.sh("ip address flush dev docker0; ip address flush dev br-pods; ip address add 10.143.0.5/24 dev br-pods");
    let what = only_problem(&host, "gateway", "fail");
    assert!(what.contains("already has an IP address different from 10.143.0.1/24"), "{what}");
}

#[test]
fn ports_that_are_down_or_not_on_the_bridge() {
    let host = host("10.154.0.0/24");
    let blue = port(&attach(&host, "blue"));
    host.lab.sh(&format!("ip link set {blue} down"));
    follow(&host, &format!("ip link set {blue} up"));
    host.lab.sh(&format!("ip link set {blue} nomaster"));
    follow(&host, &format!("ip link set {blue} master br-pods"));
    host.lab.sh(&format!("ip link add other type bridge; ip link set {blue} master other"));
    assert!(only_problem(&host, "bridge", "warn").contains("on another bridge than br-pods"));
    host.lab.sh(&format!("ip link del other; ip link set {blue} master br-pods"));
    let ports: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| port(&attach(&host, name))).collect();
    ports.iter().for_each(|port| drop(host.lab.sh(&format!("ip link set {port} nomaster"))));
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains("4 ports are on no bridge") && what.contains("and 1 more"), "{what}");
    // Ports cannot be added to a bridge that is gone.
    host.lab.sh("ip link del br-pods");
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains("5 ports are on no bridge") && what.contains("attach it again"), "{what}");
}

/// A port loses its settings when it leaves the bridge.
#[test]
fn a_port_with_settings_that_is_not_on_the_bridge() {
    let host = host("10.144.0.0/24");
    let more = json!({ "hairpinMode": true, "portIsolation": true });
    host.configure("10-pods.conflist", &network("pods", "10.144.0.0/24", &more).to_string());
    let blue = port(&attach(&host, "blue"));
    host.lab.sh(&format!("ip link set {blue} nomaster"));
    let settings = format!("ip link set {blue} type bridge_slave");
    follow(&host, &format!("ip link set {blue} master br-pods; {settings} hairpin on; {settings} isolated on"));
}

#[test]
fn a_port_of_the_reference_that_is_not_on_the_bridge() {
    let host = host("10.155.0.0/24");
    host.reference("bridge");
    host.reference("host-local");
    let mut config = network("pods", "10.155.0.0/24", &json!({ "ipMasq": false }));
    config["cniVersion"] = json!("1.0.0");
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let links: Value = serde_json::from_str(&host.lab.sh("ip -j link show master br-pods")).unwrap();
    let port = links[0]["ifname"].as_str().unwrap();
    host.lab.sh(&format!("ip link set {port} nomaster"));
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains(&format!("ip link set {port} master br-pods")), "{what}");
}

#[test]
fn no_remedy_takes_another_networks_gateway() {
    let host = host("10.153.0.0/24");
    attach(&host, "blue");
    let shared = json!({ "bridge": "br-pods", "ipam": { "type": "host-local", "ranges": [[
        { "subnet": "10.153.0.0/24", "gateway": "10.153.0.254" },
    ]] } });
    for (subnet, more) in [
        ("10.153.0.0/24", json!({})),
        // Another gateway in the same subnet, on another bridge and on the same bridge.
        (
            "10.153.0.0/16",
            json!({ "ipam": { "type": "host-local", "ranges": [[
            { "subnet": "10.153.0.0/16", "gateway": "10.153.7.1" },
        ]] } }),
        ),
        ("", shared),
    ] {
        host.configure("20-other.conflist", &network("other", subnet, &more).to_string());
        let answer = json(&host, "doctor --json");
        assert_eq!(problems(&answer), ["gateway fail", "ranges warn"], "{answer:#}");
        let remedies = remedies(&answer);
        assert_eq!(remedies.first().unwrap(), "set another \"subnet\" in one of the networks other and pods");
        assert!(remedies.iter().all(|remedy| !remedy.contains("address del")), "{remedies:?}");
    }
}

#[test]
fn a_gateway_address_that_was_lost() {
    let host = host("10.152.0.0/24");
    let ranges =
        json!([[{ "subnet": "10.152.0.0/24" }, { "subnet": "10.152.1.0/24" }], [{ "subnet": "fd00:152::/64" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    attach(&host, "blue");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "no container needs the second range's gateway yet: {answer:#}");
    host.lab.sh("ip -4 address flush dev br-pods");
    follow(&host, "ip address add 10.152.0.1/24 dev br-pods");
    // The kernel drops IPv6 addresses of a link that goes down.
    host.lab.sh("ip link set br-pods down; ip link set br-pods up");
    follow(&host, "ip address add fd00:152::1/64 dev br-pods nodad");
    host.lab.sh("ip link set br-pods down");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["bridge fail", "gateway fail"], "{answer:#}");
    host.lab.sh(&remedies(&answer).join("\n"));
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
}

#[test]
fn a_link_that_is_not_a_bridge() {
    let host = host("10.187.0.0/24");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; ip link add br-pods type veth peer name other");
    assert!(only_problem(&host, "bridge", "fail").contains("br-pods is a veth, not a bridge"));
}

#[test]
fn packets_that_are_too_large() {
    let host = host("10.145.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    host.lab.sh("ip link add uplink mtu 1400 type veth peer name eth0 netns outside
         ip address add 192.0.2.1/24 dev uplink; ip link set uplink up; ip -n outside link set eth0 up; ip route add default via 192.0.2.2");
    assert!(only_problem(&host, "mtu", "warn").contains("set \\\"mtu\\\": 1400"));
    host.configure("10-pods.conflist", &network("pods", "10.145.0.0/24", &json!({ "mtu": 1300 })).to_string());
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("br-pods has 1500"), "{what}");
    // Without a port, no packet is lost, and the next add sets the MTU.
    host.run("del pods /run/netns/blue").ok();
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

#[test]
fn a_bridge_with_another_mtu_than_its_ports() {
    let host = host("10.159.0.0/24");
    let blue = port(&attach(&host, "blue"));
    attach(&host, "red");
    host.lab.sh("ip link set br-pods mtu 1300");
    assert!(only_problem(&host, "mtu", "warn").contains("br-pods has 1300, and its ports 1500"));
    follow(&host, "ip link set br-pods mtu 1500");
    host.lab.sh(&format!("ip link set {blue} mtu 1400; ip link set br-pods mtu 1500"));
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("br-pods has 1500, and its ports 1400, 1500"), "{what}");
}

/// A command for one network would be a problem of the other.
#[test]
fn two_networks_with_different_mtus_on_one_bridge() {
    let host = host("10.51.0.0/24");
    let configure = |file: &str, name: &str, subnet: &str, mtu: u32| {
        let keys = json!({ "bridge": "br-pods", "mtu": mtu });
        host.configure(file, &network(name, subnet, &keys).to_string());
    };
    configure("10-pods.conflist", "pods", "10.51.0.0/24", 1300);
    configure("20-other.conflist", "other", "10.51.1.0/24", 1400);
    attach(&host, "blue");
    host.lab.netns("red");
    host.run("add other red").ok();
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("\\\"mtu\\\" is 1300 in network pods, 1400 in network other, and br-pods"), "{what}");
    assert!(what.contains("set the same") && what.contains("\"command\":null"), "{what}");
    for network in ["pods", "other"] {
        assert_eq!(problems(&json(&host, &format!("doctor {network} --json"))), ["mtu warn"], "{network}");
    }
}

/// A bridge cannot have the MTU of the configuration without harm to its other ports.
#[test]
fn no_command_changes_the_mtu_under_other_ports() {
    let host = host("10.50.0.0/24");
    attach(&host, "blue");
    host.lab.netns("guest");
    host.configure("10-pods.conflist", &network("pods", "10.50.0.0/24", &json!({ "mtu": 1300 })).to_string());
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("is 1300, and br-pods has 1500"), "{what}");
    assert!(what.contains("\"command\":null"), "the container keeps its MTU: {what}");
    host.configure("10-pods.conflist", &network("pods", "10.50.0.0/24", &json!({})).to_string());
    host.lab.sh("ip link add foreign type veth peer name eth0 netns guest; ip link set foreign master br-pods
         ip link set br-pods mtu 1400");
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("br-pods has 1400, and its ports 1500"), "{what}");
    assert!(what.contains("\"command\":null"), "another program uses the bridge: {what}");
}

/// Another program needs its route, or not: doctor cannot know.
#[test]
fn a_route_that_leads_elsewhere() {
    let host = host_with("10.49.0.0/24", &json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    let id = attach_with(&host, "blue", ports);
    host.lab.outside();
    assert_healthy(&host, "without the route");
    host.lab.sh("ip route add 10.49.0.2/32 dev uplink");
    let what = only_problem(&host, "gateway", "fail");
    assert!(what.contains("packets of this host to 10.49.0.2 leave by uplink, not by br-pods"), "{what}");
    assert_eq!((subjects(&what, "container"), subjects(&what, "link")), (vec![id], vec!["uplink".to_owned()]));
    assert!(what.contains("\"command\":null"), "{what}");
    // Nothing opens the loopback services of this host to the network outside.
    page(&host.run("repair"));
    assert_eq!(host.lab.sh("cat /proc/sys/net/ipv4/conf/uplink/route_localnet"), "0\n");
    host.run("del pods blue").ok();
    attach_with(&host, "red", ports);
    host.lab.sh("ip route del 10.49.0.2/32 dev uplink");
    assert_eq!(host.lab.sh("cat /proc/sys/net/ipv4/conf/uplink/route_localnet"), "0\n");
}
