//! Published ports: a network of bridge and portmap, shown, checked, repaired and pruned.

use std::fs;

use serde_json::{Value, json};
use testing::{parallel, reference};

use crate::doctor::{only_problem, problems};
use crate::node::{LONG_ID, attach, attach_with, host, host_with, json, lose_namespace, page, snapshot};
use crate::repair::states;
use crate::support::{Host, failure};

/// A host with the network `pods`, whose second plugin publishes ports.
fn publishing_host(subnet: &str) -> Host {
    host_with(subnet, &json!({ "type": "portmap", "capabilities": { "portMappings": true } }))
}

/// Returns `CAP_ARGS` that publish port 80 at this TCP port.
fn web_at(port: u16) -> String {
    json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }] }).to_string()
}

/// Attaches a container and publishes its port 80 at this TCP port. Returns its id.
fn publish(host: &Host, name: &str, port: u16) -> String {
    attach_with(host, name, &web_at(port))
}

/// Returns the elements of the map of TCP ports.
fn published(host: &Host) -> String {
    host.lab.sh("nft list map inet cni_hostport ipv4_ports")
}

/// Returns the rules and elements of all tables. Their order in a listing varies, and so do the keys of inventories.
fn rules(host: &Host) -> Vec<String> {
    let text = host.lab.sh("nft -s list ruleset");
    let trim = |line: &str| {
        let line = line.trim().trim_start_matches("elements = { ").trim_end_matches([',', '}', ' ']);
        let (key, rest) = line.split_once(" comment ").unwrap_or(("", line));
        if rest.contains(" : goto ") { rest.to_owned() } else { format!("{key} {rest}") }
    };
    let mut rules: Vec<String> = text.lines().map(trim).collect();
    rules.sort();
    rules
}

