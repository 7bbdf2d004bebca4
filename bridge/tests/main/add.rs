//! ADD: the objects that it creates, key by key, and its result.

use serde_json::{Value, json};
use testing::{Lab, Pod, Scripted, wait_until};

use crate::pod::{assert_clean, host_veth, layer2, layer3};

#[test]
fn layer3_creates_and_returns_the_same_as_the_reference() {
    Lab::for_each_way_to_delegate(|lab| {
        let pod = Pod::new(lab, "a");
        pod.answer(json!({
            "ips": [{ "address": "10.1.0.2/24", "interface": 7 }, { "address": "fd01::2/64", "gateway": "fd01::ff" }],
            "routes": [{ "dst": "192.168.0.0/16" }],
            "dns": { "nameservers": ["10.1.0.1"] },
        }));
        let config = layer3(json!({ "isDefaultGateway": true }));
        let result = pod.add(&config);
        assert_eq!(
            result["ips"],
            json!([
                { "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2 },
                { "address": "fd01::2/64", "gateway": "fd01::ff", "interface": 2 },
            ])
        );
        assert_eq!(
            result["routes"],
            json!([
                { "dst": "192.168.0.0/16" },
                { "dst": "0.0.0.0/0", "gw": "10.1.0.1" },
                { "dst": "::/0", "gw": "fd01::ff" },
            ])
        );
        assert_eq!(result["dns"], json!({ "nameservers": ["10.1.0.1"] }));
        let interfaces = result["interfaces"].as_array().unwrap();
        assert_eq!(interfaces.len(), 3);
        assert_eq!(interfaces[0]["name"], "br0");
        assert_eq!(interfaces[2]["name"], "eth0");
        assert_eq!(interfaces[2]["sandbox"], pod.netns.to_str().unwrap());

        let bridge = &lab.ip("link show br0")[0];
        assert_eq!(bridge["address"], interfaces[0]["mac"]);
        let port = &lab.ip(&format!("link show {}", host_veth(&result)))[0];
        assert_eq!(port["address"], interfaces[1]["mac"]);
        assert_eq!(port["master"], "br0");
        assert_eq!(port["operstate"], "UP");
        assert_eq!(port["linkinfo"]["info_slave_data"]["state"], "forwarding");
        assert_eq!(port["txqlen"], 1000, "the kernel's default queue length");
        assert_eq!(port["ifalias"], "cni-attachment net1 a eth0");
        let inside = &pod.ip("link show eth0")[0];
        assert_eq!(inside["address"], interfaces[2]["mac"]);
        assert_eq!(inside["operstate"], "UP");
        let tentative = format!(
            "{}{}",
            pod.sh("ip address show tentative"),
            lab.sh("ip address show dev br0 scope global tentative")
        );
        assert!(!tentative.contains("tentative"), "{tentative}");
        let routes = pod.sh("ip route; ip -6 route");
        for route in ["default via 10.1.0.1", "192.168.0.0/16 via 10.1.0.1", "default via fd01::ff"] {
            assert!(routes.contains(route), "{routes}");
        }
        assert_eq!(
            lab.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv6.conf.br0.accept_ra"),
            "1\n1\n0\n"
        );
        assert_eq!(lab.sh(&format!("sysctl -n net.ipv6.conf.{}.accept_ra", host_veth(&result))), "0\n");
        let inside = "net.ipv6.conf.eth0.accept_dad net.ipv4.conf.eth0.arp_notify net.ipv6.conf.eth0.keep_addr_on_down";
        assert_eq!(pod.sh(&format!("sysctl -n {inside}")), "0\n1\n1\n");

        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_clean(lab);
        assert_eq!(Scripted::of(lab).calls(), ["ADD a eth0", "CHECK a eth0", "DEL a eth0"]);
    });
}

#[test]
fn layer2_creates_a_port_and_nothing_else() {
    Lab::for_each_way_to_delegate(|lab| {
        let pod = Pod::new(lab, "a");
        let config = layer2(json!({ "isGateway": true, "ipMasq": true }));
        let result = pod.add(&config);
        assert!(result.get("ips").is_none() && result.get("routes").is_none(), "{result}");
        assert_eq!(pod.ip("link show eth0")[0]["operstate"], "UP");
        assert!(!pod.sh("ip -4 address").contains("inet "));
        assert_eq!(lab.sh("nft list ruleset"), "");
        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn layer2_in_a_version_that_cannot_express_it_is_rejected_before_any_change() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.call("ADD", &layer2(json!({ "cniVersion": "0.2.0" }))).run().error(1);
    assert_eq!(lab.ip("link show type bridge"), json!([]));
    assert_clean(lab);
}

/// The kernel sends a notification for each change to a link that is up, and a port that is not isolated yet would
/// forward frames.
#[test]
fn a_port_is_set_up_last() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let outcome = pod.call("ADD", &layer3(json!({ "portIsolation": true }))).env("CNI_LOG", "debug").run();
    let port = host_veth(&outcome.ok());
    let at =
        |what: &str| outcome.stderr.find(&format!(": {what}")).unwrap_or_else(|| panic!("{what}: {}", outcome.stderr));
    let up = at(&format!("set link {port:?} up\n"));
    assert!(at(&format!("set port {port:?}: ")) < up, "{}", outcome.stderr);
    assert!(at(&format!("set link {port:?} alias ")) < up, "{}", outcome.stderr);
}

#[test]
fn port_flags_mtu_and_mac_are_set() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let config = layer3(json!({
        "hairpinMode": true, "portIsolation": true, "mtu": 1400,
        "runtimeConfig": { "mac": "02:00:00:00:00:01" }, "args": { "cni": { "mac": "invalid, but not used" } },
    }));
    let result = pod.add(&config);
    let port = &lab.ip(&format!("link show {}", host_veth(&result)))[0];
    assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], true);
    assert_eq!(port["linkinfo"]["info_slave_data"]["isolated"], true);
    assert_eq!(port["mtu"], 1400);
    let inside = &pod.ip("link show eth0")[0];
    assert_eq!(inside["mtu"], 1400);
    assert_eq!(inside["address"], "02:00:00:00:00:01");
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:01");
    assert_eq!(lab.ip("link show br0")[0]["mtu"], 1400);
    pod.check_result(&config, &result).ok();
}

