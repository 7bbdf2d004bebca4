//! `static` below a plugin that creates an interface, in the same process and executed.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Set};

fn config(ipam: Value) -> Value {
    let ipam = with(json!({"type": "static"}), ipam);
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "ipam": ipam})
}

fn addresses(pod: &Pod<'_>) -> Vec<String> {
    let links = pod.ip("-4 address show dev eth0");
    let addresses = links[0]["addr_info"].as_array().unwrap().iter();
    addresses.map(|found| format!("{}/{}", found["local"].as_str().unwrap(), found["prefixlen"])).collect()
}

#[test]
fn the_bridge_sets_the_addresses() {
    Lab::for_each_way_to_delegate(|lab| {
        let pod = Pod::new(lab, "a");
        let addresses_of = json!([{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "10.2.0.5/24"}]);
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.2.0.9", "mtu": 1300}]);
        let dns = json!({"nameservers": ["10.1.0.1"]});
        let config = config(json!({"addresses": addresses_of, "routes": routes, "dns": dns, "leases": true}));
        let result = pod.add(&config);
        assert_eq!(result["dns"], dns);
        assert_eq!(addresses(&pod), ["10.1.0.5/24", "10.2.0.5/24"]);
        let routes = pod.sh("ip route");
        assert!(routes.contains("default via 10.1.0.1") && routes.contains("10.9.0.0/16 via 10.2.0.9"), "{routes}");
        pod.check_result(&config, &result).ok();

        // The second container finds nothing changed.
        let before = lab.sh("ip -o link | wc -l");
        let other = Pod::new(lab, "b");
        let before_lease = lab.sh("ls /var/lib/cni/networks/net");
        let error = other.call("ADD", &config).run().error(999);
        assert!(error.to_string().contains("10.1.0.5 is in use by container"), "{error}");
        assert_eq!((lab.sh("ip -o link | wc -l"), lab.sh("ls /var/lib/cni/networks/net")), (before, before_lease));
        pod.del(&config);
        assert_eq!(lab.sh("ls /var/lib/cni/networks/net | grep -v lock || true"), "");
        other.add(&config);
        let empty = with(config.clone(), json!({"cni.dev/valid-attachments": []}));
        lab.plugin("bridge", "GC").stdin(empty.to_string()).run().ok();
        assert_eq!(lab.sh("ls /var/lib/cni/networks/net | grep -v lock || true"), "");
    });
}

#[test]
fn addresses_of_the_runtime_get_a_default_route() {
    Lab::for_each_way_to_delegate(|lab| {
        let pod = Pod::new(lab, "a");
        let network = config(json!({"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}));
        let network = with(network, json!({"runtimeConfig": {"ips": ["10.1.0.7/24"]}, "isDefaultGateway": true}));
        let result = pod.add(&network);
        assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
        assert!(pod.sh("ip route").contains("default via 10.1.0.1"));
        assert!(lab.sh("ip -4 address show dev br0").contains("10.1.0.1/24"));
        pod.check_result(&network, &result).ok();
        pod.ping("10.1.0.1");
        pod.del(&network);
    });
}

#[test]
fn a_mistake_is_found_before_anything_changes() {
    let lab = Lab::new();
    let pod = Pod::new(&lab, "a");
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    for ipam in
        [json!({}), json!({"addresses": [{"address": "10.1.0.5"}]}), json!({"addresses": [{"address": "10.1.0.0/24"}]})]
    {
        pod.call("ADD", &config(ipam)).run().error(7);
        assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
    }
}

/// A pair that the reference created has no alias. The addresses that `static` assigns prove whose it is; without
/// leases, an executed plugin cannot say which they are.
#[test]
fn del_finds_the_pair_of_another_implementation() {
    for (set, leases) in [(Set::One, false), (Set::One, true), (Set::None, true)] {
        let lab = &Lab::with(set);
        let pod = Pod::new(lab, "a");
        let config = config(json!({"addresses": [{"address": "10.1.0.5/24"}], "leases": leases}));
        pod.add(&config);
        let veth = "$(ip -br link show type veth | grep -o 'veth[0-9a-f]*' | head -n 1)";
        lab.sh(&format!("ip link set dev {veth} alias ''"));
        // Another address, which may be that of another container.
        pod.sh("ip address add 10.1.0.6/24 dev eth0");
        pod.call("DEL", &config).run().ok();
        assert!(lab.sh("ip -br link").contains("veth"), "{set:?} {leases}");
        pod.sh("ip address del 10.1.0.6/24 dev eth0");
        if leases {
            lab.sh("printf 'a\\r\\neth0' >/var/lib/cni/networks/net/10.1.0.5");
        }
        pod.call("DEL", &config).run().ok();
        assert!(!lab.sh("ip -br link").contains("veth"), "{set:?} {leases}");
    }
}
