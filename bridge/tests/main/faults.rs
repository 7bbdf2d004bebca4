//! A failed ADD leaves nothing behind, wherever it fails: in the delegate, or in any system call.

use serde_json::{Value, json};
use testing::Lab;
use testing::fault::{Effect, inject, inject_everywhere};

use crate::pod::{Pod, assert_clean, ipam_calls, ipam_fails, layer3, links_at_release};

fn everything() -> Value {
    layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true }))
}

#[test]
fn del_of_a_failed_ipam_plugin_is_called_after_the_pair_is_gone() {
    Lab::for_each_way_to_delegate(|lab| {
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        ipam_fails(lab, "ADD");
        let error = pod.call("ADD", &everything()).run().error(123);
        assert_eq!(error["msg"], "scripted failure", "passed on unchanged");
        assert_eq!(ipam_calls(lab), ["ADD a eth0", "DEL a eth0"]);
        assert_eq!(links_at_release(lab), "", "an address that is still in use is not released");
        assert_clean(lab);
        assert!(!pod.sh("ip -o link").contains("eth0"));
    });
}

/// The kernel may report that the bridge is gone when it has already created the pair.
#[test]
fn a_pair_whose_bridge_vanished_is_replaced() {
    let lab = &Lab::new();
    let config = layer3(json!({}));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    lab.sh("ip link add br0 type bridge; ip link set br0 up");
    let calls = later_calls(&pod, &config, "recvfrom");
    let (reply, _) = calls[0];
    let effect = inject(lab, pod.call("ADD", &config), "recvfrom", reply, "error=ENODEV");
    assert_eq!(effect, Effect::Tolerated);
    assert_eq!(lab.sh("ip -o link show type veth | wc -l"), "1\n");
    assert_eq!(lab.sh("ip -o link show master br0 | wc -l"), "1\n");
}

/// A new IPv6 address is not usable until the kernel reports it.
#[test]
fn an_add_waits_for_its_ipv6_addresses() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["fd01::2/64"]);
    let (outcome, log) = pod.call("ADD", &layer3(json!({}))).trace(lab, &["-e", "trace=setsockopt,recvfrom"]);
    outcome.ok();
    // RTNLGRP_IPV6_IFADDR
    let listens = |line: &str| line.contains("NETLINK_ADD_MEMBERSHIP, [9]");
    let mut waits = 0;
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !listens(line) {
            continue;
        }
        let socket = line.split_once('(').and_then(|(_, rest)| rest.split_once(',')).unwrap().0;
        let received = format!("recvfrom({socket}, [{{");
        let mut until_next = std::iter::from_fn(|| lines.next_if(|line| !listens(line)));
        waits += usize::from(until_next.any(|line| line.starts_with(&received)));
    }
    assert_eq!(waits, 2, "in the container, and on the bridge: {log}");
}

#[test]
fn an_add_with_an_unusable_ipam_result_is_rolled_back() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    for (answer, expected) in [
        (json!({}), "no address"),
        (json!({ "ips": [{ "address": "10.1.0.2/24", "gateway": "fd01::1" }] }), "fd01::1"),
        (
            json!({ "ips": [{ "address": "10.1.0.2/24" }], "routes": [{ "dst": "10.5.0.0/16", "gw": "fd01::1" }] }),
            "10.5.0.0/16",
        ),
        (
            json!({ "ips": [{ "address": "10.1.0.2/24" }], "routes": [{ "dst": "10.5.0.0/16", "gw": "192.0.2.1" }] }),
            "192.0.2.1",
        ),
        (json!({ "ips": [{ "address": "255.255.255.255/32" }] }), "255.255.255.255/32"),
        (json!({ "ips": [{ "address": "10.1.0.2/24" }, { "address": "10.1.0.2/24" }] }), "10.1.0.2/24"),
        (json!({ "ips": [{ "address": "nonsense" }] }), "nonsense"),
    ] {
        pod.answer(answer);
        let outcome = pod.call("ADD", &everything()).run();
        assert_eq!(outcome.status, Some(1), "{}", outcome.stdout);
        assert!(outcome.stdout.contains(expected), "{expected}: {}", outcome.stdout);
        assert_clean(lab);
        assert!(!pod.sh("ip -o link").contains("eth0"));
    }
    let calls = ipam_calls(lab);
    assert_eq!(calls.iter().filter(|call| call.starts_with("ADD")).count(), 7);
    assert_eq!(calls.iter().filter(|call| call.starts_with("DEL")).count(), 7, "each address is released");
}

