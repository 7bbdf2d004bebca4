//! What the daemon does with a lease after ADD: it renews it, and the interface follows what the server says.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use testing::dhcp::{DISCOVER, REQUEST, Reply, Wire, daemon};
use testing::{Lab, Pod, wait_until};

use crate::support::{addresses, await_address, descriptors, lan, pool_for, recorded};

const FIRST: [u8; 4] = [10, 66, 0, 60];
const SECOND: [u8; 4] = [10, 66, 0, 61];
/// T1, T2 and the end of a lease: as short as the client accepts.
const SHORT: [u32; 3] = [1, 4, 8];

#[test]
fn a_lease_is_renewed_with_its_server_and_no_namespace_stays_open() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let server = wire.server(|request| Reply::grant(request, FIRST, SHORT));
    let idle = descriptors(&daemon);
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({})));
    wait_until("a moment between exchanges, without a descriptor", || descriptors(&daemon) <= idle);
    wait_until("two renewals", || {
        server.requests().iter().filter(|request| !request.client.is_unspecified()).count() >= 2
    });
    for renewal in server.requests().iter().filter(|request| !request.client.is_unspecified()) {
        assert_eq!((renewal.kind, renewal.client, renewal.requested()), (REQUEST, Ipv4Addr::from(FIRST), None));
        assert_eq!(renewal.from, (Ipv4Addr::from(FIRST), 68).into(), "unicast from the address");
        assert!(!renewal.options.contains_key(&54) && !renewal.broadcast);
    }
    assert_eq!(addresses(&pod), ["10.66.0.60"]);
    // Once its container is gone, the lease is forgotten.
    lab.sh("ip netns del c1");
    wait_until("the lease to be forgotten", || recorded().is_empty());
    wait_until("its descriptors to be closed", || descriptors(&daemon) <= idle);
}

#[test]
fn another_address_and_other_routes_replace_the_old_ones() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let server = wire.server(|request| Reply::grant(request, FIRST, SHORT));
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({"priority": 50})));
    server.behave(|request| {
        let mut replies = Reply::grant(request, SECOND, SHORT);
        replies.iter_mut().for_each(|reply| reply.options.retain(|(number, _)| *number != 3));
        replies.iter_mut().for_each(|reply| reply.options.push((3, vec![10, 66, 0, 2])));
        replies
    });
    await_address(&pod, Some("10.66.0.61"));
    wait_until("the new route", || pod.sh("ip route").contains("default via 10.66.0.2 dev eth0"));
    let routes = pod.sh("ip route");
    assert!(!routes.contains("10.66.0.1 "), "{routes}");
    assert!(routes.contains("metric 50"), "{routes}");
    wait_until("the record to follow", || recorded()[0]["grant"]["terms"]["address"] == "10.66.0.61");
    pod.ping("10.66.0.2");
    pod.del(&lan(json!({})));
}

#[test]
fn after_a_refusal_the_address_goes_and_another_one_comes() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let server = wire.server(|request| Reply::grant(request, FIRST, SHORT));
    let pod = Pod::new(lab, "c1");
    let config = lan(json!({}));
    let result = pod.add(&config);
    server.behave(|request| match request.kind {
        REQUEST => Reply::refusal(),
        _ => Vec::new(),
    });
    await_address(&pod, None);
    daemon.await_log("server 10.66.0.1 has refused the address: not here");
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("has lost its DHCP lease"), "{error}");
    assert_eq!(recorded()[0]["grant"], serde_json::Value::Null);
    let asked =
        server.await_request("a new search", |request| request.kind == DISCOVER && request.requested().is_some());
    assert_eq!(asked.requested(), Some(FIRST.into()), "the former address, if it is free");
    server.behave(|request| Reply::grant(request, SECOND, SHORT));
    await_address(&pod, Some("10.66.0.61"));
    assert!(pod.sh("ip route").contains("default via 10.66.0.1"));
    pod.check_result(&config, &result).ok();
    pod.sh("ip address add 10.66.0.99/24 dev eth0; ip address del 10.66.0.61/24 dev eth0");
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("does not have the address 10.66.0.61"), "{error}");
    pod.del(&config);
}

#[test]
fn a_lease_that_ends_takes_its_address_along_and_the_client_keeps_trying() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let server = wire.server(|request| Reply::grant(request, FIRST, SHORT));
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({})));
    server.forget();
    server.behave(|_| Vec::new());
    let broadcast =
        |request: &testing::dhcp::Request| request.kind == REQUEST && request.from.ip() == Ipv4Addr::from(FIRST);
    server.await_request("renewals", broadcast);
    await_address(&pod, None);
    daemon.await_log("the lease has ended, and server 10.66.0.1 has not renewed it");
    assert_eq!(pod.ip("link show eth0")[0]["operstate"], "UP", "the link stays up");
    server.behave(|request| Reply::grant(request, FIRST, SHORT));
    await_address(&pod, Some("10.66.0.60"));
    pod.ping("10.66.0.1");
    let log = fs::read_to_string(lab.dir().join("daemon.log")).unwrap();
    assert!(!log.contains("error:"), "{log}");
}

/// A lease of 8 s is renewed each second. The daemon neither grows nor keeps descriptors.
#[test]
fn many_leases_need_one_thread_and_little_memory() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let are_long = Arc::new(AtomicBool::new(false));
    let long = Arc::clone(&are_long);
    let server = wire.server(pool_for(move || if long.load(Ordering::Relaxed) { [1800, 3000, 3600] } else { SHORT }));
    let idle = descriptors(&daemon);
    let pods: Vec<Pod<'_>> = (0..20).map(|n| Pod::new(lab, &format!("c{n}"))).collect();
    for pod in &pods {
        pod.add(&lan(json!({})));
    }
    wait_until("hundred renewals", || server.requests().len() > 140);
    // From now on, there are moments without a renewal, however slow the machine is.
    are_long.store(true, Ordering::Relaxed);
    wait_until("a moment without an exchange", || descriptors(&daemon) <= idle);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(number("Threads:"), 1);
    assert!(number("VmRSS:") < 20_000, "{status}");
}
