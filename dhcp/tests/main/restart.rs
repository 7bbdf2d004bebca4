//! Leases outlive the daemon.

use serde_json::json;
use testing::dhcp::{DISCOVER, RELEASE, REQUEST, Reply, Wire, daemon};
use testing::{Lab, Pod, wait_until};

use crate::support::{addresses, await_address, lan, recorded};

const FIRST: [u8; 4] = [10, 66, 0, 60];
const HOUR: [u32; 3] = [1800, 3000, 3600];

#[test]
fn a_daemon_that_was_killed_loses_no_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_server) = wire.dnsmasq("restart::a_daemon_that_was_killed_loses_no_lease", &[]) else { return };
    let first = daemon(lab, &[]);
    let pods = ["a", "b", "c"].map(|id| Pod::new(lab, id));
    let config = lan(json!({}));
    let results = pods.each_ref().map(|pod| pod.add(&config));
    let before = wire.leases();
    // SIGKILL: its socket stays.
    drop(first);
    // Meanwhile one container is gone.
    lab.sh("ip netns del c");
    let second = daemon(lab, &[]);
    second.await_log("renewed");
    wait_until("the lease of the container that is gone to be forgotten", || recorded().len() == 2);
    for (pod, result) in pods.iter().zip(&results).take(2) {
        pod.check_result(&config, result).ok();
    }
    assert_eq!(wire.leases().lines().count(), before.lines().count());
    for pod in &pods {
        pod.del(&config);
    }
    wait_until("the server to take the addresses back", || wire.leases().lines().count() == 1);
    assert!(second.end());
}

#[test]
fn a_recorded_lease_is_confirmed_as_rfc_2131_says() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(|request| Reply::grant(request, FIRST, HOUR));
    let first = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({})));
    assert!(first.end(), "a daemon that is stopped keeps the leases, too");
    server.forget();
    let second = daemon(lab, &[]);
    let asked = server.await_request("the question", |request| request.kind == REQUEST);
    assert_eq!((asked.requested(), asked.client.is_unspecified()), (Some(FIRST.into()), true));
    assert!(!asked.options.contains_key(&54), "no server is named");
    second.await_log("renewed");
    assert_eq!(server.requests().iter().filter(|request| request.kind == DISCOVER).count(), 0);
    drop(second);

    // No server answers: the lease is still valid.
    server.behave(|_| Vec::new());
    server.forget();
    let third = daemon(lab, &[]);
    wait_until("four questions", || server.requests().len() == 4);
    assert_eq!(addresses(&pod), ["10.66.0.60"]);
    drop(third);

    // The server knows nothing of it.
    server.behave(|request| match request.kind {
        REQUEST if request.requested() == Some(FIRST.into()) => Reply::refusal(),
        _ => Reply::grant(request, [10, 66, 0, 61], HOUR),
    });
    let _fourth = daemon(lab, &[]);
    await_address(&pod, Some("10.66.0.61"));
    pod.del(&lan(json!({})));
    let release = server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.client.to_string(), "10.66.0.61");
}

/// At a restart, a path can lead to another namespace, and a name to another interface.
#[test]
fn a_lease_of_another_interface_is_forgotten() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server(|request| Reply::grant(request, FIRST, HOUR));
    let first = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({})));
    drop(first);
    lab.sh("ip netns del c1; ip netns add c1
            ip link add link eth1 name eth0 netns c1 type macvlan; ip -n c1 link set eth0 up");
    server.forget();
    let second = daemon(lab, &[]);
    wait_until("the lease to be forgotten", || recorded().is_empty());
    second.await_log("the interface is gone");
    assert_eq!(server.requests().len(), 0);
}
