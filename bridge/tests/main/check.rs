//! CHECK: finds changes since ADD, and reports the expected and the actual value.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::pod::{host_veth, layer2, layer3};

/// Attaches a pod, runs commands that break something, and returns the error message of CHECK.
#[track_caller]
fn check_after(more: Value, on_host: &str, inside: &str) -> String {
    let lab = &Lab::new();
    let config = layer3(more);
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    let chain = "$(iptables -t nat -S | sed -n 's/^-N //p')";
    lab.sh(&on_host.replace("PORT", &host_veth(&result)).replace("CHAIN", chain));
    if !inside.is_empty() {
        pod.sh(inside);
    }
    let error = pod.check_result(&config, &result).error(999);
    pod.del(&config);
    error["msg"].as_str().unwrap().to_owned()
}

macro_rules! finds {
    ($($name:ident: $more:tt, $on_host:expr, $inside:expr => $expected:expr;)+) => {
        $(#[test]
        fn $name() {
            let msg = check_after(json!($more), $on_host, $inside);
            for part in $expected {
                assert!(msg.contains(part), "{part}: {msg}");
            }
            assert!(!msg.contains("Some(") && !msg.contains("None"), "plain text: {msg}");
        })+
    };
}

finds! {
    finds_another_mac: {}, "", "ip link set eth0 address 02:00:00:00:00:09" => ["MAC address of \"eth0\": want ", ", got 02:00:00:00:00:09"];
    finds_a_link_that_is_down: {}, "", "ip link set eth0 down" => ["up of \"eth0\"", "want true, got false"];
    finds_another_prefix: {}, "", "ip address del 10.1.0.2/24 dev eth0; ip address add 10.1.0.2/16 dev eth0" => ["10.1.0.2/24", "10.1.0.2/16"];
    finds_a_missing_route: {"isDefaultGateway": true}, "", "ip route del default" => ["0.0.0.0/0 via 10.1.0.1"];
    finds_a_missing_gateway: {}, "ip address del 10.1.0.1/24 dev br0", "" => ["\"br0\"", "10.1.0.1/24"];
    finds_a_port_without_a_bridge: {}, "ip link set PORT nomaster", "" => ["bridge of \"veth", "want br0, got none"];
    finds_a_port_of_another_bridge: {}, "ip link add br9 type bridge; ip link set PORT master br9", "" => ["want br0, got br9"];
    finds_another_hairpin_mode: {"hairpinMode": true}, "ip link set PORT type bridge_slave hairpin off", "" => ["hairpin", "want true, got false"];
    finds_a_missing_isolation: {"portIsolation": true}, "ip link set PORT type bridge_slave isolated off", "" => ["isolation", "want true, got false"];
    finds_a_bridge_without_promiscuity: {"promiscMode": true}, "ip link set br0 promisc off", "" => ["promiscuous of \"br0\""];
    finds_another_bridge_mac: {}, "ip link set br0 address 02:00:00:00:00:08", "" => ["\"br0\"", "02:00:00:00:00:08"];
    finds_flushed_masquerade: {"ipMasq": true}, "nft flush chain inet cni_plugins_masquerade masq_checks", "" => ["masquerades 10.1.0.2"];
    finds_a_flushed_masquerade_base_chain: {"ipMasq": true}, "nft flush chain inet cni_plugins_masquerade postrouting", "" => ["postrouting"];
    finds_a_flushed_ruleset: {"ipMasq": true}, "nft flush ruleset", "" => ["10.1.0.2"];
    finds_flushed_iptables: {"ipMasq": true, "ipMasqBackend": "iptables"}, "iptables -t nat -F POSTROUTING", "" => ["10.1.0.2", "CNI-"];
    finds_a_flushed_iptables_chain: {"ipMasq": true, "ipMasqBackend": "iptables"}, "iptables -t nat -F CHAIN", "" => ["CNI-", "masquerades"];
    finds_a_masqueraded_network: {"ipMasq": true, "ipMasqBackend": "iptables"}, "iptables -t nat -D CHAIN 1", "" => ["CNI-", "10.1.0.0/24"];
    finds_a_flushed_spoof_check: {"macspoofchk": true}, "nft flush ruleset", "" => ["chain bridge cni_spoofcheck prerouting receives no frames"];
}