#[test]
fn the_mac_comes_from_the_first_source_that_has_one() {
    let lab = &Lab::new();
    for (index, (config, args, want)) in [
        (json!({ "args": { "cni": { "mac": "02-00-00-00-00-02" } } }), "MAC=02:00:00:00:00:03", "02:00:00:00:00:02"),
        (json!({ "runtimeConfig": { "mac": "" } }), "IgnoreUnknown=1;K=V;MAC=0200.0000.0003", "02:00:00:00:00:03"),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = Pod::new(lab, &format!("m{index}"));
        let result = pod.call("ADD", &layer2(config)).env("CNI_ARGS", args).run().ok();
        assert_eq!(result["interfaces"][2]["mac"], want);
    }
}

#[test]
fn the_bridges_mac_stays_as_ports_come_and_go() {
    let lab = &Lab::new();
    let pods: Vec<_> = (0..4).map(|n| Pod::new(lab, &format!("p{n}"))).collect();
    let config = layer2(json!({}));
    let results: Vec<_> = pods.iter().map(|pod| pod.add(&config)).collect();
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result["interfaces"][0], results[0]["interfaces"][0]);
        pod.check_result(&config, result).ok();
    }
    for pod in &pods[1..] {
        pod.del(&config);
    }
    pods[0].check_result(&config, &results[0]).ok();
    assert_eq!(lab.ip("link show br0")[0]["address"], results[0]["interfaces"][0]["mac"]);
}

#[test]
fn an_existing_bridge_is_used_and_reconciled() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge; ip link set br0 mtu 1400");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = pod.add(&layer3(json!({ "mtu": 1450, "promiscMode": true })));
    let bridge = &lab.ip("link show br0")[0];
    assert_eq!(bridge["mtu"], 1450, "packets that fit through the port fit through the bridge");
    assert_eq!(bridge["promiscuity"], 1);
    assert!(bridge["flags"].as_array().unwrap().contains(&"LOWER_UP".into()), "{bridge}");
    assert_eq!(bridge["address"], result["interfaces"][0]["mac"], "the MAC address after the port was added");
    let pod = Pod::with_ips(lab, "b", &["10.1.0.3/24"]);
    pod.add(&layer3(json!({ "mtu": 1300 })));
    assert_eq!(lab.ip("link show br0")[0]["mtu"], 1300, "packets of the gateway fit through the port");
}

