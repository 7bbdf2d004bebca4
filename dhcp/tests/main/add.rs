//! ADD: what the server grants reaches the result and the container.

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{Reply, Wire, daemon};
use testing::fault::{Effect, inject_everywhere};
use testing::{Lab, Pod, wait_until};

use crate::support::{address, addresses, lan, recorded};

const OPTIONS: [&str; 5] = [
    "--dhcp-option=3,10.66.0.1",
    "--dhcp-option=6,10.66.0.53",
    "--domain=example.org",
    "--dhcp-option=119,eng.example.org,example.org",
    "--dhcp-option=26,1400",
];

#[test]
fn an_address_is_leased_and_given_back() {
    Lab::for_each_way_to_delegate(|lab| {
        let wire = Wire::new(lab);
        let Some(_server) = wire.dnsmasq("add::an_address_is_leased_and_given_back", &OPTIONS) else { return };
        let daemon = daemon(lab, &[]);
        let pod = Pod::new(lab, "c1");
        let result = pod.add(&lan(json!({})));
        let leased = address(&result);
        assert_eq!(result["ips"][0]["gateway"], "10.66.0.1");
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.66.0.1"}]));
        let dns = json!({"nameservers": ["10.66.0.53"], "domain": "example.org", "search": ["eng.example.org", "example.org"]});
        assert_eq!(result["dns"], dns);
        assert_eq!(addresses(&pod), std::slice::from_ref(&leased));
        assert_eq!(pod.ip("link show eth0")[0]["mtu"], 1500, "the MTU of the server only on request");
        assert!(wire.leases().contains(&format!(" {leased} ")), "{}", wire.leases());
        assert!(wire.leases().contains("00:63:31:2f:6c:61:6e:2f:65:74:68:30"), "c1/lan/eth0: {}", wire.leases());
        assert_eq!(recorded()[0]["grant"]["terms"]["address"], leased);
        pod.ping("10.66.0.1");
        pod.check_result(&lan(json!({})), &result).ok();
        pod.del(&with(lan(json!({})), json!({ "prevResult": result })));
        wait_until("the server to take the address back", || wire.leases().is_empty());
        assert_eq!((recorded(), addresses(&pod)), (Vec::new(), Vec::new()));
        assert!(daemon.end());
    });
}

/// The container's end of a veth pair gets its address by the bridge, from a server on the wire.
#[test]
fn a_bridge_to_the_wire_works() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("add::a_bridge_to_the_wire_works", &OPTIONS) else { return };
    let _daemon = daemon(lab, &[]);
    lab.sh("ip link add br0 type bridge; ip link set br0 up; ip link set eth1 master br0");
    let pod = Pod::new(lab, "c1");
    let config =
        json!({"cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}});
    let result = pod.add(&config);
    pod.ping("10.66.0.1");
    pod.check_result(&config, &result).ok();
    pod.del(&with(config, json!({ "prevResult": result })));
    wait_until("the server to take the address back", || wire.leases().is_empty());
}

/// A device of the host is set up by the daemon, and gets its address.
#[test]
fn a_device_works() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("add::a_device_works", &OPTIONS) else { return };
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "host-device", "device": "eth1", "ipam": {"type": "dhcp"}});
    let result = pod.add(&config);
    pod.ping("10.66.0.1");
    pod.check_result(&config, &result).ok();
    pod.del(&with(config, json!({ "prevResult": result })));
    wait_until("the server to take the address back", || wire.leases().is_empty());
    assert_eq!(lab.ip("link show eth1")[0]["ifname"], "eth1", "the device came back");
}

