//! Helpers for all tests: configurations, and containers with a veth pair that the test itself creates.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::{Lab, Pod};

/// The directory of backup files.
pub(crate) const DATA_DIR: &str = "/run/cni/tuning";
/// The MAC address of a new pod.
pub(crate) const MAC: &str = "02:00:00:00:00:01";
/// Another MAC address.
pub(crate) const NEW_MAC: &str = "c2:11:22:33:44:55";

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    testing::config::with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "tuning" }), keys)
}

/// Returns an isolated host whose files in /etc are its own, without a list of allowed sysctls.
pub(crate) fn lab() -> Lab {
    let lab = Lab::new();
    // A test that has several hosts, one after the other, would stack the file systems. An ordinary user owns a new
    // /etc/cni only.
    lab.sh("! grep -q '^cni0-test /etc ' /proc/mounts || umount -R /etc
         mkdir -p /run/etc/upper /run/etc/work
         mount -t overlay cni0-test -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
         mkdir -p /etc/cni
         mount -t tmpfs tmpfs /etc/cni");
    lab
}

/// Returns a container whose host veth is a port of the bridge `br0`.
pub(crate) fn pod<'a>(lab: &'a Lab, id: &str) -> Pod<'a> {
    pod_with_interface(lab, id, "eth0")
}

/// Returns a container whose interface has another name.
pub(crate) fn pod_with_interface<'a>(lab: &'a Lab, id: &str, ifname: &str) -> Pod<'a> {
    let ifname = ifname.to_owned();
    let pod = Pod { ifname, mac: Some(MAC.to_owned()), ..Pod::absent(lab, id, &["10.9.0.2/24"]) };
    lab.netns(id);
    pod.connect();
    pod
}

/// Returns the names of the files in the directory of backup files.
pub(crate) fn files() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DATA_DIR) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// What tests read of a container that is tuned.
pub(crate) trait Tuned {
    /// Creates the veth pair.
    fn connect(&self);
    /// Fails to add, and returns the error.
    fn refused(&self, config: &Value, code: u32) -> Value;
    /// Returns the interface as `ip` lists it.
    fn link(&self) -> Value;
    /// Returns MAC address, MTU, queue length, and the modes that were set, of the interface, and the MTU of the host
    /// veth.
    fn attributes(&self) -> (String, u64, u64, bool, bool, u64);
    /// Returns a sysctl of the pod, whose name is a path.
    fn sysctl(&self, path: &str) -> String;
    /// Returns the path of the backup file.
    fn backup(&self) -> PathBuf;
    /// Returns the backup file; `null` if there is none.
    fn backed_up(&self) -> Value;
    /// Returns everything that the plugin can change.
    fn state(&self) -> String;
}

impl Tuned for Pod<'_> {
    fn connect(&self) {
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

    #[track_caller]
    fn refused(&self, config: &Value, code: u32) -> Value {
        self.call("ADD", config).run().error(code)
    }

    fn link(&self) -> Value {
        self.lab.ip(&format!("-d -n {} link show {}", self.id, self.ifname))[0].clone()
    }

    fn attributes(&self) -> (String, u64, u64, bool, bool, u64) {
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

    fn sysctl(&self, path: &str) -> String {
        self.sh(&format!("cat /proc/sys/{path}")).trim().to_owned()
    }

    fn backup(&self) -> PathBuf {
        Path::new(DATA_DIR).join(format!("{}_{}.json", self.id, self.ifname))
    }

    fn backed_up(&self) -> Value {
        fs::read(self.backup()).map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap())
    }

    fn state(&self) -> String {
        let sysctls =
            self.sh("cd /proc/sys/net; grep -r . core/somaxconn ipv4/conf/eth0 ipv4/conf/all 2>/dev/null || true");
        let notify = self.sh("cat /proc/sys/net/ipv6/conf/eth0/ndisc_notify 2>/dev/null || true");
        format!("{:?} {} {notify} {sysctls}", self.attributes(), self.backed_up())
    }
}

/// The attributes of a new pod, as [`Tuned::attributes`] returns them.
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
    (NEW_MAC.to_owned(), 1400, 20, true, true, 1500)
}
