//! CHECK: reports what is missing or different. Another ADD repairs it.

use serde_json::{Value, json};
use testing::config::{on_network, with};
use testing::{Lab, Pod};

use crate::support::{config, route_localnet, table};

/// Asserts that CHECK fails with a message that contains `text`, and succeeds after another ADD.
#[track_caller]
fn assert_repaired(pod: &Pod<'_>, config: &Value, text: &str) {
    let before = table(pod.lab);
    let error = pod.check(config).error(999);
    assert!(error["msg"].as_str().unwrap().contains(text), "{text}: {error}");
    assert!(error["details"].is_string(), "{error}");
    assert_eq!(table(pod.lab), before, "CHECK changes nothing");
    pod.add(config);
    pod.check(config).ok();
}

#[test]
fn every_missing_part_is_reported_and_repaired() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let config = config(&["8080:80/tcp", "10.0.0.1 8081:81/udp", "fd01::1 8082:82/sctp"]);
    pod.add(&config);
    pod.check(&config).ok();
    let whole = table(lab);
    let nft = |command: &str| lab.sh(&format!("nft '{command}'"));
    let rule = |chain: &str, comment: &str| {
        let listing = lab.sh(&format!("nft -a list chain inet cni_hostport {chain}"));
        let line = listing.lines().find(|line| line.contains(comment)).unwrap_or_else(|| panic!("{listing}"));
        nft(&format!("delete rule inet cni_hostport {chain} handle {}", line.rsplit_once(' ').unwrap().1));
    };
    let broken: [(&dyn Fn(), &str); 21] = [
        (&|| drop(nft("delete table inet cni_hostport")), "chain inet cni_hostport"),
        (&|| drop(nft("flush ruleset")), "chain inet cni_hostport"),
        (&|| drop(nft("flush table inet cni_hostport")), "chain inet cni_hostport"),
        (&|| drop(nft("delete element inet cni_hostport ipv4_ports { tcp . 8080 }")), "tcp port 8080 is missing"),
        (&|| drop(nft("delete element inet cni_hostport ipv6_ports { tcp . 8080 }")), "tcp port 8080 is missing"),
        (
            &|| drop(nft("delete element inet cni_hostport ipv4_address_ports { 10.0.0.1 . udp . 8081 }")),
            "udp 10.0.0.1:8081 is missing",
        ),
        (
            &|| drop(nft("delete element inet cni_hostport ipv6_address_ports { fd01::1 . sctp . 8082 }")),
            "sctp [fd01::1]:8082 is missing",
        ),
        (&|| drop(nft("flush set inet cni_hostport attachments")), "set attachments is missing"),
        (&|| drop(nft("delete set inet cni_hostport attachments")), "attachments"),
        (&|| drop(nft("flush set inet cni_hostport ipv4_masquerade")), "set ipv4_masquerade is missing"),
        (&|| drop(nft("flush set inet cni_hostport ipv6_masquerade")), "set ipv6_masquerade is missing"),
        (
            &|| drop(nft("delete element inet cni_hostport ipv4_masquerade { 127.0.0.0/8 . 10.1.0.2 }")),
            "set ipv4_masquerade is missing",
        ),
        (&|| rule("prerouting", "packets to this host"), "in chain inet cni_hostport prerouting"),
        (&|| rule("output", "packets to this host"), "in chain inet cni_hostport output"),
        (&|| rule("output", "::1"), "in chain inet cni_hostport output"),
        (&|| rule("published", "ipv6_translate"), "in chain inet cni_hostport published"),
        (&|| rule("ipv4_translate", "ports of one address"), "in chain inet cni_hostport ipv4_translate"),
        (&|| rule("ipv4_translate", "ports of all addresses"), "in chain inet cni_hostport ipv4_translate"),
        (&|| rule("postrouting", "ipv4_masquerade"), "in chain inet cni_hostport postrouting"),
        (&|| rule("guard", "loopback sources"), "in chain inet cni_hostport guard"),
        (&|| rule("replies", "loopback addresses"), "guard of loopback services in table inet cni_hostport"),
    ];
    for (break_it, text) in broken {
        break_it();
        assert_repaired(&pod, &config, text);
        // Chains and sets may be in another order.
        assert_eq!(table(lab).lines().count(), whole.lines().count(), "{text}: {}", table(lab));
    }
    lab.sh("sysctl -qw net.ipv4.conf.br0.route_localnet=0");
    assert_repaired(&pod, &config, "net.ipv4.conf.br0.route_localnet");
    assert_eq!(route_localnet(lab, "br0"), "1");
}

