//! What distinguishes `macvlan` from other plugins.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

/// The parent of all links, and its other end.
const UPLINK: &str = "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up";

fn layer2(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "macvlan", "master": "uplink" }), more)
}

fn layer3(more: Value) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] });
    with(layer2(json!({ "ipam": ipam })), more)
}

fn lab() -> Lab {
    let lab = Lab::new();
    lab.sh(UPLINK);
    lab
}

#[test]
fn all_keys_reach_the_link() {
    let lab = &lab();
    for mode in ["bridge", "private", "vepa", "passthru"] {
        let pod = Pod::new(lab, mode);
        let config = layer2(json!({ "mode": mode, "mtu": 1400, "bcqueuelen": 2000, "dns": { "domain": "d" } }));
        let result = pod.add(&config);
        let link = &pod.ip("link show eth0")[0];
        assert_eq!((&link["linkinfo"]["info_data"]["mode"], &link["mtu"]), (&json!(mode), &json!(1400)));
        assert_eq!((&result["interfaces"][0]["mtu"], &result["dns"]["domain"]), (&json!(1400), &json!("d")));
        assert_eq!(link["linkinfo"]["info_data"]["bcqueuelen"], 2000);
        assert_eq!(result["interfaces"][0]["mac"], link["address"], "{mode}");
        pod.check_result(&config, &result).ok();
        let others = if mode == "vepa" { "private" } else { "vepa" };
        let error = pod.check_result(&layer2(json!({ "mode": others })), &result).error(999);
        assert_eq!(error["msg"], format!("properties of \"eth0\": want mode {others}, got mode {mode}"));
        pod.del(&config);
    }
}

#[test]
fn without_a_master_the_default_route_counts() {
    let lab = &lab();
    let config = with(layer2(json!({})), json!({ "master": "" }));
    let pod = Pod::new(lab, "a");
    let error = pod.call("ADD", &config).run().error(999);
    assert_eq!(error["msg"], "find the master: no default route interface found");
    lab.sh("ip address add 192.0.2.2/24 dev uplink; ip route add default via 192.0.2.1");
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    // DEL does not need it.
    lab.sh("ip route del default");
    pod.del(&config);
    assert!(!pod.sh("ip -o link").contains(": eth0@"));
}

#[test]
fn the_master_can_be_in_the_container() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.sh("ip link add net1 type veth peer name far1; ip link set net1 up; ip link set far1 up");
    let config = layer3(json!({ "master": "net1", "linkInContainer": true }));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    assert_eq!(pod.ip("link show eth0")[0]["link"], "net1");
    pod.del(&config);
    assert!(!pod.sh("ip -o link").contains(": eth0@"));
    let error = pod.call("ADD", &layer2(json!({ "linkInContainer": true }))).run().error(999);
    assert_eq!(error["msg"], "in \"/run/netns/a\": find master \"uplink\": Link not found");
}

/// In a list, the interface that the last plugin created needs no name.
#[test]
fn the_last_interface_of_the_list_is_the_master() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    for link in ["net1", "net2"] {
        pod.sh(&format!("ip link add {link} type veth peer name far-{link}; ip link set {link} up"));
    }
    let listed = ["net1", "net2"].map(|name| json!({ "name": name, "sandbox": "/run/netns/a" }));
    let host = json!({ "name": "uplink" });
    let previous = json!({ "cniVersion": "1.1.0", "interfaces": [listed[0], listed[1], host] });
    let config = with(layer3(json!({ "linkInContainer": true, "master": "" })), json!({ "prevResult": previous }));
    let result = pod.add(&config);
    assert_eq!(pod.ip("link show eth0")[0]["link"], "net2");
    pod.check_result(&config, &result).ok();
    pod.del(&with(config, json!({ "prevResult": result })));
    assert!(!pod.sh("ip -o link").contains(": eth0@"));
}

/// In mode `source`, the container receives from the listed senders alone.
#[test]
fn senders_can_be_listed() {
    let lab = &lab();
    lab.sh("ip link set far address 02:00:00:00:00:01; ip address add 10.1.0.200/24 dev far");
    let pod = Pod::new(lab, "a");
    let sources = json!(["02:00:00:00:00:09", "02:00:00:00:00:01"]);
    let config = layer3(json!({ "sources": sources, "bccutoff": 1 }));
    let result = pod.add(&config);
    pod.check_result(&config, &result).ok();
    assert_eq!(pod.ip("link show eth0")[0]["linkinfo"]["info_data"]["mode"], "source");
    pod.sh("ping -c 1 -W 5 10.1.0.200");
    pod.sh("ip neigh replace 10.1.0.200 lladdr 02:00:00:00:00:02 dev eth0");
    lab.sh("ip link set far address 02:00:00:00:00:02");
    assert!(pod.sh("ping -c 1 -W 1 10.1.0.200 || true").contains("100% packet loss"));
}

