//! A test network: its configuration, and calls of the plugin.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process};

/// The default of `dataDir`.
pub(crate) const DATA: &str = "/var/lib/cni/networks";

/// A path for `CNI_NETNS`, which the plugin does not open.
const NETNS: &str = "/run/netns/none";

/// All versions of the protocol.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A network of `static`.
#[derive(Clone)]
pub(crate) struct Net<'a> {
    lab: &'a Lab,
    pub(crate) config: Value,
    args: String,
}

impl<'a> Net<'a> {
    /// Returns a network with these keys in `ipam`.
    pub(crate) fn new(lab: &'a Lab, ipam: Value) -> Net<'a> {
        let mut config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam});
        config["ipam"]["type"] = json!("static");
        Net { lab, config, args: String::new() }
    }

    /// Returns a network with one address.
    pub(crate) fn of(lab: &'a Lab, address: &str) -> Net<'a> {
        Net::new(lab, json!({"addresses": [{"address": address}]}))
    }

    /// Returns the network with another value of a top-level key.
    pub(crate) fn with(&self, key: &str, value: Value) -> Net<'a> {
        let mut net = self.clone();
        net.config[key] = value;
        net
    }

    /// Returns the network with another value in `ipam`.
    pub(crate) fn with_ipam(&self, key: &str, value: Value) -> Net<'a> {
        let mut net = self.clone();
        net.config["ipam"][key] = value;
        net
    }

    pub(crate) fn with_version(&self, version: &str) -> Net<'a> {
        self.with("cniVersion", json!(version))
    }

    /// Returns the network with `CNI_ARGS`.
    pub(crate) fn with_args(&self, args: &str) -> Net<'a> {
        Net { args: args.to_owned(), ..self.clone() }
    }

    fn prepared(&self, call: Process, id: &str) -> Process {
        call.attachment(id, "eth0", NETNS).env("CNI_ARGS", &self.args).stdin(self.config.to_string())
    }

    pub(crate) fn calling(&self, command: &str, id: &str) -> Process {
        self.prepared(self.lab.plugin("static", command), id)
    }

    /// Returns the same call of the reference.
    pub(crate) fn reference(&self, path: &Path, command: &str) -> Outcome {
        self.prepared(Process::plugin(path, command).env("CNI_PATH", "/none"), "c1").run()
    }

    pub(crate) fn call(&self, command: &str, id: &str) -> Outcome {
        self.calling(command, id).run()
    }

    #[track_caller]
    pub(crate) fn add(&self, id: &str) -> Value {
        self.call("ADD", id).ok()
    }

    #[track_caller]
    pub(crate) fn del(&self, id: &str) {
        assert_eq!(self.call("DEL", id).ok(), Value::Null);
    }

    #[track_caller]
    pub(crate) fn gc(&self, valid: &[&str]) {
        let valid: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        self.with("cni.dev/valid-attachments", json!(valid)).call("GC", "x").ok();
    }

    #[track_caller]
    pub(crate) fn check(&self, id: &str, result: &Value) -> Outcome {
        self.with("prevResult", result.clone()).call("CHECK", id)
    }

    /// Returns the lease files of the network.
    pub(crate) fn leases(&self) -> BTreeMap<String, String> {
        leases(&Path::new(DATA).join(self.config["name"].as_str().unwrap()))
    }
}

/// Returns the lease files in a directory.
pub(crate) fn leases(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeMap::new() };
    let files = entries.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("lock"));
    files
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect()
}
