//! Rules at every hook, their sets and states, and rules that translate addresses first.

use serde_json::json;
use testing::{kubernetes, legacy, skip};

use super::routes::add_uplink;
use super::{assert_healthy, only_problem, subjects};
use crate::node::{attach, attach_with, host, host_with, json, page};
use crate::support::Host;

/// Returns commands that create a chain of the table `own` with a rule.
fn chain(hook: &str, rule: &str) -> String {
    format!("nft 'table ip own {{ chain c {{ type {hook}; {rule}; }}; }}'")
}

#[test]
fn rules_at_every_hook() {
    let host = host("10.22.11.0/24");
    add_uplink(&host);
    attach(&host, "blue");
    assert_healthy(&host, "an uplink");
    let filter =
        |hook: &str, priority: i32, rule: &str| chain(&format!("filter hook {hook} priority {priority}"), rule);
    for (make, place) in [
        (filter("prerouting", -300, "iifname br-pods drop"), "ip own c"),
        (filter("prerouting", -150, "ip saddr 10.22.11.0/24 drop"), "ip own c"),
        (filter("prerouting", -150, "ip daddr 10.22.11.2 drop"), "ip own c"),
        (filter("postrouting", 0, "ip saddr 10.22.11.0/24 drop"), "ip own c"),
        (filter("postrouting", 300, "oifname br-pods drop"), "ip own c"),
        ("iptables-nft -t raw -I PREROUTING -i br-pods -j DROP".to_owned(), "ip raw PREROUTING"),
        ("iptables-nft -t mangle -I POSTROUTING -s 10.22.11.2 -j DROP".to_owned(), "ip mangle POSTROUTING"),
        (chain("nat hook prerouting priority -100", "iifname br-pods drop"), "ip own c"),
        // By the name of the uplink: new connections, and answers.
        (filter("forward", 0, "oifname up0 drop"), "ip own c"),
        (filter("forward", 0, "iifname up0 ct state established,related drop"), "ip own c"),
        ("iptables-nft -I FORWARD -o up0 -j REJECT".to_owned(), "ip filter FORWARD"),
        (filter("postrouting", 0, "oifname up0 drop"), "ip own c"),
        // By set, by a range in a set, by a map, and by state.
        (filter("forward", 0, "iifname { br-pods, other } drop"), "ip own c"),
        (filter("forward", 0, "ip saddr { 10.22.9.0, 10.22.10.0-10.22.11.77 } drop"), "ip own c"),
        (
            "nft 'table inet own { set s { type ipv4_addr; flags interval; elements = { 10.22.11.0/25, 10.22.11.128/25 }; };
             chain c { type filter hook forward priority 0; ip saddr @s drop; }; }'"
                .to_owned(),
            "inet own c",
        ),
        (filter("forward", 0, "iifname vmap { other : accept, br-pods : drop }"), "ip own c"),
        (filter("forward", 0, "iifname br-pods ct state new drop"), "ip own c"),
        (filter("forward", 0, "ct state vmap { established : accept, related : accept, new : drop } "), "ip own c"),
        (filter("forward", 0, "ct state new drop"), "ip own c"),
        ("iptables-nft -I FORWARD -i br-pods -m conntrack --ctstate NEW -j DROP".to_owned(), "ip filter FORWARD"),
        ("iptables-nft -I FORWARD -s 10.22.11.0/24 -m state --state NEW -j DROP".to_owned(), "ip filter FORWARD"),
    ] {
        host.lab.sh(&make);
        let what = json(&host, "doctor --json")["findings"].as_array().unwrap().iter().find(|f| f["level"] != "ok").cloned();
        let what = what.unwrap_or_else(|| panic!("nothing found: {make}")).to_string();
        assert!(what.contains(place) && subjects(&what, "link").contains(&"br-pods".to_owned()), "{make}: {what}");
        assert!(what.contains("\"check\":\"firewall\""), "{make}: {what}");
        host.lab.sh("nft delete table ip own 2>/dev/null || true; nft delete table inet own 2>/dev/null || true
             for t in raw mangle filter; do nft delete table ip $t 2>/dev/null || true; done");
        assert_healthy(&host, &make);
    }
    // The connection or the port is not that of containers.
    for make in [
        filter("prerouting", -300, "iifname other drop"),
        filter("forward", 0, "iifname { docker0, up0 } ct state new drop"),
        filter("forward", 0, "iifname br-pods ct state invalid drop"),
        filter("forward", 0, "ct state vmap { established : accept, related : accept, invalid : drop }"),
        filter("forward", 0, "ip saddr { 10.22.9.0, 10.22.10.0-10.22.10.255 } drop"),
        filter("forward", 0, "iifname up0 ip saddr { 10.0.0.0/8, 192.168.0.0/16 } drop"),
        filter("forward", 0, "ct state established accept; iifname up0 drop"),
        filter("postrouting", 300, "ip saddr 10.22.11.0/24 drop"),
        "iptables-nft -I FORWARD -o up0 -p tcp --dport 25 -j DROP".to_owned(),
    ] {
        host.lab.sh(&make);
        assert_healthy(&host, &make);
        host.lab.sh("nft delete table ip own 2>/dev/null || true; nft delete table ip filter 2>/dev/null || true");
    }
    // What only a packet shows is named at the end.
    host.lab.sh(&filter("forward", 0, "iifname br-pods meta mark 7 drop"));
    let text = page(&host.run("doctor"));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("1 rule that may drop packets of containers") && words.contains("ip own c handle"),
        "{text}"
    );
    assert!(words.contains("`cnitool test`"), "{text}");
    assert_eq!(json(&host, "doctor --json")["notChecked"].as_array().map(Vec::len), Some(4));
}