#[test]
fn a_link_that_is_not_a_bridge_is_rejected_and_not_changed() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type veth peer name br0peer; ip link set br0 up");
    // Without the state of the link: the kernel may update it later.
    let link = || ["address", "mtu", "master", "ifalias"].map(|key| lab.ip("link show br0")[0][key].clone());
    let before = link();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let error = pod.call("ADD", &layer3(json!({}))).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("\"br0\" is a veth, not a bridge"), "{error}");
    assert_eq!(link(), before);
    assert!(!lab.sh("ip -o link").contains("cni-attachment net1"), "a port is left behind");
    assert!(!pod.sh("ip -o link").contains("eth0"));
}

#[test]
fn two_disjoint_networks_put_two_gateways_on_the_bridge() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "10.2.0.2/24"]);
    let config = layer3(json!({ "isDefaultGateway": true }));
    let result = pod.add(&config);
    let addresses = lab.sh("ip -4 -o address show br0");
    assert!(addresses.contains("10.1.0.1/24") && addresses.contains("10.2.0.1/24"), "{addresses}");
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }]), "one default route per family");
    pod.check_result(&config, &result).ok();
}

#[test]
fn an_overlapping_address_is_rejected_with_both_addresses_or_replaced() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge; ip address add 10.1.0.9/16 dev br0; ip link set br0 up");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let error = pod.call("ADD", &layer3(json!({}))).run().error(999);
    let msg = error["msg"].as_str().unwrap();
    assert!(msg.contains("already has an IP address different from 10.1.0.1/24: 10.1.0.9/16"), "{error}");
    assert!(error["details"].as_str().unwrap().contains("forceAddress"), "{error}");
    assert_clean(lab);
    assert_eq!(Scripted::of(lab).calls(), ["ADD a eth0", "DEL a eth0"]);
    pod.add(&layer3(json!({ "forceAddress": true })));
    let addresses = lab.sh("ip -4 -o address show br0");
    assert!(addresses.contains("10.1.0.1/24") && !addresses.contains("10.1.0.9"), "{addresses}");
}

#[test]
fn routes_are_applied_with_all_their_properties() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.answer(json!({
        "ips": [{ "address": "10.1.0.2/24" }, { "address": "fd01::2/64" }],
        "routes": [
            { "dst": "192.168.1.0/24", "mtu": 1300, "advmss": 1200, "priority": 5 },
            { "dst": "192.168.2.0/24", "gw": "10.1.0.9", "table": 1000 },
            { "dst": "10.9.0.0/16", "table": 100, "scope": 253 },
            { "dst": "fd02::/64", "gw": "fd01::9", "priority": 7 },
            { "dst": "0.0.0.0/0" },
        ],
    }));
    let config = layer3(json!({ "isDefaultGateway": true }));
    let result = pod.add(&config);
    let main = pod.sh("ip route; ip -6 route");
    for want in [
        "192.168.1.0/24 via 10.1.0.1 dev eth0 metric 5 mtu 1300 advmss 1200",
        "fd02::/64 via fd01::9",
        "default via 10.1.0.1",
    ] {
        assert!(main.contains(want), "{want}: {main}");
    }
    assert!(pod.sh("ip route show table 1000").contains("192.168.2.0/24 via 10.1.0.9"));
    let defaults = result["routes"].as_array().unwrap().iter().filter(|route| route["dst"] == "0.0.0.0/0").count();
    assert_eq!(defaults, 1, "the default route without a gateway gets the gateway");
    pod.check_result(&config, &result).ok();
    pod.sh("ip route del 192.168.2.0/24 table 1000");
    let error = pod.check_result(&config, &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("192.168.2.0/24 via 10.1.0.9 table 1000"), "{error}");
}

#[test]
fn single_addresses_work() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    pod.answer(json!({ "ips": [{ "address": "10.1.0.2/32" }, { "address": "fd01::2/128" }] }));
    let config = layer3(json!({ "isGateway": false }));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
}

