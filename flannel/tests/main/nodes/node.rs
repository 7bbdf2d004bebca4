//! A node and its containers, which a runtime attaches with the list of kube-flannel.

use std::cell::Cell;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use linux::Netns;
use serde_json::{Value, json};
use testing::{Lab, Process, program_path};

use super::cluster::{Cluster, Family, open};

pub(crate) struct Node<'a> {
    pub(crate) cluster: &'a Cluster<'a>,
    host: Lab,
    /// Its number on the local network.
    pub(crate) number: u8,
    /// The number of the subnet that flanneld has leased for it.
    pub(crate) subnet: Cell<Option<u8>>,
}

impl<'a> Node<'a> {
    /// Prepares a connected host for containers, with the list of kube-flannel.
    pub(crate) fn new(cluster: &'a Cluster<'a>, host: Lab, number: u8) -> Node<'a> {
        let node = Node { cluster, host, number, subnet: Cell::new(None) };
        node.configure(json!({}));
        // Kubernetes requires it.
        node.sh("[ ! -e /proc/sys/net/bridge ] ||
                     sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1");
        node
    }

    /// Writes the list of kube-flannel, with `more` keys for flannel.
    pub(crate) fn configure(&self, more: Value) {
        let mut flannel = json!({ "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } });
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            flannel[key] = value;
        }
        let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        let list =
            json!({ "name": "cbr0", "cniVersion": self.cluster.settings.version, "plugins": [flannel, portmap] });
        fs::write(self.host.dir().join("10-flannel.conflist"), list.to_string()).unwrap();
    }

    /// Runs `work` on this node.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        self.host.within(work)
    }

    /// Runs a shell command on this node.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.within(|| self.host.sh(command))
    }

    /// Returns the MAC address of a link.
    pub(crate) fn mac(&self, link: &str) -> String {
        let links = self.within(|| self.host.ip(&format!("link show {link}")));
        links[0]["address"].as_str().unwrap().to_owned()
    }

    /// Returns the network namespace of the node itself.
    pub(crate) fn netns(&self) -> Netns {
        open(&self.host.network())
    }

    /// Returns the subnet of this node, which flanneld must have leased.
    pub(crate) fn subnet(&self) -> u8 {
        self.subnet.get().unwrap()
    }

    /// Returns the address of this node on the local network.
    pub(crate) fn ip(&self, family: Family) -> IpAddr {
        family.on_lan(self.number)
    }

    /// Attaches a new container, with these published ports.
    pub(crate) fn attach(&'a self, name: &str, port_mappings: Value) -> Pod<'a> {
        let path = self.within(|| self.host.netns(name));
        let capabilities = json!({ "portMappings": port_mappings }).to_string();
        let result = self.within(|| self.runtime("add", &path).env("CAP_ARGS", capabilities).run().ok());
        let ip = |entry: &Value| entry["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
        let ips = result["ips"].as_array().unwrap().iter().map(ip).collect();
        let netns = self.within(|| open(&path));
        Pod { node: self, path, netns, ips }
    }

    /// Prepares a call of the runtime.
    fn runtime(&self, command: &str, netns: &Path) -> Process {
        Process::new(program_path("cnitool"))
            .arg(command)
            .arg("cbr0")
            .arg(netns)
            .env("NETCONFPATH", self.host.dir())
            .env("CNI_PATH", self.cluster.lab.bin())
    }

    /// Asserts that containers left nothing: no link, lease, rule, published port or file.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let links = self.sh("ip -o link show type veth | grep -v eth0 || true");
        assert_eq!(links, "", "host veths");
        let files = self.sh("find /var/lib/cni -type f ! -name 'last_reserved_ip.*' ! -name lock");
        assert_eq!(files, "", "leases, state files and results");
        let rules = self.sh("nft list ruleset | grep 'net: cbr0' || true");
        assert_eq!(rules, "", "rules and published ports");
    }
}

/// A container.
pub(crate) struct Pod<'a> {
    node: &'a Node<'a>,
    path: PathBuf,
    pub(crate) netns: Netns,
    ips: Vec<IpAddr>,
}

impl Pod<'_> {
    /// Returns the address of a family, which the container must have.
    pub(crate) fn ip(&self, family: Family) -> IpAddr {
        *self.ips.iter().find(|ip| family.includes(**ip)).unwrap()
    }

    /// Returns the MTU of the container's interface.
    pub(crate) fn mtu(&self) -> u64 {
        let name = self.path.file_name().unwrap().display();
        let links = self.node.within(|| self.node.host.ip(&format!("-n {name} link show eth0")));
        links[0]["mtu"].as_u64().unwrap()
    }

    /// Checks the attachment.
    #[track_caller]
    pub(crate) fn check(&self) {
        self.node.within(|| self.node.runtime("check", &self.path).run().ok());
    }

    /// Detaches the container.
    #[track_caller]
    pub(crate) fn del(self) {
        self.node.within(|| self.node.runtime("del", &self.path).run().ok());
    }
}
