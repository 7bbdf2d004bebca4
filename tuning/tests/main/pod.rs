//! Helpers for all tests: configurations, and pods with a veth pair that the test itself creates.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Outcome, Process};

/// The directory of backup files.
pub(crate) const DATA_DIR: &str = "/run/cni/tuning";
/// The MAC address of a new pod.
pub(crate) const MAC: &str = "02:00:00:00:00:01";
/// Another MAC address.
pub(crate) const NEW_MAC: &str = "c2:11:22:33:44:55";

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "tuning" }), keys)
}

/// Adds or replaces the keys of `more` in `config`.
pub(crate) fn with(mut config: Value, more: Value) -> Value {
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        config[key] = value;
    }
    config
}

/// Returns an isolated host whose files in /etc are its own, without a list of allowed sysctls.
pub(crate) fn lab() -> Lab {
    let lab = Lab::new();
    // A test that has several hosts, one after the other, would stack the file systems.
    lab.sh("! grep -q '^cni0-test /etc ' /proc/mounts || umount /etc
         mkdir -p /run/etc/upper /run/etc/work
         mount -t overlay cni0-test -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
         rm -rf /etc/cni/tuning");
    lab
}

/// A container with one interface, whose host veth is a port of the bridge `br0`.
#[derive(Clone)]
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: PathBuf,
    pub(crate) port: String,
}

impl<'a> Pod<'a> {
    pub(crate) fn new(lab: &'a Lab, id: &str) -> Pod<'a> {
        Pod::with_ifname(lab, id, "eth0")
    }

    pub(crate) fn with_ifname(lab: &'a Lab, id: &str, ifname: &str) -> Pod<'a> {
        let pod =
            Pod { lab, id: id.to_owned(), ifname: ifname.to_owned(), netns: lab.netns(id), port: format!("veth{id}") };
        pod.connect();
        pod
    }

    /// Creates the veth pair.
    pub(crate) fn connect(&self) {
        let Pod { lab, id, ifname, port, .. } = self;
        lab.sh(&format!(
            "ip link show br0 >/dev/null 2>&1 || ip link add br0 mtu 1500 type bridge
             ip link set br0 up
             ip link add {port} type veth peer name {ifname} address {MAC} netns {id}
             ip link set {port} master br0 up
             ip -n {id} link set {ifname} up
             ip -n {id} address add 10.9.0.2/24 dev {ifname}"
        ));
    }

    /// Returns the previous result of the plugin that attached the pod.
    pub(crate) fn result(&self, version: &str) -> Value {
        if version.starts_with("0.1") || version.starts_with("0.2") {
            return json!({ "cniVersion": version, "ip4": { "ip": "10.9.0.2/24" } });
        }
        let mut ip = json!({ "address": "10.9.0.2/24", "interface": 2 });
        if version.starts_with('0') {
            ip["version"] = json!("4");
        }
        let interface = json!({ "name": self.ifname, "mac": MAC, "sandbox": self.netns });
        json!({
            "cniVersion": version,
            "interfaces": [{ "name": "br0" }, { "name": self.port }, interface],
            "ips": [ip],
        })
    }

    /// Prepares a call of our plugin, with the previous result unless the configuration has one.
    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        self.call_program(&self.lab.bin().join("tuning"), command, config)
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

    /// Fails to add, and returns the error.
    #[track_caller]
    pub(crate) fn refused(&self, config: &Value, code: u32) -> Value {
        self.call("ADD", config).run().error(code)
    }

    /// Runs a shell command in the pod's namespace.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net={} sh -ec '{command}'", self.netns.display()))
    }

    /// Returns the interface as `ip` lists it.
    pub(crate) fn link(&self) -> Value {
        self.lab.ip(&format!("-d -n {} link show {}", self.id, self.ifname))[0].clone()
    }

    /// Returns MAC address, MTU, queue length, and the modes that were set, of the interface, and the MTU of the host veth.
    pub(crate) fn attributes(&self) -> (String, u64, u64, bool, bool, u64) {
        let link = self.link();
        let has = |flag: &str| link["flags"].as_array().unwrap().iter().any(|found| found == flag);
        (
            link["address"].as_str().unwrap().to_owned(),
            link["mtu"].as_u64().unwrap(),
            link["txqlen"].as_u64().unwrap_or(0),
            has("PROMISC"),
            has("ALLMULTI"),
            self.lab.ip(&format!("link show {}", self.port))[0]["mtu"].as_u64().unwrap(),
        )
    }

    /// Returns a sysctl of the pod, whose name is a path.
    pub(crate) fn sysctl(&self, path: &str) -> String {
        self.sh(&format!("cat /proc/sys/{path}")).trim().to_owned()
    }

    /// Returns the path of the backup file.
    pub(crate) fn backup(&self) -> PathBuf {
        Path::new(DATA_DIR).join(format!("{}_{}.json", self.id, self.ifname))
    }

    /// Returns the backup file; `null` if there is none.
    pub(crate) fn backed_up(&self) -> Value {
        fs::read(self.backup()).map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap())
    }

    /// Returns everything that the plugin can change.
    pub(crate) fn state(&self) -> String {
        let sysctls =
            self.sh("cd /proc/sys/net; grep -r . core/somaxconn ipv4/conf/eth0 ipv4/conf/all 2>/dev/null || true");
        let notify = self.sh("cat /proc/sys/net/ipv6/conf/eth0/ndisc_notify 2>/dev/null || true");
        format!("{:?} {} {notify} {sysctls}", self.attributes(), self.backed_up())
    }
}

/// The attributes of a new pod, as [`Pod::attributes`] returns them.
pub(crate) fn untouched() -> (String, u64, u64, bool, bool, u64) {
    (MAC.to_owned(), 1500, 1000, false, false, 1500)
}

/// Keys that change everything that can be changed.
pub(crate) fn everything() -> Value {
    json!({
        "sysctl": { "net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.log_martians": "1", "net.ipv4.conf.all.log_martians": "1" },
        "mac": NEW_MAC, "promisc": true, "mtu": 1400, "txQLen": 20, "allmulti": true,
    })
}

/// The attributes of a pod after an ADD with [`everything`].
pub(crate) fn tuned() -> (String, u64, u64, bool, bool, u64) {
    (NEW_MAC.to_owned(), 1400, 20, true, true, 1400)
}