#[test]
fn add_waits_for_duplicate_detection_if_it_is_enabled() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["fd01::2/64"]);
    let config = layer3(json!({ "enabledad": true }));
    pod.add(&config);
    assert_eq!(pod.sh("ip -6 address show tentative"), "");
    assert_eq!(pod.sh("sysctl -n net.ipv6.conf.eth0.accept_dad net.ipv6.conf.eth0.enhanced_dad"), "1\n1\n");
    let twin = Pod::with_ips(lab, "b", &["fd01::2/64"]);
    let error = twin.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("fd01::2/64"), "{error}");
    assert_eq!(lab.sh("ip -o link show type veth | wc -l"), "1\n", "the twin leaves nothing behind");
}

#[test]
fn ipv6_is_enabled_in_a_container_that_disables_it() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["fd01::2/64"]);
    pod.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    pod.add(&layer3(json!({})));
    assert!(pod.sh("ip -6 address").contains("fd01::2/64"));
}

#[test]
fn a_container_interface_can_be_left_down() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let config = layer2(json!({ "disableContainerInterface": true }));
    let result = pod.add(&config);
    assert_eq!(pod.ip("link show eth0")[0]["operstate"], "DOWN");
    pod.check_result(&config, &result).ok();
}

/// The kernel adds no link-local address to a bridge with a MAC address of its own until a port has a carrier.
#[test]
fn a_new_bridge_has_its_link_local_address_without_a_carrier() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    let config = layer2(json!({ "disableContainerInterface": true }));
    // The delay gives the kernel time for its own changes between any two messages.
    let trace = lab.dir().join("trace");
    let slowly = ["-qq", "-o", trace.to_str().unwrap(), "-e", "trace=sendto", "-e", "inject=sendto:delay_enter=50000"];
    let result = pod.call("ADD", &config).strace(&slowly).run().ok();
    let addresses = || lab.ip("-6 address show dev br0")[0]["addr_info"].clone();
    let before = addresses();
    assert_eq!(before.as_array().unwrap().len(), 1, "{before}");
    assert_eq!((&before[0]["scope"], &before[0]["prefixlen"]), (&json!("link"), &json!(64)), "{before}");
    // An address that the kernel adds, if it sees a carrier, can be tentative for a moment.
    assert_eq!((&before[0]["nodad"], before[0].get("tentative")), (&json!(true), None), "{before}");
    assert_eq!(lab.sh("sysctl -n net.ipv6.conf.br0.accept_ra net.ipv6.conf.br0.accept_dad"), "0\n0\n");
    // The kernel would choose the same address, so it does not add a second one.
    pod.sh("ip link set eth0 up");
    let port = host_veth(&result);
    wait_until("the port and the bridge to have a carrier", || {
        lab.sh(&format!("ip link show {port}; ip link show br0")).matches("state UP").count() == 2
    });
    assert_eq!(addresses(), before);
    lab.sh("ip link set br0 down; ip link set br0 up");
    wait_until("the kernel to add a link-local address", || !addresses()[0]["local"].is_null());
    assert_eq!(addresses()[0]["local"], before[0]["local"], "the address that the kernel chooses");
}

/// An administrator can disable link-local addresses, or IPv6, for new interfaces.
#[test]
fn a_new_bridge_gets_no_link_local_address_if_it_is_disabled() {
    let lab = &Lab::new();
    for (n, setting) in ["addr_gen_mode", "disable_ipv6"].iter().enumerate() {
        lab.sh(&format!("sysctl -qw net.ipv6.conf.default.{setting}=1"));
        let pod = Pod::new(lab, &format!("p{n}"));
        pod.add(&layer2(json!({ "bridge": format!("br{n}") })));
        assert_eq!(lab.sh(&format!("ip -6 address show dev br{n}")), "", "{setting}");
        lab.sh(&format!("sysctl -qw net.ipv6.conf.default.{setting}=0"));
    }
}

