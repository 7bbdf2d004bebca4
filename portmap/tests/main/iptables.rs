//! The iptables form: traffic, ADDs at the same time, replacement, CHECK and STATUS.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::inject_all;
use testing::packets::{Client, Delivery, HOST, Server, from};
use testing::{Lab, Pod, REFERENCE, reference};

use crate::differential::nat;
use crate::support::{config, entries};

fn iptables(ports: &[&str]) -> Value {
    with(config(ports), json!({ "backend": "iptables", "cniVersion": "1.0.0" }))
}

#[test]
fn connections_reach_the_container() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "a", &["10.1.0.2/24", "fd01::2/64"]);
    let neighbour = Pod::on_bridge(lab, "br0", "b", &["10.1.0.3/24", "fd01::3/64"]);
    let stranger = Pod::on_bridge(lab, "br1", "c", &["10.2.0.2/24", "fd02::2/64"]);
    let config = iptables(&["8080:80/tcp", "10.2.0.1 8081:80/tcp"]);
    pod.add(&config);
    let [neighbour, stranger] = [&neighbour, &stranger].map(|pod| Client::in_netns(&pod.netns));
    for (any, ip, own, other) in
        [("0.0.0.0", "10.1.0.1", "10.1.0.1", "10.2.0.2"), ("::", "fd01::1", "fd01::1", "fd02::2")]
    {
        let server = Server::start("tcp", Some(&pod.netns), any, 80);
        HOST.expect(&from(own), ip, 8080, &server);
        neighbour.expect(&from(own), ip, 8080, &server); // masqueraded
        stranger.expect(&from(other), ip, 8080, &server);
        if any == "0.0.0.0" {
            HOST.expect(&from(own), "127.0.0.1", 8080, &server);
            stranger.expect(&from(other), "10.2.0.1", 8081, &server);
            HOST.expect(&Delivery::Refused, "10.1.0.1", 8081, &server); // published at another address
        }
    }
    pod.del(&config);
    HOST.expect(&Delivery::Refused, "10.1.0.1", 8080, &Server::start("tcp", Some(&pod.netns), "0.0.0.0", 80));
}

const PODS: usize = 100;

/// Runs `command` for all pods at the same time. Every `by_reference`th call is one of the reference.
fn all_at_once(lab: &Lab, command: &str, by_reference: usize) {
    let dir = lab.dir().display();
    for n in 1..=PODS {
        let pod = Pod::absent(lab, &format!("p{n}"), &[&format!("10.1.0.{n}/16"), &format!("fd01::{n}/64")]);
        let mut config = iptables(&[&format!("{}:80/tcp", 8000 + n)]);
        config["prevResult"] = pod.result("1.0.0");
        fs::write(lab.dir().join(format!("config.{n}")), config.to_string()).unwrap();
    }
    let program = |n: usize| match n.is_multiple_of(by_reference) {
        true => format!("{REFERENCE}/portmap"),
        false => lab.bin().join("portmap").display().to_string(),
    };
    let calls: String = (1..=PODS)
        .map(|n| {
            format!(
                "CNI_COMMAND={command} CNI_CONTAINERID=p{n} CNI_NETNS=/n CNI_IFNAME=eth0 CNI_PATH=/ {} <{dir}/config.{n} \
                 >{dir}/out.{n} 2>&1 || echo {n} >>{dir}/failed &\n",
                program(n)
            )
        })
        .collect();
    lab.sh(&format!("{calls}wait"));
    if let Ok(failed) = fs::read_to_string(lab.dir().join("failed")) {
        let first = failed.lines().next().unwrap();
        panic!("{failed}{}", fs::read_to_string(lab.dir().join(format!("out.{first}"))).unwrap());
    }
}

const JUMPS: [&str; 5] = [
    "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
    "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
    "-A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ",
    "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
    "-A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000",
];

#[test]
fn first_adds_at_the_same_time_add_the_shared_rules_once() {
    let lab = &Lab::new();
    all_at_once(lab, "ADD", usize::MAX);
    let text = nat(lab);
    for jump in JUMPS {
        assert_eq!(text.matches(jump).count(), 2, "{jump}: {text}");
    }
    assert_eq!(text.matches("--to-destination").count(), 2 * PODS);
    assert_eq!(text.matches("-m multiport").count(), 2 * PODS);
    all_at_once(lab, "DEL", usize::MAX);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
}

