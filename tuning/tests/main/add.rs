//! ADD: what changes, and what the result says.

use serde_json::{Value, json};
use testing::wait_until;

use testing::config::with;

use crate::support::{MAC, NEW_MAC, Tuned, config, everything, lab, pod, pod_with_interface, tuned, untouched};

const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

/// Runs ADD, CHECK and DEL, and verifies the interface and the backup file after each.
#[track_caller]
fn configures_and_deconfigures(
    keys: &Value,
    args: &str,
    expected: &(String, u64, u64, bool, bool, u64),
    saved: &Value,
) {
    for version in VERSIONS.into_iter().chain(["1.1.0"]) {
        let lab = &lab();
        let pod = pod(lab, "c1");
        let config = with(config(keys.clone()), json!({ "cniVersion": version }));
        let result = pod.call("ADD", &config).env("CNI_ARGS", args).run().ok();
        assert_eq!(pod.attributes(), *expected, "{version} {keys}");
        let mut file = pod.backed_up();
        let attachment = file.as_object_mut().unwrap().remove("attachment").unwrap();
        assert_eq!((&attachment["network"], &attachment["container"]), (&json!("net1"), &json!("c1")));
        assert_eq!(file, *saved, "{version} {keys}");
        let mode = lab.sh(&format!("stat -c %a {}", pod.backup().display()));
        assert_eq!(mode.trim(), "600");
        if !["0.1.0", "0.2.0", "0.3.0", "0.3.1"].contains(&version) {
            let checked = with(config.clone(), json!({ "prevResult": result }));
            pod.call("CHECK", &checked).env("CNI_ARGS", args).run().ok();
        }
        pod.call("DEL", &config).env("CNI_ARGS", args).run().ok();
        assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{version} {keys}");
    }
}

#[test]
fn every_attribute_is_configured_and_deconfigured() {
    let (mac, mtu, queue, promisc, allmulti, port) = untouched();
    let was = |keys: Value| keys;
    configures_and_deconfigures(
        &json!({ "promisc": true }),
        "",
        &(mac.clone(), mtu, queue, true, allmulti, port),
        &was(json!({ "promisc": false })),
    );
    configures_and_deconfigures(
        &json!({ "mtu": 1454 }),
        "",
        &(mac.clone(), 1454, queue, promisc, allmulti, port),
        &was(json!({ "mtu": 1500 })),
    );
    configures_and_deconfigures(
        &json!({ "txQLen": 20000 }),
        "",
        &(mac.clone(), mtu, 20000, promisc, allmulti, port),
        &was(json!({ "txQLen": 1000 })),
    );
    configures_and_deconfigures(
        &json!({ "allmulti": true }),
        "",
        &(mac, mtu, queue, promisc, true, port),
        &was(json!({ "allmulti": false })),
    );
}

#[test]
fn arguments_of_the_network_override_its_keys() {
    let keys = json!({
        "mtu": 1300, "txQLen": 5, "allmulti": false,
        "args": { "cni": { "mtu": 1400, "txQLen": 20, "allmulti": true, "promisc": true, "mac": NEW_MAC } },
    });
    let saved = json!({ "mac": MAC, "promisc": false, "mtu": 1500, "txQLen": 1000, "allmulti": false });
    configures_and_deconfigures(&keys, "", &tuned(), &saved);
}

#[test]
fn the_mac_address_has_four_sources() {
    let expected = (NEW_MAC.to_owned(), 1500, 1000, false, false, 1500);
    let args = format!("IgnoreUnknown=1;MAC={NEW_MAC};K8S_POD_NAME=x");
    for (keys, args) in [
        (json!({ "mac": NEW_MAC }), ""),
        (json!({ "mac": "02:00:00:00:00:99" }), args.as_str()),
        (json!({ "mac": "x", "runtimeConfig": { "mac": NEW_MAC } }), "MAC=02:00:00:00:00:99"),
        (json!({ "runtimeConfig": { "mac": "02:00:00:00:00:99" }, "args": { "cni": { "mac": NEW_MAC } } }), ""),
    ] {
        configures_and_deconfigures(&keys, args, &expected, &json!({ "mac": MAC }));
    }
}

