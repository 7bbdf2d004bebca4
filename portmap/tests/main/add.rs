//! ADD: passes the previous result on, selects addresses, and replaces what an earlier ADD published.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::packets::udp;
use testing::{Lab, Pod, Process, kubernetes, skip};

use crate::support::{assert_clean, config, entries, port, published, table};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[test]
fn the_previous_result_passes_byte_for_byte_in_every_version() {
    let lab = &Lab::new();
    for version in VERSIONS {
        for case in ["full", "plain"] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/result").join(version).join(case);
            let text = fs::read_to_string(file.with_extension("json")).unwrap();
            let pod = Pod::absent(lab, "a", &[]);
            let previous: Value = serde_json::from_str(&text).unwrap();
            let ifname = previous["interfaces"].as_array().into_iter().flatten();
            let ifname = ifname.filter(|found| found["sandbox"].is_string()).find_map(|found| found["name"].as_str());
            let pod = Pod { ifname: ifname.unwrap_or("eth0").to_owned(), ..pod };
            for ports in [&[][..], &["8080:80/tcp", "8080:80/udp"]] {
                let config = with(config(ports), json!({ "cniVersion": version, "prevResult": previous }));
                let added = pod.call("ADD", &config).run();
                assert_eq!((added.stdout.as_str(), added.stderr.as_str()), (text.as_str(), ""), "{version} {case}");
                assert_eq!(entries(lab).is_empty(), ports.is_empty(), "{version} {case}: {text}");
                if !matches!(version, "0.1.0" | "0.2.0" | "0.3.0" | "0.3.1") {
                    assert_eq!(pod.call("CHECK", &config).run().ok(), Value::Null);
                }
                pod.del(&config);
                assert_clean(lab);
            }
        }
    }
}

#[test]
fn results_before_interfaces_have_addresses() {
    let lab = &Lab::new();
    for version in ["0.1.0", "0.2.0"] {
        let pod = Pod::absent(lab, "a", &[]);
        let result = json!({ "cniVersion": version, "ip4": { "ip": "10.1.0.2/24" }, "ip6": { "ip": "fd01::2/64" } });
        let config = with(config(&["8080:80/tcp"]), json!({ "cniVersion": version, "prevResult": result }));
        assert_eq!(pod.add(&config)["ip6"]["ip"], "fd01::2/64");
        let want = ["tcp 8080 to 10.1.0.2 80", "tcp 8080 to fd01::2 80"].map(|mapping| port(mapping, "a"));
        assert_eq!(published(lab), want);
        pod.del(&config);
        assert_clean(lab);
    }
}

/// Returns the lines of a trace with a netlink socket.
fn netlink_sockets(lab: &Lab, call: Process) -> Vec<String> {
    let (outcome, log) = call.trace(lab, &["-f", "-e", "trace=socket"]);
    outcome.ok();
    log.lines().filter(|line| line.contains("AF_NETLINK")).map(str::to_owned).collect()
}

#[test]
fn without_ports_no_socket_is_opened() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let mut missing = config(&[]);
    missing.as_object_mut().unwrap().remove("runtimeConfig");
    for config in [
        config(&[]),
        missing,
        with(config(&[]), json!({ "runtimeConfig": {} })),
        with(config(&[]), json!({ "runtimeConfig": null })),
        with(config(&[]), json!({ "runtimeConfig": { "portMappings": null } })),
    ] {
        for command in ["ADD", "CHECK"] {
            assert_eq!(netlink_sockets(lab, pod.call(command, &config)), [] as [&str; 0], "{command} {config}");
        }
    }
    assert_ne!(netlink_sockets(lab, pod.call("ADD", &config(&["8080:80/tcp"]))), [] as [&str; 0]);
}

#[test]
fn ports_lead_to_the_first_address_of_each_family_of_the_interface() {
    let lab = &Lab::new();
    let interfaces = json!([
        { "name": "br0" }, { "name": "eth0" }, { "name": "eth0", "sandbox": "/run/netns/a" },
        { "name": "eth1", "sandbox": "/run/netns/a" },
    ]);
    let ip = |address: &str, interface: i64| json!({ "address": address, "interface": interface });
    let bare = |address: &str| json!({ "address": address });
    for (ips, want) in [
        (json!([ip("10.1.0.2/24", 2), ip("10.1.0.3/24", 2)]), &["10.1.0.2"][..]),
        (json!([ip("fd01::2/64", 2), ip("fd01::3/64", 2), ip("10.1.0.3/24", 2)]), &["10.1.0.3", "fd01::2"]),
        (json!([bare("10.1.0.2/24"), ip("10.1.0.3/24", 2)]), &["10.1.0.2"]),
        (json!([ip("10.1.0.2/24", 7)]), &["10.1.0.2"]),
        (
            json!([ip("10.1.0.2/24", 0), ip("10.1.0.3/24", 1), ip("10.1.0.4/24", 3), ip("10.1.0.5/24", 2)]),
            &["10.1.0.5"],
        ),
        (json!([ip("10.1.0.2/24", 0), ip("10.1.0.3/24", 1), ip("10.1.0.4/24", 3)]), &[]),
        (json!([ip("10.1.0.4/24", 3), ip("fd01::2/64", 2)]), &["fd01::2"]),
        (json!([]), &[]),
    ] {
        let pod = Pod::absent(lab, "a", &[]);
        let result = json!({ "cniVersion": "1.1.0", "interfaces": interfaces, "ips": ips });
        let config = with(config(&["8080:80/tcp"]), json!({ "prevResult": result }));
        pod.add(&config);
        let want: Vec<_> = want.iter().map(|ip| port(&format!("tcp 8080 to {ip} 80"), "a")).collect();
        assert_eq!(published(lab), want, "{ips}");
        pod.check(&config).ok();
        pod.del(&config);
        assert_clean(lab);
    }
}

