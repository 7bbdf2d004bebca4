//! Packets: an answer leaves by the interface at which the request arrived, although the default route leads elsewhere.

use std::path::Path;

use serde_json::json;
use testing::packets::{assert_nothing_arrives, send, udp};
use testing::{Lab, Pod};

use crate::support::{V4, V6, chained, connect, restore_networks};

/// Returns a container with two interfaces, each to a router of its own, behind which is the same client network.
fn between_routers(lab: &Lab) -> Pod<'_> {
    lab.netns("c1");
    let pod = Pod { ifname: "net1".to_owned(), ..Pod::absent(lab, "c1", &[]) };
    pod.sh("ip link set lo up");
    connect(&pod, "eth0", &[("10.9.0.2/24", ""), ("fd09::2/64", "")]);
    connect(&pod, "net1", &[(V4.0, ""), (V6.0, "")]);
    for (router, port, addresses) in
        [("r0", "c1eth0", ["10.9.0.1/24", "fd09::1/64"]), ("r1", "c1net1", ["192.168.1.1/24", "fd01::1/64"])]
    {
        lab.netns(router);
        let [v4, v6] = addresses;
        // The address of a client elsewhere.
        lab.sh(&format!(
            "ip link set {port} netns {router}
             ip -n {router} link set lo up; ip -n {router} link set {port} up
             ip -n {router} address add {v4} dev {port}; ip -n {router} address add {v6} dev {port} nodad
             ip -n {router} address add 203.0.113.7/32 dev lo; ip -n {router} address add 2001:db8::7/128 dev lo nodad
             ip -n {router} route add 192.168.1.0/24 dev {port} 2>/dev/null || true"
        ));
    }
    pod.sh("ip route add default via 10.9.0.1; ip -6 route add default via fd09::1");
    pod
}

#[test]
fn answers_leave_by_the_interface_of_the_request() {
    let lab = &Lab::new();
    let pod = between_routers(lab);
    let config = chained(&pod, json!({}), &[V4, V6]);
    for (client, server) in [("203.0.113.7", "192.168.1.209"), ("2001:db8::7", "fd01::5")] {
        // A server that is bound to the address answers with it.
        let bound = udp(Some(&pod.netns), server, 0);
        let asking = udp(Some(Path::new("/run/netns/r1")), client, 0);
        assert_eq!(send(&asking, &bound, server), client.parse().ok());
        // Without sbr, the answer goes to the other router.
        assert_nothing_arrives(&bound, &asking, client);
        pod.add(&config);
        assert_eq!(send(&bound, &asking, client), server.parse().ok());
        // The other interface is as before.
        pod.ping(if client.contains(':') { "fd09::1" } else { "10.9.0.1" });
        pod.del(&config);
        restore_networks(&pod);
    }
}

/// Neighbours are reached by their link-local addresses.
#[test]
fn link_local_addresses_work() {
    let lab = &Lab::new();
    let pod = between_routers(lab);
    pod.add(&chained(&pod, json!({}), &[V4, V6]));
    let address = lab.sh("ip -n r1 -6 -o address show dev c1net1 scope link | sed 's/.*inet6 \\([^/]*\\).*/\\1/'");
    let address = address.trim();
    pod.ping(&format!("{address}%net1"));
    pod.ping(&format!("-I fd01::5 {address}%net1"));
}
