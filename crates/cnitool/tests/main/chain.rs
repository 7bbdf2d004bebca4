//! Plugins of a list: their order, their configurations, and rollback after a failure.

use std::fs;

use serde_json::json;
use testing::reference;

use crate::support::{Host, failure, messages};

const TWO: &str = r#"{"cniVersion": "1.0.0", "name": "two", "plugins": [
    {"type": "first", "key": 1},
    {"type": "second", "capabilities": {"portMappings": true, "bandwidth": false, "mac": true}}
]}"#;

fn two() -> Host {
    let host = Host::new();
    host.recorder("first");
    host.recorder("second");
    host.configure("two.conflist", TWO);
    host.lab.netns("blue");
    host
}

#[test]
fn a_chain_with_real_peers() {
    if reference("portmap", "a_chain_with_real_peers").is_none() {
        return;
    }
    let host = Host::new();
    host.reference("tuning");
    host.reference("portmap");
    host.configure(
        "pods.conflist",
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "isDefaultGateway": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]}},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_notify": "1"}, "mtu": 1400},
            {"type": "portmap", "capabilities": {"portMappings": true}}
        ]}"#,
    );
    let blue = host.lab.netns("blue");
    let ports = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;
    let result = host.call("add pods /run/netns/blue").env("CAP_ARGS", ports).run().ok();
    assert_eq!(result["ips"][0]["address"], "10.22.0.2/16");
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "tuning passes on the result of bridge");
    let inside = format!("nsenter --net={}", blue.display());
    assert_eq!(host.lab.sh(&format!("{inside} cat /proc/sys/net/ipv4/conf/eth0/arp_notify")), "1\n");
    assert!(host.lab.sh(&format!("{inside} ip link show eth0")).contains("mtu 1400"));
    let rules = "iptables-save -t nat";
    assert!(host.lab.sh(rules).contains("--to-destination 10.22.0.2:80"), "the capability reached portmap");

    // CHECK of portmap 1.1.1 requires IPv6 rules even without an IPv6 address, so this list uses only tuning.
    host.configure(
        "tuned.conflist",
        r#"{"cniVersion": "1.0.0", "name": "tuned", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.23.0.0/16"}]]}},
            {"type": "tuning", "mtu": 1300}
        ]}"#,
    );
    let tuned = |command: &str| host.call(&format!("{command} tuned /run/netns/blue")).env("CNI_IFNAME", "net1").run();
    tuned("add").ok();
    tuned("check").ok();
    host.lab.sh(&format!("{inside} ip link set net1 mtu 1301"));
    let why = failure(&tuned("check"));
    assert!(why.starts_with("check \"net1\" of /run/netns/blue in network \"tuned\": plugin \"tuning\": "), "{why}");
    tuned("del").ok();

    host.run("del pods /run/netns/blue").ok();
    assert!(!host.lab.sh(rules).contains("10.22.0.2:80"));
    assert_eq!(host.lab.sh("ip -o link show type veth"), "");
    assert_eq!(host.lab.sh("find /var/lib/cni/networks -name '10.*'"), "");
    assert_eq!(host.cached(), [""; 0]);
    host.run("del pods /run/netns/blue").ok();
}