#[test]
fn a_result_of_layer_2_is_passed_on() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &[]);
    let result = pod.add(&config(&["8080:80/tcp"]));
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    pod.check(&config(&["8080:80/tcp"])).ok();
    assert_eq!(table(lab), "");
}

/// Ports of an address of the other family.
#[test]
fn ports_of_a_family_that_the_container_lacks_are_left_out() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "a", &["fd01::2/64"]);
    let some = config(&["8080:80/tcp", "10.0.0.1 8081:80/tcp", "0.0.0.0 8082:80/tcp"]);
    pod.add(&some);
    assert_eq!(published(lab), [port("tcp 8080 to fd01::2 80", "a")]);
    pod.check(&some).ok();
    let none = config(&["10.0.0.1 8081:80/tcp"]);
    pod.del(&some);
    pod.add(&none);
    pod.check(&none).ok();
    assert_clean(lab);
}

#[test]
fn a_repeated_add_replaces_ports_and_address() {
    let lab = &Lab::new();
    let first = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    first.add(&config(&["8080:80/tcp", "8081:81/tcp", "10.0.0.1 8082:82/udp"]));
    let second = Pod { ips: vec!["10.1.0.9/24".to_owned()], ..first.clone() };
    let changed = config(&["8080:80/tcp", "8083:81/tcp"]);
    for _ in 0..2 {
        second.add(&changed);
        let want = ["tcp 8080 to 10.1.0.9 80", "tcp 8083 to 10.1.0.9 81"].map(|mapping| port(mapping, "a"));
        assert_eq!(published(lab), want);
        assert_eq!(entries(lab).len(), 6, "{:#?}", entries(lab));
        second.check(&changed).ok();
    }
    // Without ports, the plugin does not look at the host.
    second.add(&config(&[]));
    assert_eq!(entries(lab).len(), 6);
    second.del(&config(&[]));
    assert_clean(lab);
}

/// Other conditions, masquerade and protocols than in the first ADD.
#[test]
fn a_repeated_add_replaces_what_another_configuration_published() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    for more in [
        json!({}),
        json!({ "conditionsV4": ["-s", "10.0.0.0/8"] }),
        json!({ "masqAll": true }),
        json!({ "snat": false }),
        json!({ "conditionsV4": ["-s", "10.7.0.0/16"], "masqAll": true }),
        json!({}),
    ] {
        let config = with(config(&["8080:80/tcp"]), more.clone());
        pod.add(&config);
        pod.check(&config).ok();
        assert_eq!(published(lab), [port("tcp 8080 to 10.1.0.2 80", "a")], "{more}");
        assert_eq!(
            table(lab).matches("map ipv4_ports_").count(),
            usize::from(more.get("conditionsV4").is_some()),
            "{more}"
        );
    }
    pod.del(&config(&[]));
    assert_clean(lab);
}

#[test]
fn attachments_of_one_container_are_independent() {
    let lab = &Lab::new();
    let eth0 = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let eth1 = eth0.interface("eth1", &["10.1.0.3/24"]);
    eth0.add(&config(&["8080:80/tcp"]));
    eth1.add(&config(&["8081:80/tcp"]));
    eth0.add(&on_network("net2", config(&["8082:80/tcp"])));
    assert_eq!(
        published(lab),
        [
            "tcp 8080 to 10.1.0.2 80 (net: net1, if: eth0, id: a)",
            "tcp 8081 to 10.1.0.3 80 (net: net1, if: eth1, id: a)",
            "tcp 8082 to 10.1.0.2 80 (net: net2, if: eth0, id: a)"
        ]
    );
}

#[test]
fn many_ports_are_published_by_one_call() {
    let lab = &Lab::new();
    for count in [500, 1000] {
        let pod = Pod::with_port(lab, &format!("c{count}"), &["10.1.0.2/24", "fd01::2/64"]);
        let ports: Vec<String> = (1..=count)
            .map(|n| if n % 2 == 0 { format!("{n}:{n}/tcp") } else { format!("10.0.0.1 {n}:{n}/udp") })
            .collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        // The second address family has no port of an IPv4 address.
        for _ in 0..2 {
            pod.add(&config(&ports));
            assert_eq!(published(lab).len(), count / 2 * 3);
        }
        pod.check(&config(&ports)).ok();
        pod.del(&config(&[]));
        assert_clean(lab);
    }
}

