//! `"ipv6": "dhcpv6"`: a lease of a DHCPv6 server, beside that of IPv4 or alone.

use std::net::Ipv6Addr;

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{self, Wire, daemon};
use testing::dhcp6::{ADVERTISE, CONFIRM, REBIND, RELEASE, RENEW, REQUEST, Reply, SOLICIT};
use testing::{Lab, Pod, Process, program_path, wait_until};

use crate::support::{addresses_of, descriptors, global_ipv6, lan, pool, recorded};

const HOUR: [u32; 3] = [1800, 2880, 3600];
/// T1, T2 and the end of a lease: as short as the client accepts.
const SHORT: [u32; 3] = [1, 4, 8];
const FIRST: &str = "fd66::60";
const SECOND: &str = "fd66::61";

/// Returns a network without IPv4.
fn only_ipv6() -> Value {
    lan(json!({"ipv4": false, "ipv6": "dhcpv6"}))
}

/// Waits until a pod's interface has only this address, or none.
#[track_caller]
fn await_address(pod: &Pod<'_>, address: Option<&str>) {
    let want: Vec<&str> = address.into_iter().collect();
    wait_until(&format!("{want:?} on the interface"), || locals(pod) == want);
}

fn locals(pod: &Pod<'_>) -> Vec<String> {
    global_ipv6(pod).iter().map(|address| address["local"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn both_families_are_leased_and_given_back() {
    let options = [
        "--enable-ra",
        "--dhcp-range=fd66::50,fd66::150,64,1h",
        "--dhcp-option=6,10.66.0.53",
        "--dhcp-option=option6:dns-server,[fd66::53]",
        "--dhcp-option=119,org",
        "--dhcp-option=option6:domain-search,eng.org,org",
    ];
    Lab::for_each_way_to_delegate(|lab| {
        let wire = Wire::new(lab);
        let Some(_server) = wire.dnsmasq("ipv6::both_families_are_leased_and_given_back", &options) else { return };
        let daemon = daemon(lab, &[]);
        let pod = Pod::new(lab, "c1");
        let config = lan(json!({"ipv6": "dhcpv6"}));
        let result = pod.add(&config);
        let [ipv4, ipv6] = &addresses_of(&result)[..] else { panic!("{result}") };
        assert!(ipv4.starts_with("10.66.0."), "{result}");
        assert_eq!(result["ips"][1]["address"], format!("{ipv6}/128"));
        assert_eq!(result["dns"], json!({"nameservers": ["10.66.0.53", "fd66::53"], "search": ["org", "eng.org"]}));
        assert_eq!(result["routes"].as_array().unwrap().len(), 1, "that of IPv4: {result}");
        let routes = pod.ip("-6 route show default");
        assert_eq!((&routes[0]["gateway"], &routes[0]["protocol"]), (&result["ips"][1]["gateway"], &json!("ra")));
        assert_eq!(&locals(&pod), std::slice::from_ref(ipv6));
        let leases = wire.leases();
        assert!(leases.contains(&format!(" {ipv4} ")) && leases.contains(&format!(" {ipv6} ")), "{leases}");
        assert_eq!(recorded().len(), 2);
        let shown = Process::new(program_path("cnitool")).arg("leases").run();
        assert!(shown.stdout.contains(ipv4) && shown.stdout.contains(ipv6), "{shown:?}");
        pod.ping("10.66.0.1");
        pod.ping("fd66::1");
        pod.check_result(&config, &result).ok();
        pod.del(&with(config, json!({ "prevResult": result })));
        wait_until("the server to take the addresses back", || {
            !["10.66.", "fd66:"].iter().any(|start| wire.leases().contains(start))
        });
        assert_eq!(recorded(), Vec::<Value>::new());
        assert!(daemon.end());
    });
}

#[test]
fn a_bridge_needs_no_ipv4() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let range = ["--dhcp-range=fd66::50,fd66::150,64,1h"];
    let Some(_server) = wire.router("ipv6::a_bridge_needs_no_ipv4", &range) else { return };
    let _daemon = daemon(lab, &[]);
    lab.sh("ip link add br0 type bridge; ip link set br0 up; ip link set eth1 master br0");
    let pod = Pod::new(lab, "c1");
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br0",
        "ipam": {"type": "dhcp", "ipv4": false, "ipv6": "dhcpv6"},
    });
    let result = pod.add(&config);
    assert_eq!((addresses_of(&result), recorded().len()), (locals(&pod), 1));
    pod.ping("fd66::1");
    pod.check_result(&config, &result).ok();
    pod.sh(&format!("ip address del {}/128 dev eth0", locals(&pod)[0]));
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("does not have the address fd66::"), "{error}");
    pod.del(&with(config, json!({ "prevResult": result })));
    wait_until("the server to take the address back", || !wire.leases().contains("fd66:"));
}