/// Adds a rule that publishes a port as the reference does with nftables: only the container's id marks it.
fn publish_as_reference(host: &Host, id: &str, port: u16, ip: &str) {
    host.lab.sh(&format!(
        "nft -f - <<'END'
         table ip cni_hostport {{
             chain hostports {{ tcp dport {port} dnat to {ip}:80 comment \"{id}\"; }}
             chain hostports_all {{ jump hostports; }}
             chain prerouting {{ type nat hook prerouting priority -100; fib daddr type local jump hostports_all; }}
             chain masquerading {{ type nat hook postrouting priority 100; ip saddr {ip} ip daddr {ip} masquerade comment \"{id}\"; }}
         }}
END"
    ));
}

/// Returns the rules in the reference's form.
fn of_reference(host: &Host) -> String {
    host.lab.sh("nft list table ip cni_hostport")
}

#[test]
fn the_arguments_of_the_add_reach_later_commands() {
    let host = publishing_host("10.197.0.0/24");
    publish(&host, "blue", 8080);
    assert!(published(&host).contains("tcp . 8080"), "{}", published(&host));
    let entry = fs::read_to_string(format!("/var/lib/cni/results/{}", host.cached()[0])).unwrap();
    let entry: Value = serde_json::from_str(&entry).unwrap();
    assert_eq!(entry["capabilityArgs"]["portMappings"][0]["hostPort"], 8080);
    host.run("check pods /run/netns/blue").ok();
    host.lab.sh("nft flush map inet cni_hostport ipv4_ports");
    let line = failure(&host.run("check pods /run/netns/blue"));
    assert!(line.contains("plugin \"portmap\": tcp port 8080 is missing"), "{line}");
    host.run("del pods /run/netns/blue").ok();

    // A second container gets the port only once the first is gone.
    publish(&host, "green", 8080);
    host.lab.netns("red");
    let line = failure(&host.call("add pods /run/netns/red").env("CAP_ARGS", web_at(8080)).run());
    assert!(line.contains("tcp port 8080: it is already published"), "{line}");
    host.run("del pods /run/netns/green").ok();
    assert!(!published(&host).contains("8080"), "{}", published(&host));
}

#[test]
fn published_ports_are_shown_with_their_owners() {
    let host = publishing_host("10.198.0.0/24");
    let ports = json!({ "portMappings": [
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "10.198.0.1" },
    ] });
    let id = attach_with(&host, "blue", &ports.to_string());
    attach(&host, "red");
    let lost = publish(&host, "lost", 8082);
    lose_namespace(&host, "lost", &lost);

    let answer = json(&host, "show --json");
    let bridge = &answer["bridges"][0];
    let has = |port: &Value| port["portMappings"].as_bool().unwrap();
    let ports = bridge["ports"].as_array().unwrap();
    assert_eq!(ports.iter().filter(|port| has(port)).count(), 1, "{answer:#}");
    assert!(ports.iter().any(|port| has(port) && port["container"] == id), "{answer:#}");
    let of = |port: u16| bridge["portMappings"].as_array().unwrap().iter().find(|one| one["hostPort"] == port).unwrap();
    let web = of(8080);
    for (key, value) in [
        ("protocol", json!("tcp")),
        ("hostIP", json!("0.0.0.0")),
        ("containerIP", json!("10.198.0.2")),
        ("containerPort", json!(80)),
        ("backend", json!("nftables")),
        ("container", json!(id)),
        ("interface", json!("eth0")),
        ("ofPort", json!(true)),
    ] {
        assert_eq!(web[key], value, "{key} in {web:#}");
    }
    assert!(web["comment"].as_str().unwrap().contains(&id), "{web:#}");
    assert_eq!((&of(53)["protocol"], &of(53)["hostIP"]), (&json!("udp"), &json!("10.198.0.1")));
    assert_eq!((&of(8082)["container"], &of(8082)["ofPort"]), (&json!(lost), &json!(false)));
    assert_eq!(bridge["masquerade"][0]["container"], id, "as of other objects: {answer:#}");
    assert_eq!(answer["otherNetworks"], json!([]));

    let text = page(&host.run("show pods"));
    for part in [
        " 10.198.0.2/24, in /run/netns/blue\n",
        " tcp 0.0.0.0:8080 -> 10.198.0.2:80\n",
        " udp 10.198.0.1:53 -> 10.198.0.2:5353\n",
        "portmap: 3 by nftables, 1 of no port above:",
        &format!("tcp 0.0.0.0:8082 -> 10.198.0.4:80: pods, if: eth0, id:\n    {lost}"),
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(text.matches("published").count(), 1, "the flag of one port:\n{text}");
}

/// Without a bridge, no port of this host leads to the containers.
#[test]
fn a_network_without_a_bridge_is_shown_and_checked_by_the_cache() {
    let host = host("10.199.0.0/24");
    host.recorder("other");
    let config = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [
        { "type": "other" }, { "type": "portmap", "capabilities": { "portMappings": true } },
    ] });
    host.configure("10-pods.conflist", &config.to_string());
    assert_eq!(page(&host.run("show")), "no network has a bridge\n");
    let id = publish(&host, "blue", 8080);
    let text = page(&host.run("show"));
    assert!(text.starts_with("network pods\n  no bridge ("), "{text}");
    assert!(text.contains("portmap: 1 by nftables, all of live containers\n"), "{text}");
    assert!(text.contains("tcp 0.0.0.0:8080 -> 10.9.0.2:80: pods, if: eth0"), "{text}");
    let answer = json(&host, "show --json");
    let found = &answer["otherNetworks"][0]["portMappings"][0];
    assert_eq!((&found["container"], &found["ofLiveContainer"]), (&json!(id), &json!(true)), "{answer:#}");
    host.lab.sh("nft flush map inet cni_hostport ipv4_ports");
    let what = only_problem(&host, "portmap", "fail");
    assert!(what.contains("1 of 1 live containers lack a published port, such as tcp 0.0.0.0:8080"), "{what}");
}

#[test]
fn ports_of_containers_that_are_gone_are_pruned_and_live_ones_stay() {
    for version in ["1.1.0", "0.4.0"] {
        let host = publishing_host("10.204.0.0/24");
        let config = fs::read_to_string(host.conf_dir().join("10-pods.conflist")).unwrap();
        host.configure("10-pods.conflist", &config.replace("1.1.0", version));
        publish(&host, "blue", 8080);
        let lost = publish(&host, "lost", 8081);
        lose_namespace(&host, "lost", &lost);
        let before = snapshot(&host);
        let text = page(&host.run("prune --dry-run"));
        assert!(text.contains("published port  tcp 0.0.0.0:8081 "), "{text}");
        assert!(!text.contains("8080"), "{text}");
        assert_eq!(snapshot(&host), before);
        assert!(page(&host.run("prune --force pods")).contains("kept: 1 alive"));
        let left = published(&host);
        assert!(left.contains("tcp . 8080") && !left.contains("8081"), "{version}: {left}");
        assert!(!host.lab.sh("nft list ruleset").contains(&lost), "{version}");
        host.run("check pods /run/netns/blue").ok();
    }
}

/// Of an ADD that was killed, or whose runtime lost its state: neither lease nor cache entry.
#[test]
fn ports_without_any_other_trace_are_pruned() {
    let host = publishing_host("10.205.0.0/24");
    publish_and_lose(&host, "10.205.0.3");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["masquerade warn", "portmap warn"], "{answer:#}");
    assert!(answer.to_string().contains("1 published port of containers that are gone"), "{answer:#}");
    page(&host.run("prune --force"));
    let left = published(&host);
    assert!(left.contains("tcp . 8080") && !left.contains("8081"), "{left}");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}

/// Publishes the ports 8080 and 8081, and loses everything that names the container of the second, which has this
/// address.
fn publish_and_lose(host: &Host, ip: &str) {
    publish(host, "blue", 8080);
    let lost = publish(host, "lost", 8081);
    lose_namespace(host, "lost", &lost);
    fs::remove_file(format!("/var/lib/cni/results/pods-{lost}-eth0")).unwrap();
    fs::remove_file(format!("/var/lib/cni/networks/pods/{ip}")).unwrap();
}

/// The container cannot be named, so that plugins of other projects cannot be called.
#[test]
fn prune_finds_ports_in_a_version_without_gc() {
    let host = publishing_host("10.251.2.0/24");
    host.recorder("other");
    let path = host.conf_dir().join("10-pods.conflist");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["cniVersion"] = "1.0.0".into();
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "other" }));
    fs::write(&path, config.to_string()).unwrap();
    publish_and_lose(&host, "10.251.2.3");
    page(&host.run("prune --force"));
    let left = published(&host);
    assert!(left.contains("tcp . 8080") && !left.contains("8081"), "{left}");
    assert_eq!(host.calls().last().unwrap(), "ADD other");
    host.run("check pods /run/netns/blue").ok();
}

