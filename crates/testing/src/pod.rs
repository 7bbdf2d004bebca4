//! Containers with one interface, for which tests call plugins.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::with;
use crate::packets::{Client, udp};
use crate::{Lab, Outcome, Process, REFERENCE, Scripted};

/// A container with one interface.
#[derive(Clone, Debug)]
pub struct Pod<'a> {
    /// The host.
    pub lab: &'a Lab,
    /// The container ID.
    pub id: String,
    /// The name of the interface.
    pub ifname: String,
    /// The path of the network namespace.
    pub netns: PathBuf,
    /// The name of the bridge; empty if there is none.
    pub bridge: String,
    /// The name of the host veth.
    pub port: String,
    /// The MAC address of the interface, if the previous result has it.
    pub mac: Option<String>,
    /// The addresses with their prefix lengths.
    pub ips: Vec<String>,
    /// The result of `bridge`, if it attached the container.
    pub attached: Option<Value>,
    /// Whether calls have a previous result of the fields above, as those of chained plugins have.
    pub chained: bool,
}

impl<'a> Pod<'a> {
    /// Creates a container without interfaces, for a plugin that creates one.
    pub fn new(lab: &'a Lab, id: &str) -> Pod<'a> {
        Pod { netns: lab.netns(id), chained: false, ..Pod::absent(lab, id, &[]) }
    }

    /// Creates the same, for which the [scripted](Scripted) IPAM plugin returns `ips`.
    pub fn with_ips(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::new(lab, id);
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "address": ip })).collect();
        pod.answer(json!({ "ips": ips }));
        pod
    }

    /// Sets the result of the scripted IPAM plugin for this container.
    pub fn answer(&self, result: Value) {
        Scripted::of(self.lab).answer_for(&self.id, result);
    }

    /// Creates a pod that exists only in the previous result.
    pub fn absent(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        Pod {
            lab,
            id: id.to_owned(),
            ifname: "eth0".to_owned(),
            netns: PathBuf::from(format!("/run/netns/{id}")),
            bridge: "br0".to_owned(),
            port: format!("veth{id}"),
            mac: None,
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            attached: None,
            chained: true,
        }
    }

    /// Creates a pod that exists only in the previous result, except its host link, so that the pod is not gone.
    pub fn with_port(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::absent(lab, id, ips);
        lab.sh(&format!("ip link add {} type bridge", pod.port));
        pod
    }

    /// Creates a pod that our `bridge` attaches to the network of `config`. Its result is the previous result of later
    /// calls, which must be in the same version.
    pub fn attached(lab: &'a Lab, id: &str, config: &Value) -> Pod<'a> {
        lab.netns(id);
        let pod = Pod::absent(lab, id, &[]);
        let result = Pod { chained: false, ..pod.clone() }.add(config);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let name = |index: usize| text(&result["interfaces"][index]["name"]);
        let ips = result["ips"].as_array().into_iter().flatten().map(|ip| text(&ip["address"])).collect();
        Pod { bridge: name(0), port: name(1), ips, attached: Some(result), ..pod }
    }

    /// Creates a pod on a bridge of this host without any plugin. The bridge has the first address of each subnet, to
    /// which the pod's default routes lead.
    pub fn on_bridge(lab: &'a Lab, bridge: &str, id: &str, ips: &[&str]) -> Pod<'a> {
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
            pod.ping(&gateway);
        }
        pod
    }

    /// Returns the same container with another interface.
    pub fn interface(&self, ifname: &str, ips: &[&str]) -> Pod<'a> {
        let ips = ips.iter().map(|ip| (*ip).to_owned()).collect();
        Pod { ifname: ifname.to_owned(), port: format!("{}{ifname}", self.port), ips, attached: None, ..self.clone() }
    }

    /// Returns the previous result: that of `bridge`, or one in the layout of `version`.
    #[track_caller]
    pub fn result(&self, version: &str) -> Value {
        if let Some(result) = &self.attached {
            assert_eq!(result["cniVersion"], version, "the version in which bridge attached {}", self.id);
            return result.clone();
        }
        if version.starts_with("0.1") || version.starts_with("0.2") {
            let mut result = json!({ "cniVersion": version });
            for ip in &self.ips {
                result[if ip.contains(':') { "ip6" } else { "ip4" }] = json!({ "ip": ip });
            }
            return result;
        }
        let links = [&self.bridge, &self.port].into_iter().filter(|name| !name.is_empty());
        let mut interfaces: Vec<_> = links.map(|name| json!({ "name": name })).collect();
        let has_family = version.starts_with("0.3") || version.starts_with("0.4");
        let ips = self.ips.iter().map(|ip| {
            let mut entry = json!({ "address": ip, "interface": interfaces.len() });
            if has_family {
                entry["version"] = json!(if ip.contains(':') { "6" } else { "4" });
            }
            entry
        });
        let ips: Vec<_> = ips.collect();
        let mut interface = json!({ "name": self.ifname, "sandbox": self.netns });
        if let Some(mac) = &self.mac {
            interface["mac"] = json!(mac);
        }
        interfaces.push(interface);
        json!({ "cniVersion": version, "interfaces": interfaces, "ips": ips })
    }

    /// Prepares a call of our plugin that `type` names, with the previous result unless the configuration has one.
    #[track_caller]
    pub fn call(&self, command: &str, config: &Value) -> Process {
        self.call_in(&self.lab.bin(), command, config)
    }

    /// Prepares the same call of the reference's plugin, which delegates to others of the reference.
    #[track_caller]
    pub fn call_reference(&self, command: &str, config: &Value) -> Process {
        self.call_in(Path::new(REFERENCE), command, config)
    }

    #[track_caller]
    fn call_in(&self, dir: &Path, command: &str, config: &Value) -> Process {
        let mut config = config.clone();
        if self.chained && config.get("prevResult").is_none() {
            config["prevResult"] = self.result(config["cniVersion"].as_str().unwrap());
        }
        let program = dir.join(config["type"].as_str().unwrap());
        let call = Process::plugin(&program, command).env("CNI_PATH", dir);
        call.attachment(&self.id, &self.ifname, &self.netns).stdin(config.to_string())
    }

    /// Calls ADD, which must succeed, and returns its result.
    #[track_caller]
    pub fn add(&self, config: &Value) -> Value {
        self.call("ADD", config).run().ok()
    }

    /// Calls DEL, which must succeed without a result.
    #[track_caller]
    pub fn del(&self, config: &Value) {
        assert_eq!(self.call("DEL", config).run().ok(), Value::Null);
    }

    /// Calls CHECK.
    pub fn check(&self, config: &Value) -> Outcome {
        self.call("CHECK", config).run()
    }

    /// Calls CHECK with the result of ADD.
    pub fn check_result(&self, config: &Value, result: &Value) -> Outcome {
        self.check(&with(config.clone(), json!({ "prevResult": result })))
    }

    /// Returns a client in the pod's namespace.
    pub fn client(&self) -> Client<'_> {
        Client::in_netns(&self.netns)
    }

    /// Adds the MAC address of the pod's interface to the previous result.
    #[must_use]
    pub fn with_mac(self) -> Pod<'a> {
        let links: Value = serde_json::from_str(&self.sh(&format!("ip -json link show {}", self.ifname))).unwrap();
        Pod { mac: links[0]["address"].as_str().map(str::to_owned), ..self }
    }

    /// Runs a shell command in the pod's namespace.
    pub fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net={} sh -ec '{command}'", self.netns.display()))
    }

    /// Returns the output of `ip -j -d ARGUMENTS` in the pod's namespace.
    pub fn ip(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.sh(&format!("ip -j -d {arguments}"))).unwrap_or(Value::Null)
    }

    /// Waits until the pod reaches an address. On a busy machine it takes a while until both ends are ready.
    pub fn ping(&self, address: &str) {
        self.sh(&format!("until ping -q -c 1 -W 5 {address}; do :; done"));
    }

    /// Opens a UDP socket in the pod's namespace, with any port.
    pub fn udp(&self, ip: &str) -> UdpSocket {
        udp(Some(&self.netns), ip, 0)
    }
}