#[test]
fn a_lease_is_renewed_and_another_address_replaces_the_old_one() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let server = wire.server6(|request| Reply::grant(request, FIRST, SHORT));
    let idle = descriptors(&daemon);
    let pod = Pod::new(lab, "c1");
    let config = only_ipv6();
    let result = pod.add(&config);
    assert_eq!((addresses_of(&result), &result["ips"][0]["gateway"]), (vec![FIRST.to_owned()], &Value::Null));
    let asked = server.requests().into_iter().find(|request| request.kind != SOLICIT);
    assert_eq!(asked.map(|request| (request.kind, request.address())), Some((REQUEST, Some(FIRST.parse().unwrap()))));
    wait_until("two renewals", || server.requests().iter().filter(|request| request.kind == RENEW).count() >= 2);
    let renewal = server.await_request("a renewal", |request| request.kind == RENEW);
    assert_eq!(renewal.address(), Some(FIRST.parse().unwrap()));
    assert!(renewal.from.to_string().starts_with("[fe80::"), "{renewal:?}");
    assert_eq!(renewal.from.port(), 546);
    wait_until("a moment without an exchange", || descriptors(&daemon) == idle);
    server.behave(|request| Reply::grant(request, SECOND, SHORT));
    await_address(&pod, Some(SECOND));
    wait_until("the record to follow", || recorded()[0]["grant"]["terms"]["address"] == SECOND);
    pod.check_result(&config, &result).ok();
    server.forget();
    pod.del(&config);
    let release = server.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.address(), Some(SECOND.parse().unwrap()));
}

#[test]
fn a_lease_that_ends_takes_its_address_along_and_the_client_keeps_trying() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let server = wire.server6(|request| Reply::grant(request, FIRST, SHORT));
    let pod = Pod::new(lab, "c1");
    let config = only_ipv6();
    let result = pod.add(&config);
    server.behave(|_| Vec::new());
    server.await_request("the question to any server", |request| request.kind == REBIND);
    await_address(&pod, None);
    daemon.await_log("IPv6: lost fd66::60/128: the lease has ended");
    pod.check_result(&config, &result).error(999);
    let asked = server.await_request("a new search", |request| request.kind == SOLICIT && request.address().is_some());
    assert_eq!(asked.address(), Some(FIRST.parse::<Ipv6Addr>().unwrap()), "the former address, if it is free");
    server.behave(|request| Reply::grant(request, FIRST, SHORT));
    await_address(&pod, Some(FIRST));
}

#[test]
fn a_recorded_lease_is_confirmed_as_rfc_8415_says() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let server = wire.server6(|request| Reply::grant(request, FIRST, HOUR));
    let first = daemon(lab, &[]);
    let pod = Pod::new(lab, "c1");
    let config = only_ipv6();
    let result = pod.add(&config);
    drop(first);
    server.forget();
    let second = daemon(lab, &[]);
    let asked = server.await_request("the question", |request| request.kind == CONFIRM);
    assert_eq!((asked.address(), asked.option(2)), (Some(FIRST.parse().unwrap()), None), "no server is named");
    pod.check_result(&config, &result).ok();
    drop(second);

    // The container is on another network by now.
    server.behave(|request| match request.kind {
        CONFIRM => Reply::status(4),
        _ => Reply::grant(request, SECOND, HOUR),
    });
    let third = daemon(lab, &[]);
    await_address(&pod, Some(SECOND));
    third.await_log("the address is not of this network");
}