#[test]
fn doctor_finds_what_keeps_packets_from_published_ports() {
    let host = publishing_host("10.176.0.0/24");
    let answer = json(&host, "doctor --json");
    assert!(!answer.to_string().contains("portmap\",\"level"), "nothing to check: {answer:#}");
    publish(&host, "blue", 8080);
    publish(&host, "red", 8081);
    attach(&host, "green");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert!(answer.to_string().contains("live containers have their published ports"), "{answer:#}");
    let healthy = rules(&host);
    for (damage, level, part) in [
        (
            "nft delete element inet cni_hostport ipv4_ports '{ tcp . 8081 }'",
            "fail",
            "1 of 2 live containers lack a published port, such as tcp 0.0.0.0:8081",
        ),
        ("nft flush chain inet cni_hostport prerouting", "fail", "no packet reaches published ports"),
        ("nft flush chain inet cni_hostport ipv4_translate", "fail", "in chain inet cni_hostport ipv4_translate"),
        (
            "nft flush chain inet cni_hostport guard; tc qdisc del dev br-pods clsact",
            "warn",
            "only on 127.0.0.1: route_localnet is 1 on br-pods",
        ),
        ("nft delete table inet cni_hostport", "fail", "2 of 2 live containers"),
    ] {
        host.lab.sh(damage);
        let what = only_problem(&host, "portmap", level);
        assert!(what.contains(part) && what.contains("cnitool repair"), "{damage}: {what}");
        let answer = json(&host, "repair --json");
        assert_eq!(
            (&answer["wrong"], answer["repaired"].as_u64() > Some(0)),
            (&json!(0), true),
            "{damage}: {answer:#}"
        );
        assert_eq!(rules(&host), healthy, "{damage}");
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{damage}");
    }
    // Only CHECK finds these.
    for damage in [
        "nft flush set inet cni_hostport ipv4_masquerade",
        "nft flush set inet cni_hostport attachments",
        "nft flush chain inet cni_hostport guard",
        "nft flush chain inet cni_hostport replies",
        "echo 0 >/proc/sys/net/ipv4/conf/br-pods/route_localnet; nft flush chain inet cni_hostport guard",
    ] {
        host.lab.sh(damage);
        let what: Value = serde_json::from_str(&only_problem(&host, "check", "fail")).unwrap();
        assert_eq!(what["command"], "cnitool repair pods", "{damage}: {what:#}");
        page(&host.run("repair pods"));
        assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "{damage}");
        assert_eq!(rules(&host), healthy, "{damage}");
    }
}

