//! Helpers for all tests: configurations, and pods on a bridge that the test itself creates.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process};

/// Returns a configuration that publishes `ports`, each as `HOST:CONTAINER/PROTOCOL`, or `HOSTIP HOST:CONTAINER/PROTOCOL`.
pub(crate) fn config(ports: &[&str]) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": ports.iter().map(|port| mapping(port)).collect::<Vec<_>>() },
    })
}

fn mapping(text: &str) -> Value {
    let (host_ip, text) = text.split_once(' ').unwrap_or(("", text));
    let (ports, protocol) = text.split_once('/').unwrap();
    let (host, container) = ports.split_once(':').unwrap();
    let mut mapping = json!({
        "hostPort": host.parse::<i64>().unwrap(),
        "containerPort": container.parse::<i64>().unwrap(),
        "protocol": protocol,
    });
    if !host_ip.is_empty() {
        mapping["hostIP"] = json!(host_ip);
    }
    mapping
}

/// Adds or replaces the keys of `more` in `config`.
pub(crate) fn with(mut config: Value, more: Value) -> Value {
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        config[key] = value;
    }
    config
}

/// A container with one interface.
#[derive(Clone)]
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: PathBuf,
    /// The name of the host veth, which exists only if the pod is on a bridge.
    pub(crate) port: String,
    pub(crate) ips: Vec<String>,
}

impl<'a> Pod<'a> {
    /// Creates a pod that exists only in the previous result.
    pub(crate) fn absent(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        Pod {
            lab,
            id: id.to_owned(),
            ifname: "eth0".to_owned(),
            netns: PathBuf::from(format!("/run/netns/{id}")),
            port: format!("veth{id}"),
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        }
    }

    /// Creates a pod on a bridge of this host. The bridge has the first address of each subnet, to which the pod's default
    /// routes lead.
    pub(crate) fn on_bridge(lab: &'a Lab, bridge: &str, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::absent(lab, id, ips);
        lab.netns(id);
        let Pod { port, .. } = &pod;
        if lab.ip(&format!("link show {bridge} 2>/dev/null || true")).is_null() {
            lab.sh(&format!("ip link add {bridge} type bridge"));
            // An address that was set does not change with the ports.
            let mac = lab.ip(&format!("link show {bridge}"))[0]["address"].as_str().unwrap().to_owned();
            lab.sh(&format!("ip link set {bridge} address {mac} up"));
        }
        lab.sh(&format!(
            "ip link set lo up
             echo 1 >/proc/sys/net/ipv4/ip_forward
             ! [ -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
             ip link add {port} type veth peer name eth0 netns {id}
             ip link set {port} master {bridge} up"
        ));
        pod.sh("ip link set lo up; ip link set eth0 up");
        for ip in ips {
            let (address, prefix) = ip.split_once('/').unwrap();
            let gateway = match address.rsplit_once(['.', ':']).unwrap() {
                (net, _) if address.contains('.') => format!("{net}.1"),
                (net, _) => format!("{net}:1"),
            };
            let nodad = if address.contains(':') { "nodad" } else { "" };
            lab.sh(&format!("ip address replace {gateway}/{prefix} dev {bridge} {nodad}"));
            pod.sh(&format!("ip address add {ip} dev eth0 {nodad}; ip route add default via {gateway}"));
            // On a busy machine it takes a while until both ends are ready.
            pod.sh(&format!("until ping -q -c 1 -W 5 {gateway}; do :; done"));
        }
        pod
    }

    /// Creates a pod that exists only in the previous result, except its host link, so that the pod is not gone.
    pub(crate) fn with_port(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::absent(lab, id, ips);
        lab.sh(&format!("ip link add {} type bridge", pod.port));
        pod
    }

    /// Returns the same container with another interface.
    pub(crate) fn interface(&self, ifname: &str, ips: &[&str]) -> Pod<'a> {
        let ips = ips.iter().map(|ip| (*ip).to_owned()).collect();
        Pod { ifname: ifname.to_owned(), port: format!("{}{ifname}", self.port), ips, ..self.clone() }
    }

    /// Returns the previous result of the plugin that attached the pod.
    pub(crate) fn result(&self, version: &str) -> Value {
        let ips = self.ips.iter();
        let old = version.starts_with("0.3") || version.starts_with("0.4");
        let ips = ips.map(|ip| {
            let mut entry = json!({ "address": ip, "interface": 2 });
            if old {
                entry["version"] = json!(if ip.contains(':') { "6" } else { "4" });
            }
            entry
        });
        json!({
            "cniVersion": version,
            "interfaces": [
                { "name": "br0" }, { "name": self.port }, { "name": self.ifname, "sandbox": self.netns },
            ],
            "ips": ips.collect::<Vec<_>>(),
        })
    }