#[test]
fn the_configuration_decides_what_is_asked_and_used() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(server) = wire.dnsmasq("add::the_configuration_decides_what_is_asked_and_used", &OPTIONS) else { return };
    let _daemon = daemon(lab, &[]);
    let add = |id: &str, ipam: Value| {
        let pod = Pod::new(lab, id);
        let call =
            pod.call("ADD", &lan(ipam)).env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
        (call.run().ok(), pod)
    };
    let (result, pod) = add("a", json!({"useGateway": false, "useDns": false, "useMtu": true, "priority": 7}));
    assert_eq!((&result["routes"], &result["dns"]), (&Value::Null, &Value::Null));
    assert_eq!(pod.ip("link show eth0")[0]["mtu"], 1400);
    let (result, pod) = add("b", json!({"priority": 77}));
    assert_eq!(result["routes"][0]["priority"], 77);
    assert_eq!(pod.ip("route show default")[0]["metric"], 77);
    let (result, _) = add(
        "c",
        json!({
            "clientIdentifier": "name",
            "provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}],
            "broadcast": true,
        }),
    );
    let line = wire.leases().lines().find(|line| line.contains(&address(&result))).unwrap().to_owned();
    assert!(line.contains(" web-0 "), "{line}");
    assert!(
        line.ends_with("00:73:68:6f:70:2f:77:65:62:2d:30:2f:6c:61:6e:2f:65:74:68:30"),
        "shop/web-0/lan/eth0: {line}"
    );
    let again = add("d", json!({"clientIdentifier": "name"})).0;
    assert_eq!(address(&again), address(&result), "the server knows the pod again");
    let (result, pod) = add("e", json!({"clientIdentifier": "mac"}));
    let mac = pod.ip("link show eth0")[0]["address"].as_str().unwrap().to_owned();
    let line = wire.leases().lines().find(|line| line.contains(&address(&result))).unwrap().to_owned();
    assert!(line.ends_with(&format!("01:{mac}")), "{line}");
    drop(server);
    let required = json!({"request": [{"option": "42", "required": true}]});
    let Some(_server) = wire.dnsmasq("", &["--dhcp-option=42,10.66.0.4"]) else { return };
    assert!(address(&add("f", required).0).starts_with("10.66.0."));
}

/// Classless routes replace the router; one of them leads to a network on the link.
#[test]
fn classless_routes_are_set() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let _server = wire.server(|request| {
        let mut replies = Reply::grant(request, [10, 66, 0, 60], [1800, 3000, 3600]);
        let routes = vec![0, 10, 66, 0, 2, 16, 172, 20, 0, 0, 0, 0];
        replies.iter_mut().for_each(|reply| reply.options.push((121, routes.clone())));
        replies
    });
    for version in ["1.1.0", "1.0.0", "0.4.0"] {
        let pod = Pod::new(lab, &format!("c{}", version.replace('.', "-")));
        let config = with(lan(json!({})), json!({ "cniVersion": version }));
        let result = pod.add(&config);
        let routes = result["routes"].as_array().unwrap();
        assert_eq!(routes[0], json!({"dst": "0.0.0.0/0", "gw": "10.66.0.2"}));
        assert_eq!((&routes[1]["dst"], &routes[1]["gw"]), (&json!("172.20.0.0/16"), &json!("0.0.0.0")));
        let found = pod.sh("ip route");
        assert!(found.contains("default via 10.66.0.2") && found.contains("172.20.0.0/16 dev eth0"), "{found}");
        pod.check_result(&config, &result).ok();
        pod.del(&with(config, json!({ "prevResult": result })));
    }
}

#[test]
fn an_interface_without_a_carrier_is_waited_for() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let _server = wire.server(|request| Reply::grant(request, [10, 66, 0, 60], [1800, 3000, 3600]));
    lab.sh("ip -n wire link set w0 down");
    wait_until("the loss of the carrier", || lab.ip("link show eth1")[0]["operstate"] != "UP");
    let pod = Pod::new(lab, "c1");
    std::thread::scope(|scope| {
        let call = pod.call("ADD", &lan(json!({})));
        let added = scope.spawn(|| call.run());
        daemon.await_log("set link");
        assert!(!daemon.log().contains("send Discover"), "{}", daemon.log());
        lab.sh("ip -n wire link set w0 up; ip -n wire route add default dev w0");
        assert_eq!(address(&added.join().unwrap().ok()), "10.66.0.60");
    });
}

/// The daemon has leased the address when the plugin fails to read the answer.
#[test]
fn a_failed_add_leaves_no_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("add::a_failed_add_leaves_no_lease", &[]) else { return };
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let config = lan(json!({}));
    let add = || pod.call("ADD", &config);
    let failures = inject_everywhere(lab, &[("recvfrom", "ENOBUFS")], add, |effect, place| {
        if effect != Effect::Failed {
            pod.del(&config);
        }
        assert!(recorded().is_empty(), "{place}");
    });
    assert!(failures > 3, "only {failures} failures");
}