/// The reference may add the shared rules once more for each of its own calls: it looks for them and adds them in
/// separate steps.
#[test]
fn first_adds_of_both_implementations_at_the_same_time_publish_all_ports() {
    if reference("portmap", "first_adds_of_both_implementations_at_the_same_time_publish_all_ports").is_none() {
        return;
    }
    const EVERY: usize = 25;
    let lab = &Lab::new();
    all_at_once(lab, "ADD", EVERY);
    let text = nat(lab);
    for jump in JUMPS {
        let count = text.matches(jump).count();
        assert!((2..=2 * (1 + PODS / EVERY)).contains(&count), "{count} times {jump}: {text}");
    }
    assert_eq!(text.matches("--to-destination").count(), 2 * PODS);
    assert_eq!(text.matches("-m multiport").count(), 2 * PODS);
    all_at_once(lab, "DEL", EVERY);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
}

#[test]
fn an_add_restores_what_another_program_removed() {
    let lab = &Lab::new();
    let pods = ["10.9.0.2/24", "10.9.0.3/24"].map(|ip| Pod::absent(lab, &ip.replace(['.', '/'], "-"), &[ip]));
    let configs = ["8080:80/tcp", "8081:80/tcp"].map(|port| iptables(&[port]));
    pods[0].add(&configs[0]);
    let shared = |lab: &Lab| -> Vec<String> {
        nat(lab).lines().filter(|line| !line.contains("CNI-DN") && line.starts_with("-A")).map(str::to_owned).collect()
    };
    let whole = shared(lab);
    assert_eq!(whole.len(), JUMPS.len());
    for damage in [
        "iptables -t nat -F PREROUTING",
        "iptables -t nat -F OUTPUT",
        "iptables -t nat -F POSTROUTING",
        "iptables -t nat -F CNI-HOSTPORT-SETMARK",
        "iptables -t nat -F CNI-HOSTPORT-MASQ",
        "nft flush chain ip nat OUTPUT; nft delete chain ip nat OUTPUT",
        "iptables -t nat -F POSTROUTING; iptables -t nat -F CNI-HOSTPORT-MASQ; iptables -t nat -X CNI-HOSTPORT-MASQ",
    ] {
        pods[0].check(&configs[0]).ok();
        lab.sh(damage);
        let error = pods[0].check(&configs[0]).error(999);
        assert!(error["details"].as_str().unwrap().contains("cnitool repair"), "{damage}: {error}");
        pods[1].add(&configs[1]);
        pods[1].check(&configs[1]).ok();
        assert_eq!(shared(lab), whole, "{damage}");
        pods[1].del(&configs[1]);
    }
    // The entries of the container itself.
    lab.sh("iptables -t nat -F CNI-HOSTPORT-DNAT");
    let error = pods[0].check(&configs[0]).error(999);
    assert!(error["msg"].as_str().unwrap().contains("tcp port 8080 is missing"), "{error}");
    pods[0].add(&configs[0]);
    pods[0].check(&configs[0]).ok();
    assert_eq!(nat(lab).matches("--to-destination").count(), 1);
    lab.sh("nft flush ruleset");
    let error = pods[0].check(&configs[0]).error(999);
    assert!(error["msg"].as_str().unwrap().contains("does not exist in table ip nat"), "{error}");
}