#[test]
fn dns_of_the_network_replaces_dns_of_ipam_if_any_key_is_set() {
    let lab = &Lab::new();
    for (index, (dns, want)) in [
        (json!({}), json!({ "nameservers": ["1.1.1.1"] })),
        (json!({ "nameservers": [] }), Value::Null),
        (json!({ "domain": "d" }), json!({ "domain": "d" })),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = Pod::new(lab, &format!("d{index}"));
        let ips = json!([{ "address": format!("10.1.0.{}/24", index + 2) }]);
        pod.answer(json!({ "ips": ips, "dns": { "nameservers": ["1.1.1.1"] } }));
        let result = pod.add(&layer3(json!({ "dns": dns })));
        assert_eq!(result.get("dns").cloned().unwrap_or_default(), want);
    }
}

#[test]
fn a_full_bridge_is_reported_with_the_limit() {
    let lab = &Lab::new();
    // The limit is about port numbers, so any links will do as ports.
    lab.sh("ip link add br0 type bridge; ip link add p0 master br0 type veth peer name q0");
    // Both ends of 511 more pairs, in several commands: each has the full timeout, because other tests create links
    // too.
    for n in 1..=7 {
        lab.sh(&format!(
            "seq {n}001 {n}073 | sed 's/.*/link add p& master br0 type veth peer name q&\\nlink set q& master br0/' | ip -batch -"
        ));
    }
    let pod = Pod::new(lab, "a");
    let error = pod.call("ADD", &layer2(json!({}))).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("1023 ports"), "{error}");
}

#[test]
fn a_bridge_of_another_program_keeps_its_mac_and_ignores_router_advertisements() {
    const MAC: &str = "fe:ff:ff:ff:ff:ff";
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge; ip link add up0 type veth peer name up1; ip link set up1 up");
    lab.sh(&format!(
        "ip link set up0 address {MAC} master br0 up; ip link set br0 up; ip address add 10.1.0.1/24 dev br0"
    ));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    for config in [layer2(json!({})), layer3(json!({ "isGateway": true }))] {
        lab.sh("sysctl -q net.ipv6.conf.br0.accept_ra=1");
        let result = pod.add(&config);
        assert_eq!(result["interfaces"][0]["mac"], MAC);
        assert_eq!(lab.sh("sysctl -n net.ipv6.conf.br0.accept_ra"), "0\n");
        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_eq!(lab.ip("link show br0")[0]["address"], MAC);
    }
}

#[test]
fn add_does_not_wait_for_a_spanning_tree() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge stp_state 1 forward_delay 1500; ip link set br0 up");
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    for config in [layer2(json!({})), layer3(json!({ "isGateway": true }))] {
        pod.add(&config);
        pod.del(&config);
    }
}

#[test]
fn a_second_add_in_another_namespace_does_not_release_the_address_of_the_first() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/30" } }));
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.add(&config);
    let error = b.call("ADD", &config).env("CNI_CONTAINERID", "a").run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("duplicate allocation"), "{error}");
    assert!(!b.sh("ip -o link").contains("eth0"));
    b.call("ADD", &config).run().error(100);
}

#[test]
fn a_bridge_of_another_program_whose_ports_were_deleted_gets_a_mac() {
    let lab = &Lab::new();
    lab.sh("ip link add br0 type bridge && ip link add p0 type veth peer name p1 && ip link set p0 master br0");
    lab.sh("ip link del p0");
    assert_eq!(lab.ip("link show br0")[0]["address"], "00:00:00:00:00:00");
    let (a, b) = (Pod::new(lab, "a"), Pod::new(lab, "b"));
    let config = layer2(json!({}));
    let first = a.add(&config);
    let mac = lab.ip("link show br0")[0]["address"].clone();
    assert_eq!(first["interfaces"][0]["mac"], mac);
    let second = b.add(&config);
    a.del(&config);
    assert_eq!(lab.ip("link show br0")[0]["address"], mac, "the address stays as ports come and go");
    b.check_result(&config, &second).ok();
}

/// A pod that is created again gets the MAC address of its predecessor, another pod another one.
#[test]
fn a_stable_mac_address_belongs_to_the_pod() {
    let lab = &Lab::new();
    let config = layer2(json!({ "stableMac": true }));
    let mac = |id: &str, name: &str| {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        let result = Pod::new(lab, id).call("ADD", &config).env("CNI_ARGS", args).run().ok();
        result["interfaces"][2]["mac"].clone()
    };
    assert_eq!(mac("a", "web-0"), mac("b", "web-0"));
    assert_ne!(mac("c", "web-0"), mac("d", "web-1"));
}