#[test]
fn legacy_tables_at_every_hook() {
    let host = host("10.22.12.0/24");
    add_uplink(&host);
    attach(&host, "blue");
    for rule in [
        "-t raw -I PREROUTING -i br-pods -j DROP",
        "-t mangle -I POSTROUTING -o br-pods -j DROP",
        "-I FORWARD -o up0 -j DROP",
        "-I FORWARD -i br-pods -m conntrack --ctstate NEW -j DROP",
    ] {
        let legacy = format!("iptables-legacy {rule}");
        if testing::Process::new("sh").arg("-c").arg(&legacy).run().status != Some(0) {
            return skip("legacy_tables_at_every_hook", "the kernel or the host has no iptables-legacy");
        }
        let what = only_problem(&host, "firewall", "warn");
        assert!(
            what.contains("of iptables-legacy-save") && what.contains("drops packets on br-pods"),
            "{rule}: {what}"
        );
        host.lab.sh(&legacy.replace("-I", "-D"));
        assert_healthy(&host, rule);
    }
}

#[test]
fn rules_that_translate_before_the_plugins() {
    let plugin = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let host = host_with("10.22.13.0/24", &plugin);
    add_uplink(&host);
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    attach_with(&host, "blue", ports);
    let nat = |place: &str, rule: &str| chain(&format!("nat hook {place}"), rule);
    for make in [
        nat("prerouting priority -150", "tcp dport 8080 dnat to 192.0.2.9"),
        nat("prerouting priority -100", "ip daddr 192.0.2.2 tcp dport { 22, 8080 } redirect to :80"),
        "iptables-nft -t nat -N DOCKER; iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
         iptables-nft -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80"
            .to_owned(),
    ] {
        host.lab.sh(&make);
        let what = only_problem(&host, "portmap", "fail");
        assert!(what.contains("leads a published port elsewhere, before the plugin does"), "{make}: {what}");
        assert_eq!((subjects(&what, "published port").len(), subjects(&what, "rule").len()), (1, 1), "{what}");
        host.lab.sh("nft delete table ip own 2>/dev/null || true; nft delete table ip nat 2>/dev/null || true");
        assert_healthy(&host, &make);
    }
    host.lab.sh(&nat("output priority -100", "tcp dport 8080 dnat to 192.0.2.9"));
    let what = only_problem(&host, "portmap", "fail");
    assert!(what.contains("leads connections of this host to a published port elsewhere"), "{what}");
    assert_eq!((subjects(&what, "published port").len(), subjects(&what, "rule").len()), (1, 1), "{what}");
    host.lab.sh("nft delete table ip own");
    host.lab.sh(&nat("postrouting priority 50", "ip saddr 10.22.13.0/24 snat to 198.51.100.7"));
    let what = only_problem(&host, "firewall", "warn");
    assert!(what.contains("replaces the source of packets on br-pods before the plugin does"), "{what}");
    host.lab.sh("nft delete table ip own");
    for make in [
        nat("prerouting priority -150", "tcp dport 8081 dnat to 192.0.2.9"),
        nat("prerouting priority -150", "udp dport 8080 dnat to 192.0.2.9"),
        nat("prerouting priority -150", "ip daddr 203.0.113.1 tcp dport 8080 dnat to 192.0.2.9"),
        nat("prerouting priority 0", "tcp dport 8080 dnat to 192.0.2.9"),
        nat("output priority 0", "tcp dport 8080 dnat to 192.0.2.9"),
        nat("output priority -100", "tcp dport 8081 dnat to 192.0.2.9"),
        nat("postrouting priority 50", "ip saddr 10.22.13.0/24 snat to 192.0.2.2"),
        nat("postrouting priority 50", "ip saddr 10.22.13.0/24 masquerade"),
        nat("postrouting priority 150", "ip saddr 10.22.13.0/24 snat to 198.51.100.7"),
    ] {
        host.lab.sh(&make);
        assert_healthy(&host, &make);
        host.lab.sh("nft delete table ip own");
    }
}

