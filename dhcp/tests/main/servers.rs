//! Real servers, each with one address: a second container gets it only if the server has accepted the release of the
//! first.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{self, RELEASE, Reply, Service, Wire, daemon};
use testing::{Lab, Pod, skip, wait_until};

use crate::support::{address, await_address, lan};

const ISC: &str = "/usr/sbin/dhcpd -4 -f -d --no-pid -cf CONF -lf HERE/leases w0";
const KEA: &str = "env KEA_PIDFILE_DIR=HERE KEA_LOCKFILE_DIR=HERE /usr/sbin/kea-dhcp4 -c CONF";

/// Returns a configuration of isc-dhcp-server with a lease of 8 s, which is renewed each second.
fn isc_config(address: &str) -> String {
    format!(
        "authoritative; ping-check false; default-lease-time 8; min-lease-time 8; max-lease-time 8;
option dhcp-renewal-time 1; option dhcp-rebinding-time 3;
subnet 10.66.0.0 netmask 255.255.255.0 {{ range {address} {address}; option routers 10.66.0.1; }}
"
    )
}

/// Returns a configuration of kea with the same times.
fn kea_config(address: &str) -> String {
    let subnet = json!({
        "subnet": "10.66.0.0/24", "pools": [{"pool": format!("{address}-{address}")}],
        "option-data": [{"name": "routers", "data": "10.66.0.1"}],
    });
    let logger = json!({"name": "kea-dhcp4", "severity": "INFO", "output_options": [{"output": "stdout"}]});
    let server = json!({
        "interfaces-config": {"interfaces": ["w0"], "dhcp-socket-type": "raw"},
        "lease-database": {"type": "memfile", "persist": false},
        "authoritative": true, "valid-lifetime": 8, "renew-timer": 1, "rebind-timer": 3,
        "subnet4": [subnet], "loggers": [logger],
    });
    json!({ "Dhcp4": server }).to_string()
}

/// Starts a server on the wire with a configuration; `None` if it is not installed, which skips the test.
fn start(lab: &Lab, wire: &Wire<'_>, test: &str, command: &str, config: &str) -> Option<Service> {
    start_in(lab, &wire.netns, "server", test, command, config)
}

/// Starts a server of a name in a namespace, once its interface has a carrier: kea ignores an interface that has none.
fn start_in(lab: &Lab, netns: &Path, name: &str, test: &str, command: &str, config: &str) -> Option<Service> {
    let path = lab.dir().join(format!("{name}.conf"));
    fs::write(&path, config).unwrap();
    let command = command.replace("CONF", path.to_str().unwrap()).replace("HERE", lab.dir().to_str().unwrap());
    let program = command.split(' ').find(|word| word.starts_with("/usr/")).unwrap();
    if !Path::new(program).exists() {
        skip(test, &format!("{program} is not installed"));
        return None;
    }
    let netns = format!("--net={}", netns.display());
    wait_until("a carrier", || lab.sh(&format!("nsenter {netns} ip link show w0")).contains("state UP"));
    let arguments: Vec<&str> = [netns.as_str()].into_iter().chain(command.split(' ')).collect();
    Some(dhcp::start(lab, name, "nsenter", &arguments))
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
    let config = "authoritative; ping-check false; default-lease-time 3600; max-lease-time 3600;
subnet 10.66.0.0 netmask 255.255.255.0 { range 10.66.0.60 10.66.0.60; option routers 10.66.0.1; }
";
    serves_one_container_after_the_other("servers::isc", ISC, config);
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
                   --no-resolv --user=root --dhcp-leasefile=HERE/leases --dhcp-option=3,10.66.0.1 \
                   --dhcp-range=10.66.0.60,10.66.0.60,255.255.255.0,1h";
    serves_one_container_after_the_other("servers::dnsmasq", command, "");
}

/// Waits until a text has appeared this often in the log of a server.
#[track_caller]
fn await_lines(server: &Service, text: &str, count: usize) {
    wait_until(&format!("{text:?} {count} times in the log"), || server.log().matches(text).count() >= count);
}

#[test]
fn kea() {
    serves_one_container_after_the_other("servers::kea", KEA, &kea_config("10.66.0.60"));
}

#[test]
fn kea_sees_renewals_and_the_release() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let test = "servers::kea_sees_renewals_and_the_release";
    let Some(server) = start(lab, &wire, test, KEA, &kea_config("10.66.0.60")) else { return };
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    pod.add(&lan(json!({})));
    await_lines(&server, "DHCP4_LEASE_ALLOC", 3);
    pod.del(&lan(json!({})));
    server.await_log("was released properly");
}

