//! A host with podman's networks, as far as netavark's plugins see them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};
use testing::packets::Client;
use testing::{Lab, Outcome, Process, program_path};

/// The ID of the first network.
pub(crate) const ID: &str = "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9";
/// The bridge of the first network.
pub(crate) const BRIDGE: &str = "cni-2f259bab93a";

/// Returns a call of the program.
pub(crate) fn call(command: &str) -> Process {
    Process::new(program_path("cni0-netavark")).arg(command)
}

/// Returns what podman passes to `create` for `podman network create --driver cni0 NAME`.
pub(crate) fn request(name: &str) -> Value {
    json!({
        "name": name, "id": ID, "driver": "cni0", "created": "2026-01-01T00:00:00Z", "internal": false,
        "dns_enabled": true, "ipv6_enabled": false, "ipam_options": {"driver": ""},
    })
}

/// Returns a network with both families, as podman saves it.
pub(crate) fn network(number: u32) -> Value {
    json!({
        "name": format!("net{number}"), "id": format!("{}{}", &ID[..63 - 52], "0".repeat(52) + &number.to_string()),
        "driver": "cni0", "network_interface": format!("pod{number}"), "created": "2026-01-01T00:00:00Z",
        "subnets": [
            {"subnet": format!("10.{number}.0.0/24"), "gateway": format!("10.{number}.0.1")},
            {"subnet": format!("fd0{number}::/64"), "gateway": format!("fd0{number}::1")},
        ],
        "ipv6_enabled": true, "internal": false, "dns_enabled": false, "ipam_options": {"driver": "host-local"},
        "options": {},
    })
}

/// Returns the network with other values.
pub(crate) fn with(mut object: Value, other: &Value) -> Value {
    for (key, value) in other.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

/// A container of podman.
pub(crate) struct Container<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) netns: PathBuf,
    /// The last part of its addresses.
    pub(crate) host: u32,
    pub(crate) ports: Value,
}

impl<'a> Container<'a> {
    pub(crate) fn new(lab: &'a Lab, host: u32) -> Container<'a> {
        let id = format!("{host:064x}");
        let netns = lab.netns(&format!("netns-{host}"));
        Container { lab, id, netns, host, ports: Value::Null }
    }

    pub(crate) fn publishing(self, ports: Value) -> Container<'a> {
        Container { ports, ..self }
    }

    /// Returns what netavark passes for this container on `network`, where its interface is `ifname`.
    pub(crate) fn input(&self, network: &Value, ifname: &str) -> Value {
        let subnets = network["subnets"].as_array().cloned().unwrap_or_default();
        let ip = |subnet: &Value| {
            let (net, _) = subnet["subnet"].as_str().unwrap().split_once('/').unwrap();
            match net.strip_suffix('0') {
                Some(v4) => format!("{v4}{}", self.host),
                None => format!("{net}{}", self.host),
            }
        };
        let ips: Vec<String> = subnets.iter().map(ip).collect();
        json!({
            "container_id": self.id, "container_name": format!("c{}", self.host), "port_mappings": self.ports,
            "network": network,
            "network_options": {
                "aliases": [self.id[..12]], "interface_name": ifname, "static_ips": ips, "static_mac": null,
            },
        })
    }

    /// Returns a call of netavark, if the tests have it, and otherwise of the plugin.
    pub(crate) fn call(&self, command: &str, input: &Value) -> Process {
        let Some(netavark) = linux::process::env("CNI0_NETAVARK") else { return self.call_plugin(command, input) };
        let plugins = self.lab.dir().join("netavark");
        fs::create_dir_all(&plugins).unwrap();
        let _ = symlink(program_path("cni0-netavark"), plugins.join("cni0"));
        let name = input["network"]["name"].as_str().unwrap();
        let input = json!({
            "container_id": input["container_id"], "container_name": input["container_name"],
            "port_mappings": input["port_mappings"], "networks": {name: input["network_options"]},
            "network_info": {name: input["network"]},
        });
        let netavark = Process::new(netavark).env("NETAVARK_FW", "none").arg("--plugin-directory").arg(plugins);
        netavark.arg("--config").arg("/run/netavark").arg(command).arg(&self.netns).stdin(input.to_string())
    }

    pub(crate) fn call_plugin(&self, command: &str, input: &Value) -> Process {
        call(command).arg(&self.netns).stdin(input.to_string())
    }

    /// Attaches the container, and returns its status.
    #[track_caller]
    pub(crate) fn set_up(&self, network: &Value) -> Value {
        self.set_up_as(&self.input(network, "eth0"))
    }

    #[track_caller]
    pub(crate) fn set_up_as(&self, input: &Value) -> Value {
        let answer = self.call("setup", input).run().ok();
        // Netavark answers for all networks.
        answer.get(input["network"]["name"].as_str().unwrap()).cloned().unwrap_or(answer)
    }

    #[track_caller]
    pub(crate) fn tear_down(&self, network: &Value) {
        self.call("teardown", &self.input(network, "eth0")).run().silent();
    }

    pub(crate) fn client(&self) -> Client<'_> {
        Client::in_netns(&self.netns)
    }

    pub(crate) fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("ip netns exec {} sh -ec '{command}'", self.netns.file_name().unwrap().display()))
    }
}

/// Returns the message of a call that failed as netavark expects it.
#[track_caller]
pub(crate) fn failure(outcome: &Outcome) -> String {
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", outcome.stdout));
    assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    answer["error"].as_str().unwrap().to_owned()
}

/// Asserts that no link, rule, element or file of a container is left.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    let links = lab.sh("ip -br link | grep -v -e '^lo ' -e '^uplink@' || true");
    assert_eq!(links, "");
    let marked = lab.sh("nft list ruleset | grep -e ' id: ' -e 'net: ' || true");
    assert_eq!(marked, "");
    let files = lab.sh("find /run/cni0 -type f 2>/dev/null || true");
    assert_eq!(files, "");
}
