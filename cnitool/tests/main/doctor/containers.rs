//! Live containers: lost addresses and routes, duplicate addresses, packets that are too large, a changed subnet.

use serde_json::json;

use super::{assert_healthy, only_problem, problems, run_commands, subjects};
use crate::node::{attach, host, json, network, port};
use crate::support::Host;

/// Attaches a container to a network. Its namespace is new.
fn attach_to(host: &Host, network: &str, name: &str) {
    host.lab.netns(name);
    host.run(&format!("add {network} /run/netns/{name}")).ok();
}

#[test]
fn a_lost_address_is_restored_with_its_route() {
    let host = host("10.222.0.0/24");
    let id = attach(&host, "blue");
    attach(&host, "red");
    host.lab.sh("ip -n blue address flush dev eth0");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["container fail"], "not a second time by CHECK: {answer:#}");
    let text = answer.to_string();
    assert!(text.contains("1 container has lost its address 10.222.0.2/24"), "{answer:#}");
    assert!(text.contains("1 container has lost its route default via 10.222.0.1 dev eth0"), "{answer:#}");
    let finding = answer["findings"].as_array().unwrap().iter().find(|finding| finding["level"] == "fail").unwrap();
    assert_eq!(subjects(&finding.to_string(), "container"), [id]);
    run_commands(&host);
    host.run("check pods /run/netns/blue").ok();
}

#[test]
fn a_lost_default_route_is_restored() {
    let host = host("10.223.0.0/24");
    let ranges = json!([[{ "subnet": "10.223.0.0/24" }], [{ "subnet": "fd00:223::/64" }]]);
    let routes = json!([{ "dst": "10.0.0.0/8", "priority": 7 }]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges, "routes": routes } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    attach(&host, "blue");
    attach(&host, "red");
    for lost in ["default", "10.0.0.0/8", "default via fd00:223::1"] {
        host.lab.sh(&format!("for name in blue red; do ip -n $name route del {lost}; done"));
        let what = only_problem(&host, "container", "fail");
        assert!(what.contains("2 containers have lost their route, such as"), "{what}");
        assert_eq!(subjects(&what, "container").len(), 2, "{what}");
        run_commands(&host);
        host.run("check pods /run/netns/blue").ok();
    }
}

#[test]
fn an_interface_that_is_down() {
    let host = host("10.224.0.0/24");
    attach(&host, "blue");
    host.lab.sh("ip -n blue link set eth0 down");
    let what = only_problem(&host, "container", "warn");
    assert!(what.contains("nsenter --net=/run/netns/blue ip link set eth0 up"), "{what}");
    // The kernel removes the routes of an interface that goes down.
    host.lab.sh("ip -n blue link set eth0 up");
    run_commands(&host);
}

