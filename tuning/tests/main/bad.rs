//! Bad input: one error that names the key and the value, and nothing is changed.

use std::fs;

use serde_json::json;

use testing::config::with;

use crate::support::{DATA_DIR, Tuned, config, everything, lab, pod};

#[test]
fn what_the_kernel_refuses_changes_nothing() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    // Older kernels hide from a container what belongs to the host.
    let hides = pod.sh("test -e /proc/sys/net/core/rmem_max || echo hidden").contains("hidden");
    let of_the_host = if hides {
        ["net.core.rmem_max", "no sysctl", "name"]
    } else {
        ["net.core.rmem_max", "cannot be set for a container", "host"]
    };
    for (keys, parts) in [
        (json!({ "mtu": 20 }), ["eth0", "20", "from 68 to 65535"]),
        (json!({ "mtu": 70000 }), ["eth0", "70000", "from 68 to 65535"]),
        (json!({ "sysctl": { "net.nope.x": "1" } }), ["net.nope.x", "no sysctl", "/proc/sys/net/nope/x"]),
        (json!({ "sysctl": { "net.core": "1" } }), ["net.core", "no sysctl", "/proc/sys/net/core"]),
        (json!({ "sysctl": { "net.ipv4.conf.eth9.rp_filter": "1" } }), ["eth9", "no sysctl", "IFNAME"]),
        (json!({ "sysctl": { "net.core.somaxconn": "x" } }), ["net.core.somaxconn", "\\\"x\\\"", "now"]),
        (json!({ "sysctl": { "net.ipv4.ip_default_ttl": "" } }), ["refuses the value", "\\\"\\\"", "now"]),
        (
            json!({ "sysctl": { "net.ipv4.tcp_congestion_control": "nope" } }),
            ["the kernel does not have \\\"nope\\\"", "net.ipv4.tcp_congestion_control", "module"],
        ),
        (json!({ "sysctl": { "net.core.rmem_max": "1" } }), of_the_host),
        (json!({ "sysctl": { "kernel.domainname": "x" } }), ["kernel.domainname", "sysctl", "net."]),
        (json!({ "sysctl": { "net/../kernel/domainname": "x" } }), ["net/../kernel", "sysctl", "net"]),
    ] {
        // Whatever else is configured is not changed before.
        let mut all = everything();
        for (key, value) in keys["sysctl"].as_object().cloned().unwrap_or_default() {
            all["sysctl"][key] = value;
        }
        if let Some(mtu) = keys.get("mtu") {
            all["mtu"] = mtu.clone();
        }
        let error = pod.refused(&config(all), 7);
        for part in parts {
            assert!(error.to_string().contains(part), "{keys}: {part}: {error}");
        }
        assert_eq!(pod.state(), before, "{keys}");
    }
}

#[test]
fn duplicates_are_refused() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    for (one, other) in [
        ("net.core.somaxconn", "net.core.somaxconn"),
        ("net.core.somaxconn", "net/core/somaxconn"),
        ("net.ipv4.conf.IFNAME.arp_filter", "net.ipv4.conf.eth0.arp_filter"),
        ("net/ipv4/conf/eth0/arp_filter", "net.ipv4.conf.IFNAME.arp_filter"),
    ] {
        let stdin = format!(
            r#"{{"cniVersion": "1.1.0", "name": "net1", "prevResult": {}, "sysctl": {{"{one}": "7", "{other}": "8"}}}}"#,
            pod.result("1.1.0")
        );
        let error = pod.call("ADD", &config(json!({}))).stdin(stdin).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains("duplicated"), "{error}");
    }
    assert_eq!(pod.state(), before);
}

#[test]
fn a_previous_result_is_required() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    for command in ["ADD", "CHECK"] {
        let error = pod.call(command, &config(json!({ "prevResult": null }))).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains("Required prevResult missing"), "{error}");
    }
    pod.call("DEL", &config(json!({ "prevResult": null }))).run().ok();
}

#[test]
fn a_missing_interface_or_namespace_is_reported() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(json!({ "mtu": 1400, "sysctl": { "net.core.somaxconn": "77" } }));
    let without = pod.call("ADD", &config).env("CNI_IFNAME", "eth9").run().error(999);
    assert!(without["msg"].as_str().unwrap().contains("eth9"), "{without}");
    assert_ne!(pod.sysctl("net/core/somaxconn"), "77");
    pod.call("ADD", &config).env("CNI_NETNS", "/run/netns/absent").run().error(8);
    pod.call("ADD", &config).env("CNI_IFNAME", "a/b").run().error(4);
    assert!(fs::read_dir(DATA_DIR).map_or(0, Iterator::count) == 0);
}

#[test]
fn unknown_arguments_are_refused() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let error = pod.call("ADD", &config(json!({}))).env("CNI_ARGS", "FOO=1").run().error(4);
    assert!(error["msg"].as_str().unwrap().contains("FOO=1"), "{error}");
    pod.call("ADD", &config(json!({}))).env("CNI_ARGS", "FOO=1;IgnoreUnknown=1").run().ok();
}

#[test]
fn a_data_directory_that_cannot_be_created_is_reported() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    for dir in ["/proc/nowhere", "/dev/null", "/dev/null/x"] {
        let config = with(config(everything()), json!({ "dataDir": dir }));
        let error = pod.refused(&config, 5);
        assert!(error["msg"].as_str().unwrap().contains(dir), "{error}");
        assert_eq!(pod.state(), before, "{dir}");
        pod.del(&config);
    }
}
