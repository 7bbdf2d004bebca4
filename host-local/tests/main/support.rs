//! A test network: its configuration, its lease directory, and calls of the plugin.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process};

/// The default of `dataDir`.
pub(crate) const DATA: &str = "/var/lib/cni/networks";

/// A path for `CNI_NETNS`, which the plugin does not open.
const NETNS: &str = "/run/netns/none";

/// A network with some range sets.
pub(crate) struct Net<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) config: Value,
}

impl<'a> Net<'a> {
    /// Returns a network `net` with these range sets.
    pub(crate) fn new(lab: &'a Lab, ranges: Value) -> Net<'a> {
        let ipam = json!({"type": "host-local", "ranges": ranges});
        Net { lab, config: json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam}) }
    }

    /// Returns a network with one subnet.
    pub(crate) fn of(lab: &'a Lab, subnet: &str) -> Net<'a> {
        Net::new(lab, json!([[{"subnet": subnet}]]))
    }

    /// Returns the network with another value at `pointer`, whose parent object must exist.
    pub(crate) fn with(&self, pointer: &str, value: Value) -> Net<'a> {
        let (object, key) = pointer.rsplit_once('/').unwrap();
        let mut config = self.config.clone();
        config.pointer_mut(object).unwrap()[key.replace("~1", "/")] = value;
        Net { lab: self.lab, config }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        Path::new(DATA).join(self.config["name"].as_str().unwrap())
    }

    pub(crate) fn calling(&self, command: &str, id: &str) -> Process {
        let call = self.lab.plugin("host-local", command).attachment(id, "eth0", NETNS);
        call.stdin(self.config.to_string())
    }

    /// Returns the same call of the reference, in a version that it supports.
    pub(crate) fn reference(&self, path: &Path, command: &str, id: &str) -> Process {
        let old = self.with("/cniVersion", json!("1.0.0"));
        let call = Process::plugin(path, command).env("CNI_PATH", "/none").attachment(id, "eth0", NETNS);
        call.stdin(old.config.to_string())
    }

    pub(crate) fn call(&self, command: &str, id: &str) -> Outcome {
        self.calling(command, id).run()
    }

    /// Calls ADD and returns the leased addresses.
    #[track_caller]
    pub(crate) fn add(&self, id: &str) -> Vec<IpAddr> {
        addresses(&self.call("ADD", id).ok())
    }

    #[track_caller]
    pub(crate) fn del(&self, id: &str) {
        assert_eq!(self.call("DEL", id).ok(), Value::Null);
    }

    #[track_caller]
    pub(crate) fn gc(&self, valid: &[&str]) {
        let valid: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        self.with("/cni.dev~1valid-attachments", json!(valid)).call("GC", "x").ok();
    }

    /// Returns all files of the lease directory.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        files(&self.dir())
    }

    /// Returns all leases with the contents of their files.
    pub(crate) fn leases(&self) -> BTreeMap<IpAddr, String> {
        let lease = |(name, content): (String, String)| Some((name.parse().ok()?, content));
        self.files().into_iter().filter_map(lease).collect()
    }

    /// Asserts that the directory has only leases, `last_reserved_ip.N` and the lock, and its parent no temporary file.
    #[track_caller]
    pub(crate) fn assert_tidy(&self) {
        for name in self.files().keys() {
            let pointer = name.strip_prefix("last_reserved_ip.").is_some_and(|n| n.parse::<u32>().is_ok());
            assert!(pointer || name == "lock" || name.parse::<IpAddr>().is_ok(), "stray file {name}");
        }
        let beside = names(self.dir().parent().unwrap());
        assert!(beside.iter().all(|name| !name.starts_with('.')), "{beside:?}");
    }

    /// Returns the directory of the network's index, if it exists.
    pub(crate) fn index(&self) -> Option<PathBuf> {
        let leases = fs::metadata(self.dir()).ok()?;
        let index = format!("/run/cni0/host-local/{:x}-{:x}", leases.dev(), leases.ino());
        Some(PathBuf::from(index)).filter(|index| index.exists())
    }
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn files(dir: &Path) -> BTreeMap<String, String> {
    let read = |name: String| (name.clone(), fs::read_to_string(dir.join(name)).unwrap());
    if dir.exists() { names(dir).into_iter().map(read).collect() } else { BTreeMap::new() }
}

/// Returns the addresses in a result, without their prefixes.
#[track_caller]
pub(crate) fn addresses(answer: &Value) -> Vec<IpAddr> {
    let ips = answer["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split_once('/').unwrap().0.parse().unwrap()).collect()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
