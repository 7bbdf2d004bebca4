//! `cnitool doctor`: a healthy host, and hosts with one problem each.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use testing::{copy_program, skip};

use crate::node::{LONG_ID, attach, host, json, leak, lose_namespace, network, page, port, powerless, snapshot};
use crate::support::Host;

/// Returns the problems, each as `CHECK LEVEL`.
pub(crate) fn problems(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    let mut problems: Vec<String> = findings
        .filter(|finding| finding["level"] != "ok")
        .map(|finding| {
            assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
            format!("{} {}", finding["check"].as_str().unwrap(), finding["level"].as_str().unwrap())
        })
        .collect();
    problems.dedup();
    problems
}

/// Asserts that there is exactly one problem, with a matching exit code, in JSON and in the text. Returns the finding.
#[track_caller]
pub(crate) fn only_problem(host: &Host, check: &str, level: &str) -> String {
    let outcome = host.run("doctor --json");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    assert_eq!(problems(&answer), [format!("{check} {level}")], "{answer:#}");
    assert_eq!(outcome.status, Some(if level == "fail" { 3 } else { 0 }), "{outcome:?}");
    let text = page(&host.run("doctor"));
    assert!(text.lines().any(|line| line.starts_with(&format!("{level:<6}{check}: "))), "{text}");
    let findings = answer["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["level"] == level).unwrap().to_string()
}

#[test]
fn a_healthy_host_is_healthy_and_stays_as_it_is() {
    let host = host("10.131.0.0/24");
    attach(&host, "blue");
    let before = snapshot(&host);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert_eq!((&answer["failures"], &answer["warnings"], &answer["notSeen"]), (&0.into(), &0.into(), &json!([])));
    let outcome = host.run("doctor");
    assert_eq!(outcome.status, Some(0));
    let text = page(&outcome);
    assert!(text.contains("0 warnings, 0 failures"), "{text}");
    assert_eq!(snapshot(&host), before);
}

#[test]
fn every_check_is_documented() {
    let host = host("10.160.0.0/24");
    attach(&host, "blue");
    let answer = json(&host, "doctor --json");
    for finding in answer["findings"].as_array().unwrap() {
        let row = format!("| `{}` |", finding["check"].as_str().unwrap());
        assert!(include_str!("../../../docs/cnitool.md").contains(&row), "{row}");
    }
}

#[test]
fn before_the_first_add_only_forwarding_is_missing() {
    let host = host("10.132.0.0/24");
    host.lab.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    let what = only_problem(&host, "forwarding", "warn");
    assert!(what.contains("the first add to pods turns it on"), "{what}");
    attach(&host, "blue");
    host.lab.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    let what = only_problem(&host, "forwarding", "fail");
    assert!(what.contains("sysctl -w net.ipv4.ip_forward=1"), "{what}");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/br-pods/forwarding");
    let what = only_problem(&host, "forwarding", "fail");
    assert!(what.contains("net/ipv4/conf/br-pods/forwarding=1"), "{what}");
}

#[test]
fn leaked_leases_and_lost_interfaces() {
    let host = host("10.133.0.0/24");
    attach(&host, "blue");
    leak("10.133.0.99", &format!("{LONG_ID}\r\neth0"));
    assert!(only_problem(&host, "leases", "warn").contains("cnitool prune pods"));
    host.run("prune --force").ok_page();
    leak("10.133.0.98", "");
    assert!(only_problem(&host, "leases", "warn").contains("1 lease without an owner"));
    host.run("prune --force").ok_page();
    let cut = attach(&host, "cut");
    host.lab.sh(&format!("ip link del {}", port(&cut)));
    assert!(only_problem(&host, "leases", "warn").contains(&cut[..20]));
    assert!(!claims_all_alive(&host.run("doctor")));
    for name in ["a", "b", "c", "d"] {
        let id = attach(&host, name);
        host.lab.sh(&format!("ip link del {}", port(&id)));
    }
    let what = only_problem(&host, "leases", "warn");
    assert!(what.contains("5 containers exist, but their interfaces do not"), "{what}");
    assert!(what.contains("and 2 more"), "{what}");
    assert!(!claims_all_alive(&host.run("doctor")));
}

fn claims_all_alive(outcome: &testing::Outcome) -> bool {
    outcome.stdout.contains("of live containers")
}

/// Asserts that a command succeeded, with output as text.
trait OkPage {
    fn ok_page(&self);
}

impl OkPage for testing::Outcome {
    #[track_caller]
    fn ok_page(&self) {
        assert_eq!(self.status, Some(0), "{self:?}");
        page(self);
    }
}

#[test]
fn a_deleted_namespace_leaves_a_lease_and_a_rule() {
    let host = host("10.134.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["masquerade warn", "leases warn"], "{answer:#}");
    assert!(answer.to_string().contains("\"1 rule of containers that are gone"), "{answer:#}");
}

#[test]
fn a_range_that_is_full_or_nearly() {
    let host = host("10.135.0.0/24");
    let ranges = json!([[{ "subnet": "10.135.0.0/24", "rangeStart": "10.135.0.10", "rangeEnd": "10.135.0.30" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"] {
        attach(&host, name);
    }
    assert!(only_problem(&host, "ranges", "warn").contains("1 of 21 addresses are left"));
    attach(&host, "u");
    let what = only_problem(&host, "ranges", "fail");
    assert!(what.contains("no address is left of 10.135.0.10-10.135.0.30"), "{what}");
    assert!(page(&host.run("leases")).contains("[####################]  21    0"));
}

#[test]
fn files_that_are_shadowed_or_broken() {
    let host = host("10.136.0.0/24");
    attach(&host, "blue");
    host.configure("20-pods.conflist", &network("pods", "10.136.0.0/24", &json!({})).to_string());
    let what = only_problem(&host, "config", "warn");
    assert!(what.contains("20-pods.conflist is never used") && what.contains("10-pods.conflist"), "{what}");
    fs::remove_file(host.conf_dir().join("20-pods.conflist")).unwrap();
    host.configure("05-broken.conflist", "{\n  \"name\": \"x\",,\n}");
    let what = only_problem(&host, "config", "fail");
    assert!(what.contains("05-broken.conflist:2:"), "{what}");
    host.configure("05-broken.conflist", &network("bad", "10.136.1.0/24", &json!({ "mtu": 7 })).to_string());
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["config fail"], "{answer:#}");
    assert!(answer.to_string().contains("key \\\"mtu\\\": 7 is out of range"), "{answer:#}");
}

#[test]
fn two_files_of_one_network_of_which_each_is_used() {
    let host = host("10.157.0.0/24");
    attach(&host, "blue");
    let mut single = network("pods", "10.157.0.0/24", &json!({}))["plugins"][0].clone();
    (single["name"], single["cniVersion"]) = (json!("pods"), json!("1.1.0"));
    host.configure("00-pods.conf", &single.to_string());
    let what = only_problem(&host, "config", "warn");
    assert!(what.contains("10-pods.conflist") && what.contains("CRI-O use the second"), "{what}");
    assert!(!what.contains("never used"), "{what}");
    // After the list, no program uses it.
    fs::rename(host.conf_dir().join("00-pods.conf"), host.conf_dir().join("20-pods.conf")).unwrap();
    assert!(only_problem(&host, "config", "warn").contains("20-pods.conf is never used"));
}

#[test]
fn the_first_file_by_name_is_the_one_that_kubelet_uses() {
    let host = host("10.137.0.0/24");
    attach(&host, "blue");
    host.configure("05-single.conf", r#"{"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}"#);
    let text = page(&host.run("doctor"));
    let text: Vec<&str> = text.split_whitespace().collect();
    assert!(text.join(" ").contains("first valid file, 05-single.conf (network lo)"), "{text:?}");
}

#[test]
fn a_host_without_any_configuration() {
    let host = host("10.138.0.0/24");
    fs::remove_file(host.conf_dir().join("10-pods.conflist")).unwrap();
    assert!(only_problem(&host, "config", "fail").contains("there is no network configuration"));
    host.configure("10-pods.conflist", "{");
    assert!(only_problem(&host, "config", "fail").contains("10-pods.conflist:1:"));
    assert!(!page(&host.run("doctor")).contains("there is no network configuration"));
}

#[test]
fn plugins_that_are_missing_or_not_executable() {
    let host = host("10.139.0.0/24");
    attach(&host, "blue");
    let file = |name: &str| host.lab.bin().join(name);
    fs::rename(file("host-local"), file("away")).unwrap();
    let what = only_problem(&host, "plugins", "fail");
    assert!(what.contains("host-local") && what.contains(&*host.lab.bin().to_string_lossy()), "{what}");
    // The other plugins are hard links to the same file.
    copy_program(&file("away"), &file("host-local"));
    fs::set_permissions(file("host-local"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(only_problem(&host, "plugins", "fail").contains("is not executable"));
    fs::set_permissions(file("host-local"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(file("loopback")).unwrap();
    assert!(only_problem(&host, "plugins", "warn").contains("loopback"));
}

#[test]
fn a_firewall_that_drops_forwarded_packets() {
    let host = host("10.140.0.0/24");
    attach(&host, "blue");
    host.lab.sh(
        "nft 'add table inet strict; add chain inet strict pass { type filter hook forward priority 0; policy drop; }'",
    );
    let what = only_problem(&host, "firewall", "fail");
    assert!(what.contains("inet strict pass drops everything") && what.contains("-i br-pods"), "{what}");
    let bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    if Path::new(bridged).exists() {
        for (value, reach) in [("1", "neither each other nor other networks"), ("0", "cannot reach other networks")] {
            fs::write(bridged, value).unwrap();
            let what = only_problem(&host, "firewall", "fail");
            assert!(what.contains(reach), "{what}");
        }
    } else {
        skip("a_firewall_that_drops_forwarded_packets", "the kernel has no br_netfilter; the rest of it ran");
    }
    host.lab.sh("nft 'add rule inet strict pass iifname \"br-pods\" accept'");
    assert!(only_problem(&host, "firewall", "warn").contains("drops packets that none of its rules accepts"));
    host.lab.sh("nft 'delete table inet strict; add table ip6 six; add chain ip6 six pass { type filter hook forward priority 0; policy drop; }'");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "the network has no IPv6: {answer:#}");
}

#[test]
fn iptables_with_a_policy() {
    let host = host("10.141.0.0/24");
    attach(&host, "blue");
    host.lab.sh("iptables-nft -P FORWARD DROP");
    assert!(only_problem(&host, "firewall", "fail").contains("ip filter FORWARD"));
    host.lab.sh("iptables-nft -P FORWARD ACCEPT");
    // The legacy tables, which nf_tables does not list.
    let legacy = testing::Process::new("sh").arg("-c").arg("iptables-legacy -P FORWARD DROP").run();
    if legacy.status != Some(0) {
        return skip("iptables_with_a_policy", "the kernel or the host has no iptables-legacy; the rest of it ran");
    }
    assert!(only_problem(&host, "firewall", "fail").contains("FORWARD of iptables-legacy-save"));
}

#[test]
fn flushed_rules() {
    let host = host("10.142.0.0/24");
    attach(&host, "blue");
    host.lab.sh("nft flush chain inet cni_plugins_masquerade postrouting");
    let what = only_problem(&host, "masquerade", "fail");
    assert!(what.contains("no packet reaches the masquerade rules"), "{what}");
    let remedy = what.split('`').nth(1).unwrap().strip_prefix("cnitool ").unwrap();
    page(&host.run(remedy));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "the remedy helps");
    host.lab.sh("nft flush table inet cni_plugins_masquerade");
    let all = host.run("doctor --json").stdout;
    assert!(all.contains("lack a masquerade rule") && all.contains("no packet reaches"), "{all}");
    page(&host.run(remedy));
    host.lab.sh("nft flush chain inet cni_plugins_masquerade masq_checks");
    assert!(only_problem(&host, "masquerade", "fail").contains("1 of 1 live containers lack a masquerade rule"));
    page(&host.run(remedy));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "the remedy helps");
}

#[test]
fn addresses_that_conflict_with_the_gateway() {
    let host = host("10.143.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    host.lab.sh("ip link add uplink type veth peer name eth0 netns outside; ip address add 10.143.0.1/16 dev uplink");
    let what = only_problem(&host, "gateway", "fail");
    assert!(
        what.contains("10.143.0.1 is on uplink") && what.contains("ip address del 10.143.0.1/16 dev uplink"),
        "{what}"
    );
    host.lab.sh("ip address flush dev uplink; ip address add 10.143.0.200/24 dev uplink");
    assert!(only_problem(&host, "gateway", "fail").contains("the subnet 10.143.0.0/24 is on uplink too"));
    host.lab.sh("ip address flush dev uplink; ip address flush dev br-pods; ip address add 10.143.0.5/24 dev br-pods");
    let what = only_problem(&host, "gateway", "fail");
    assert!(what.contains("already has an IP address different from 10.143.0.1/24"), "{what}");
}

#[test]
fn ports_that_are_down_or_not_on_the_bridge() {
    let host = host("10.154.0.0/24");
    let blue = port(&attach(&host, "blue"));
    host.lab.sh(&format!("ip link set {blue} down"));
    follow(&host, &format!("ip link set {blue} up"));
    host.lab.sh(&format!("ip link set {blue} nomaster"));
    follow(&host, &format!("ip link set {blue} master br-pods"));
    host.lab.sh(&format!("ip link add other type bridge; ip link set {blue} master other"));
    assert!(only_problem(&host, "bridge", "warn").contains("on another bridge than br-pods"));
    host.lab.sh(&format!("ip link del other; ip link set {blue} master br-pods"));
    let ports: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| port(&attach(&host, name))).collect();
    ports.iter().for_each(|port| drop(host.lab.sh(&format!("ip link set {port} nomaster"))));
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains("4 ports are on no bridge") && what.contains("and 1 more"), "{what}");
    // Ports cannot be added to a bridge that is gone.
    host.lab.sh("ip link del br-pods");
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains("5 ports are on no bridge") && what.contains("attach it again"), "{what}");
}

#[test]
fn a_port_of_the_reference_that_is_not_on_the_bridge() {
    let host = host("10.155.0.0/24");
    fs::remove_file(host.lab.bin().join("bridge")).unwrap();
    host.reference("bridge");
    let mut config = network("pods", "10.155.0.0/24", &json!({ "ipMasq": false }));
    config["cniVersion"] = json!("1.0.0");
    host.configure("10-pods.conflist", &config.to_string());
    attach(&host, "blue");
    let links: Value = serde_json::from_str(&host.lab.sh("ip -j link show master br-pods")).unwrap();
    let port = links[0]["ifname"].as_str().unwrap();
    host.lab.sh(&format!("ip link set {port} nomaster"));
    let what = only_problem(&host, "bridge", "fail");
    assert!(what.contains(&format!("ip link set {port} master br-pods")), "{what}");
}

#[test]
fn no_remedy_takes_another_networks_gateway() {
    let host = host("10.153.0.0/24");
    attach(&host, "blue");
    let shared = json!({ "bridge": "br-pods", "ipam": { "type": "host-local", "ranges": [[
        { "subnet": "10.153.0.0/24", "gateway": "10.153.0.254" },
    ]] } });
    for (subnet, more) in [
        ("10.153.0.0/24", json!({})),
        // Another gateway in the same subnet, on another bridge and on the same bridge.
        (
            "10.153.0.0/16",
            json!({ "ipam": { "type": "host-local", "ranges": [[
            { "subnet": "10.153.0.0/16", "gateway": "10.153.7.1" },
        ]] } }),
        ),
        ("", shared),
    ] {
        host.configure("20-other.conflist", &network("other", subnet, &more).to_string());
        let answer = json(&host, "doctor --json");
        assert_eq!(problems(&answer), ["gateway fail", "ranges warn"], "{answer:#}");
        let remedies = remedies(&answer);
        assert_eq!(remedies.first().unwrap(), "set another \"subnet\" in one of the networks other and pods");
        assert!(remedies.iter().all(|remedy| !remedy.contains("address del")), "{remedies:?}");
    }
}

#[test]
fn a_gateway_address_that_was_lost() {
    let host = host("10.152.0.0/24");
    let ranges =
        json!([[{ "subnet": "10.152.0.0/24" }, { "subnet": "10.152.1.0/24" }], [{ "subnet": "fd00:152::/64" }]]);
    let ipam = json!({ "ipam": { "type": "host-local", "ranges": ranges } });
    host.configure("10-pods.conflist", &network("pods", "", &ipam).to_string());
    attach(&host, "blue");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "no container needs the second range's gateway yet: {answer:#}");
    host.lab.sh("ip -4 address flush dev br-pods");
    follow(&host, "ip address add 10.152.0.1/24 dev br-pods");
    // The kernel drops IPv6 addresses of a link that goes down.
    host.lab.sh("ip link set br-pods down; ip link set br-pods up");
    follow(&host, "ip address add fd00:152::1/64 dev br-pods nodad");
    host.lab.sh("ip link set br-pods down");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), ["bridge fail", "gateway fail"], "{answer:#}");
    host.lab.sh(&remedies(&answer).join("\n"));
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
}

/// Returns the remedies in order.
fn remedies(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings.filter_map(|finding| finding["remedy"].as_str().map(str::to_owned)).collect()
}

/// Asserts that the only remedy is this command and that it helps.
#[track_caller]
fn follow(host: &Host, remedy: &str) {
    let answer = json(host, "doctor --json");
    assert_eq!(remedies(&answer), [remedy], "{answer:#}");
    host.lab.sh(remedy);
    let answer = json(host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
}

#[test]
fn a_link_that_is_not_a_bridge() {
    let host = host("10.144.0.0/24");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; ip link add br-pods type veth peer name other");
    assert!(only_problem(&host, "bridge", "fail").contains("br-pods is not a bridge"));
}

#[test]
fn vlans_that_the_kernel_cannot_filter() {
    let host = host("10.144.1.0/24");
    let probe = "ip link add probe type bridge vlan_filtering 1 2>/dev/null && ip link del probe && echo yes || true";
    if !host.lab.sh(probe).is_empty() {
        return skip("vlans_that_the_kernel_cannot_filter", "this kernel can filter VLANs");
    }
    host.configure("10-pods.conflist", &network("pods", "10.144.1.0/24", &json!({ "vlan": 100 })).to_string());
    for create in ["echo 1 >/proc/sys/net/ipv4/ip_forward", "ip link add br-pods type bridge"] {
        host.lab.sh(create);
        let what = only_problem(&host, "bridge", "fail");
        assert!(what.contains("cannot filter VLANs") && what.contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{what}");
    }
    host.lab.sh("ip link del br-pods");
    let outcome = powerless(&host, "doctor --json");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(answer["notSeen"].to_string().contains("filter VLANs"), "{answer:#}");
}

#[test]
fn packets_that_are_too_large() {
    let host = host("10.145.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    host.lab.sh("ip link add uplink mtu 1400 type veth peer name eth0 netns outside
         ip address add 192.0.2.1/24 dev uplink; ip link set uplink up; ip route add default via 192.0.2.2");
    assert!(only_problem(&host, "mtu", "warn").contains("set \\\"mtu\\\": 1400"));
    host.configure("10-pods.conflist", &network("pods", "10.145.0.0/24", &json!({ "mtu": 1300 })).to_string());
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("br-pods has 1500"), "{what}");
}

#[test]
fn a_bridge_with_another_mtu_than_its_ports() {
    let host = host("10.159.0.0/24");
    let blue = port(&attach(&host, "blue"));
    attach(&host, "red");
    host.lab.sh("ip link set br-pods mtu 1300");
    assert!(only_problem(&host, "mtu", "warn").contains("br-pods has 1300, and its ports 1500"));
    follow(&host, "ip link set br-pods mtu 1500");
    host.lab.sh(&format!("ip link set {blue} mtu 1400; ip link set br-pods mtu 1500"));
    let what = only_problem(&host, "mtu", "warn");
    assert!(what.contains("br-pods has 1500, and its ports 1400, 1500"), "{what}");
}

#[test]
fn a_directory_that_cannot_be_written() {
    let host = host("10.146.0.0/24");
    attach(&host, "blue");
    host.lab
        .sh("mount --bind /var/lib/cni/networks /var/lib/cni/networks; mount -o remount,bind,ro /var/lib/cni/networks");
    assert!(only_problem(&host, "leases", "fail").contains("Read-only file system"));
}

#[test]
fn a_strict_rp_filter_matters_with_two_default_routes() {
    let host = host("10.147.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter");
    let way = |n: u32| {
        host.lab.sh(&format!(
            "ip link add up{n} type veth peer name eth{n} netns outside; ip address add 192.0.{n}.1/24 dev up{n}
             ip link set up{n} up; ip route add default via 192.0.{n}.2 metric {n}"
        ));
    };
    way(2);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    way(3);
    assert!(only_problem(&host, "rp_filter", "warn").contains("2 default routes"));
}

#[test]
fn networks_that_lease_the_same_addresses() {
    let host = host("10.148.0.0/24");
    attach(&host, "blue");
    host.configure(
        "20-other.conflist",
        &network("other", "10.148.0.0/16", &json!({ "isDefaultGateway": false })).to_string(),
    );
    assert!(only_problem(&host, "ranges", "warn").contains("overlaps 10.148.0.0/24 of network pods"));
}

#[test]
fn ipv6_that_is_switched_off() {
    let host = host("10.149.0.0/24");
    host.configure("10-pods.conflist", &network("pods", "fd00:149::/64", &json!({})).to_string());
    attach(&host, "blue");
    host.lab.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let answer = json(&host, "doctor --json");
    assert!(problems(&answer).contains(&"ipv6 fail".to_owned()), "{answer:#}");
}

#[test]
fn a_kernel_without_nf_tables() {
    let host = host("10.150.0.0/24");
    let config = network("pods", "10.150.0.0/24", &json!({ "ipMasqBackend": "nftables" }));
    host.configure("10-pods.conflist", &config.to_string());
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    // strace simulates such a kernel: it refuses the netfilter socket. The test uses a new pid namespace, because cnitool
    // opens a socket for each network namespace that it finds through processes.
    let doctor = |inject: &str| {
        host.lab.sh(&format!(
            "CNI_PATH={} NETCONFPATH={} unshare --pid --fork --mount-proc \
                 strace -qq -o /run/sockets -e trace=socket {inject} -- {} doctor --json || true",
            host.lab.bin().display(),
            host.conf_dir().display(),
            testing::program_path("cnitool").display()
        ))
    };
    doctor("");
    let count = fs::read_to_string("/run/sockets").unwrap().lines().count();
    // The number of the netfilter socket depends on the host, so all are tried.
    let fails = (1..=count).any(|number| {
        // Two in a row: musl tries a second time without flags that old kernels do not support.
        let answer = doctor(&format!("-e inject=socket:error=EPROTONOSUPPORT:when={number}..{}", number + 1));
        let traced = fs::read_to_string("/run/sockets").unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        traced.lines().any(|line| line.contains("NETFILTER") && line.contains("INJECTED"))
            && answer.is_object()
            && problems(&answer).contains(&"nf_tables fail".to_owned())
    });
    assert!(fails, "not for any of {count} sockets");
}

#[test]
fn without_permission_it_lists_what_was_not_seen() {
    let host = host("10.151.0.0/24");
    attach(&host, "blue");
    let answer: Value = serde_json::from_str(&powerless(&host, "doctor --json").stdout).unwrap();
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert!(!answer["notSeen"].as_array().unwrap().is_empty());
    let claims = answer["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == "firewall");
    assert!(!claims, "no finding about what was not seen: {answer:#}");
}

#[test]
fn without_permission_there_is_no_finding_about_leases() {
    let host = host("10.156.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    // The command runs without capabilities and does not own the files.
    host.lab.sh("chown -R 4711 /var/lib/cni; chmod 600 /var/lib/cni/networks/pods/10*");
    let outcome = powerless(&host, "doctor --json");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let unseen = answer["notSeen"].to_string();
    assert!(unseen.contains("whether 2 leases belong to live containers"), "{answer:#}");
    assert!(!claims_all_alive(&powerless(&host, "doctor")));
    host.lab.sh("chmod 700 /var/lib/cni/networks/pods");
    let answer: Value = serde_json::from_str(&powerless(&host, "doctor --json").stdout).unwrap();
    let claims = |check: &str| answer["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == check);
    assert!(!claims("leases") && !claims("ranges"), "the directory was not seen: {answer:#}");
}

#[test]
fn a_plugin_that_hangs_does_not_delay_other_findings() {
    let host = host("10.158.0.0/24");
    attach(&host, "blue");
    // The plugin copies what cnitool has printed by then.
    let (out, seen) = (host.lab.dir().join("out"), host.lab.dir().join("seen"));
    host.lab.script("slow", &format!("cp {} {}\nexec sleep 1000", out.display(), seen.display()));
    let list = json!({ "cniVersion": "1.1.0", "name": "slow", "plugins": [{ "type": "slow" }] });
    host.configure("05-slow.conflist", &list.to_string());
    let outcome = host.call("doctor").env("OUT", &out).via_shell("exec \"$0\" \"$@\" >\"$OUT\"").run();
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    let (text, before) = (fs::read_to_string(out).unwrap(), fs::read_to_string(seen).unwrap());
    assert!(before.contains("ok    leases: network pods: 1 lease") && text.starts_with(&before), "{before}");
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("it did not exit within 5s remedy: find out what the plugin waits for"), "{text}");
    assert!(text.contains("ok    status: network pods") && text.contains("1 failure"), "{text}");
}
