//! The host of the suite's tests, and what must not change on it.

use serde_json::Value;

use super::{Interface, pod};
use crate::{Lab, Pod, needs_link};

/// A host with a neighbour that is attached to the same network.
pub(super) struct Host<'a> {
    pub(super) plugin: &'a Interface,
    pub(super) lab: &'a Lab,
    pub(super) neighbour: Pod<'a>,
    result: Value,
    /// The states of the host and of the neighbour.
    before: (String, String),
}

impl<'a> Host<'a> {
    /// Prepares the host; skips `test` if the kernel does not have such links.
    pub(super) fn new(plugin: &'a Interface, lab: &'a Lab, test: &str) -> Option<Host<'a>> {
        prepare(plugin, lab, test)?;
        let neighbour = pod(lab, "neighbour", 1);
        let result = neighbour.add(&plugin.config(1));
        // What stays for the next container, such as a bridge, exists from now on.
        let first = pod(lab, "first", 0);
        first.add(&plugin.config(0));
        first.del(&plugin.config(0));
        let mut host = Host { plugin, lab, neighbour, result, before: Default::default() };
        host.remember();
        Some(host)
    }

    /// Records the state that must not change.
    pub(super) fn remember(&mut self) {
        self.before = (state(self.lab), container_state(&self.neighbour));
    }

    /// Asserts that nothing was added to the host or to the neighbour, or removed from them.
    #[track_caller]
    pub(super) fn assert_unchanged(&self, what: &str) {
        assert_eq!(state(self.lab), self.before.0, "the host after {what}");
        assert_eq!(container_state(&self.neighbour), self.before.1, "the neighbour after {what}");
    }

    /// Calls CHECK for the neighbour.
    #[track_caller]
    pub(super) fn check_neighbour(&self) {
        self.neighbour.check_result(&self.plugin.config(1), &self.result).ok();
    }
}

/// Creates what the plugin needs, and an interface of the host with the name and the kind of those of containers. Skips
/// `test` if the kernel does not have such links.
pub(super) fn prepare(plugin: &Interface, lab: &Lab, test: &str) -> Option<()> {
    lab.sh(&format!("ip link set lo up; {}", plugin.prepare));
    needs_link(test, plugin.link).then(|| {
        lab.sh(&format!("ip link add eth0 {}", plugin.link));
    })
}

/// Describes the host: links, addresses, routes, rules, and files of state. Not what the kernel changes on its own or
/// by chance: indexes, flags, MAC addresses and link-local addresses.
pub(super) fn state(lab: &Lab) -> String {
    // The index of host-local is a hint, and its last address is kept for the next lease.
    let files =
        "find /var/lib /run -type f ! -path '/run/netns/*' ! -path '/run/cni0/*' ! -name lock ! -name 'last_reserved*'";
    let rest = lab.sh(&format!("nft list ruleset; {files} | sort"));
    format!("{}{rest}", describe(&lab.sh(LISTINGS)))
}

/// Describes a container like [`state`]. Empty if it has only `lo`.
pub(super) fn container_state(pod: &Pod<'_>) -> String {
    describe(&pod.sh(LISTINGS))
}

/// Asserts that a container has no link besides `lo`.
#[track_caller]
pub(super) fn assert_no_link(pod: &Pod<'_>, what: &str) {
    assert_eq!(container_state(pod), "", "the container after {what}");
}

/// Commands that print JSON, one list in each line.
const LISTINGS: &str = "for list in address route \"-6 route\"; do ip -j -d $list | tr -d \"\\n\"; echo; done";

fn describe(listings: &str) -> String {
    let mut all = String::new();
    for entry in listings.lines().flat_map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap_or_default()) {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        match entry.get("dst") {
            Some(_) if text("dst").starts_with("fe80") => {}
            Some(_) => all += &format!("route {} via {} dev {}\n", text("dst"), text("gateway"), text("dev")),
            None if text("ifname") == "lo" => {}
            None => {
                let kind = entry["linkinfo"]["info_kind"].as_str().unwrap_or_default();
                all += &format!("{} {kind} {} {}\n", text("ifname"), text("master"), text("ifalias"));
                let addresses = entry["addr_info"].as_array().into_iter().flatten();
                for address in addresses.filter(|address| address["scope"] == "global") {
                    all += &format!("  {}/{}\n", address["local"].as_str().unwrap(), address["prefixlen"]);
                }
            }
        }
    }
    all
}