    /// Prepares a call of our plugin, with the previous result unless the configuration has one.
    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        self.call_program(&self.lab.bin().join("portmap"), command, config)
    }

    /// Prepares a call of any implementation of the plugin.
    pub(crate) fn call_program(&self, program: &Path, command: &str, config: &Value) -> Process {
        let mut config = config.clone();
        if config.get("prevResult").is_none() {
            config["prevResult"] = self.result(config["cniVersion"].as_str().unwrap());
        }
        Process::plugin(program, command)
            .env("CNI_PATH", self.lab.bin())
            .attachment(&self.id, &self.ifname, &self.netns)
            .stdin(config.to_string())
    }

    #[track_caller]
    pub(crate) fn add(&self, config: &Value) -> Value {
        self.call("ADD", config).run().ok()
    }

    #[track_caller]
    pub(crate) fn del(&self, config: &Value) {
        self.call("DEL", config).run().ok();
    }

    pub(crate) fn check(&self, config: &Value) -> Outcome {
        self.call("CHECK", config).run()
    }

    /// Runs a shell command in the pod's namespace.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net={} sh -ec '{command}'", self.netns.display()))
    }
}

/// Returns a configuration with another network name.
pub(crate) fn on_network(name: &str, config: Value) -> Value {
    with(config, json!({ "name": name }))
}

/// Creates a namespace outside of the host, with 192.0.2.2 and 2001:db8::2 and without routes to pods. The host has
/// 192.0.2.1, 192.0.2.9, 2001:db8::1 and 2001:db8::9 there.
pub(crate) fn outside(lab: &Lab) -> PathBuf {
    let path = lab.netns("outside");
    lab.sh(&format!(
        "ip link set lo up
         ip link add uplink type veth peer name eth0 netns outside
         ip address add 192.0.2.1/24 dev uplink; ip address add 192.0.2.9/24 dev uplink
         ip address add 2001:db8::9/64 dev uplink nodad; ip address add 2001:db8::1/64 dev uplink nodad
         ip link set uplink up
         nsenter --net={} sh -ec 'ip address add 192.0.2.2/24 dev eth0; ip address add 2001:db8::2/64 dev eth0 nodad
             ip link set eth0 up'
         # Every packet to a closed port gets an answer.
         sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=2
         # On a busy machine it takes a while until both ends are ready, and ping fails when a neighbour is unreachable.
         until ping -q -c 1 -W 5 192.0.2.2; do :; done
         until ping -6 -q -c 1 -W 5 2001:db8::2; do :; done",
        path.display()
    ));
    path
}

/// Returns the value of `route_localnet` of a link.
pub(crate) fn route_localnet(lab: &Lab, link: &str) -> String {
    lab.sh(&format!("sysctl -n net.ipv4.conf.{link}.route_localnet")).trim().to_owned()
}

/// Asserts that no attachment has an entry.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    assert_eq!(entries(lab), [] as [&str; 0]);
}

/// Returns the elements of all maps and sets of our table, one line each; empty if there are none.
pub(crate) fn entries(lab: &Lab) -> Vec<String> {
    let listing = table(lab);
    listing.lines().filter(|line| line.contains(" comment \"") && line.contains(", net: ")).map(str::to_owned).collect()
}

/// Returns the published ports, sorted, such as `tcp 8080 to 10.1.0.2 80 (net: net1, if: eth0, id: a)`. The host address
/// comes first if there is one.
pub(crate) fn published(lab: &Lab) -> Vec<String> {
    let listing = lab.sh("nft -j list table inet cni_hostport 2>/dev/null || true");
    let listing: Value = serde_json::from_str(&listing).unwrap_or_default();
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let elements = objects.filter_map(|object| object["map"]["elem"].as_array()).flatten();
    let words = |concatenation: &Value| {
        let words = concatenation["concat"].as_array().unwrap().iter();
        words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect::<Vec<_>>().join(" ")
    };
    let mut all: Vec<String> = elements
        .map(|element| {
            // `nft` adds a level if there is a comment.
            let key = if element[0]["elem"].is_null() { &element[0] } else { &element[0]["elem"]["val"] };
            let comment = element[0]["elem"]["comment"].as_str().unwrap_or_default();
            let owner = comment.split_once(", ").map_or("", |(_, owner)| owner);
            format!("{} to {} ({owner})", words(key), words(&element[1]))
        })
        .collect();
    all.sort();
    all
}

/// Returns the line of [`published`] for a port of a container on `net1`.
pub(crate) fn port(mapping: &str, id: &str) -> String {
    format!("{mapping} (net: net1, if: eth0, id: {id})")
}

/// Returns our table as `nft` shows it; empty if it does not exist.
pub(crate) fn table(lab: &Lab) -> String {
    lab.sh("nft list table inet cni_hostport 2>/dev/null || true")
}