/// Others on the wire may send router advertisements.
#[test]
fn router_advertisements_are_followed_on_request() {
    let lab = &lab();
    for (number, (keys, expected)) in
        [(json!({}), "1\n"), (json!({ "acceptRa": false }), "0\n"), (json!({ "acceptRa": true }), "2\n")]
            .into_iter()
            .enumerate()
    {
        let pod = Pod::new(lab, &format!("c{number}"));
        pod.add(&layer3(keys));
        assert_eq!(pod.sh("sysctl -n net.ipv6.conf.eth0.accept_ra"), expected);
    }
}

#[test]
fn mac_addresses_come_from_the_runtime_first() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let mac = |config: &Value, args: &str| {
        let result = pod.call("ADD", config).env("CNI_ARGS", args).run().ok();
        pod.del(config);
        result["interfaces"][0]["mac"].as_str().unwrap().to_owned()
    };
    let (mut keys, args) = (json!({ "mac": "02:00:00:00:00:01" }), "IgnoreUnknown=true;MAC=02:00:00:00:00:02");
    assert_eq!(mac(&layer2(keys.clone()), ""), "02:00:00:00:00:01");
    assert_eq!(mac(&layer2(keys.clone()), args), "02:00:00:00:00:02");
    keys["runtimeConfig"] = json!({ "mac": "02:00:00:00:00:04" });
    assert_eq!(mac(&layer2(keys), args), "02:00:00:00:00:04");
}

/// A pod that is created again gets the address of its predecessor, another pod another one.
#[test]
fn a_stable_mac_address_belongs_to_the_pod() {
    let lab = &lab();
    let config = layer2(json!({ "stableMac": true }));
    let mac = |id: &str, args: &str| {
        let pod = Pod::new(lab, id);
        let result = pod.call("ADD", &config).env("CNI_ARGS", args).run().ok();
        pod.del(&config);
        result["interfaces"][0]["mac"].clone()
    };
    let web = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    assert_eq!(mac("a", web), mac("b", web));
    assert_ne!(mac("c", web), mac("d", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1"));
    assert_ne!(mac("e", web), mac("f", "IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME=web-0"));
    assert_ne!(mac("g", ""), mac("h", ""), "without a name of a pod, the container ID counts");
}

#[test]
fn a_mac_address_in_use_is_named() {
    let lab = &lab();
    let config = layer3(json!({ "mac": "02:00:00:00:00:01" }));
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    a.add(&config);
    let error = b.call("ADD", &config).run().error(999);
    let details = error["details"].as_str().unwrap();
    assert!(details.contains("another link on \"uplink\" has the MAC address 02:00:00:00:00:01"), "{error}");
    assert!(!b.sh("ip -o link").contains("eth0"));
    assert_eq!(lab.sh("ls /var/lib/cni/networks/net1 | grep -c ^10"), "1\n", "only the lease of the first");
}

#[test]
fn bad_keys_change_nothing() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    for (keys, code, text) in [
        (json!({ "master": "nope" }), 999, "find master \"nope\": Link not found"),
        (json!({ "master": "a/b" }), 7, "master"),
        (json!({ "mode": "foo" }), 7, "unknown macvlan mode: \"foo\""),
        (json!({ "mode": "source" }), 7, "sources"),
        (json!({ "mode": "source", "sources": ["02:00:00:00:00:01", "x"] }), 7, "sources[1]"),
        (json!({ "sources": ["02:00:00:00:00:01"], "mode": "vepa" }), 7, "needs the mode \"source\""),
        (json!({ "acceptRa": 1 }), 6, "acceptRa"),
        (json!({ "mtu": 9000 }), 7, "invalid MTU 9000, must be [0, master MTU(1500)]"),
        (json!({ "mtu": -100 }), 7, "invalid MTU -100, must be [0, master MTU(1500)]"),
        (json!({ "mac": "zz" }), 7, "zz"),
        (json!({ "mac": "02:00:00:00:00:01", "mode": "passthru" }), 7, "passthru"),
        (json!({ "bcqueuelen": -1 }), 7, "bcqueuelen"),
        (json!({ "linkInContainer": "yes" }), 6, "linkInContainer"),
    ] {
        let error = pod.call("ADD", &layer3(keys.clone())).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(text), "{keys}: {error}");
        assert!(!error["details"].as_str().unwrap_or_default().is_empty(), "{keys}: {error}");
        assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "", "{keys}");
        assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "", "{keys}");
        // Whatever the configuration has become, DEL succeeds.
        pod.del(&layer3(keys));
    }
}

#[test]
fn a_master_that_cannot_have_such_links_is_explained() {
    let lab = &lab();
    lab.sh("ip link add br0 type bridge; ip link set uplink master br0");
    let pod = Pod::new(lab, "a");
    let error = pod.call("ADD", &layer2(json!({}))).run().error(999);
    let details = error["details"].as_str().unwrap();
    assert!(details.contains("\"uplink\" is the port of a bridge"), "{error}");
    lab.sh("ip link set uplink nomaster");
    let [first, second] = ["b", "c"].map(|id| Pod::new(lab, id));
    first.add(&layer2(json!({ "mode": "passthru" })));
    let error = second.call("ADD", &layer2(json!({ "mode": "passthru" }))).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("no other one"), "{error}");
}