#[test]
fn check_reports_what_differs() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    let config = iptables(&["8080:80/tcp", "10.9.0.1 53:53/udp"]);
    let chain = "CNI-DN-a19237f207ed3fa9670f3";
    for (damage, message) in [
        (format!("-D {chain} 3"), "tcp port 8080 is missing"),
        (
            format!("-R {chain} 3 -p tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:81"),
            "leads to 10.9.0.2:81, not to 10.9.0.2:80",
        ),
        (format!("-F {chain}"), "tcp port 8080 is missing"),
        (format!("-D {chain} 4; iptables -t nat -D {chain} 4"), "udp 10.9.0.1:53 are not marked"),
        ("-D CNI-HOSTPORT-DNAT 2".to_owned(), "udp 10.9.0.1:53 is missing"),
        // Only the connections from loopback addresses, or only those from neighbours.
        (format!("-D {chain} 2"), "tcp port 8080 are not marked"),
        (format!("-D {chain} 1"), "tcp port 8080 are not marked"),
        (format!("-R {chain} 1 -s 10.8.0.0/24 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"), "are not marked"),
        // Packets leave a chain before they reach the rules.
        (format!("-I {chain} -j RETURN"), "are not marked"),
        (format!("-I {chain} 3 -m comment --comment x -j RETURN"), "tcp port 8080 is missing"),
        ("-I CNI-HOSTPORT-DNAT -j RETURN".to_owned(), "tcp port 8080 is missing"),
        // Only packets of one link reach the ports.
        (
            format!(
                "-R CNI-HOSTPORT-DNAT 1 -i eth0 -p tcp -m comment --comment 'dnat name: \"net1\" id: \"id1\"' \
                 -m multiport --dports 8080 -j {chain}"
            ),
            "in chain CNI-HOSTPORT-DNAT does not exist",
        ),
        (
            "-N OTHER; iptables -t nat -A OTHER -p tcp --dport 8080 -j DNAT --to-destination 10.9.0.9:1
             iptables -t nat -I CNI-HOSTPORT-DNAT -p tcp -m comment --comment 'dnat name: \"n\" id: \"i\"' -j OTHER"
                .to_owned(),
            "another attachment (net: n, id: i)",
        ),
    ] {
        pod.add(&config);
        pod.check(&config).ok();
        lab.sh(&format!("iptables -t nat {damage}"));
        let error = pod.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains(message), "{damage}: {error}");
        pod.del(&config);
        lab.sh("nft flush ruleset");
    }
    // The configuration has changed.
    pod.add(&config);
    let conditions = with(config.clone(), json!({ "conditionsV4": ["-i", "eth0"] }));
    let masquerade = with(config.clone(), json!({ "masqAll": true }));
    for (changed, message) in [(&conditions, "-i eth0"), (&masquerade, "are not marked")] {
        let error = pod.check(changed).error(999);
        assert!(error["msg"].as_str().unwrap().contains(message), "{error}");
        pod.add(changed);
        pod.check(changed).ok();
        let error = pod.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains("are not marked") || changed == &conditions, "{error}");
        pod.add(&config);
    }
    // Other ports that are published do not matter.
    pod.check(&iptables(&["8080:80/tcp"])).ok();
    // The container has another address now.
    pod.add(&config);
    let moved = Pod { ips: vec!["10.9.0.3/24".into()], ..pod.clone() };
    let error = moved.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("leads to 10.9.0.2:80, not to 10.9.0.3:80"), "{error}");
}

/// `route_localnet` must not expose the loopback services of the host.
#[test]
fn check_reports_a_missing_guard() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "id1", &["10.9.0.2/24"]);
    let config = iptables(&["8080:80/tcp"]);
    pod.add(&config);
    pod.check(&config).ok();
    let rules = "the guard of loopback services in table inet cni_hostport does not exist";
    for (damage, text) in [
        ("nft delete table inet cni_hostport", rules),
        ("nft flush chain inet cni_hostport guard", rules),
        ("nft flush chain inet cni_hostport replies", rules),
        (
            "nft delete table inet cni_hostport; tc qdisc del dev br0 clsact",
            "route_localnet is 1 on br0, without a guard",
        ),
    ] {
        lab.sh(damage);
        let error = pod.check(&config).error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{damage}: {error}");
        pod.add(&config);
        pod.check(&config).ok();
    }
    // Without connections from loopback addresses, it is not needed.
    let config = iptables(&["10.9.0.1 8080:80/tcp"]);
    pod.add(&config);
    lab.sh("nft delete table inet cni_hostport; tc qdisc del dev br0 clsact");
    pod.check(&config).ok();
}

#[test]
fn a_repeated_add_replaces_the_ports() {
    let lab = &Lab::new();
    let pod = Pod::on_bridge(lab, "br0", "id1", &["10.9.0.2/24"]);
    pod.add(&iptables(&["8080:80/tcp", "8081:81/tcp"]));
    let config = iptables(&["8080:88/tcp"]);
    pod.add(&config);
    pod.check(&config).ok();
    assert_eq!(nat(lab).matches("--to-destination").count(), 1, "{}", nat(lab));
    // The same link with another address.
    let moved = Pod { ips: vec!["10.9.0.3/24".into()], ..pod.clone() };
    moved.add(&config);
    moved.check(&config).ok();
    assert_eq!(nat(lab).matches("--to-destination").count(), 1, "{}", nat(lab));
    // Another link, after a DEL was lost.
    let attached_again = Pod { port: "veth9".into(), ips: vec!["10.9.0.4/24".into()], ..pod.clone() };
    lab.sh("ip link del vethid1; ip link add veth9 type bridge");
    attached_again.add(&config);
    attached_again.check(&config).ok();
    assert_eq!(nat(lab).matches("--to-destination").count(), 1, "{}", nat(lab));
    // Another form.
    attached_again.add(&with(config.clone(), json!({ "backend": "nftables" })));
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
    assert!(!entries(lab).is_empty());
    attached_again.add(&config);
    assert_eq!(entries(lab), [] as [&str; 0]);
    attached_again.check(&config).ok();
}