/// The lease of the other family is given back.
#[test]
fn an_add_that_gets_only_one_family_fails() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &["-resendtimeout", "1500ms"]);
    let ipv4 = wire.server(pool(HOUR));
    let ipv6 = wire.server6(|request| match request.kind {
        SOLICIT => vec![Reply { kind: ADVERTISE, options: vec![(13, b"\0\x02full".to_vec())] }],
        _ => Vec::new(),
    });
    let pod = Pod::new(lab, "c1");
    let error = pod.call("ADD", &lan(json!({"ipv6": "dhcpv6"}))).run().error(11);
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("interface eth0, IPv6 gets no address by DHCP"), "{text}");
    assert!(text.contains("cannot be used: no address is left (full)"), "{text}");
    ipv4.await_request("the release", |request| request.kind == dhcp::RELEASE);
    assert_eq!((recorded(), ipv6.requests().iter().all(|request| request.kind == SOLICIT)), (Vec::new(), true));
    assert!(!pod.sh("ip -o link").contains("eth0"), "the interface was removed");
}

#[test]
fn gc_and_del_give_back_both_families() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon_process = daemon(lab, &[]);
    let _ipv4 = wire.server(pool(HOUR));
    let ipv6 = wire.server6(|request| {
        // Each client has another address, by its MAC address.
        let client = request.option(1).unwrap();
        Reply::grant(request, &format!("fd66::1:{:x}{:02x}", client[8], client[9]), HOUR)
    });
    let config = lan(json!({"ipv6": "dhcpv6"}));
    let pods = ["a", "b"].map(|id| Pod::new(lab, id));
    let results = pods.each_ref().map(|pod| pod.add(&config));
    assert_eq!(recorded().len(), 4);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]});
    lab.plugin("macvlan", "GC").stdin(with(config.clone(), valid).to_string()).run().ok();
    let release = ipv6.await_request("the release", |request| request.kind == RELEASE);
    assert_eq!(release.address().unwrap().to_string(), addresses_of(&results[1])[1]);
    assert_eq!(recorded().len(), 2);
    // Without a daemon, DEL forgets both.
    drop(daemon_process);
    let deleted = pods[0].call("DEL", &config).run();
    deleted.ok();
    assert!(deleted.stderr.contains("no DHCP daemon listens"), "{}", deleted.stderr);
    assert_eq!(recorded(), Vec::<Value>::new());
    pods[0].call("DEL", &config).run().silent();
}

#[test]
fn nonsense_before_the_right_answer_is_ignored() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let _server = wire.server6(|request| {
        let right = Reply::grant(request, FIRST, HOUR);
        let Some(good) = right.first().cloned() else { return right };
        let bad = |address: &str| Reply::grant(request, address, HOUR).remove(0);
        let with = |number: u16, value: &[u8]| Reply { options: vec![(number, value.to_vec())], ..good.clone() };
        let mut named = good.clone();
        named.options.push((24, b"\x04a\nb.\0\x03org\0".to_vec()));
        let mut cut = with(3, &good.options[0].1[..20]);
        cut.options.push((3, vec![0; 5]));
        vec![
            Reply { kind: 99, ..good.clone() },
            Reply { kind: ADVERTISE, ..bad("::1") },
            Reply { kind: ADVERTISE, ..bad("ff02::1") },
            Reply { kind: ADVERTISE, ..bad("fe80::9") },
            Reply { kind: ADVERTISE, ..cut },
            Reply { kind: ADVERTISE, ..with(13, b"\0") },
            named,
        ]
    });
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&only_ipv6());
    assert_eq!((addresses_of(&result), &result["dns"]), (vec![FIRST.to_owned()], &json!({"search": ["org"]})));
    assert!(daemon.end());
}