#[test]
fn files_are_in_a_custom_directory() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let dir = lab.dir().join("deep/data");
    let config = with(config(everything()), json!({ "dataDir": dir }));
    pod.add(&config);
    assert!(dir.join("c1_eth0.json").exists());
    assert_eq!(pod.backed_up(), Value::Null);
    pod.del(&config);
    assert_eq!(pod.attributes(), untouched());
    assert!(!dir.join("c1_eth0.json").exists());
}

#[test]
fn the_result_has_the_new_mac_address_and_mtu() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let mut previous = pod.result("1.1.0");
    previous["interfaces"][1]["mtu"] = json!(1500);
    previous["interfaces"][2]["mtu"] = json!(1500);
    // The host may have a link of the same name.
    previous["interfaces"][0] = json!({ "name": "eth0", "mac": "02:00:00:00:00:77" });
    previous["interfaces"][0]["sandbox"] = json!("");
    let result = pod.add(&config(json!({ "mac": NEW_MAC.to_uppercase(), "mtu": 1400, "prevResult": previous })));
    let interfaces = &result["interfaces"];
    assert_eq!((&interfaces[2]["mac"], &interfaces[2]["mtu"]), (&json!(NEW_MAC), &json!(1400)));
    assert_eq!(interfaces[1]["mtu"], json!(1500), "the host veth keeps its MTU");
    assert_eq!(interfaces[0]["mac"], json!("02:00:00:00:00:77"));
    assert_eq!(result["ips"], pod.result("1.1.0")["ips"]);
}

#[test]
fn the_previous_result_is_passed_on() {
    for version in VERSIONS.into_iter().chain(["1.1.0"]) {
        let lab = &lab();
        let pod = pod(lab, "c1");
        for keys in [json!({}), json!({ "sysctl": { "net.ipv4.conf.all.log_martians": "1" } })] {
            let config = with(config(keys), json!({ "cniVersion": version }));
            let result = pod.add(&config);
            assert_eq!(result["ips"], pod.result(version)["ips"], "{version}");
            assert_eq!(result["ip4"], pod.result(version)["ip4"], "{version}");
            assert_eq!(result["interfaces"], pod.result(version)["interfaces"], "{version}");
            assert_eq!(pod.backed_up(), Value::Null, "only the interface has a backup");
            pod.del(&config);
        }
    }
}

#[test]
fn sysctls_are_those_of_the_container() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let host = lab.sh("cat /proc/sys/net/core/somaxconn");
    pod.add(&config(json!({
        "sysctl": {
            "net.core.somaxconn": "77", "net/ipv4/ip_default_ttl": "33", "net.ipv4.conf.IFNAME.log_martians": "1",
            "net.ipv4.route.flush": "1",
        },
        "args": { "cni": { "sysctl": { "net.core.somaxconn": "78", "net.ipv4.ip_local_port_range": "10000  20000" } } },
    })));
    assert_eq!(pod.sysctl("net/core/somaxconn"), "78");
    assert_eq!(pod.sysctl("net/ipv4/ip_default_ttl"), "33");
    assert_eq!(pod.sysctl("net/ipv4/conf/eth0/log_martians"), "1");
    assert_eq!(pod.sysctl("net/ipv4/ip_local_port_range"), "10000\t20000");
    assert_eq!(lab.sh("cat /proc/sys/net/core/somaxconn"), host);
    pod.add(&config(json!({ "args": { "cni": { "sysctl": { "net.core.somaxconn": "79" } } } })));
    assert_eq!(pod.sysctl("net/core/somaxconn"), "79", "without `sysctl`");
}

#[test]
fn names_of_interfaces_may_have_dots() {
    for ifname in ["eth0.5", "net-1.x_y"] {
        let lab = &lab();
        let pod = pod_with_interface(lab, "c1", ifname);
        for key in [
            "net.ipv4.conf.IFNAME.log_martians".to_owned(),
            "net/ipv4/conf/IFNAME/log_martians".to_owned(),
            format!("net/ipv4/conf/{ifname}/log_martians"),
            format!("net.ipv4.conf.{}.log_martians", ifname.replace('.', "/")),
        ] {
            pod.sh(&format!("echo 0 >/proc/sys/net/ipv4/conf/{ifname}/log_martians"));
            let config = config(json!({ "sysctl": { &key: "1" }, "mtu": 1400 }));
            pod.add(&config);
            assert_eq!(pod.sysctl(&format!("net/ipv4/conf/{ifname}/log_martians")), "1", "{key}");
            pod.check(&config).ok();
            pod.del(&config);
            assert_eq!((pod.link()["mtu"].clone(), pod.backed_up()), (json!(1500), Value::Null), "{key}");
        }
    }
}