/// The link of an attachment shows whether it still exists.
#[test]
fn a_port_is_taken_while_the_link_of_its_owner_exists() {
    for other in ["iptables", "nftables"] {
        let lab = &Lab::new();
        let first = Pod::on_bridge(lab, "br0", "a", &["10.9.0.2/24"]);
        let second = Pod::on_bridge(lab, "br0", "b", &["10.9.0.3/24"]);
        let config = iptables(&["8080:80/tcp"]);
        first.add(&config);
        let wanted = with(config.clone(), json!({ "backend": other }));
        let error = second.call("ADD", &wanted).run().error(101);
        assert!(error["msg"].as_str().unwrap().contains("leads to 10.9.0.2:80 (net: net1, id: a)"), "{error}");
        assert!(!nat(lab).contains("10.9.0.3") && entries(lab).is_empty(), "{}", nat(lab));
        first.check(&config).ok();
        // The rules do not name the interface, but the alias of their link does.
        lab.sh("ip link set vetha alias 'cni-attachment net1 a eth0'");
        let error = second.call("ADD", &wanted).run().error(101);
        assert!(error["msg"].as_str().unwrap().contains("(net: net1, if: eth0, id: a)"), "{error}");
        // The name of the link belongs to another attachment now.
        lab.sh("ip link set vetha alias 'cni-attachment net1 c eth0'");
        second.add(&wanted);
        second.check(&wanted).ok();
        assert!(!nat(lab).contains("10.9.0.2:"), "{}", nat(lab));
        second.del(&wanted);

        lab.sh("ip link set vetha alias 'cni-attachment net1 a eth0'");
        first.add(&config);
        second.call("ADD", &wanted).run().error(101);
        lab.sh("ip link del vetha");
        second.add(&wanted);
        second.check(&wanted).ok();
        assert!(!nat(lab).contains("10.9.0.2:"), "{}", nat(lab));
    }
}

#[test]
fn a_missing_external_chain_is_reported() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    let config = with(iptables(&["8080:80/tcp"]), json!({ "externalSetMarkChain": "KUBE-MARK-MASQ" }));
    let error = pod.call("ADD", &config).run().error(11);
    assert!(error["msg"].as_str().unwrap().contains("KUBE-MARK-MASQ"), "{error}");
    assert_eq!(lab.sh("nft list ruleset"), "", "nothing is left");
    // Without masquerade it is not needed.
    pod.add(&with(config, json!({ "snat": false })));
}

/// `iptables` has each option once in a rule.
#[test]
fn conditions_that_iptables_cannot_express_are_reported() {
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    let conditions = |words: &[&str]| with(iptables(&["8080:80/tcp"]), json!({ "conditionsV4": words }));
    let error = pod.call("ADD", &conditions(&["!", "-d", "192.0.2.1", "!", "-d", "192.0.2.2"])).run().error(7);
    assert!(error["msg"].as_str().unwrap().contains("\"-d\""), "{error}");
    assert_eq!(lab.sh("nft list ruleset"), "", "nothing is left");
    // A list becomes one rule for each value, as `iptables` itself does it.
    let config = conditions(&["-s", "192.0.2.1,192.0.2.2"]);
    pod.add(&config);
    pod.check(&config).ok();
    let text = nat(lab);
    assert_eq!(text.matches("-m multiport").count(), 2, "{text}");
    assert!(text.contains("-A CNI-HOSTPORT-DNAT -s 192.0.2.2/32 -p tcp"), "{text}");
    pod.del(&config);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
}

#[test]
fn a_long_container_id_is_cut_as_the_reference_does() {
    if reference("portmap", "a_long_container_id_is_cut_as_the_reference_does").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = iptables(&["8080:80/tcp"]);
    let pod = Pod { port: "veth1".into(), ..Pod::absent(lab, &"c".repeat(300), &["10.9.0.2/24"]) };
    pod.add(&config);
    let ours = nat(lab);
    pod.add(&config);
    assert_eq!(nat(lab), ours);
    pod.del(&config);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
    if crate::differential::theirs(&pod, "ADD", &config).status == Some(0) {
        assert_eq!(nat(lab), ours);
        pod.del(&config);
        assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
    }
}

#[test]
fn status_tries_the_rules() {
    let lab = &Lab::new();
    let config = iptables(&[]);
    let status =
        || lab.plugin("portmap", "STATUS").stdin(with(config.clone(), json!({ "cniVersion": "1.1.0" })).to_string());
    status().run().ok();
    assert_eq!(lab.sh("nft list ruleset"), "", "nothing is changed");
    // The kernel has no nf_tables, and the tools do not work.
    lab.sh("for tool in /usr/sbin/*tables*; do mount --bind /dev/null $tool; done");
    let outcome = inject_all(lab, status(), "socket", "error=EPROTONOSUPPORT");
    let error = outcome.error(50);
    assert!(error["msg"].as_str().unwrap().contains("iptables cannot be used"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("\"backend\""), "{error}");
}
