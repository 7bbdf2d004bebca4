//! ADD, and what of it CHECK compares.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Pod, Scripted};

use crate::{assert_given_back, config, has, ipam, lab, links};

#[test]
fn a_device_moves_into_the_container_and_back() {
    let lab = &lab();
    lab.sh("ip link set nic up");
    let pod = Pod::new(lab, "a");
    for version in ["0.1.0", "0.2.0"] {
        // There is nothing that these versions can express.
        pod.call("ADD", &config(json!({ "cniVersion": version }))).run().error(1);
        assert_given_back(lab, version);
    }
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let config = config(json!({ "cniVersion": version }));
        let result = pod.add(&config);
        let mut listed = json!({ "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod.netns });
        if version == "1.1.0" {
            listed["mtu"] = json!(1500);
        }
        assert_eq!(result["interfaces"], json!([listed]), "{version}");
        let link = &pod.ip("link show eth0")[0];
        assert!(link["flags"].as_array().unwrap().contains(&json!("UP")), "{link}");
        assert_eq!(link["ifalias"], "nic", "the reference finds the name there");
        assert!(!has(lab, "nic"), "{version}");
        if version >= "0.4.0" {
            pod.check_result(&config, &result).ok();
            let renamed = with(result, json!({ "interfaces": [{ "name": "eth1", "sandbox": pod.netns }] }));
            pod.check_result(&config, &renamed).error(999);
        }
        pod.del(&config);
        assert_given_back(lab, version);
    }
}

/// The names of host and container do not matter to each other.
#[test]
fn names_do_not_clash() {
    let lab = &lab();
    lab.sh("ip link add eth0 type veth peer name other");
    let pod = Pod::new(lab, "a");
    pod.sh("ip link add nic type veth peer name inner");
    let result = pod.add(&config(ipam()));
    pod.check_result(&config(ipam()), &result).ok();
    pod.del(&config(ipam()));
    assert_given_back(lab, "both have both names");
    assert!(has(lab, "eth0") && !has(lab, "inner"));
    assert_eq!(pod.ip("link show nic")[0]["link"], "inner", "the link of the container stays");
    // The same name on both sides.
    let same = config(json!({ "device": "eth0" }));
    pod.add(&same);
    assert!(!has(lab, "eth0"));
    pod.del(&same);
    assert!(has(lab, "eth0"));
}

#[test]
fn addresses_routes_and_dns_are_those_of_ipam() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let routes = json!([
        { "dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200 },
        { "dst": "192.168.0.0/16", "gw": "10.1.0.9", "table": 7, "priority": 9 },
    ]);
    let dns = json!({ "nameservers": ["10.1.0.9"] });
    pod.answer(json!({ "ips": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }], "routes": routes, "dns": dns }));
    let config = config(json!({ "ipam": { "type": Scripted::NAME } }));
    let result = pod.add(&config);
    assert_eq!(result["dns"], dns);
    let default = pod.sh("ip route show default");
    assert!(default.contains("via 10.1.0.1") && default.contains("mtu 1300 advmss 1200"), "{default}");
    assert!(pod.sh("ip route show table 7").contains("192.168.0.0/16 via 10.1.0.9 dev eth0 metric 9"));
    pod.check_result(&config, &result).ok();
    pod.sh("ip link set eth0 mtu 1400");
    let error = pod.check_result(&config, &result).error(999);
    assert_eq!(error["msg"], "MTU of \"eth0\": want 1500, got 1400");
    pod.del(&config);
    let own = pod.add(&with(config.clone(), json!({ "dns": { "domain": "d" } })));
    assert_eq!(own["dns"], json!({ "domain": "d" }));
    pod.del(&config);
    let own = pod.add(&crate::config(json!({ "dns": { "domain": "d" } })));
    assert_eq!(own["dns"], json!({ "domain": "d" }), "also without IPAM");
}

/// The device is what it was, and not only where it was.
#[test]
fn a_failed_add_restores_everything() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    lab.sh("ip link add br0 type bridge; ip link set br0 up");
    for prepare in [
        "ip link set nic mtu 1400 up; ip address add 10.7.0.1/24 brd + dev nic; ip route add 10.8.0.0/16 via 10.7.0.9
         ip link set nic alias \"uplink to rack 4\"",
        "ip address flush dev nic; ip link set nic alias spare master br0",
        "ip link set nic nomaster alias \"\" down",
    ] {
        lab.sh(prepare);
        let state = || {
            let links =
                lab.sh("ip -o link show nic | sed \"s/ qdisc .*//; s/^[0-9]*//; s/NO-CARRIER,//; s/,LOWER_UP//\"");
            format!(
                "{links}{}{}",
                lab.sh("ip -4 -o address show dev nic; ip route"),
                lab.sh("ip -j link show nic | grep -o ifalias.* || true")
            )
        };
        let before = state();
        Scripted::of(lab).fail("ADD");
        let config = config(json!({ "ipam": { "type": Scripted::NAME }, "mac": "02:00:00:00:00:09" }));
        pod.call("ADD", &config).run().error(Scripted::CODE);
        let index = |text: String| text.split_once(": ").map(|(_, rest)| rest.to_owned());
        assert_eq!(index(state()), index(before), "{prepare}");
        assert_eq!(lab.ip("link show nic")[0]["address"], "02:00:00:00:00:01");
        assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "");
    }
}

