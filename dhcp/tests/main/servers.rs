//! Real servers, each with one address: a second container gets it only if the server has accepted the release of the first.

use std::fs;
use std::path::Path;

use serde_json::json;
use testing::config::with;
use testing::dhcp::{self, Service, Wire, daemon};
use testing::{Lab, Pod, skip};

use crate::support::{address, lan};

/// Starts a server on the wire with a configuration; `None` if it is not installed, which skips the test.
fn start(lab: &Lab, wire: &Wire<'_>, test: &str, command: &str, config: &str) -> Option<Service> {
    let path = lab.dir().join("server.conf");
    fs::write(&path, config).unwrap();
    let command = command.replace("CONF", path.to_str().unwrap()).replace("DIR", lab.dir().to_str().unwrap());
    let program = command.split(' ').find(|word| word.starts_with("/usr/")).unwrap();
    if !Path::new(program).exists() {
        skip(test, &format!("{program} is not installed"));
        return None;
    }
    let netns = format!("--net={}", wire.netns.display());
    let arguments: Vec<&str> = [netns.as_str()].into_iter().chain(command.split(' ')).collect();
    Some(dhcp::start(lab, "server", "nsenter", &arguments))
}

fn serves_one_container_after_the_other(test: &str, command: &str, config: &str) {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    fs::write(lab.dir().join("leases"), "").unwrap();
    let Some(server) = start(lab, &wire, test, command, config) else { return };
    let daemon = daemon(lab, &[]);
    for id in ["a", "b", "c"] {
        let pod = Pod::new(lab, id);
        let result = pod.add(&lan(json!({})));
        assert_eq!(address(&result), "10.66.0.60", "{}", server.log());
        assert_eq!(result["ips"][0]["gateway"], "10.66.0.1");
        pod.ping("10.66.0.1");
        pod.check_result(&lan(json!({})), &result).ok();
        pod.del(&with(lan(json!({})), json!({ "prevResult": result })));
    }
    assert!(daemon.end());
}

#[test]
fn isc() {
    let command = "/usr/sbin/dhcpd -4 -f -d --no-pid -cf CONF -lf DIR/leases w0";
    let config = "authoritative; ping-check false; default-lease-time 3600; max-lease-time 3600;
subnet 10.66.0.0 netmask 255.255.255.0 { range 10.66.0.60 10.66.0.60; option routers 10.66.0.1; }
";
    serves_one_container_after_the_other("servers::isc", command, config);
}

/// It probes an address for two seconds before it offers it.
#[test]
fn udhcpd() {
    let command = "/usr/bin/busybox udhcpd -f CONF";
    let config =
        "start 10.66.0.60\nend 10.66.0.60\ninterface w0\nlease_file /run/udhcpd.leases\npidfile /run/udhcpd.pid
opt subnet 255.255.255.0\nopt router 10.66.0.1\nopt lease 3600\n";
    serves_one_container_after_the_other("servers::udhcpd", command, config);
}

#[test]
fn dnsmasq() {
    let command = "/usr/sbin/dnsmasq --no-daemon --no-ping --port=0 --interface=w0 --bind-dynamic --conf-file=/dev/null \
                   --no-resolv --user=root --dhcp-leasefile=DIR/leases --dhcp-option=3,10.66.0.1 \
                   --dhcp-range=10.66.0.60,10.66.0.60,255.255.255.0,1h";
    serves_one_container_after_the_other("servers::dnsmasq", command, "");
}