/// Whatever has enabled `route_localnet`, and also if no port is published.
#[test]
fn exposed_loopback_services_are_reported_and_protected() {
    let host = publishing_host("10.235.0.0/24");
    publish(&host, "blue", 8080);
    attach(&host, "green");
    host.lab.sh("nft flush ruleset");
    page(&host.run("repair"));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "a flush does not open anything");
    host.run("del pods /run/netns/blue").ok();
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    host.lab.sh("nft delete table inet cni_hostport; tc qdisc del dev br-pods clsact
                 sysctl -qw net.ipv4.conf.br-pods.route_localnet=1");
    let what = only_problem(&host, "portmap", "warn");
    assert!(what.contains("route_localnet is 1 on br-pods") && what.contains("cnitool repair"), "{what}");
    let text = page(&host.run("repair pods"));
    assert!(text.contains("filters that protect services on 127.0.0.1 were missing"), "{text}");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    assert_eq!(host.lab.sh("sysctl -n net.ipv4.conf.br-pods.route_localnet"), "1\n");
}

#[test]
fn ports_are_published_again_after_a_flush() {
    let host = publishing_host("10.177.0.0/24");
    publish(&host, "blue", 8080);
    publish(&host, "red", 8081);
    attach(&host, "green");
    let lost = publish(&host, "lost", 8082);
    host.lab.sh("nft list ruleset >/run/before");
    lose_namespace(&host, "lost", &lost);
    host.lab.sh("nft flush ruleset");
    let text = page(&host.run("repair"));
    assert!(text.ends_with("4 attachments: 0 ok, 3 repaired, 1 gone, 0 wrong\n"), "{text}");
    assert!(text.contains("masquerade rules and published ports were missing and have been added"), "{text}");
    let left = published(&host);
    assert!(left.contains("tcp . 8080") && left.contains("tcp . 8081") && !left.contains("8082"), "{left}");
    assert_eq!(states(&json(&host, "repair --json")).iter().filter(|state| **state == "ok").count(), 3);
    for name in ["blue", "red", "green"] {
        host.run(&format!("check pods /run/netns/{name}")).ok();
    }
}

/// The address may belong to another container by now.
#[test]
fn no_port_is_published_for_a_container_without_its_address_or_link() {
    let host = publishing_host("10.178.0.0/24");
    let config = fs::read_to_string(host.conf_dir().join("10-pods.conflist")).unwrap();
    // Its repair would fail first.
    host.configure("10-pods.conflist", &config.replace("\"ipMasq\":true", "\"ipMasq\":false"));
    let id = publish(&host, "blue", 8080);
    host.lab.sh("nft flush map inet cni_hostport ipv4_ports; ip -n blue address flush dev eth0");
    let answer = json(&host, "repair --json");
    assert_eq!(states(&answer), ["wrong"], "{answer:#}");
    assert!(!published(&host).contains("8080"), "{}", published(&host));
    host.lab.sh("ip -n blue address add 10.178.0.2/24 dev eth0; ip -n blue route add default via 10.178.0.1");
    let port = crate::node::port(&id);
    host.lab.sh(&format!("ip link set {port} alias 'cni-attachment pods other eth0'"));
    host.run("repair");
    assert!(!published(&host).contains("8080"), "{}", published(&host));
    host.lab.sh(&format!("ip link set {port} alias 'cni-attachment pods {id} eth0'"));
    assert_eq!(states(&json(&host, "repair --json")), ["repaired"]);
    assert!(published(&host).contains("tcp . 8080"));
}