/// The kernel turns `conf.all.forwarding` into `conf.*.forwarding`, so the order decides.
#[test]
fn sysctls_are_written_in_the_order_of_the_document() {
    let (all, one) = (r#""net.ipv4.conf.all.forwarding": "1""#, r#""net.ipv4.conf.eth0.forwarding": "0""#);
    for (members, expected) in [(format!("{all}, {one}"), "0"), (format!("{one}, {all}"), "1")] {
        let lab = &lab();
        let pod = pod(lab, "c1");
        let stdin = format!(
            r#"{{"cniVersion": "1.1.0", "name": "net1", "type": "tuning", "prevResult": {}, "sysctl": {{{members}}}}}"#,
            pod.result("1.1.0")
        );
        pod.call("ADD", &config(json!({}))).stdin(stdin).run().ok();
        assert_eq!(pod.sysctl("net/ipv4/conf/eth0/forwarding"), expected, "{members}");
    }
}

#[test]
fn a_second_plugin_keeps_the_first_original_values() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let [first, second] = [json!({ "mtu": 1400, "txQLen": 5 }), json!({ "mtu": 1300, "mac": NEW_MAC })].map(config);
    let result = pod.add(&first);
    pod.add(&with(second.clone(), json!({ "prevResult": result })));
    assert_eq!(pod.attributes(), (NEW_MAC.to_owned(), 1300, 5, false, false, 1500));
    let file = pod.backed_up();
    assert_eq!((&file["mtu"], &file["mac"], &file["txQLen"]), (&json!(1500), &json!(MAC), &json!(1000)));
    pod.del(&second);
    assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null));
    pod.del(&first);
    assert_eq!(pod.attributes(), untouched());
}

/// The second ADD fails and must not lose what the first has saved.
#[test]
fn a_second_plugin_that_fails_restores_the_backup() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    pod.add(&config(json!({ "mtu": 1400 })));
    let before = pod.state();
    pod.refused(&config(json!({ "mtu": 1300, "mac": NEW_MAC, "sysctl": { "net.core.somaxconn": "x" } })), 7);
    assert_eq!(pod.state(), before);
}

#[test]
fn a_new_mac_address_is_announced() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh("ip address add 10.9.0.1/24 dev br0");
    // The neighbour knows the former address.
    lab.sh(&format!("ip neigh replace 10.9.0.2 lladdr {MAC} nud reachable dev br0"));
    // Gratuitous ARP updates existing entries only after a second.
    lab.sh("echo 0 >/proc/sys/net/ipv4/neigh/br0/locktime; echo 1 >/proc/sys/net/ipv4/conf/br0/arp_accept");
    wait_until("the port to forward", || lab.sh("bridge link show dev vethc1").contains("state forwarding"));
    pod.add(&config(json!({ "mac": NEW_MAC })));
    wait_until("the neighbour to learn the new address", || lab.sh("ip neigh show 10.9.0.2").contains(NEW_MAC));
    assert_eq!(pod.sysctl("net/ipv4/conf/eth0/arp_notify"), "0", "restored");
}

#[test]
fn the_plugins_own_namespace_is_not_tuned() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh("ip netns attach self $$");
    let somaxconn = || lab.sh("cat /proc/sys/net/core/somaxconn").trim().to_owned();
    let before = somaxconn();
    let call = |command: &str, keys: Value| pod.call(command, &config(keys)).env("CNI_NETNS", "/run/netns/self");
    let tuned = json!({ "sysctl": { "net.core.somaxconn": "321" } });
    let error = call("ADD", tuned.clone()).run().error(8);
    assert!(error["msg"].as_str().unwrap().contains("/run/netns/self"), "{error}");
    assert_eq!(somaxconn(), before);
    // Without keys, the namespace does not matter.
    call("ADD", json!({})).run().ok();
    call("ADD", tuned).env("CNI_NETNS_OVERRIDE", "1").run().ok();
    assert_eq!(somaxconn(), "321");
}
