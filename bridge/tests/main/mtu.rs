//! A network whose MTU changes: the bridge and new containers get the new one.

use serde_json::json;
use testing::Lab;
use testing::packets::udp;

use crate::pod::Pod;
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
        pod.check(&config, &result).ok();
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

#[test]
fn ports_of_others_keep_a_larger_mtu() {
    for other in [None, Some("net2")] {
        let lab = &Lab::new();
        lab.sh("ip link add br0 type bridge; ip link set br0 mtu 9000");
        match other {
            None => drop(lab.sh("ip link add uplink0 mtu 9000 master br0 type veth peer name uplink1")),
            Some(name) => drop(Pod::new(lab, "other").add(&network(2, json!({ "name": name, "mtu": 9000 })))),
        }
        let pod = Pod::new(lab, "a");
        pod.add(&network(1, json!({ "mtu": 1400 })));
        assert_eq!(mtus(lab, &pod), [9000, 1400], "{other:?}");
    }
}
