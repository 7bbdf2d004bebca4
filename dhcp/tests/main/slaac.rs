//! `"ipv6": "slaac"`: addresses that the kernel makes from the advertisements of a router, dnsmasq.

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{Wire, daemon};
use testing::{Lab, Pod, wait_until};

use crate::support::{addresses_of, global_ipv6, lan};

const ONE: [&str; 1] = ["--dhcp-range=fd66::,ra-only,64,1h"];
const TWO: [&str; 3] = ["--enable-ra", "--dhcp-range=fd66::,ra-only,64,1h", "--dhcp-range=fd67::,ra-only,64,infinite"];

/// Returns a network without IPv4.
fn only_ipv6(ipam: Value) -> Value {
    lan(with(json!({"ipv4": false, "ipv6": "slaac"}), ipam))
}

/// Neither ADD nor DEL needs a daemon.
#[test]
fn the_address_stays_the_kernels() {
    Lab::for_each_way_to_delegate(|lab| {
        let wire = Wire::new(lab);
        let Some(_router) = wire.router("slaac::the_address_stays_the_kernels", &ONE) else { return };
        let pod = Pod::new(lab, "c1");
        let config = only_ipv6(json!({}));
        let result = pod.add(&config);
        let [ip] = &result["ips"].as_array().unwrap()[..] else { panic!("{result}") };
        let address = ip["address"].as_str().unwrap();
        assert!(address.starts_with("fd66::") && address.ends_with("/64"), "{result}");
        assert_eq!((&result["routes"], &ip["interface"]), (&Value::Null, &json!(0)));
        let routes = pod.ip("-6 route show default");
        assert_eq!((&routes[0]["gateway"], &routes[0]["protocol"]), (&ip["gateway"], &json!("ra")), "{routes}");
        assert_eq!(routes.as_array().unwrap().len(), 1, "{routes}");
        let found = global_ipv6(&pod);
        assert_eq!((found.len(), &found[0]["dynamic"]), (1, &json!(true)), "{found:?}");
        assert!(found[0]["valid_life_time"].as_u64().unwrap() <= 3600, "{found:?}");
        pod.ping("fd66::1");
        pod.check_result(&config, &result).ok();
        pod.sh(&format!("ip address del {address} dev eth0"));
        let error = pod.check_result(&config, &result).error(999);
        assert!(error["msg"].as_str().unwrap().contains("\"eth0\" in \"/run/netns/c1\" has no address"), "{error}");
        let deleted = pod.call("DEL", &with(config, json!({ "prevResult": result }))).run();
        deleted.silent();
    });
}

/// A bridge sets the interface up before it calls `dhcp`; and this container ignores advertisements by default.
#[test]
fn a_bridge_gives_both_families() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_router) = wire.dnsmasq("slaac::a_bridge_gives_both_families", &TWO) else { return };
    let _daemon = daemon(lab, &[]);
    lab.sh("ip link add br0 type bridge; ip link set br0 up; ip link set eth1 master br0");
    let pod = Pod::new(lab, "c1");
    pod.sh("cd /proc/sys/net/ipv6/conf; echo 1 >all/forwarding; echo 0 >default/accept_ra; echo 0 >default/autoconf");
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br0", "isDefaultGateway": false,
        "ipam": {"type": "dhcp", "ipv6": "slaac"},
    });
    let result = pod.add(&config);
    let mut leased = addresses_of(&result);
    leased.sort();
    let families: Vec<&str> = leased.iter().map(|address| &address[..4]).collect();
    assert_eq!(families, ["10.6", "fd66", "fd67"], "{result}");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.66.0.1"}]));
    assert!(global_ipv6(&pod).iter().all(|address| address["dynamic"] == true), "{:?}", global_ipv6(&pod));
    pod.ping("10.66.0.1");
    pod.ping("fd66::1");
    pod.check_result(&config, &result).ok();
    // A router may replace the address of ADD.
    pod.sh(&format!("ip address del {}/64 dev eth0", leased[1]));
    pod.check_result(&config, &result).ok();
    pod.del(&with(config, json!({ "prevResult": result })));
    wait_until("the server to take the address back", || !wire.leases().contains("10.66.0."));
}

#[test]
fn the_router_can_be_ignored() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let Some(_router) = wire.router("slaac::the_router_can_be_ignored", &ONE) else { return };
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&only_ipv6(json!({"useGateway": false})));
    assert_eq!(result["ips"][0]["gateway"], Value::Null);
    assert_eq!(pod.sh("ip -6 route show default"), "");
    pod.ping("fd66::1");
}

#[test]
fn without_a_router_the_error_names_what_was_awaited() {
    let lab = &Lab::new();
    let _wire = Wire::new(lab);
    let pod = Pod::new(lab, "c1");
    let error = pod.call("ADD", &only_ipv6(json!({}))).run().error(11);
    let text = format!("{} {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
    for wanted in ["\"eth0\" in \"/run/netns/c1\"", "an address from a router advertisement", "is there a router"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!pod.sh("ip -o link").contains("eth0"), "the interface was removed");
}

#[test]
fn contradictions_change_nothing() {
    let lab = &Lab::new();
    let _wire = Wire::new(lab);
    let pod = Pod::new(lab, "c1");
    let ignores = with(only_ipv6(json!({})), json!({"acceptRa": false}));
    for (config, wanted) in [
        (lan(json!({"ipv4": false})), "no address is left"),
        (lan(json!({"ipv6": "radv"})), "unknown source of addresses \"radv\""),
        (ignores, "needs router advertisements"),
    ] {
        let error = pod.call("ADD", &config).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains(wanted), "{error}");
    }
    assert!(!pod.sh("ip -o link").contains("eth0"));
}

/// STATUS needs no daemon either.
#[test]
fn status_without_a_daemon() {
    let lab = &Lab::new();
    let _wire = Wire::new(lab);
    let status = |config: Value| lab.plugin("macvlan", "STATUS").stdin(config.to_string()).run();
    status(only_ipv6(json!({}))).ok();
    status(lan(json!({"ipv6": "slaac"}))).error(50);
}