#[test]
fn a_requested_mac_address_is_that_of_the_container_only() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let config = config(json!({ "runtimeConfig": { "mac": "02:00:00:00:00:07" }, "capabilities": { "mac": true } }));
    let result = pod.add(&config);
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:07");
    assert_eq!(pod.ip("link show eth0")[0]["address"], "02:00:00:00:00:07");
    pod.check_result(&config, &result).ok();
    pod.del(&crate::config(json!({})));
    assert_eq!(lab.ip("link show nic")[0]["address"], "02:00:00:00:00:01");
    assert_given_back(lab, "DEL");
}

#[test]
fn a_device_has_an_alias_of_its_own() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    for alias in ["uplink to rack 4", "spare"] {
        lab.sh(&format!("ip link set nic alias \"{alias}\""));
        pod.add(&config(json!({})));
        pod.del(&config(json!({})));
        assert_eq!(lab.ip("link show nic")[0]["ifalias"], alias);
    }
}

/// Two containers want the same device at the same time, and one of them gets it.
#[test]
fn the_holder_of_a_device_is_named() {
    let lab = &lab();
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.add(&config(ipam()));
    let error = b.call("ADD", &config(ipam())).run().error(999);
    let (msg, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    assert_eq!(msg, "failed to find host device: Link not found: \"device\" \"nic\"");
    assert_eq!(details, "container \"a\" on network \"net1\", as \"eth0\", has it");
    assert_eq!(lab.sh("ls /var/lib/cni/networks/net1 | grep -c ^10"), "1\n");
    b.del(&config(ipam()));
    assert!(a.sh("ip -o link").contains("eth0"));
    a.del(&config(ipam()));
    b.add(&config(ipam()));
    b.del(&config(ipam()));
    assert_given_back(lab, "DEL of the second container");
}

/// Every one of many containers waits for its turn, and the device never gets lost.
#[test]
fn a_device_travels_between_containers() {
    let lab = &lab();
    let pods: Vec<Pod<'_>> = (0..4).map(|n| Pod::new(lab, &format!("c{n}"))).collect();
    for round in 0..3 {
        let calls: Vec<_> = pods.iter().map(|pod| pod.call("ADD", &config(json!({})))).collect();
        let outcomes = testing::parallel::run(calls);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.status == Some(0)).count(), 1, "{round}: {outcomes:?}");
        let calls: Vec<_> = pods.iter().map(|pod| pod.call("DEL", &config(json!({})))).collect();
        for outcome in testing::parallel::run(calls) {
            assert_eq!(outcome.status, Some(0), "{round}: {outcome:?}");
        }
        assert_given_back(lab, "DEL of all");
        assert_eq!(links(lab).len(), 3);
    }
}

#[test]
fn status_looks_for_the_device() {
    let lab = &lab();
    let status = |config: Value| lab.plugin("host-device", "STATUS").stdin(config.to_string()).run();
    status(config(ipam())).silent();
    let error = status(config(json!({ "device": "nope" }))).error(50);
    assert_eq!(error["msg"], "failed to find host device: Link not found: \"device\" \"nope\"");
    let pod = Pod::new(lab, "a");
    pod.add(&config(json!({})));
    status(config(json!({}))).silent();
    // Only the runtime knows the device.
    status(config(json!({ "device": "", "capabilities": { "deviceID": true } }))).silent();
    status(config(json!({ "device": "" }))).error(7);
}

/// A runtime takes a node whose STATUS fails for unusable.
#[test]
fn status_succeeds_while_the_device_moves() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let status = || lab.plugin("host-device", "STATUS").stdin(config(json!({})).to_string());
    for (is_attached, command) in [(false, "ADD"), (true, "DEL")] {
        for call in ["getdents64", "socket", "sendto"] {
            for number in 1.. {
                if is_attached {
                    pod.add(&config(json!({})));
                }
                let meanwhile = || drop(pod.call(command, &config(json!({}))).run());
                let outcome = testing::parallel::stopped_after(lab, status(), call, number, meanwhile);
                pod.del(&config(json!({})));
                let Some(outcome) = outcome else { break };
                assert_eq!(outcome.status, Some(0), "{command} after {call} {number}: {outcome:?}");
            }
        }
    }
}

/// As Multus attaches it: fixed addresses, and settings of the interface by `tuning`.
#[test]
fn other_plugins_can_follow() {
    let lab = &lab();
    let pod = Pod { ifname: "net1".to_owned(), ..Pod::new(lab, "a") };
    let address = json!({ "address": "10.0.30.30/24", "gateway": "10.0.30.1" });
    let ipam = json!({ "type": "static", "addresses": [address], "routes": [{ "dst": "10.40.0.0/16" }] });
    let first = config(json!({ "cniVersion": "0.4.0", "ipam": ipam }));
    let more = json!({ "type": "tuning", "mtu": 1400, "mac": "02:00:00:00:00:08", "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } });
    let second = with(first.clone(), more);
    let result = pod.add(&first);
    let result = pod.add(&with(second.clone(), json!({ "prevResult": result })));
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:08");
    for config in [&first, &second] {
        pod.check_result(config, &result).ok();
    }
    assert!(pod.sh("ip route").contains("10.40.0.0/16 via 10.0.30.1"));
    for config in [&second, &first] {
        pod.del(&with(config.clone(), json!({ "prevResult": result })));
    }
    let link = &lab.ip("link show nic")[0];
    assert_eq!((&link["mtu"], &link["address"]), (&json!(1500), &json!("02:00:00:00:00:01")));
    assert_given_back(lab, "DEL");
}
