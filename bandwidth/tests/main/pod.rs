//! Helpers for all tests: configurations, and pods with a veth pair that the test itself creates.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
pub(crate) use testing::config::with;
use testing::{Lab, Outcome, Process};

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bandwidth" }), keys)
}

/// Returns a configuration that limits both directions to different rates: 1 MB/s and 2 MB/s, burst 100 kB.
pub(crate) fn both() -> Value {
    config(
        json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000 }),
    )
}

/// The name of the ifb link of container `c1` on `net1`, as the reference calls it.
pub(crate) const IFB: &str = "bwpc2d892b58e87";

/// A container with one interface.
#[derive(Clone)]
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: PathBuf,
    /// The name of the host veth.
    pub(crate) port: String,
}

impl<'a> Pod<'a> {
    /// Creates a container `c1` with `eth0`, 10.9.0.2; the host veth has 10.9.0.1.
    pub(crate) fn new(lab: &'a Lab) -> Pod<'a> {
        let pod = Pod::named(lab, "c1");
        lab.sh("ip address add 10.9.0.1/24 dev vethc1");
        pod.sh("ip address add 10.9.0.2/24 dev eth0; until ping -q -c 1 -W 5 10.9.0.1; do :; done");
        pod
    }

    /// Creates a container without addresses.
    pub(crate) fn named(lab: &'a Lab, id: &str) -> Pod<'a> {
        let netns = lab.netns(id);
        let pod = Pod { lab, id: id.to_owned(), ifname: "eth0".to_owned(), netns, port: format!("veth{id}") };
        pod.attach();
        pod
    }

    /// Returns a second interface of the container.
    pub(crate) fn second(&self) -> Pod<'a> {
        let pod = Pod { ifname: "eth1".to_owned(), port: format!("{}b", self.port), ..self.clone() };
        pod.attach();
        pod
    }

    fn attach(&self) {
        let Pod { port, ifname, netns, .. } = self;
        let netns = netns.file_name().unwrap().to_str().unwrap();
        self.lab.sh(&format!("ip link add {port} type veth peer name {ifname} netns {netns}; ip link set {port} up"));
        self.sh(&format!("ip link set lo up; ip link set {ifname} up"));
    }

    /// Returns the previous result of the plugin that attached the pod.
    pub(crate) fn result(&self, version: &str) -> Value {
        if version.starts_with("0.1") || version.starts_with("0.2") {
            return json!({ "cniVersion": version, "ip4": { "ip": "10.9.0.2/24" } });
        }
        let mut ip = json!({ "address": "10.9.0.2/24", "interface": 1 });
        if version.starts_with("0.") {
            ip["version"] = json!("4");
        }
        let interfaces = json!([{ "name": self.port }, { "name": self.ifname, "sandbox": self.netns }]);
        json!({ "cniVersion": version, "interfaces": interfaces, "ips": [ip] })
    }

    /// Prepares a call of our plugin, with the previous result unless the configuration has one.
    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        self.call_program(&self.lab.bin().join("bandwidth"), command, config)
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

/// Returns the names of all ifb links.
pub(crate) fn ifbs(lab: &Lab) -> Vec<String> {
    let links = lab.ip("link show type ifb");
    let mut names: Vec<String> = links.as_array().into_iter().flatten().map(|link| text(&link["ifname"])).collect();
    names.sort();
    names
}

/// Returns rate, burst and limit of a link in bytes; `None` if it is not limited.
pub(crate) fn limit(lab: &Lab, link: &str) -> Option<[u64; 3]> {
    let qdiscs: Value = serde_json::from_str(&lab.sh(&format!("tc -j qdisc show dev {link} root"))).unwrap();
    let options = qdiscs.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "tbf")?["options"].clone();
    let [rate, burst, latency] = ["rate", "burst", "lat"].map(|name| options[name].as_u64().unwrap_or_default());
    Some([rate, burst, latency])
}

/// Returns the link to which a link redirects what it receives.
pub(crate) fn redirect(lab: &Lab, link: &str) -> Option<String> {
    let filters = lab.sh(&format!("tc filter show dev {link} ingress"));
    Some(filters.split_once("Egress Redirect to device ")?.1.split(')').next().unwrap().to_owned())
}

/// Describes everything that the plugin changes on the host, to find out whether something has changed.
pub(crate) fn state(lab: &Lab) -> String {
    lab.sh("ip -o link show type ifb | cut -d' ' -f2-
         tc qdisc show | sed 's/ [0-9a-f]*: / /; s/refcnt [0-9]*//'
         for link in $(ip -o link show | sed 's/^[0-9]*: //; s/[@:].*//'); do tc filter show dev $link ingress; done")
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
