//! Helpers for all tests: configurations, and pods on a bridge that the test itself creates.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process};

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "firewall" }), keys)
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
    pub(crate) bridge: String,
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
            bridge: "br0".to_owned(),
            port: format!("veth{id}"),
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        }
    }

    /// Creates a pod on a bridge of this host. The bridge has the first address of each subnet, to which the pod's default
    /// routes lead.
    pub(crate) fn on_bridge(lab: &'a Lab, bridge: &str, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod { bridge: bridge.to_owned(), ..Pod::absent(lab, id, ips) };
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

    /// Returns the previous result of the plugin that attached the pod.
    pub(crate) fn result(&self, version: &str) -> Value {
        let old = version.starts_with("0.3") || version.starts_with("0.4");
        if version.starts_with("0.1") || version.starts_with("0.2") {
            let mut result = json!({ "cniVersion": version });
            for ip in &self.ips {
                result[if ip.contains(':') { "ip6" } else { "ip4" }] = json!({ "ip": ip });
            }
            return result;
        }
        let ips = self.ips.iter().map(|ip| {
            let mut entry = json!({ "address": ip, "interface": 2 });
            if old {
                entry["version"] = json!(if ip.contains(':') { "6" } else { "4" });
            }
            entry
        });
        json!({
            "cniVersion": version,
            "interfaces": [
                { "name": self.bridge }, { "name": self.port }, { "name": self.ifname, "sandbox": self.netns },
            ],
            "ips": ips.collect::<Vec<_>>(),
        })
    }

    /// Prepares a call of our plugin, with the previous result unless the configuration has one.
    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        self.call_program(&self.lab.bin().join("firewall"), command, config)
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

/// Returns the rules of a chain in the table `filter`, as `iptables` or `ip6tables` lists them, without `-A CHAIN`.
pub(crate) fn rules(lab: &Lab, tool: &str, chain: &str) -> Vec<String> {
    let listing = lab.sh(&format!("{tool} -w -S {chain} 2>/dev/null || true"));
    let prefix = format!("-A {chain} ");
    listing.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

/// The first rule of the chain with the rules of containers.
pub(crate) const ADMIN: &str = "-m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN";
/// The rule that leads to the rules of containers.
pub(crate) const ENTRY: &str = "-m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD";

/// Returns the rules of an address, as the tools list them.
pub(crate) fn accepted(ip: &str) -> Vec<String> {
    let ip = if ip.contains(':') { format!("{ip}/128") } else { format!("{ip}/32") };
    vec![
        format!("-d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-s {ip} -j ACCEPT"),
        format!("-d {ip} -m conntrack --ctstate DNAT -j ACCEPT"),
    ]
}

/// Returns the rules of all containers, of both families, without the administrator's.
pub(crate) fn containers(lab: &Lab) -> Vec<String> {
    let all = ["iptables", "ip6tables"].map(|tool| rules(lab, tool, "CNI-FORWARD")).concat();
    all.into_iter().filter(|rule| !rule.contains("admin overrides")).collect()
}

/// Returns the rules for these addresses. Those of IPv4 must come first.
pub(crate) fn accepted_all(ips: &[&str]) -> Vec<String> {
    ips.iter().flat_map(|ip| accepted(ip)).collect()
}

/// Returns everything in nf_tables, to find out whether something has changed.
pub(crate) fn ruleset(lab: &Lab) -> String {
    lab.sh("nft list ruleset 2>/dev/null")
}

/// Adds a lease as `host-local` does.
pub(crate) fn lease(network: &str, ip: &str, id: &str) {
    let dir = Path::new("/var/lib/cni/networks").join(network);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(ip), format!("{id}\r\neth0")).unwrap();
}

/// Returns the same configuration for another network.
pub(crate) fn on_network(name: &str, config: Value) -> Value {
    with(config, json!({ "name": name }))
}

/// Returns the settings of all ports of bridges.
pub(crate) fn ports(lab: &Lab) -> String {
    lab.sh("bridge -d link show")
}
