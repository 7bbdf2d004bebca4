//! Helpers for all tests: containers with interfaces that the test itself creates.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, needs_link};

pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "vrf", "vrfname": "blue" }), keys)
}

/// Returns a host, unless its kernel has no VRFs: then the test is skipped.
pub(crate) fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new();
    needs_link(test, "type vrf table 10").then_some(lab)
}

/// Returns a container whose interface `net1` has these addresses.
pub(crate) fn pod<'a>(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
    lab.netns(id);
    let pod =
        Pod { ifname: "net1".to_owned(), bridge: String::new(), port: String::new(), ..Pod::absent(lab, id, ips) };
    pod.sh("ip link set lo up");
    connect(&pod);
    pod
}

/// Returns the same container with another interface.
pub(crate) fn another<'a>(pod: &Pod<'a>, ifname: &str, ips: &[&str]) -> Pod<'a> {
    let pod = Pod { port: String::new(), ..pod.interface(ifname, ips) };
    connect(&pod);
    pod
}

/// Creates the interface, without duplicate address detection.
pub(crate) fn connect(pod: &Pod<'_>) {
    let Pod { lab, id, ifname, .. } = pod;
    lab.sh(&format!("ip link add {id}{ifname} type veth peer name {ifname} netns {id}; ip link set {id}{ifname} up"));
    pod.sh(&format!("ip link set {ifname} up"));
    for ip in &pod.ips {
        let nodad = if ip.contains(':') { "nodad" } else { "" };
        pod.sh(&format!("ip address add {ip} dev {ifname} {nodad}"));
    }
}

/// What tests read of a container.
pub(crate) trait Members {
    /// Returns the VRFs with their tables and their members.
    fn vrfs(&self) -> Vec<(String, u64, Vec<String>)>;
    /// Returns the routes of a table, without the program that added them.
    fn table(&self, table: &str) -> Vec<String>;
    /// Returns the global addresses of an interface.
    fn addresses(&self, ifname: &str) -> Vec<String>;
    /// Returns everything that the plugin can change.
    fn state(&self) -> String;
}

impl Members for Pod<'_> {
    fn vrfs(&self) -> Vec<(String, u64, Vec<String>)> {
        let links = self.ip("link");
        let links = links.as_array().unwrap();
        let name = |link: &Value| link["ifname"].as_str().unwrap().to_owned();
        let is_vrf = |link: &&Value| link["linkinfo"]["info_kind"] == "vrf";
        let mut found: Vec<_> = links
            .iter()
            .filter(is_vrf)
            .map(|vrf| {
                let members = links.iter().filter(|link| link["master"] == vrf["ifname"]).map(name).collect();
                (name(vrf), vrf["linkinfo"]["info_data"]["table"].as_u64().unwrap(), members)
            })
            .collect();
        found.sort();
        found
    }

    fn table(&self, table: &str) -> Vec<String> {
        let script = format!(
            "for family in 4 6; do ip -$family route show table {table} type unicast 2>/dev/null || true; done |
             sed \"s/ proto [^ ]*//; s/ pref [^ ]*//; s/  *$//\" | grep -v ^fe80:: || true"
        );
        let mut routes: Vec<String> = self.sh(&script).lines().map(str::to_owned).collect();
        routes.sort();
        routes
    }

    fn addresses(&self, ifname: &str) -> Vec<String> {
        let found = self.sh(&format!("ip -o address show dev {ifname} scope global | sed \"s/.*inet6* //; s/ .*//\""));
        found.lines().map(str::to_owned).collect()
    }

    fn state(&self) -> String {
        self.sh("ip -d -o link | sed \"s/^[0-9]*: //; s/ state .*alias/ alias/; s/ qdisc.*master/ master/\" | sort; ip -o address | sed \"s/valid_lft.*//; s/^[0-9]*: //\" | grep -v fe80 | sort
            for family in 4 6; do ip -$family route show table all type unicast | grep -v fe80 | sort; done
            ip rule | grep -v l3mdev; cat /proc/sys/net/ipv6/conf/net*/keep_addr_on_down")
    }
}