/// Root of a user namespace, as of rootless podman, may not enlarge the buffers of a socket at will.
#[test]
fn many_ports_are_published_in_a_user_namespace() {
    let lab = &Lab::new();
    if !lab.sh("unshare --map-root-user --net true 2>&1 || true").is_empty() {
        return skip("many_ports_are_published_in_a_user_namespace", "user namespaces are forbidden");
    }
    let ports: Vec<String> = (1..=500).map(|n| format!("{n}:{n}/tcp")).collect();
    let config = config(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    for backend in ["nftables", "iptables"] {
        let config = with(config.clone(), json!({ "backend": backend, "snat": false }));
        pod.call("ADD", &config).via_shell("exec unshare --map-root-user --net \"$0\"").run().ok();
    }
}

/// Long IDs would not fit into a comment.
#[test]
fn long_names_are_distinguished() {
    let lab = &Lab::new();
    let ids = ["1", "2"].map(|end| format!("{}{end}", "c".repeat(200)));
    let network = on_network(&"n".repeat(100), config(&["8080:80/tcp"]));
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let pods = ids.map(|id| Pod { id, ..pod.clone() });
    pods[0].add(&network);
    pods[1].call("ADD", &network).run().error(101);
    pods[1].del(&network);
    pods[0].check(&network).ok();
    pods[0].del(&network);
    assert_clean(lab);
}

#[test]
fn a_process_that_listens_on_the_port_is_reported() {
    let lab = &Lab::new();
    lab.sh("ip link set lo up");
    let pod = Pod::absent(lab, "a", &["10.1.0.2/24"]);
    let _tcp = std::net::TcpListener::bind("127.0.0.1:8080").unwrap();
    let _udp = udp(None, "0.0.0.0", 8081);
    let _ipv6 = std::net::TcpListener::bind("[::]:8082").unwrap();
    let ports = config(&["8080:80/tcp", "8081:80/udp", "8082:80/tcp", "8083:80/tcp", "8081:80/tcp"]);
    let outcome = pod.call("ADD", &ports).env("CNI_LOG", "warn").run();
    outcome.ok();
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (line, port) in lines.iter().zip(["tcp port 8080", "tcp port 8082", "udp port 8081"]) {
        assert!(line.contains(port) && line.contains("listening process"), "{line}");
    }
    assert_eq!(pod.call("ADD", &ports).run().stderr, "");
    // Processes on other addresses keep their connections.
    let elsewhere = config(&["10.0.0.1 8080:80/tcp", "127.0.0.1 8081:80/udp", "127.0.0.2 8082:80/tcp"]);
    let outcome = pod.call("ADD", &elsewhere).env("CNI_LOG", "warn").run();
    outcome.ok();
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("tcp 127.0.0.2:8082") && lines[1].contains("udp 127.0.0.1:8081"), "{lines:#?}");
}

/// kube-proxy translates connections to a NodePort before the plugin does.
#[test]
fn a_port_of_a_service_is_reported() {
    for mode in ["nftables", "iptables"] {
        let lab = &Lab::new();
        kubernetes::add_node_port(lab, mode);
        let pod = Pod::absent(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
        let warnings = |ports: &[&str]| {
            let outcome = pod.call("ADD", &config(ports)).env("CNI_LOG", "warn").run();
            outcome.ok();
            outcome.stderr.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let lines = warnings(&["30080:80/tcp", "30080:80/udp", "30081:80/tcp"]);
        assert!(lines.len() == 1 && lines[0].contains("tcp port 30080 is a NodePort"), "{mode}: {lines:?}");
        let lines = warnings(&["192.0.2.1 30080:80/tcp"]);
        assert!(lines.len() == 1 && lines[0].contains("tcp 192.0.2.1:30080 is a NodePort"), "{mode}: {lines:?}");
        assert_eq!(warnings(&["127.0.0.1 30080:80/tcp", "fd00::1 30080:80/tcp"]), [""; 0], "{mode}");
        // It is only a warning, and costs nothing without a log.
        let outcome = pod.call("ADD", &config(&["30080:80/tcp"])).run();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    }
}

/// A prefix that includes the loopback addresses.
#[test]
fn any_prefix_length_is_accepted() {
    let lab = &Lab::new();
    for (n, prefix) in [0, 1, 2, 8, 31, 32].into_iter().enumerate() {
        let pod = Pod::with_port(lab, &format!("c{n}"), &[&format!("10.1.0.2/{prefix}"), &format!("fd01::2/{prefix}")]);
        let config = config(&["8080:80/tcp"]);
        pod.add(&config);
        pod.check(&config).ok();
        pod.del(&config);
        assert_clean(lab);
    }
}
