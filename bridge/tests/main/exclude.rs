//! Networks that `ipMasqExclude` leaves out of the masquerade.

use serde_json::{Value, json};
use testing::packets::{send, udp};
use testing::{Lab, Pod, reference};

use crate::pod::{assert_clean, host_veth, layer3};
use crate::stale::collect;
use crate::upgrade::theirs;

const IPS: [&str; 2] = ["10.1.0.2/24", "fd01::2/64"];
/// Networks behind the uplink, of both families.
const NEAR: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];
const FAR: [&str; 2] = ["198.51.100.0/24", "2001:db8:9::/64"];

fn config(backend: &str, exclude: &[&str]) -> Value {
    layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipMasqExclude": exclude }))
}

/// A host in both networks, which knows the way back to pods.
struct Outside<'a> {
    lab: &'a Lab,
    netns: std::path::PathBuf,
}

impl<'a> Outside<'a> {
    fn new(lab: &'a Lab) -> Outside<'a> {
        let netns = lab.outside();
        lab.sh(&format!(
            "ip route add 198.51.100.0/24 via 192.0.2.2; ip -6 route add 2001:db8:9::/64 via 2001:db8::2
             nsenter --net={} sh -ec 'ip link set lo up; ip address add 198.51.100.2/32 dev lo
                 ip address add 2001:db8:9::2/128 dev lo
                 ip route add 10.1.0.0/24 via 192.0.2.1; ip -6 route add fd01::/64 via 2001:db8::1'",
            netns.display()
        ));
        Outside { lab, netns }
    }

    /// Asserts which networks see the pod's own address instead of the host's.
    #[track_caller]
    fn assert_seen(&self, pod: &Pod<'_>, near: bool, far: bool) {
        for (any, own, host, destinations) in [
            ("0.0.0.0", "10.1.0.2", "192.0.2.1", ["192.0.2.2", "198.51.100.2"]),
            ("::", "fd01::2", "2001:db8::1", ["2001:db8::2", "2001:db8:9::2"]),
        ] {
            for (destination, is_own) in destinations.into_iter().zip([near, far]) {
                let want = if is_own { own } else { host };
                let seen = send(&pod.udp(any), &udp(Some(&self.netns), any, 0), destination);
                assert_eq!(seen, want.parse().ok(), "{destination}: {}", self.lab.sh("nft list ruleset"));
            }
        }
    }
}

fn assert_excluded(backend: &str) {
    let lab = &Lab::new();
    let outside = Outside::new(lab);
    let pod = Pod::with_ips(lab, "a", &IPS);
    for (exclude, near, far) in [
        (&[][..], false, false),
        (&FAR, false, true),
        (&NEAR, true, false),
        (&[NEAR[0], FAR[1], FAR[0], NEAR[1], FAR[0]], true, true),
        (&["0.0.0.0/0", "::/0"], true, true),
    ] {
        let config = config(backend, exclude);
        let result = pod.add(&config);
        pod.check_result(&config, &result).ok();
        outside.assert_seen(&pod, near, far);
        // DEL needs neither the key nor the backend.
        pod.del(&layer3(json!({ "ipMasqExclude": ["nonsense"] })));
        assert_clean(lab);
    }
}

#[test]
fn excluded_networks_see_the_address_of_the_pod_with_nftables() {
    assert_excluded("nftables");
}

#[test]
fn excluded_networks_see_the_address_of_the_pod_with_iptables() {
    assert_excluded("iptables");
}

#[test]
fn networks_of_a_family_without_addresses_are_ignored() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        let config = config(backend, &["fd00::/8"]);
        let result = pod.add(&config);
        pod.check_result(&config, &result).ok();
        assert!(!lab.sh("nft list ruleset").contains("fd00::"), "{backend}");
    }
}

#[test]
fn the_key_has_no_effect_without_masquerade() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    pod.add(&layer3(json!({ "ipMasqExclude": FAR })));
    assert!(!lab.sh("nft list ruleset").contains("198.51.100"));
}