/// STATUS of the reference succeeds in all these cases.
#[test]
fn status_looks_at_the_master() {
    let lab = &lab();
    let status = |config: Value| lab.plugin("macvlan", "STATUS").stdin(config.to_string()).run();
    status(layer3(json!({}))).silent();
    status(layer2(json!({}))).silent();
    let before = lab.sh("ip -o link | cut -d: -f1,2");
    assert_eq!(status(layer3(json!({ "master": "nope" }))).error(50)["msg"], "find master \"nope\": Link not found");
    assert_eq!(lab.sh("ip -o link | cut -d: -f1,2"), before);
    lab.sh("ip link set uplink down");
    let error = status(layer3(json!({}))).error(50);
    assert_eq!(
        (error["msg"].as_str(), error["details"].as_str()),
        (Some("master \"uplink\" is down"), Some("run `ip link set uplink up`"))
    );
    // The printed command is the remedy.
    lab.sh("ip link set uplink up");
    status(layer3(json!({}))).silent();
}

#[test]
fn check_compares_the_master() {
    let lab = &lab();
    lab.sh("ip link add second type veth peer name far2; ip link set second up");
    let pod = Pod::new(lab, "a");
    let result = pod.add(&layer3(json!({})));
    let error = pod.check_result(&layer3(json!({ "master": "second" })), &result).error(999);
    assert_eq!(error["msg"], "\"eth0\" should be on top of \"second\", but is not");
    let error = pod.check_result(&layer3(json!({ "mtu": 1400 })), &result).error(999);
    assert_eq!(error["msg"], "MTU of \"eth0\": want 1400, got 1500");
    // The kernel deletes the links of a master with it.
    lab.sh("ip link del uplink");
    pod.check_result(&layer3(json!({})), &result).error(999);
    pod.del(&layer3(json!({})));
    assert_eq!(lab.sh("find /var/lib -type f -name '10.*'"), "");
}

/// Properties of routes are in the kernel, and not only in the result.
#[test]
fn routes_have_their_properties() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    let routes = json!([
        { "dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200 },
        { "dst": "192.168.0.0/16", "gw": "10.1.0.9", "table": 7, "priority": 9 },
        { "dst": "172.16.0.0/12", "scope": 253 },
    ]);
    pod.answer(json!({ "ips": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }], "routes": routes }));
    let config = layer2(json!({ "ipam": { "type": testing::Scripted::NAME } }));
    let result = pod.add(&config);
    let default = pod.sh("ip route show default");
    assert!(default.contains("via 10.1.0.1") && default.contains("mtu 1300 advmss 1200"), "{default}");
    assert!(pod.sh("ip route show table 7").contains("192.168.0.0/16 via 10.1.0.9 dev eth0 metric 9"));
    assert!(pod.sh("ip route show 172.16.0.0/12").contains("scope link"));
    pod.check_result(&config, &result).ok();
}

/// A container has renamed its interface. A repeated ADD that the kernel refuses must not take it away.
#[test]
fn a_refused_repeated_add_keeps_a_renamed_link() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&layer3(json!({})));
    pod.sh("ip link set eth0 down; ip link set eth0 name other; ip link set other up");
    pod.call("ADD", &layer3(json!({ "mode": "passthru" }))).run().error(999);
    assert!(pod.sh("ip -o address show other").contains("10.1.0.2/24"));
}

/// A container can rename its interface. The alias still shows whose it is.
#[test]
fn a_renamed_link_is_deleted() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&layer3(json!({})));
    pod.sh("ip link set eth0 down; ip link set eth0 name other");
    pod.del(&layer3(json!({})));
    assert!(!pod.sh("ip -o link").contains("other"));
    assert_eq!(lab.sh("find /var/lib/cni -name '10.*' -o -name 'fd*'"), "");
    // Without leases, no ADD knows that it is repeated.
    for name in ["first", "second"] {
        pod.add(&layer2(json!({})));
        pod.sh(&format!("ip link set eth0 down; ip link set eth0 name {name}"));
    }
    pod.del(&layer2(json!({})));
    assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "");
}

/// A container can give the alias of its interface to any number of links, and the kernel would let DEL wait for each.
#[test]
fn del_deletes_a_limited_number_of_links() {
    let lab = &lab();
    let pod = Pod::new(lab, "a");
    pod.add(&layer2(json!({})));
    pod.sh("ip link add v0 type veth peer name v1; alias=$(ip link show eth0 | sed -n \"s/.*alias //p\")
         for n in $(seq 12); do ip link add link v0 name l$n type macvlan; ip link set l$n alias \"$alias\"; done");
    pod.del(&layer2(json!({})));
    assert_eq!(pod.sh("ip -o link show type macvlan | wc -l"), "5\n");
    assert!(!pod.sh("ip -o link").contains(": eth0@"));
}