/// The reference's nftables rules name only the container.
#[test]
fn rules_of_the_reference_are_pruned_with_their_container() {
    let host = publishing_host("10.179.0.0/24");
    let blue = attach(&host, "blue");
    let lost = attach(&host, "lost");
    publish_as_reference(&host, &blue, 9090, "10.179.0.2");
    publish_as_reference(&host, &lost, 9091, "10.179.0.3");
    // No trace but the rule: one on the network, one elsewhere.
    publish_as_reference(&host, LONG_ID, 9092, "10.179.0.99");
    publish_as_reference(&host, LONG_ID, 9093, "10.180.99.99");
    assert!(page(&host.run("prune --dry-run")).contains("published port  tcp 0.0.0.0:9092"));
    lose_namespace(&host, "lost", &lost);
    let answer = json(&host, "show pods --json");
    let of = |port: u16| {
        let all = answer["bridges"][0]["portMappings"].as_array().unwrap();
        all.iter().find(|one| one["hostPort"] == port).unwrap_or_else(|| panic!("{port} in {answer:#}"))
    };
    assert_eq!((&of(9090)["container"], &of(9090)["ofPort"]), (&json!(blue), &json!(true)));
    assert_eq!((&of(9091)["container"], &of(9091)["ofPort"]), (&json!(lost), &json!(false)));
    assert_eq!(of(9092)["container"], LONG_ID);
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("2 published ports of containers that are gone"), "{findings}");
    assert!(findings.contains("1 published port of containers that are gone, on no known network"), "{findings}");

    page(&host.run("prune --force pods"));
    let left = of_reference(&host);
    assert!(left.contains("9090") && left.contains("9093"), "{left}");
    assert!(!left.contains("9091") && !left.contains("9092"), "{left}");
    assert!(left.contains("10.179.0.2 masquerade") && !left.contains("10.179.0.99 "), "{left}");
    assert!(page(&host.run("prune --force pods")).contains("nothing to remove"));
}

/// The rules name only the container. The lease shows to which of its networks a rule belongs.
#[test]
fn rules_of_the_reference_stay_while_their_attachment_exists() {
    let host = publishing_host("10.206.0.0/24");
    let config = fs::read_to_string(host.conf_dir().join("10-pods.conflist")).unwrap();
    host.configure("20-more.conflist", &config.replace("pods", "more").replace("10.206.", "10.207."));
    let id = attach(&host, "blue");
    host.call("add more /run/netns/blue").env("CNI_IFNAME", "net1").run().ok();
    publish_as_reference(&host, &id, 9090, "10.206.0.2");
    publish_as_reference(&host, &id, 9091, "10.207.0.2");
    let port = crate::node::port(&format!("pods {id}"));
    host.lab.sh(&format!("ip link del {port}"));
    fs::remove_file(format!("/var/lib/cni/results/pods-{id}-eth0")).unwrap();
    assert!(page(&host.run("prune --force")).contains("10.206.0.2"), "the lease is removed");
    let left = of_reference(&host);
    assert!(!left.contains("9090") && left.contains("9091"), "{left}");
    let answer = json(&host, "show more --json");
    let ports = &answer["bridges"][0]["portMappings"];
    assert_eq!((ports.as_array().unwrap().len(), &ports[0]["hostPort"]), (1, &json!(9091)), "{answer:#}");
}