#[test]
fn check_reports_a_changed_list() {
    for (backend, more, less) in [("nftables", true, true), ("iptables", true, false)] {
        let lab = &Lab::new();
        let pod = Pod::with_ips(lab, "a", &IPS);
        let result = pod.add(&config(backend, &FAR));
        for (exclude, is_reported, net) in [
            (vec![FAR[0], FAR[1], NEAR[0]], more, NEAR[0]),
            (vec![FAR[0], FAR[1], NEAR[1]], more, NEAR[1]),
            // Other attachments of the container share the chain of iptables, and may need the rule.
            (vec![FAR[0]], less, FAR[1]),
            (vec![], less, FAR[0]),
        ] {
            let outcome = pod.check_result(&config(backend, &exclude), &result);
            if is_reported {
                let error = outcome.error(999);
                assert!(error["msg"].as_str().unwrap().contains(net), "{backend} {exclude:?}: {error}");
                assert!(error["details"].as_str().unwrap().contains("cnitool repair"), "{error}");
            } else {
                outcome.ok();
            }
        }
        pod.check_result(&config(backend, &[FAR[1], FAR[0]]), &result).ok();
    }
}

#[test]
fn gc_removes_the_rules_of_excluded_networks() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let pod = Pod::with_ips(lab, "a", &IPS);
        pod.add(&config(backend, &FAR));
        collect(lab, &config(backend, &[]), &[]);
        assert_clean(lab);
        assert!(!lab.sh("nft list ruleset").contains("198.51.100"), "{backend}");
    }
}

/// The rule of an attachment whose DEL never came would masquerade what the new one excludes.
#[test]
fn a_leftover_rule_does_not_masquerade_excluded_networks() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let outside = Outside::new(lab);
        let pod = Pod::with_ips(lab, "a", &IPS);
        let port = host_veth(&pod.add(&config(backend, &[])));
        lab.sh(&format!("ip link del {port}"));
        let config = config(backend, &FAR);
        let result = pod.add(&config);
        outside.assert_seen(&pod, false, true);
        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_clean(lab);
    }
}

/// A rule of the kernel has a limited size.
#[test]
fn the_longest_list_fits_into_a_rule() {
    for backend in ["nftables", "iptables"] {
        let lab = &Lab::new();
        let pod = Pod::with_ips(lab, "a", &IPS);
        let mut exclude: Vec<String> = (0..16).map(|n| format!("fd02::{n}:8000:0:0:0/65")).collect();
        let value = |exclude: &[String]| {
            let mut config = config(backend, &[]);
            config["ipMasqExclude"] = json!(exclude);
            config
        };
        let result = pod.add(&value(&exclude));
        pod.check_result(&value(&exclude), &result).ok();
        pod.del(&value(&exclude));
        exclude.push("10.9.0.0/16".to_owned());
        let error = pod.call("ADD", &value(&exclude)).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains("17 networks"), "{error}");
        assert_clean(lab);
    }
}

#[test]
fn the_reference_removes_the_rules() {
    if reference("bridge", "the_reference_removes_the_rules").is_none() {
        return;
    }
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]]);
    let config = layer3(json!({
        "cniVersion": "1.0.0", "ipMasq": true, "ipMasqBackend": "iptables", "ipMasqExclude": FAR,
        "ipam": { "type": "host-local", "ranges": ranges },
    }));
    pod.add(&config);
    for (tool, net) in ["iptables", "ip6tables"].into_iter().zip(FAR) {
        let rules = lab.sh(&format!("{tool} -t nat -S"));
        let is_listed = |line: &str| line.contains(&format!("-d {net} ")) && line.ends_with("-j ACCEPT");
        assert!(rules.lines().any(is_listed), "{rules}");
    }
    theirs(&pod, "DEL", &config).ok();
    assert_clean(lab);
}