#[test]
fn another_target_and_another_owner_are_reported() {
    let lab = &Lab::new();
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    pod.add(&config);
    let comment = |lab: &Lab| {
        let table = table(lab);
        let line = table.lines().find(|line| line.contains("tcp . 8080")).unwrap().to_owned();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let replace = |comment: &str, target: &str| {
        lab.sh(&format!(
            "nft 'delete element inet cni_hostport ipv4_ports {{ tcp . 8080 }}
                  add element inet cni_hostport ipv4_ports {{ tcp . 8080 comment \"{comment}\" : {target} }}'"
        ));
    };
    let own = comment(lab);
    for target in ["10.1.0.9 . 80", "10.1.0.2 . 81"] {
        replace(&own, target);
        assert_repaired(&pod, &config, "tcp port 8080 leads to 10.1.0.");
    }
    let other = Pod::with_port(lab, "b", &["10.1.0.2/24"]);
    pod.del(&config);
    other.add(&on_network("net2", config.clone()));
    let error = pod.check(&config).error(999);
    assert!(error["msg"].as_str().unwrap().contains("(net: net2, if: eth0, id: b)"), "{error}");
    pod.call("ADD", &config).run().error(101);
}

/// What CHECK expects follows from the configuration and the previous result of the call.
#[test]
fn a_changed_configuration_is_reported() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    let pod = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let base = config(&["8080:80/tcp"]);
    pod.add(&base);
    for (changed, text) in [
        (config(&["8080:80/tcp", "8081:80/tcp"]), "tcp port 8081 is missing"),
        (config(&["8080:81/tcp"]), "leads to 10.1.0.2:80, not to 10.1.0.2:81"),
        (config(&["8080:80/udp"]), "udp port 8080 is missing"),
        (config(&["10.0.0.1 8080:80/tcp"]), "tcp 10.0.0.1:8080 is missing"),
        (with(base.clone(), json!({ "conditionsV4": ["-i", "uplink"] })), "chain inet cni_hostport"),
    ] {
        let error = pod.check(&changed).error(999);
        assert!(error["msg"].as_str().unwrap().contains(text), "{text}: {error}");
    }
    let moved = Pod { ips: vec!["10.1.0.3/24".to_owned()], ..pod.clone() };
    let error = moved.check(&base).error(999);
    assert!(error["msg"].as_str().unwrap().contains("not to 10.1.0.3:80"), "{error}");
    // Ports that the configuration no longer names do not matter.
    pod.check(&config(&[])).ok();
}

/// ADDs of other containers repair what all share.
#[test]
fn the_next_add_repairs_the_chains_for_all() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 up type bridge; ip address add 10.1.0.1/24 dev br0");
    let first = Pod::with_port(lab, "a", &["10.1.0.2/24"]);
    let config = config(&["8080:80/tcp"]);
    first.add(&config);
    for (n, break_it) in ["flush chain inet cni_hostport output", "flush table inet cni_hostport"].iter().enumerate() {
        lab.sh(&format!("nft '{break_it}'"));
        first.check(&config).error(999);
        let next = Pod::with_port(lab, &format!("n{n}"), &[&format!("10.1.0.{}/24", n + 7)]);
        next.add(&crate::support::config(&[&format!("{}:80/tcp", n + 9000)]));
        first.check(&config).ok();
    }
}
