//! The MTU of the bridge: it is that of the network, unless other networks or programs need it.

use serde_json::{Value, json};
use testing::packets::udp;
use testing::{Lab, Pod};

use crate::stale::network;

/// Returns the MTUs of the bridge and of a pod.
fn mtus(lab: &Lab, pod: &Pod<'_>) -> [u64; 2] {
    [lab.ip("link show br0"), pod.ip("link show eth0")].map(|links| links[0]["mtu"].as_u64().unwrap())
}

#[test]
fn a_changed_mtu_reaches_the_bridge_and_new_containers() {
    let lab = &Lab::new();
    let first = Pod::new(lab, "a");
    first.add(&network(1, json!({ "mtu": 1450 })));
    assert_eq!(mtus(lab, &first), [1450, 1450]);
    for mtu in [1400, 8950, 1430, 9000, 1450] {
        let pod = Pod::new(lab, &format!("pod{mtu}"));
        let config = network(1, json!({ "mtu": mtu }));
        let result = pod.add(&config);
        assert_eq!(mtus(lab, &pod), [mtu, mtu]);
        pod.check_result(&config, &result).ok();
    }
    assert_eq!(mtus(lab, &first)[1], 1450, "containers keep theirs");
}

/// The largest packets of the gateway reach a container with the smaller MTU.
#[test]
fn the_gateway_respects_a_smaller_mtu() {
    let lab = &Lab::new();
    lab.sh("ip link set lo up");
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    // Each ADD sets the MTU, so that the kernel does not follow the ports any more.
    lab.sh("ip link add br0 type bridge; ip link set br0 mtu 1400");
    a.add(&network(1, json!({ "mtu": 8950 })));
    b.add(&network(1, json!({ "mtu": 1450 })));
    let (host, pod) = (udp(None, "0.0.0.0", 0), b.udp("10.1.0.3"));
    host.send_to(&[7; 4000], pod.local_addr().unwrap()).unwrap();
    assert_eq!(pod.recv(&mut [0; 5000]).unwrap(), 4000);
}

/// Returns the configuration of a network with only IPv4 addresses.
fn ipv4_network(mtu: u64) -> Value {
    network(1, json!({ "mtu": mtu, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } }))
}

/// The kernel would lower the bridge to its smallest port, and then remove the host's IPv6 addresses.
#[test]
fn ports_of_others_keep_their_mtu() {
    for other in [None, Some("net2")] {
        for (own, mtu) in [(9000, 1400), (1500, 1000), (1500, 9000)] {
            let lab = &Lab::new();
            lab.sh(&format!("ip link add br0 mtu {own} type bridge"));
            match other {
                None => drop(lab.sh(&format!("ip link add uplink0 mtu {own} master br0 type veth peer name uplink1"))),
                Some(name) => drop(Pod::new(lab, "other").add(&network(2, json!({ "name": name, "mtu": own })))),
            }
            lab.sh("ip link set br0 up; ip address add fd00::1/64 dev br0 nodad");
            for (round, id) in ["a", "b"].into_iter().enumerate() {
                let pod = Pod::new(lab, id);
                pod.add(&ipv4_network(mtu));
                assert_eq!(mtus(lab, &pod), [own, mtu], "{other:?} {round}");
            }
            assert!(lab.sh("ip -6 address show br0").contains("fd00::1/64"), "{other:?} {own} {mtu}");
        }
    }
}

/// A bridge that was created with an MTU follows its ports, until the MTU is changed.
#[test]
fn a_new_bridge_keeps_its_mtu() {
    for mtu in [68, 1450, 1500, 65535] {
        let lab = &Lab::new();
        let pod = Pod::new(lab, "a");
        pod.add(&ipv4_network(mtu));
        assert_eq!(mtus(lab, &pod), [mtu, mtu]);
        lab.sh("ip link add small mtu 68 master br0 type veth peer name other");
        assert_eq!(mtus(lab, &pod), [mtu, mtu]);
    }
}

#[test]
fn an_mtu_that_would_remove_ipv6_is_refused() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let (config, dual) = (ipv4_network(1279), network(1, json!({ "mtu": 1279 })));
    let refused = |config: &Value, part: &str| {
        let error = pod.call("ADD", config).run().error(7);
        assert!(error.to_string().contains("1279") && error.to_string().contains(part), "{error}");
        assert_eq!(lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'; ip -o link show type veth"), "");
    };
    refused(&dual, "address fd01::2/64");
    lab.sh("ip link del br0; ip link add br0 type bridge; ip link set br0 up; ip address add fd00::1/64 dev br0 nodad");
    refused(&config, "address fd00::1/64");
    assert_eq!(lab.ip("link show br0")[0]["mtu"], 1500);
    lab.sh("ip address del fd00::1/64 dev br0");
    pod.add(&config);
}