#[test]
fn a_result_that_the_version_cannot_express_is_rolled_back() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    // A result in the layout of 0.2.0, without the address that 0.2.0 requires.
    pod.answer(json!({ "cniVersion": "0.2.0" }));
    let mut config = everything();
    config["cniVersion"] = json!("0.2.0");
    let outcome = pod.call("ADD", &config).run();
    assert_eq!(outcome.status, Some(1), "{}", outcome.stdout);
    assert_clean(lab);
}

#[test]
fn a_failing_system_call_leaves_nothing_behind() {
    let lab = &Lab::new();
    let config = everything();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let faults = [
        ("sendto", "ENOBUFS"),
        ("recvfrom", "ENOMEM"),
        ("setns", "EPERM"),
        ("socket", "EMFILE"),
        ("setsockopt", "EINVAL"),
        ("openat", "EMFILE"),
        ("open", "EMFILE"),
        ("ioctl", "EPERM"),
        ("pwrite64", "EIO"),
    ];
    let failures = inject_everywhere(
        lab,
        &faults,
        || pod.call("ADD", &config),
        |effect, place| {
            if effect != Effect::Failed {
                pod.del(&config);
            }
            assert_clean(lab);
            assert!(!pod.sh("ip -o link").contains("eth0"), "{place}");
        },
    );
    assert!(failures > 20, "only {failures} failures");
    pod.add(&config);
}

#[test]
fn del_cleans_up_after_a_killed_add() {
    let lab = &Lab::new();
    let config = everything();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let kill = |n: usize| inject(lab, pod.call("ADD", &config), "sendto", n, "signal=KILL");
    let kills = (1..30).take_while(|n| kill(*n) != Effect::NotReached).inspect(|_| {
        pod.del(&config);
        assert_clean(lab);
    });
    let kills = kills.count();
    assert!((4..29).contains(&kills), "{kills} kills");
}

/// Lists the calls of the system call `name` that an ADD makes after it has read its configuration: their numbers among
/// all calls of that name, and their arguments.
fn later_calls(pod: &Pod<'_>, config: &Value, name: &str) -> Vec<(usize, String)> {
    let (outcome, log) = pod.call("ADD", config).trace(pod.lab, &["-e", &format!("trace=read,{name}")]);
    outcome.ok();
    pod.del(config);
    let begin = log.lines().position(|line| line.starts_with("read(0,")).unwrap();
    let prefix = format!("{name}(");
    let all = log.lines().enumerate().filter_map(|(place, line)| Some((place, line.strip_prefix(&prefix)?)));
    let numbered = all.enumerate().map(|(n, (place, text))| (n + 1, place, text.to_owned()));
    numbered.filter(|(_, place, _)| *place > begin).map(|(n, _, text)| (n, text)).collect()
}

#[test]
fn an_add_whose_result_cannot_be_written_is_rolled_back() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = everything();
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
        let calls = later_calls(&pod, &config, "write");
        let (answer, _) = calls.iter().rfind(|(_, text)| text.starts_with("1, ")).unwrap();
        assert_eq!(inject(lab, pod.call("ADD", &config), "write", *answer, "error=ENOSPC"), Effect::Failed);
        assert_clean(lab);
        assert!(!pod.sh("ip -o link").contains("eth0"));
        assert_eq!(ipam_calls(lab).last().unwrap(), "DEL a eth0");
    });
}

#[test]
fn an_add_without_memory_exits_with_an_answer() {
    let lab = &Lab::new();
    let mut config = everything();
    // More than the program's static memory.
    config["padding"] = "x".repeat(900 << 10).into();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let (first, _) = later_calls(&pod, &config, "mmap")[0];
    let inject = format!("inject=mmap:error=ENOMEM:when={first}+");
    let (outcome, log) = pod.call("ADD", &config).trace(lab, &["-e", "trace=mmap", "-e", &inject]);
    if outcome.status == Some(0) {
        pod.del(&config);
    } else {
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert!(serde_json::from_str::<Value>(&outcome.stdout).unwrap()["msg"].is_string());
    }
    assert!(log.contains("INJECTED"));
    assert_clean(lab);
}