/// The rules of Docker 28, of ufw, of kube-proxy and of Calico, as far as packets of containers get to them.
const DOCKER: &str = r"*raw
-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
";
const UFW: &str = r"*filter
:INPUT DROP [0:0]
:ufw-before-forward - [0:0]
:ufw-before-input - [0:0]
:ufw-before-logging-input - [0:0]
:ufw-logging-deny - [0:0]
:ufw-not-local - [0:0]
:ufw-reject-forward - [0:0]
:ufw-skip-to-policy-input - [0:0]
:ufw-user-forward - [0:0]
:ufw-user-input - [0:0]
:ufw-after-input - [0:0]
-A INPUT -j ufw-before-logging-input
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-after-input -m addrtype --dst-type BROADCAST -j ufw-skip-to-policy-input
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny
-A ufw-not-local -j DROP
-A ufw-skip-to-policy-input -j DROP
-A ufw-user-input -i br-pods -j ACCEPT
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
";
const KUBE_PROXY: &str = r"*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-AAAA - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAA - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-AAAA
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-AAAA -s 10.244.0.3/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAA -p tcp -m tcp -j DNAT --to-destination 10.244.0.3:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 8080 -j KUBE-SVC-AAAA
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAA ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ
-A KUBE-SVC-AAAA -j KUBE-SEP-AAAA
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";

const CALICO: &str = r"*filter
:cali-FORWARD - [0:0]
:cali-INPUT - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-wl-dispatch - [0:0]
-A INPUT -j cali-INPUT
-A FORWARD -j cali-FORWARD
-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch
-A cali-INPUT -i cali+ -j DROP
-A cali-from-wl-dispatch -j DROP
-A cali-to-wl-dispatch -j DROP
COMMIT
*mangle
:cali-PREROUTING - [0:0]
-A PREROUTING -j cali-PREROUTING
-A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
";

/// Loads the rules of all programs at once.
pub(crate) fn load_rules_of_others(host: &Host) {
    for (name, text) in [("docker", DOCKER), ("ufw", UFW), ("kube-proxy", KUBE_PROXY), ("calico", CALICO)] {
        let file = host.lab.dir().join(name);
        std::fs::write(&file, text).unwrap();
        host.lab.sh(&format!("iptables-nft-restore --noflush {}", file.display()));
    }
}

#[test]
fn rules_of_healthy_nodes() {
    let plugins = [
        json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        json!({ "type": "firewall", "backend": "iptables" }),
    ];
    let host = host("10.22.14.0/24");
    let mut config = crate::node::network("pods", "10.22.14.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().extend(plugins);
    host.configure("10-pods.conflist", &config.to_string());
    add_uplink(&host);
    load_rules_of_others(&host);
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    attach_with(&host, "blue", ports);
    assert_healthy(&host, "all programs at once");
    host.lab.sh("iptables-nft -D ufw-user-input -i br-pods -j ACCEPT");
    assert!(only_problem(&host, "firewall", "warn").contains("containers may need services of this host"));
    host.lab.sh("iptables-nft -P INPUT ACCEPT");
    assert_healthy(&host, "without a policy");
    // Docker publishes the same port later.
    host.lab.sh(
        "iptables-nft -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.3:80",
    );
    assert!(only_problem(&host, "portmap", "fail").contains("leads a published port elsewhere"));
}

/// The NodePort of a service wins over the host port of a pod, whatever the mode of kube-proxy is.
#[test]
fn a_host_port_that_is_a_node_port_is_reported() {
    let host = host("10.33.0.0/24");
    let mut config = crate::node::network("pods", "10.33.0.0/24", &json!({}));
    let plugin = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    config["plugins"].as_array_mut().unwrap().push(plugin);
    host.configure("10-pods.conflist", &config.to_string());
    add_uplink(&host);
    let ports = r#"{"portMappings": [{"hostPort": 30080, "containerPort": 80, "protocol": "tcp"},
                                     {"hostPort": 30081, "containerPort": 81, "protocol": "tcp"}]}"#;
    attach_with(&host, "blue", ports);
    for (mode, remove) in [
        ("nftables", "nft delete table ip kube-proxy"),
        ("iptables", "nft delete table ip nat"),
        ("legacy", "iptables-legacy -t nat -F; iptables-legacy -t nat -X"),
    ] {
        if mode == "legacy" && !legacy::use_tables(&host.lab, "nat") {
            return skip("a_host_port_that_is_a_node_port_is_reported", "there are no legacy tables");
        }
        kubernetes::add_node_port(&host.lab, mode);
        let what = only_problem(&host, "portmap", "fail");
        assert!(what.contains("tcp 0.0.0.0:30080") && !what.contains("30081"), "{mode}: {what}");
        assert!(what.contains(if mode == "legacy" { "KUBE-SEP" } else { "NodePort" }), "{mode}: {what}");
        host.lab.sh(remove);
        assert_healthy(&host, mode);
    }
}
