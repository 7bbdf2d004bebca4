//! Helpers for all tests: configurations, the subnet file and state files of this node, and pods.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Scripted};

/// The default subnet file, and the default directory of state files.
pub(crate) const SUBNET_FILE: &str = "/run/flannel/subnet.env";
pub(crate) const DATA_DIR: &str = "/var/lib/cni/flannel";

/// Lines of subnet files. With `REST`, `bridge` masquerades, so that there are rules to remove.
pub(crate) const V4: &str = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n";
pub(crate) const V6: &str = "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n";
pub(crate) const REST: &str = "FLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n";

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "flannel" }), keys)
}

/// Writes the default subnet file as flanneld does: to a temporary file, which it renames.
pub(crate) fn write_subnet_file(text: &str) {
    let draft = Path::new(SUBNET_FILE).with_extension("draft");
    fs::create_dir_all(draft.parent().unwrap()).unwrap();
    fs::write(&draft, text).unwrap();
    fs::rename(draft, SUBNET_FILE).unwrap();
}

/// Makes the host a node with an IPv4 subnet.
pub(crate) fn join_cluster() {
    write_subnet_file(&format!("{V4}{REST}"));
}

/// Makes the host a node with an IPv4 subnet. Returns a pod, and a configuration that has only the required keys.
pub(crate) fn node_with_pod(lab: &Lab) -> (Pod<'_>, Value) {
    join_cluster();
    (Pod::new(lab, "c1"), config(json!({})))
}

/// Returns the name of the pod's state file, if another interface of the container has the name of the reference.
pub(crate) fn second_name(pod: &Pod<'_>) -> String {
    format!("{}:{}", pod.id, pod.ifname)
}

/// Returns a delegate that records its calls, and returns an address.
pub(crate) fn recorder(lab: &Lab) -> Scripted {
    let recorder = Scripted::of(lab);
    recorder.answer(json!({ "ips": [{ "address": "10.1.17.9/24" }] }));
    recorder
}

/// Returns the sorted names of all entries in the directory of state files.
pub(crate) fn state_files() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DATA_DIR) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the content of a state file.
#[track_caller]
pub(crate) fn read_state(name: &str) -> String {
    let path = Path::new(DATA_DIR).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path:?}: {error}"))
}

/// Writes a state file as the reference does: under the name of the container, mode 0600.
pub(crate) fn write_state(name: &str, content: &str) {
    fs::create_dir_all(DATA_DIR).unwrap();
    fs::write(Path::new(DATA_DIR).join(name), content).unwrap();
}

/// Removes all names of the pod's state file, as if it had been lost.
pub(crate) fn lose_state(pod: &Pod<'_>) {
    for name in [pod.id.clone(), second_name(pod)] {
        let _ = fs::remove_file(Path::new(DATA_DIR).join(name));
    }
}

/// Asserts that no veth, lease or rule is left.
#[track_caller]
pub(crate) fn assert_no_attachments(lab: &Lab) {
    assert_eq!(lab.sh("ip -o link show type veth"), "", "veths are left");
    let rules = lab.sh("nft list ruleset");
    for mark in ["masquerade comment", "CNI-", "cni-br-iface"] {
        assert!(!rules.contains(mark), "rules are left: {rules}");
    }
    assert_eq!(leases(lab), [] as [&str; 0], "leases are left");
}

/// Asserts that no veth, lease, rule or state file is left.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    assert_no_attachments(lab);
    assert_eq!(state_files(), [] as [&str; 0], "state files are left");
}

/// Returns the sorted paths of all leases, such as `net1/10.1.17.2`.
pub(crate) fn leases(lab: &Lab) -> Vec<String> {
    let find = "cd /var/lib/cni/networks 2>/dev/null || exit 0; find . -type f ! -name lock ! -name 'last_reserved*'";
    let mut found: Vec<_> = lab.sh(find).lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
    found.sort();
    found
}

/// Returns the addresses of an interface of this host, without those of the link.
pub(crate) fn addresses(lab: &Lab, link: &str) -> Vec<String> {
    let listed = lab.ip(&format!("address show dev {link}"));
    let infos = listed[0]["addr_info"].as_array().cloned().unwrap_or_default();
    let global = infos.iter().filter(|info| info["scope"] == "global");
    global.map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"])).collect()
}
