//! Networks of `dhcp`, whose leases a server grants.

use serde_json::json;
use testing::dhcp::{Reply, Request, SERVER, Wire, daemon};
use testing::wait_until;

use crate::doctor::problems;
use crate::node::{attach, json, lose_namespace, page};
use crate::support::Host;

/// A host with a network of `dhcp`.
fn host() -> Host {
    let host = Host::new();
    let plugin = json!({ "type": "macvlan", "master": "eth1", "ipam": { "type": "dhcp" } });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    host.configure("10-pods.conflist", &list.to_string());
    host
}

/// Grants an address for a time in seconds.
fn grant(request: &Request, address: u8, end: u32) -> Vec<Reply> {
    Reply::grant(request, [10, 66, 0, address], [end / 4, end / 2, end])
}

#[test]
fn leases_have_a_server_and_a_time() {
    let host = host();
    let wire = Wire::new(&host.lab);
    let server = wire.server(|request| grant(request, 60, 3600));
    let service = daemon(&host.lab, &[]);
    let blue = attach(&host, "blue");
    server.behave(|request| grant(request, 61, u32::MAX));
    let lost = attach(&host, "lost");
    let answer = json(&host, "leases --json");
    let leases = answer["networks"][0]["leases"].as_array().unwrap();
    let of = |id: &str| leases.iter().find(|lease| lease["container"] == id).unwrap();
    assert_eq!((&of(&blue)["server"], &of(&lost)["server"]), (&json!(SERVER), &json!(SERVER)));
    assert!((1..=3600).contains(&of(&blue)["left"].as_u64().unwrap()) && of(&lost)["left"].is_null(), "{answer:#}");
    assert_eq!((&of(&blue)["state"], &of(&blue)["interface"]), (&json!("alive"), &json!("eth0")));
    let text = page(&host.run("leases"));
    assert!(["SERVER  ", "  10.66.0.1  ", "  no end  "].iter().all(|part| text.contains(part)), "{text}");
    let metrics = host.run("metrics").stdout;
    assert!(metrics.contains("cni_leases{network=\"pods\"} 2\n"), "{metrics}");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);

    lose_namespace(&host, "lost", &lost);
    assert!(host.run("metrics").stdout.contains("cni_stale_leases{network=\"pods\"} 1\n"));
    assert!(service.end());
}

/// Without the daemon, a lease ends, and its container does not notice.
#[test]
fn a_lease_that_nothing_renews_is_reported() {
    let host = host();
    let wire = Wire::new(&host.lab);
    let _server = wire.server(|request| grant(request, 60, 8));
    let service = daemon(&host.lab, &[]);
    let blue = attach(&host, "blue");
    assert!(service.end());
    let left = || json(&host, "leases --json")["networks"][0]["leases"][0]["left"].clone();
    wait_until("the end of the lease", || left() == 0);
    assert!(page(&host.run("leases")).contains("ended"));
    let metrics = host.run("metrics").stdout;
    assert!(metrics.contains("cni_ended_leases{network=\"pods\"} 1\n"), "{metrics}");
    let answer = json(&host, "doctor --json");
    assert!(answer.to_string().contains("leases that have ended: 1"), "{answer:#}");
    assert!(answer.to_string().contains(&blue), "{answer:#}");
    assert!(answer.to_string().contains("no DHCP daemon listens"), "{answer:#}");
    let _service = daemon(&host.lab, &[]);
    wait_until("the daemon to ask the server again", || left().as_u64().is_some_and(|left| left > 0));
    assert!(!json(&host, "doctor --json").to_string().contains("leases that have ended"));
}
