//! Live containers: lost addresses and routes, duplicate addresses, packets that are too large, a changed subnet.

use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{assert_healthy, only_problem, problems, run_commands, subjects};
use crate::node::{attach, host, host_with, json, network, port};
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
    // The kernel removes the routes of an interface that goes down.
    let route = "nsenter --net=/run/netns/blue ip route add default via 10.224.0.1 dev eth0";
    assert!(what.contains(&format!("nsenter --net=/run/netns/blue ip link set eth0 up; {route}")), "{what}");
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
    host.lab.sh(&format!("! {{ {command}; }}"));
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

/// Another container has got the address meanwhile.
#[test]
fn a_lost_address_that_is_in_use_elsewhere_is_not_restored() {
    let host = host("10.59.0.0/24");
    attach(&host, "blue");
    attach(&host, "red");
    host.lab.sh("ip -n blue address del 10.59.0.2/24 dev eth0; ip -n red address add 10.59.0.2/24 dev eth0");
    let answer = json(&host, "doctor --json");
    let lost = find(&answer, "1 container has lost its address 10.59.0.2/24");
    assert!(lost["command"].is_null(), "{lost:#}");
    assert!(lost["remedy"].as_str().unwrap().contains("another container has the address now"), "{lost:#}");
}

/// A program in the container, such as a VPN, may need its own route.
#[test]
fn a_route_that_another_one_replaces_is_not_restored() {
    let host = host("10.57.0.0/24");
    attach(&host, "blue");
    host.lab.sh("ip -n blue route replace default via 10.57.0.9 dev eth0");
    let what = only_problem(&host, "container", "fail");
    assert!(what.contains("has lost its route default via 10.57.0.1") && what.contains("\"command\":null"), "{what}");
    assert!(what.contains("decide which one it needs"), "{what}");
}

/// Two containers share an address that neither has leased, such as that of a service.
#[test]
fn an_address_without_an_owner_is_not_removed() {
    let host = host("10.56.0.0/24");
    attach(&host, "blue");
    attach(&host, "red");
    host.lab.sh("for name in blue red; do ip -n $name address add 10.56.0.99/32 dev eth0; done");
    let what = only_problem(&host, "container", "fail");
    assert!(what.contains("10.56.0.99 is on 2 interfaces") && what.contains("\"command\":null"), "{what}");
}

/// Plugins that look for the interface of a container. They must not blame what they compare if they do not find it.
fn comparing_plugins() -> [Value; 2] {
    let limits = json!({ "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
        "egressRate": 8_000_000, "egressBurst": 800_000 });
    [limits, json!({ "type": "tuning", "txQLen": 7 })]
}

#[test]
fn an_interface_that_was_renamed() {
    for plugin in comparing_plugins() {
        let host = host_with("10.55.0.0/24", &plugin);
        let id = attach(&host, "blue");
        host.lab.sh("ip -n blue link set eth0 down; ip -n blue link set eth0 name net1; ip -n blue link set net1 up");
        let what = only_problem(&host, "container", "fail");
        assert!(
            what.contains("the interface of 1 container does not have the name of its add: eth0 is net1 now"),
            "{what}"
        );
        assert_eq!(subjects(&what, "container"), [id]);
        assert!(what.contains("\"command\":null"), "{what}");
    }
}

/// A process keeps the namespace, but its path is gone.
#[test]
fn a_namespace_that_was_unmounted() {
    for plugin in comparing_plugins() {
        let host = host_with("10.54.0.0/24", &plugin);
        let id = attach(&host, "blue");
        let mut process = Command::new("nsenter")
            .args(["--net=/run/netns/blue", "sh", "-c", "echo; exec sleep 300"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        host.lab.sh("umount /run/netns/blue; rm /run/netns/blue");
        let what = only_problem(&host, "container", "warn");
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(what.contains("the namespace of 1 container is not at its path any more (/run/netns/blue)"), "{what}");
        assert_eq!(subjects(&what, "container"), [id]);
        assert!(what.contains("\"command\":null"), "{what}");
    }
}

/// A lease that no ADD has returned, such as a copy of a file.
#[test]
fn a_second_lease_of_a_container() {
    let host = host("10.53.0.0/24");
    let id = attach(&host, "blue");
    host.lab.sh("cd /var/lib/cni/networks/pods; cp 10.53.0.2 10.53.0.77");
    let what = only_problem(&host, "leases", "warn");
    assert!(what.contains("address 10.53.0.77 is leased to a live container that does not have it"), "{what}");
    assert_eq!((subjects(&what, "container"), subjects(&what, "address")), (vec![id], vec!["10.53.0.77".to_owned()]));
    assert!(what.contains("\"command\":null"), "repair would change nothing: {what}");
    host.run("del pods blue").ok();
    host.lab.sh("! [ -e /var/lib/cni/networks/pods/10.53.0.77 ]");
}

/// `repair` needs the record of the ADD.
#[test]
fn a_container_whose_add_is_not_recorded_is_not_repaired() {
    let host = host_with("10.52.0.0/24", &json!({ "type": "firewall", "backend": "iptables" }));
    attach(&host, "blue");
    host.lab.sh(
        "rm /var/lib/cni/results/*; nft flush chain inet cni_plugins_masquerade masq_checks; iptables -F CNI-FORWARD",
    );
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["masquerade fail", "firewall warn"], "{answer:#}");
    for part in ["1 of 1 live containers lack a masquerade rule", "1 of 1 live containers lack their rules"] {
        let finding = find(&answer, part);
        assert!(finding["command"].is_null(), "{finding:#}");
        assert!(finding["remedy"].as_str().unwrap().contains("has not recorded their adds"), "{finding:#}");
    }
}

/// Returns the finding with this text.
fn find<'a>(answer: &'a Value, part: &str) -> &'a Value {
    let mut findings = answer["findings"].as_array().unwrap().iter();
    let is_it = |finding: &&Value| finding["what"].as_str().is_some_and(|what| what.contains(part));
    findings.find(is_it).unwrap_or_else(|| panic!("{part} is not in {answer:#}"))
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
