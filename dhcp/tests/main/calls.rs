//! The other commands, and failures.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{RELEASE, Reply, Wire, daemon};
use testing::{Lab, Pod};

use crate::support::{address, lan, pool, recorded};

const HOUR: [u32; 3] = [1800, 3000, 3600];

#[test]
fn a_repeated_add_returns_the_same_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    let first = pod.add(&lan(json!({})));
    let config = with(lan(json!({})), json!({"type": "dhcp"}));
    server.forget();
    let again = pod.call("ADD", &config).run().ok();
    assert_eq!((&again["ips"][0]["address"], server.requests().len()), (&first["ips"][0]["address"], 0));
    // A new interface needs a new lease.
    pod.sh("ip link del eth0");
    pod.add(&lan(json!({})));
    assert!(!server.requests().is_empty());
    assert_eq!(recorded().len(), 1);
}

#[test]
fn check_compares_the_interface_with_the_lease() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon_process = daemon(lab, &[]);
    let _server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    let config = lan(json!({}));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    pod.sh("ip address del 10.66.0.60/24 dev eth0");
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("does not have the address 10.66.0.60"), "{error}");
    pod.sh("ip address add 10.66.0.60/24 dev eth0; ip route replace default via 10.66.0.1");
    pod.check_result(&config, &result).ok();
    let other = Pod::new(lab, "c2");
    let error = other
        .call("CHECK", &with(config.clone(), json!({"type": "dhcp", "prevResult": {"cniVersion": "1.1.0"}})))
        .run();
    assert!(error.error(999)["msg"].as_str().unwrap().contains("there is no DHCP lease"), "{error:?}");
    drop(daemon_process);
    let error = pod.check_result(&config, &result).error(11);
    assert!(error["msg"].as_str().unwrap().contains("no DHCP daemon listens at \"/run/cni/dhcp.sock\""), "{error}");
}

/// As after an upgrade from the reference, whose daemon keeps no leases.
#[test]
fn check_takes_over_a_lease_that_nobody_follows() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let server = wire.server(pool(HOUR));
    let pod = Pod::new(lab, "c1");
    let config = lan(json!({}));
    let result = pod.add(&config);
    pod.call("DEL", &with(config.clone(), json!({"type": "dhcp"}))).run().ok();
    assert_eq!(recorded(), Vec::<Value>::new());
    server.forget();
    pod.check_result(&config, &result).ok();
    let asked = server.requests();
    assert_eq!((asked.len(), asked[0].requested()), (1, Some([10, 66, 0, 60].into())));
    assert_eq!(recorded().len(), 1);
    pod.check_result(&config, &result).ok();
}

#[test]
fn del_succeeds_whatever_is_missing() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon_process = daemon(lab, &[]);
    let server = wire.server(pool(HOUR));
    let config = lan(json!({}));
    let [a, b, c] = ["a", "b", "c"].map(|id| Pod::new(lab, id));
    for pod in [&a, &b, &c] {
        pod.add(&config);
    }
    for _ in 0..3 {
        a.del(&config);
    }
    server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(server.requests().iter().filter(|request| request.kind == RELEASE).count(), 1);
    // Without the namespace, nothing can be sent.
    lab.sh("ip netns del b");
    b.del(&config);
    drop(daemon_process);
    let outcome = c.call("DEL", &config).run();
    outcome.ok();
    assert!(outcome.stderr.contains("no DHCP daemon listens"), "{}", outcome.stderr);
    assert_eq!(recorded(), Vec::<Value>::new());
    c.call("DEL", &config).run().silent();
    let missing = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp"});
    c.call("DEL", &missing).run().ok();
}