#[test]
fn each_plugin_gets_its_own_configuration_and_the_previous_result() {
    let host = two();
    let given = r#"{"portMappings": [{"hostPort": 1}], "bandwidth": {}, "dns": {}}"#;
    let call = host.call("add two /run/netns/../netns/blue").env("CAP_ARGS", given);
    let outcome = call.env("CNI_ARGS", "A=b;C=d").env("CNI_IFNAME", "net1").run();
    let ignored = |name: &str| {
        let why = "no plugin of network \"two\" has this capability (the capabilities are mac, portMappings)";
        format!("cnitool: ignored: {name:?} in CAP_ARGS: {why}\n")
    };
    assert_eq!(messages(&outcome), ignored("bandwidth") + &ignored("dns"));
    let result = outcome.ok();
    let expected = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}]});
    assert_eq!(result, expected);
    assert_eq!(host.seen("first", "ADD"), json!({"cniVersion": "1.0.0", "key": 1, "name": "two", "type": "first"}));
    assert_eq!(
        host.seen("second", "ADD"),
        json!({"cniVersion": "1.0.0", "name": "two", "prevResult": expected, "type": "second",
            "runtimeConfig": {"portMappings": [{"hostPort": 1}]}}),
        "only what it declares, and not the declaration"
    );
    let id = "cnitool-df26705e2e4ffd095eb1";
    let call = |command: &str, name: &str| format!("{command} {name} {id} /run/netns/blue net1 A=b;C=d");
    assert_eq!(host.log(), [call("ADD", "first"), call("ADD", "second")]);
    assert_eq!(host.cached(), [format!("two-{id}-net1")]);

    fs::remove_file(host.lab.dir().join("log")).unwrap();
    host.call("check two /run/netns/blue").env("CNI_IFNAME", "net1").run().ok();
    host.call("del two /run/netns/blue").env("CNI_IFNAME", "net1").run().ok();
    let expected_log = [call("CHECK", "first"), call("CHECK", "second"), call("DEL", "second"), call("DEL", "first")];
    assert_eq!(host.log(), expected_log, "in order, then in reverse, with the arguments of the add");
    for seen in [host.seen("first", "CHECK"), host.seen("second", "CHECK"), host.seen("first", "DEL")] {
        assert_eq!(seen["prevResult"], expected, "the last result for all");
    }
    assert_eq!(host.seen("second", "DEL")["runtimeConfig"]["portMappings"][0]["hostPort"], 1);
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn a_failed_add_is_rolled_back_in_reverse_from_the_failed_plugin() {
    let host = two();
    host.fail("second", "ADD");
    let why = failure(&host.run("add two /run/netns/blue"));
    assert_eq!(
        why,
        "add \"eth0\" of /run/netns/blue to network \"two\": plugin \"second\": asked to fail (by a test; code 7)"
    );
    assert_eq!(host.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn a_failed_add_leaves_no_entry_of_an_attachment_that_ended_by_itself() {
    let host = two();
    host.run("add two /run/netns/blue").ok();
    assert_eq!(host.cached().len(), 1);
    // The recorders create no interface, so only the entry exists, as after a reboot.
    host.fail("first", "ADD");
    failure(&host.run("add two /run/netns/blue"));
    assert_eq!(host.calls()[2..], ["ADD first", "DEL first"]);
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn failures_of_a_rollback_are_reported() {
    let host = two();
    host.fail("second", "ADD");
    host.fail("first", "DEL");
    let why = failure(&host.run("add two /run/netns/blue"));
    assert!(why.contains("not undone: plugin \"first\": asked to fail"), "{why}");
    assert_eq!(host.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"], "the rollback continues");
}

#[test]
fn a_second_add_does_not_take_down_the_first() {
    let host = two();
    host.configure(
        "pods.conflist",
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]}},
            {"type": "second"}
        ]}"#,
    );
    host.run("add pods /run/netns/blue").ok();
    let why = failure(&host.run("add pods /run/netns/blue"));
    assert!(why.contains("no rollback, because interface \"eth0\" existed before"), "{why}");
    host.run("check pods /run/netns/blue").ok();
    assert_eq!(host.cached().len(), 1);
}

#[test]
fn an_add_is_rolled_back_if_the_cache_cannot_be_written() {
    let host = two();
    fs::create_dir_all("/var/lib/cni/results").unwrap();
    host.lab.sh("mount --bind -o ro /var/lib/cni /var/lib/cni");
    let why = failure(&host.run("add two /run/netns/blue"));
    assert!(why.contains("write the cache entry /var/lib/cni/results/two-cnitool-"), "{why}");
    assert!(why.contains("Read-only file system"), "{why}");
    assert_eq!(host.calls(), ["ADD first", "ADD second", "DEL second", "DEL first"]);
}

