//! Helpers for all tests: configurations, pods, and a scripted IPAM plugin.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;

use serde_json::{Value, json};
use testing::config::with;
use testing::packets::udp;
use testing::{Lab, Outcome, Process, REFERENCE};

/// Returns a configuration with the scripted IPAM plugin, with the keys of `more` added or replaced.
pub(crate) fn layer3(more: Value) -> Value {
    with(layer2(json!({ "isGateway": true, "ipam": { "type": "scripted" } })), more)
}

/// Returns a configuration without IPAM, with the keys of `more` added or replaced.
pub(crate) fn layer2(more: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0" }), more)
}

/// A container with one interface.
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: PathBuf,
}

impl<'a> Pod<'a> {
    pub(crate) fn new(lab: &'a Lab, id: &str) -> Pod<'a> {
        install_scripted(lab);
        Pod { lab, id: id.to_owned(), ifname: "eth0".to_owned(), netns: lab.netns(id) }
    }

    /// Creates a pod for which the scripted IPAM plugin returns `ips`.
    pub(crate) fn with_ips(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::new(lab, id);
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "address": ip })).collect();
        pod.answer(json!({ "ips": ips }));
        pod
    }

    /// Sets the result of the scripted IPAM plugin for this pod.
    pub(crate) fn answer(&self, answer: Value) {
        let whole = with(json!({ "cniVersion": "1.1.0" }), answer);
        fs::write(self.lab.dir().join(format!("answer.{}", self.id)), whole.to_string()).unwrap();
    }

    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        let path = format!("{}:{REFERENCE}", self.lab.bin().display());
        self.lab
            .plugin("bridge", command)
            .env("CNI_PATH", path)
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

    pub(crate) fn check(&self, config: &Value, previous: &Value) -> Outcome {
        let mut config = config.clone();
        config["prevResult"] = previous.clone();
        self.call("CHECK", &config).run()
    }

    /// Runs a shell command in the pod's namespace.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net={} sh -ec '{command}'", self.netns.display()))
    }

    /// Returns the output of `ip -j -d ARGUMENTS` in the pod's namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.sh(&format!("ip -j -d {arguments}"))).unwrap_or(Value::Null)
    }

    /// Opens a UDP socket in the pod's namespace, with any port.
    pub(crate) fn udp(&self, ip: &str) -> UdpSocket {
        udp(Some(&self.netns), ip, 0)
    }

    /// Returns the name of the host veth.
    pub(crate) fn port(&self, result: &Value) -> String {
        result["interfaces"][1]["name"].as_str().unwrap().to_owned()
    }
}

/// Replaces the spoof check of the only attachment that has one by the chains of the reference and of earlier versions.
pub(crate) fn check_by_chains(pod: &Pod<'_>, result: &Value) {
    let (port, mac) = (pod.port(result), result["interfaces"][2]["mac"].as_str().unwrap());
    let comment = format!("comment \"macspoofchk-{}-{}\"", pod.id, pod.ifname);
    let chain = format!("bridge nat cni-br-iface-{}-{}", pod.id, pod.ifname);
    let jump = |to: &str| format!("jump {}", to.trim_start_matches("bridge nat "));
    pod.lab.sh(&format!(
        "nft 'delete table bridge cni_spoofcheck
              add table bridge nat
              add chain bridge nat PREROUTING {{ type filter hook prerouting priority -300; }}
              add chain {chain}-mac
              add chain {chain}
              add rule bridge nat PREROUTING iifname {port} {} {comment}
              add rule {chain} {} {comment}
              add rule {chain}-mac ether saddr {mac} return {comment}
              add rule {chain}-mac drop {comment}'",
        jump(&chain),
        jump(&format!("{chain}-mac")),
    ));
}

/// Asserts that no ports, rules or leases are left after a failed ADD or a DEL.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    let links = lab.sh("ip -o link show type veth");
    let veths: Vec<_> = links.lines().filter(|line| !line.contains("uplink")).collect();
    assert!(veths.is_empty(), "left: {veths:?}");
    let rules = lab.sh("nft -a list ruleset");
    for trace in [", net: ", "macspoofchk", "cni-br-iface", "CNI-"] {
        assert!(!rules.contains(trace), "left: {rules}");
    }
    let leases = lab.sh("find /var/lib/cni -type f ! -name lock ! -name 'last_reserved*' 2>/dev/null || true");
    assert_eq!(leases, "", "left");
}

/// Returns the calls of the scripted IPAM plugin, such as `["ADD a eth0"]`.
pub(crate) fn ipam_calls(lab: &Lab) -> Vec<String> {
    let log = fs::read_to_string(lab.dir().join("calls")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Returns the veth links that existed at the last DEL of the scripted IPAM plugin.
pub(crate) fn links_at_release(lab: &Lab) -> String {
    fs::read_to_string(lab.dir().join("links.DEL")).unwrap()
}

/// Makes the scripted IPAM plugin fail `command` from now on.
pub(crate) fn ipam_fails(lab: &Lab, command: &str) {
    fs::write(lab.dir().join(format!("fail.{command}")), "").unwrap();
}

fn install_scripted(lab: &Lab) {
    if lab.bin().join("scripted").exists() {
        return;
    }
    let dir = lab.dir().display();
    let script = format!(
        r#"echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" | sed 's/ *$//' >>{dir}/calls
cat >{dir}/stdin.$CNI_COMMAND
[ $CNI_COMMAND != DEL ] || ip -o link show type veth >{dir}/links.DEL
[ ! -e {dir}/fail.$CNI_COMMAND ] || {{ echo '{{"code": 123, "msg": "scripted failure"}}'; exit 1; }}
[ $CNI_COMMAND != ADD ] || cat {dir}/answer.$CNI_CONTAINERID"#
    );
    lab.script("scripted", &script);
}
