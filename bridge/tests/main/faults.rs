//! A failed ADD leaves nothing behind, wherever it fails: in the delegate, or in any system call.

use serde_json::{Value, json};
use testing::fault::{Effect, inject};
use testing::{Lab, Pod, Scripted};

use crate::pod::{assert_clean, layer3};

fn everything() -> Value {
    layer3(json!({ "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true }))
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
    let calls = Scripted::of(lab).calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("ADD")).count(), 7);
    assert_eq!(calls.iter().filter(|call| call.starts_with("DEL")).count(), 7, "each address is released");
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
        assert_eq!(Scripted::of(lab).calls().last().unwrap(), "DEL a eth0");
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