/// The reference's iptables rules name the network and the container.
#[test]
fn chains_of_the_reference_are_pruned_with_their_container() {
    if reference("portmap", "chains_of_the_reference_are_pruned_with_their_container").is_none() {
        return;
    }
    let host = publishing_host("10.208.0.0/24");
    let config = fs::read_to_string(host.conf_dir().join("10-pods.conflist")).unwrap();
    host.configure("10-pods.conflist", &config.replace("1.1.0", "1.0.0"));
    let ours = host.lab.bin().join("portmap");
    let kept = host.lab.dir().join("portmap");
    fs::rename(&ours, &kept).unwrap();
    host.reference("portmap");
    let blue = publish(&host, "blue", 8080);
    let lost = publish(&host, "lost", 8081);
    fs::remove_file(&ours).unwrap();
    fs::rename(&kept, &ours).unwrap();

    assert_eq!(problems(&json(&host, "doctor --json")), ["portmap warn"], "only the guard is missing");
    let answer = json(&host, "show --json");
    let ports = answer["bridges"][0]["portMappings"].as_array().unwrap();
    let web = ports.iter().find(|one| one["hostPort"] == 8080).unwrap_or_else(|| panic!("{answer:#}"));
    for (key, value) in [
        ("backend", json!("iptables")),
        ("container", json!(blue)),
        ("containerIP", json!("10.208.0.2")),
        ("comment", json!(format!("dnat name: \"pods\" id: \"{blue}\""))),
        ("ofPort", json!(true)),
    ] {
        assert_eq!(web[key], value, "{key} in {web:#}");
    }
    lose_namespace(&host, "lost", &lost);
    page(&host.run("prune --force pods"));
    let left = host.lab.sh("iptables-save -t nat");
    assert!(left.contains("10.208.0.2:80") && !left.contains("10.208.0.3:80") && !left.contains(&lost), "{left}");
    host.lab.sh("iptables -t nat -F PREROUTING");
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("no rule in chain PREROUTING leads to chain CNI-HOSTPORT-DNAT"), "{findings}");
    assert_eq!(states(&json(&host, "repair --json")), ["repaired"]);
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "published by our plugin");
    let left = host.lab.sh("iptables-save -t nat");
    assert!(published(&host).contains("tcp . 8080") && !left.contains("10.208.0.2:80"), "{left}");
}

/// A concurrent DEL of another runtime may have looked for ports before repair publishes them.
#[test]
fn ports_of_a_container_that_is_removed_meanwhile_are_removed() {
    let host = publishing_host("10.184.0.0/24");
    publish(&host, "blue", 8080);
    host.lab.sh("nft flush map inet cni_hostport ipv4_ports");
    // The last step after the port is published.
    let setting = "/proc/sys/net/ipv4/conf/br-pods/route_localnet";
    let options = ["-P", setting, "-e", "inject=openat:signal=STOP:when=1"];
    let mut stops = 0;
    let (outcome, _) = parallel::at_each_stop(&host.lab, host.call("repair"), &options, |_| {
        stops += 1;
        assert!(published(&host).contains("tcp . 8080"), "{}", published(&host));
        host.lab.sh("ip -n blue link del eth0");
    });
    assert_eq!((stops, outcome.status), (1, Some(3)), "{outcome:?}");
    assert!(!published(&host).contains("8080"), "{}", published(&host));
}

#[test]
fn ports_in_iptables_are_checked_repaired_and_pruned() {
    let host = publishing_host("10.185.0.0/24");
    let config = fs::read_to_string(host.conf_dir().join("10-pods.conflist")).unwrap();
    host.configure("10-pods.conflist", &config.replace("\"portmap\"", "\"portmap\",\"backend\":\"iptables\""));
    publish(&host, "blue", 8080);
    let lost = publish(&host, "lost", 8081);
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
    let ports = &json(&host, "show --json")["bridges"][0]["portMappings"];
    assert_eq!((&ports[0]["hostPort"], &ports[0]["backend"]), (&json!(8080), &json!("iptables")), "{ports:#}");
    lose_namespace(&host, "lost", &lost);
    for (damage, part) in [
        ("iptables -t nat -F PREROUTING", "no rule in chain PREROUTING leads to chain CNI-HOSTPORT-DNAT"),
        ("iptables -t nat -F CNI-HOSTPORT-DNAT", "1 of 1 live containers lack a published port"),
        ("nft flush ruleset", "1 of 1 live containers lack a published port"),
    ] {
        host.lab.sh(damage);
        let findings = json(&host, "doctor --json").to_string();
        assert!(findings.contains(part), "{damage}: {findings}");
        assert_eq!(json(&host, "repair --json")["repaired"], 1, "{damage}");
        let findings = json(&host, "doctor --json");
        assert_eq!(findings["failures"], 0, "{damage}: {findings:#}");
        host.run("check pods /run/netns/blue").ok();
    }
    page(&host.run("prune --force pods"));
    let left = host.lab.sh("iptables-save -t nat");
    assert!(left.contains("10.185.0.2:80") && !left.contains("10.185.0.3:80"), "{left}");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);
}