#[test]
fn gc_gives_back_the_leases_of_other_attachments() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon_process = daemon(lab, &[]);
    let server = wire.server(pool(HOUR));
    let config = lan(json!({}));
    let pods = ["a", "b", "c"].map(|id| Pod::new(lab, id));
    let results = pods.each_ref().map(|pod| pod.add(&config));
    let other = Pod::new(lab, "d");
    other.add(&with(config.clone(), json!({"name": "lan2"})));
    let gc = |ids: &[&str]| {
        let valid: Vec<Value> = ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        let config = with(config.clone(), json!({"cni.dev/valid-attachments": valid}));
        lab.plugin("macvlan", "GC").stdin(config.to_string()).run().ok();
    };
    gc(&["a", "b"]);
    let release = server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.client.to_string(), address(&results[2]));
    assert_eq!(recorded().len(), 2);
    drop(daemon_process);
    gc(&["a"]);
    assert_eq!(recorded().len(), 1);
    assert_eq!(fs::read_dir("/run/cni0/dhcp/lan2").unwrap().count(), 1, "of another network");
}

#[test]
fn status_needs_a_daemon() {
    let lab = &Lab::new();
    lab.sh("ip link add eth1 type veth peer name far; ip link set eth1 up; ip link set far up");
    let status = |config: &Value| lab.plugin("macvlan", "STATUS").stdin(config.to_string()).run();
    let error = status(&lan(json!({}))).error(50);
    assert!(error["msg"].as_str().unwrap().contains("no DHCP daemon listens"), "{error}");
    let _daemon = daemon(lab, &[]);
    status(&lan(json!({}))).ok();
    status(&lan(json!({"daemonSocketPath": "/run/other.sock"}))).error(50);
}

#[test]
fn an_add_without_a_server_fails_in_time_and_names_what_was_awaited() {
    let lab = &Lab::new();
    let _wire = Wire::new(lab);
    let daemon = daemon(lab, &["-resendtimeout", "1500ms"]);
    let pod = Pod::new(lab, "c1");
    let error = pod.call("ADD", &lan(json!({}))).run().error(11);
    let text = format!("{} {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    for wanted in ["container c1, interface eth0", "no server has answered", "asked 2 times within"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!pod.sh("ip -o link").contains("eth0"), "the interface was removed");
    assert_eq!(recorded(), Vec::<Value>::new());
    let missing = pod.call("ADD", &with(lan(json!({})), json!({"type": "dhcp"}))).run().error(999);
    assert!(missing["msg"].as_str().unwrap().contains("there is no link \"eth0\""), "{missing}");
    assert!(daemon.end());
    let error = pod.call("ADD", &lan(json!({}))).run().error(11);
    assert!(error["msg"].as_str().unwrap().contains("no DHCP daemon listens"), "{error}");
    assert!(!pod.sh("ip -o link").contains("eth0"), "the interface was removed");
}

/// An ADD that fails after the lease gives it back, before the interface is gone.
#[test]
fn a_failed_add_gives_the_lease_back() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let server = wire.server(|request| {
        let mut replies = Reply::grant(request, [10, 66, 0, 60], HOUR);
        // A next hop that the kernel refuses.
        replies.iter_mut().for_each(|reply| reply.options.push((121, vec![0, 192, 0, 2, 1])));
        replies
    });
    let pod = Pod::new(lab, "c1");
    let error = pod.call("ADD", &lan(json!({}))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("add route"), "{error}");
    server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(recorded(), Vec::<Value>::new());
}

#[test]
fn many_adds_at_once_succeed() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let _server = wire.server(pool(HOUR));
    let pods: Vec<Pod<'_>> = (0..40).map(|n| Pod::new(lab, &format!("c{n}"))).collect();
    let calls = pods.iter().map(|pod| pod.call("ADD", &lan(json!({})))).collect();
    let outcomes = testing::parallel::run(calls);
    let mut leased: Vec<String> = outcomes.iter().map(|outcome| address(&outcome.ok())).collect();
    leased.sort();
    leased.dedup();
    assert_eq!((leased.len(), recorded().len()), (40, 40));
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(status.contains("Threads:\t1\n"), "{status}");
}
