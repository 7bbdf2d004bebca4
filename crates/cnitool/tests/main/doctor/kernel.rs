//! Settings of the kernel, and features that it lacks.

use std::fs;

use serde_json::{Value, json};
use testing::skip;

use super::{only_problem, problems};
use crate::node::{attach, host, json, network, powerless};

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
    assert!(what.contains("sysctl -w net/ipv4/conf/br-pods/forwarding=1"), "{what}");
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
fn a_strict_rp_filter_matters_with_two_default_routes() {
    let host = host("10.147.0.0/24");
    attach(&host, "blue");
    host.lab.netns("outside");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter");
    let way = |n: u32| {
        host.lab.sh(&format!(
            "ip link add up{n} type veth peer name eth{n} netns outside; ip address add 192.0.{n}.1/24 dev up{n}
             ip link set up{n} up; ip -n outside link set eth{n} up; ip route add default via 192.0.{n}.2 metric {n}"
        ));
    };
    way(2);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    way(3);
    assert!(only_problem(&host, "rp_filter", "warn").contains("2 default routes"));
}

#[test]
fn ipv6_that_is_switched_off() {
    let host = host("10.149.0.0/24");
    host.configure("10-pods.conflist", &network("pods", "fd00:149::/64", &json!({})).to_string());
    attach(&host, "blue");
    host.lab.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let answer = json(&host, "doctor --json");
    assert!(problems(&answer).contains(&"ipv6 fail".to_owned()), "{answer:#}");
    let finding = answer["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "ipv6").unwrap();
    assert!(finding["command"].is_null(), "a decision about the whole host: {finding:#}");
}

#[test]
fn a_kernel_without_nf_tables() {
    let host = host("10.150.0.0/24");
    let config = network("pods", "10.150.0.0/24", &json!({ "ipMasqBackend": "nftables" }));
    host.configure("10-pods.conflist", &config.to_string());
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    // strace simulates such a kernel: it refuses the netfilter socket. The test uses a new pid namespace, because
    // cnitool opens a socket for each network namespace that it finds through processes.
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