#[test]
fn a_failed_del_keeps_the_attachment_to_be_repeated() {
    let host = two();
    host.run("add two /run/netns/blue").ok();
    host.fail("second", "DEL");
    failure(&host.run("del two /run/netns/blue"));
    assert_eq!(host.calls()[2..], ["DEL second"]);
    assert_eq!(host.cached().len(), 1);
    fs::remove_file(host.lab.dir().join("fail.second.DEL")).unwrap();
    host.run("del two /run/netns/blue").ok();
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn old_versions_and_switches() {
    let host = two();
    host.configure("old.conflist", &TWO.replace("1.0.0", "0.3.1").replace("\"two\"", "\"old\""));
    host.run("add old /run/netns/blue").ok();
    host.run("del old /run/netns/blue").ok();
    assert!(host.seen("first", "DEL").get("prevResult").is_none(), "DEL has it since 0.4.0");
    let why = failure(&host.run("check old /run/netns/blue"));
    assert!(why.ends_with("(CHECK needs cniVersion 0.4.0 or newer)"), "{why}");

    let count = host.calls().len();
    let quiet = TWO.replace("\"two\"", "\"quiet\"").replace("\"name\"", "\"disableCheck\": \"True\", \"name\"");
    host.configure("quiet.conflist", &quiet);
    host.run("check quiet /run/netns/blue").ok();
    assert_eq!(host.calls().len(), count, "no plugin was called");
}

/// A refused ADD leaves nothing behind, and no message may suggest that it does.
#[test]
fn a_refusal_leaves_nothing_to_undo() {
    let host = Host::new();
    host.lab.netns("blue");
    let bridge = |ipam: &str| format!(r#"{{"type": "bridge", "ipam": {{"type": "{ipam}", "subnet": "10.9.0.0/24"}}}}"#);
    let list = |plugins: &str| format!(r#"{{"cniVersion": "1.1.0", "name": "net", "plugins": [{plugins}]}}"#);
    host.configure("net.conflist", &list(&bridge("host-local")));
    // The DEL of the rollback succeeds, and its warning of the same mistake is not printed a second time.
    let refused = failure(&host.call("add net /run/netns/blue").env("CNI_ARGS", "A=B").run());
    host.configure("net.conflist", &list(r#"{"type": "bridge", "mtu": 7}"#));
    let invalid = failure(&host.run("add net /run/netns/blue"));
    assert_eq!(invalid.matches("7 is out of range").count(), 1, "{invalid}");
    host.configure("net.conflist", &list(&bridge("missing")));
    let missing = failure(&host.run("add net /run/netns/blue"));
    for why in [refused, invalid, missing] {
        assert!(why.contains("plugin \"bridge\": ") && !why.contains("undone"), "{why}");
    }
    host.recorder("first");
    host.configure("net.conflist", &list(r#"{"type": "first"}"#));
    let text = "[ $CNI_COMMAND = VERSION ] || { printf '{\"code\": 9, \"msg\": \"no '$CNI_COMMAND'\"}'; exit 1; }";
    host.lab.script("first", text);
    let why = failure(&host.run("add net /run/netns/blue"));
    assert!(why.contains("no ADD") && why.contains("not undone: plugin \"first\": no DEL"), "{why}");
    // Other messages of the DEL are.
    let text = "[ $CNI_COMMAND = DEL ] && { echo no ADD >&2; echo other >&2; exit; }; printf '{\"code\": 9, \"msg\": \"no ADD\"}'; exit 1";
    host.lab.script("first", text);
    let outcome = host.run("add net /run/netns/blue");
    let printed = messages(&outcome);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.len() == 2 && lines[0] == "other" && lines[1].contains("plugin \"first\": no ADD"), "{outcome:?}");
}
