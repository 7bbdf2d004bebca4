//! Helpers for all tests: containers with an interface `eth0` for the default route, and `net1`, whose packets sbr
//! routes.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

/// All versions of the protocol.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The addresses of `net1` with their gateways.
pub(crate) const V4: (&str, &str) = ("192.168.1.209/24", "192.168.1.1");
pub(crate) const V6: (&str, &str) = ("fd01::5/64", "fd01::1");

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "sbr" }), keys)
}

/// Returns the result of an earlier plugin for an interface with these addresses and gateways. An empty text is no
/// gateway.
pub(crate) fn previous(version: &str, ifname: &str, id: &str, ips: &[(&str, &str)]) -> Value {
    let mut result = json!({ "cniVersion": version });
    let family = |ip: &str| if ip.contains(':') { "6" } else { "4" };
    if version < "0.3" {
        for (ip, gateway) in ips {
            let key = format!("ip{}", family(ip));
            result[key.as_str()] = json!({ "ip": ip });
            if !gateway.is_empty() {
                result[key.as_str()]["gateway"] = json!(gateway);
            }
        }
        result["dns"] = json!({});
        return result;
    }
    result["interfaces"] = json!([{ "name": "vethx" }, { "name": ifname, "sandbox": format!("/run/netns/{id}") }]);
    let ips = ips.iter().map(|(ip, gateway)| {
        let mut ip = with(
            json!({ "address": ip, "interface": 1 }),
            match version < "1" {
                true => json!({ "version": family(ip) }),
                false => json!({}),
            },
        );
        if !gateway.is_empty() {
            ip["gateway"] = json!(gateway);
        }
        ip
    });
    result["ips"] = ips.collect();
    if version < "1" {
        result["dns"] = json!({});
    }
    result
}

/// Returns a container whose interfaces have these addresses. The other ends of both are on the host, which has the
/// gateways.
pub(crate) fn pod<'a>(lab: &'a Lab, id: &str, ips: &[(&str, &str)]) -> Pod<'a> {
    lab.netns(id);
    let pod = Pod { ifname: "net1".to_owned(), ..Pod::absent(lab, id, &[]) };
    pod.sh("ip link set lo up");
    connect(&pod, "eth0", &[("10.9.0.2/24", "10.9.0.1")]);
    pod.sh("ip route add default via 10.9.0.1");
    connect(&pod, "net1", ips);
    pod
}

/// Gives a container an interface.
pub(crate) fn connect(pod: &Pod<'_>, ifname: &str, ips: &[(&str, &str)]) {
    let Pod { lab, id, .. } = pod;
    let port = format!("{id}{ifname}");
    lab.sh(&format!("ip link add {port} type veth peer name {ifname} netns {id}; ip link set {port} up"));
    pod.sh(&format!("ip link set {ifname} up"));
    for (ip, gateway) in ips {
        let (prefix, nodad) = (ip.split_once('/').unwrap().1, if ip.contains(':') { "nodad" } else { "" });
        pod.sh(&format!("ip address add {ip} dev {ifname} {nodad}"));
        if !gateway.is_empty() {
            lab.sh(&format!("ip address replace {gateway}/{prefix} dev {port} {nodad}"));
        }
    }
}

/// Returns the configuration with the previous result of a container's interface.
pub(crate) fn chained(pod: &Pod<'_>, keys: Value, ips: &[(&str, &str)]) -> Value {
    let config = config(keys);
    let previous = previous(config["cniVersion"].as_str().unwrap(), &pod.ifname, &pod.id, ips);
    with(config, json!({ "prevResult": previous }))
}

/// Adds the routes of the networks again that ADD has moved. A runtime deletes the interface instead.
pub(crate) fn restore_networks(pod: &Pod<'_>) {
    pod.sh("ip route replace 192.168.1.0/24 dev net1 proto kernel scope link src 192.168.1.209
        ip -6 route replace fd01::/64 dev net1 proto kernel metric 256");
}

/// What tests read of a container.
pub(crate) trait Routed {
    /// Returns all rules and routes, one in each line, without those of the local table.
    fn state(&self) -> String;
    /// Returns the rules that packets from an address obey, as `FROM TABLE`.
    fn rules(&self) -> Vec<String>;
    /// Returns the routes of a table, without the program that added them.
    fn table(&self, family: &str, table: &str) -> Vec<String>;
}

impl Routed for Pod<'_> {
    fn state(&self) -> String {
        self.sh("for family in 4 6; do ip -$family rule; ip -$family route show table all type unicast | sort; done")
    }

    fn rules(&self) -> Vec<String> {
        let mut found = Vec::new();
        for family in ["-4", "-6"] {
            let rules: Value = serde_json::from_str(&self.sh(&format!("ip -j {family} rule"))).unwrap();
            for rule in rules.as_array().unwrap().iter().filter(|rule| rule["src"] != "all") {
                assert!(rule.get("srclen").is_none(), "{rule}");
                found.push(format!("{} {}", rule["src"].as_str().unwrap(), rule["table"].as_str().unwrap()));
            }
        }
        found.sort();
        found
    }

    fn table(&self, family: &str, table: &str) -> Vec<String> {
        // A table that does not exist is an error of IPv4.
        let routes = self.sh(&format!("ip {family} route show table {table} 2>/dev/null || true"));
        let mut routes: Vec<String> = routes
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let mut kept = Vec::new();
                let mut rest = words.iter();
                while let Some(word) = rest.next() {
                    match *word {
                        "proto" | "pref" => drop(rest.next()),
                        word => kept.push(word),
                    }
                }
                kept.join(" ")
            })
            .collect();
        routes.sort();
        routes
    }
}