/// Creates a wire with two namespaces for servers, and returns the second one.
fn two(lab: &Lab) -> (Wire<'_>, std::path::PathBuf) {
    lab.sh(
        "ip link add eth1 type bridge; ip link set eth1 up
            ip link add p1 master eth1 up type veth peer name e1; ip link add p2 master eth1 up type veth peer name e2",
    );
    let second = lab.netns("second");
    lab.sh("ip link set e2 name w0 netns second
            ip -n second address add 10.66.0.3/24 dev w0; ip -n second link set w0 up");
    (Wire::with_end(lab, "e1"), second)
}

/// The server whose offer came first keeps the container, until it is gone. Then the other one refuses the address, and
/// gives its own.
#[test]
fn two_servers_on_one_wire() {
    let test = "servers::two_servers_on_one_wire";
    let lab = &Lab::new();
    let (wire, second) = two(lab);
    fs::write(lab.dir().join("leases"), "").unwrap();
    let Some(isc) = start(lab, &wire, test, ISC, &isc_config("10.66.0.60")) else { return };
    let Some(kea) = start_in(lab, &second, "kea", test, KEA, &kea_config("10.66.0.70")) else { return };
    isc.await_log("Server starting service");
    kea.await_log("DHCP4_STARTED");
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let first = address(&pod.add(&lan(json!({}))));
    let is_isc = first == "10.66.0.60";
    let (first, first_line, other, other_line, address, released) = match is_isc {
        true => (isc, "DHCPACK on 10.66.0.60", kea, "DHCP4_LEASE_ALLOC", "10.66.0.70", "was released properly"),
        false => (kea, "DHCP4_LEASE_ALLOC", isc, "DHCPACK on", "10.66.0.60", "DHCPRELEASE of 10.66.0.60"),
    };
    await_lines(&first, first_line, 3);
    assert!(!other.log().contains(other_line), "{}", other.log());
    drop(first);
    await_address(&pod, Some(address));
    other.await_log(other_line);
    pod.del(&lan(json!({})));
    other.await_log(released);
}

/// It may answer first, also to what the client asks of another server.
#[test]
fn a_server_without_a_usable_offer_does_not_hide_another_one() {
    let test = "servers::a_server_without_a_usable_offer_does_not_hide_another_one";
    let lab = &Lab::new();
    let (wire, second) = two(lab);
    let useless = wire.server(|request| {
        let mut replies = Reply::grant(request, [10, 66, 0, 99], [1, 4, 8]);
        replies.iter_mut().for_each(|reply| reply.options.retain(|(number, _)| *number != 1));
        if request.kind == dhcp::REQUEST {
            replies.extend(Reply::refusal());
        }
        replies
    });
    fs::write(lab.dir().join("leases"), "").unwrap();
    let Some(isc) = start_in(lab, &second, "isc", test, ISC, &isc_config("10.66.0.60")) else { return };
    isc.await_log("Server starting service");
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&lan(json!({})));
    assert_eq!(address(&result), "10.66.0.60");
    await_lines(&isc, "DHCPACK on 10.66.0.60", 3);
    pod.check_result(&lan(json!({})), &result).ok();
    pod.del(&lan(json!({})));
    isc.await_log("DHCPRELEASE of 10.66.0.60");
    assert_eq!(useless.requests().iter().filter(|request| request.kind == RELEASE).count(), 0);
}

/// The server is beyond a router, to which the client sends what is for the server.
#[test]
fn a_server_behind_a_relay() {
    let test = "servers::a_server_behind_a_relay";
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let beyond = lab.netns("beyond");
    lab.sh("ip link add u0 netns wire type veth peer name w0 netns beyond
            ip -n wire address add 10.67.0.1/24 dev u0; ip -n wire link set u0 up
            ip -n beyond address add 10.67.0.2/24 dev w0; ip -n beyond link set w0 up
            ip -n beyond route add default via 10.67.0.1
            ip netns exec wire sysctl -qw net.ipv4.ip_forward=1");
    fs::write(lab.dir().join("leases"), "").unwrap();
    let config = isc_config("10.66.0.60") + "subnet 10.67.0.0 netmask 255.255.255.0 {}\n";
    let Some(server) = start_in(lab, &beyond, "isc", test, ISC, &config) else { return };
    let relay =
        "/usr/sbin/dnsmasq --no-daemon --port=0 --conf-file=/dev/null --user=root --dhcp-relay=10.66.0.1,10.67.0.2";
    let Some(_relay) = start(lab, &wire, test, relay, "") else { return };
    server.await_log("Server starting service");
    let _daemon = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&lan(json!({})));
    assert_eq!((address(&result).as_str(), &result["ips"][0]["gateway"]), ("10.66.0.60", &Value::from("10.66.0.1")));
    server.await_log("DHCPACK on 10.66.0.60 to");
    let log = server.log();
    assert!(log.contains("via 10.66.0.1"), "{log}");
    await_lines(&server, "DHCPACK on 10.66.0.60", 3);
    pod.del(&lan(json!({})));
    server.await_log("DHCPRELEASE of 10.66.0.60");
}