#[test]
fn packets_of_a_container_that_its_port_does_not_accept() {
    let host = host("10.225.0.0/24");
    let id = attach(&host, "blue");
    host.lab.sh("ip -n blue link set eth0 mtu 9000");
    let what = only_problem(&host, "mtu", "warn");
    assert!(
        what.contains("1 container sends packets of 9000 bytes, and port") && what.contains("accepts 1500"),
        "{what}"
    );
    assert_eq!(subjects(&what, "container"), [id]);
    run_commands(&host);
    assert!(host.lab.sh("ip -n blue link show eth0").contains("mtu 1500"));
    // Smaller packets are not a problem.
    host.lab.sh("ip -n blue link set eth0 mtu 1400");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

#[test]
fn two_containers_with_one_address() {
    let host = host("10.226.0.0/24");
    let ids = ["blue", "red"].map(|name| attach(&host, name));
    host.lab.sh("ip -n red address add 10.226.0.2/24 dev eth0");
    let what = only_problem(&host, "container", "fail");
    assert!(what.contains("10.226.0.2 is on 2 interfaces of bridge br-pods"), "{what}");
    let mut found = subjects(&what, "container");
    found.sort();
    let mut expected = ids.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(subjects(&what, "address"), ["10.226.0.2"]);
    assert!(what.contains("nsenter --net=/run/netns/red ip address del 10.226.0.2/24 dev eth0"), "{what}");
    run_commands(&host);
    // The gateway's address is on the bridge.
    host.lab.sh("ip -n red address add 10.226.0.1/24 dev eth0");
    let what = only_problem(&host, "container", "fail");
    assert_eq!(subjects(&what, "link"), ["br-pods"], "{what}");
    run_commands(&host);
}

#[test]
fn two_containers_of_two_networks_with_one_address() {
    let host = host("10.227.0.0/24");
    attach(&host, "blue");
    let on_same_bridge = network("other", "10.227.1.0/24", &json!({ "bridge": "br-pods" }));
    host.configure("20-other.conflist", &on_same_bridge.to_string());
    host.configure("30-apart.conflist", &network("apart", "10.227.2.0/24", &json!({})).to_string());
    attach_to(&host, "other", "red");
    attach_to(&host, "apart", "green");
    // The other bridge is another link layer, so the address does not conflict there.
    host.lab.sh("ip -n green address add 10.227.0.2/32 dev eth0");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    host.lab.sh("ip -n red address add 10.227.0.2/24 dev eth0");
    let what = only_problem(&host, "container", "fail");
    assert_eq!(subjects(&what, "container").len(), 2, "{what}");
    for (network, count) in [("pods", 1), ("other", 1), ("apart", 0)] {
        let answer = json(&host, &format!("doctor {network} --json"));
        assert_eq!(problems(&answer).len(), count, "{network}: {answer:#}");
    }
    run_commands(&host);
}

/// A container of another program on the bridge has the address of one of ours.
#[test]
fn a_foreign_interface_with_the_address_of_a_container() {
    let host = host("10.228.0.0/24");
    attach(&host, "blue");
    host.lab.netns("guest");
    host.lab.sh("ip link add foreign type veth peer name eth0 netns guest; ip link set foreign up master br-pods
         ip -n guest address add 10.228.0.2/24 dev eth0; ip -n guest link set eth0 up");
    let answer = json(&host, "doctor --json");
    assert!(problems(&answer).contains(&"container fail".to_owned()), "{answer:#}");
    assert!(answer.to_string().contains("10.228.0.2 is on 2 interfaces of bridge br-pods"), "{answer:#}");
    assert!(answer.to_string().contains(r#"{"kind":"link","name":"foreign"}"#), "{answer:#}");
}

#[test]
fn a_live_container_without_a_lease() {
    let host = host("10.229.0.0/24");
    let id = attach(&host, "blue");
    attach(&host, "red");
    host.lab.sh("rm /var/lib/cni/networks/pods/10.229.0.2");
    let what = only_problem(&host, "leases", "fail");
    assert!(what.contains("address 10.229.0.2 of a live container is not leased"), "{what}");
    assert_eq!(subjects(&what, "container"), [id.as_str()]);
    assert_eq!(subjects(&what, "address"), ["10.229.0.2"]);
    run_commands(&host);
    assert_eq!(std::fs::read_to_string("/var/lib/cni/networks/pods/10.229.0.2").unwrap(), format!("{id}\r\neth0"));
    host.run("check pods /run/netns/blue").ok();
    // Without a record of the add, the addresses of the container count.
    host.lab.sh("rm /var/lib/cni/networks/pods/10.229.0.2 /var/lib/cni/results/*");
    let what = only_problem(&host, "leases", "fail");
    assert!(what.contains("address 10.229.0.2 of a live container is not leased"), "{what}");
    run_commands(&host);
    assert_eq!(std::fs::read_to_string("/var/lib/cni/networks/pods/10.229.0.2").unwrap(), format!("{id}\r\neth0"));
    // The command does not take an address that another container got meanwhile.
    host.lab.sh("rm /var/lib/cni/networks/pods/10.229.0.2");
    let command = json(&host, "doctor --json --quiet")["findings"][0]["command"].as_str().unwrap().to_owned();
    std::fs::write("/var/lib/cni/networks/pods/10.229.0.2", "other\r\neth0").unwrap();
    host.lab.sh(&format!("! {command}"));
    assert_eq!(std::fs::read_to_string("/var/lib/cni/networks/pods/10.229.0.2").unwrap(), "other\r\neth0");
}

#[test]
fn a_subnet_that_changed_under_live_containers() {
    let host = host("10.230.0.0/24");
    let id = attach(&host, "blue");
    host.configure("10-pods.conflist", &network("pods", "10.231.0.0/24", &json!({})).to_string());
    let what = only_problem(&host, "ranges", "warn");
    assert!(what.contains("1 address of live containers outside of the network's subnet 10.231.0.0/24"), "{what}");
    assert_eq!(subjects(&what, "container"), [id]);
    assert_eq!(subjects(&what, "address"), ["10.230.0.2"]);
    // A second range with the old subnet is the remedy.
    let ranges = json!([[{ "subnet": "10.231.0.0/24" }, { "subnet": "10.230.0.0/24" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

/// Names of links come from other programs, and a command is copied into a shell.
#[test]
fn no_name_can_add_a_command() {
    let host = host("10.232.0.0/24");
    let port = port(&attach(&host, "blue"));
    host.lab.sh(&format!("ip link set {port} down; ip link set {port} name 'a;b'; ip link set 'a;b' nomaster"));
    let answer = json(&host, "doctor --json --quiet");
    let commands: Vec<&str> =
        answer["findings"].as_array().unwrap().iter().map(|finding| finding["command"].as_str().unwrap()).collect();
    assert_eq!(commands, ["ip link set 'a;b' master br-pods", "ip link set 'a;b' up"], "{answer:#}");
    host.lab.sh(&commands.join("; "));
    // CHECK knows the port by its name.
    host.lab.sh(&format!("ip link set 'a;b' down; ip link set 'a;b' name {port}; ip link set {port} up"));
    assert_healthy(&host, "the commands");
}