/// The spoof check drops all frames of a container whose MAC address `tuning` changes after `bridge`. If `bridge` sets
/// the same address, they pass.
#[test]
fn finds_a_spoof_check_that_drops_all_frames() {
    const MAC: &str = "02:00:00:00:00:0a";
    let lab = &Lab::new();
    let plain = layer3(json!({ "macspoofchk": true }));
    for (id, config) in [("a", plain.clone()), ("b", with(plain, json!({ "args": { "cni": { "mac": MAC } } })))] {
        let pod = Pod::with_ips(lab, id, &["10.1.0.2/24"]);
        let before = pod.add(&config);
        let tuning =
            json!({ "cniVersion": "1.1.0", "name": "net1", "type": "tuning", "mac": MAC, "prevResult": before });
        let result =
            lab.plugin("tuning", "ADD").attachment(id, "eth0", &pod.netns).stdin(tuning.to_string()).run().ok();
        let ping = |seconds: u8| {
            pod.sh(&format!("ping -c 1 -W {seconds} 10.1.0.1 >/dev/null 2>&1 && echo works || echo lost"))
        };
        if id == "b" {
            pod.check_result(&config, &result).ok();
            assert_eq!(ping(10), "works\n");
            continue;
        }
        assert_eq!(ping(1), "lost\n");
        let error = pod.check_result(&config, &result).error(999);
        let old = before["interfaces"][2]["mac"].as_str().unwrap();
        for wanted in ["drops all frames", MAC, old] {
            assert!(error["msg"].as_str().unwrap().contains(wanted), "{wanted}: {error}");
        }
        for wanted in ["\"tuning\"", "\"args.cni.mac\"", "\"macspoofchk\""] {
            assert!(error["details"].as_str().unwrap().contains(wanted), "{wanted}: {error}");
        }
        pod.del(&config);
    }
}

#[test]
fn changes_that_others_may_make_are_accepted() {
    let lab = &Lab::new();
    let config = layer3(json!({ "isDefaultGateway": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = pod.add(&config);
    // A program captures traffic on the bridge. A later plugin adds addresses and routes, and changes the MTU.
    lab.sh("ip link set br0 promisc on");
    pod.sh("ip address add 10.5.0.2/24 dev eth0; ip route add 10.6.0.0/16 via 10.1.0.9; ip link set eth0 mtu 1300");
    pod.check_result(&config, &result).ok();
}

#[test]
fn a_previous_result_is_required_and_must_match() {
    let lab = &Lab::new();
    let config = layer2(json!({}));
    let pod = Pod::new(lab, "a");
    let result = pod.add(&config);
    assert!(pod.call("CHECK", &config).run().error(7)["msg"].as_str().unwrap().contains("prevResult"));
    let mut other = result.clone();
    other["interfaces"][2]["sandbox"] = json!("/elsewhere");
    assert!(pod.check_result(&config, &other).error(999)["msg"].as_str().unwrap().contains("eth0"));
    let mut other = result.clone();
    other["interfaces"][1]["name"] = json!("vethother");
    assert!(pod.check_result(&config, &other).error(999)["msg"].as_str().unwrap().contains("port"));
    let mut other = result;
    other["interfaces"][0]["mac"] = json!("nonsense");
    assert!(pod.check_result(&config, &other).error(7)["msg"].as_str().unwrap().contains("nonsense"));
}

#[test]
fn an_unspecified_gateway_and_table_zero_mean_none() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.answer(json!({
        "ips": [{ "address": "10.1.0.2/24" }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "0.0.0.0" }, { "dst": "10.9.0.0/16", "gw": "10.1.0.1", "table": 0 }],
    }));
    let config = layer3(json!({}));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    pod.sh("ip route del default");
    pod.check_result(&config, &result).error(999);
}
