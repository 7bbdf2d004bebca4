//! Helpers for tests of inspection: a network with containers, and ways to lose them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use linux::Deadline;
use linux::netlink::{Event, Link, Netlink, OperState, Watch};
use serde_json::{Value, json};
use testing::{Outcome, timeout};

use crate::doctor::problems;
use crate::support::{Host, messages};

/// An id of the length that runtimes use.
pub(crate) const LONG_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Returns a network of bridge and host-local, with `more` keys.
pub(crate) fn network(name: &str, subnet: &str, more: &Value) -> Value {
    let mut plugin = json!({
        "type": "bridge", "bridge": format!("br-{name}"), "isDefaultGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]] },
    });
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        plugin[key] = value;
    }
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [plugin] })
}

/// A host with the network `pods`. Each test needs its own subnet, because cnitool finds the namespaces of concurrent
/// tests through `/proc`.
pub(crate) fn host(subnet: &str) -> Host {
    static USERS: Mutex<BTreeMap<String, ThreadId>> = Mutex::new(BTreeMap::new());
    let this = thread::current().id();
    let user = *USERS.lock().unwrap().entry(subnet.to_owned()).or_insert(this);
    assert_eq!(user, this, "another test has the subnet {subnet}");
    let host = Host::new();
    host.configure("10-pods.conflist", &network("pods", subnet, &json!({})).to_string());
    host.lab.sh("ip link set lo up");
    host
}

/// A host with the network `pods`, whose second plugin has these keys.
pub(crate) fn host_with(subnet: &str, plugin: &Value) -> Host {
    let host = host(subnet);
    let mut config = network("pods", subnet, &json!({}));
    config["plugins"].as_array_mut().unwrap().push(plugin.clone());
    host.configure("10-pods.conflist", &config.to_string());
    host
}

/// Attaches the containers `blue` and `lost`. `doctor` finds no problem, and neither it nor `show` changes anything.
/// Returns the ids, and the bridge as `show` describes it.
#[track_caller]
pub(crate) fn attach_and_show(host: &Host) -> (String, String, Value) {
    let (blue, lost) = (attach(host, "blue"), attach(host, "lost"));
    let before = snapshot(host);
    assert_eq!(problems(&json(host, "doctor --json")), [""; 0]);
    let bridge = json(host, "show --json")["bridges"][0].clone();
    assert_eq!(snapshot(host), before);
    (blue, lost, bridge)
}

/// Attaches a container in a namespace of this name. Returns its id.
pub(crate) fn attach(host: &Host, name: &str) -> String {
    attach_with(host, name, "{}")
}

/// Attaches a container with these values of `CAP_ARGS`. Returns its id.
pub(crate) fn attach_with(host: &Host, name: &str, arguments: &str) -> String {
    host.lab.netns(name);
    host.call(&format!("add pods /run/netns/{name}")).env("CAP_ARGS", arguments).run().ok();
    let entry = host.cached().into_iter().find_map(|file| {
        let text = fs::read_to_string(format!("/var/lib/cni/results/{file}")).unwrap();
        let entry: Value = serde_json::from_str(&text).unwrap();
        (entry["netns"] == format!("/run/netns/{name}")).then(|| entry["containerId"].as_str().unwrap().to_owned())
    });
    entry.unwrap()
}

/// Returns the name of a container's port.
pub(crate) fn port(id: &str) -> String {
    let links = Netlink::open().unwrap().links(None).unwrap();
    links.into_iter().find(|link| link.kind == "veth" && link.alias.contains(id)).unwrap().name
}

/// Removes a namespace, and waits until the kernel has removed its interfaces.
pub(crate) fn lose_namespace(host: &Host, name: &str, id: &str) {
    let mut netlink = Netlink::open().unwrap();
    let mut watch = Watch::open(Event::Link).unwrap();
    host.lab.sh(&format!("umount /run/netns/{name}; rm /run/netns/{name}"));
    let is_port = |link: &Link| link.kind == "veth" && link.alias.contains(id);
    let gone = || Ok::<_, linux::Error>(netlink.links(None)?.iter().all(|link| !is_port(link)).then_some(()));
    watch.wait_for("the port to go", Deadline::after(timeout()), gone).unwrap();
}

/// Waits until all ports of bridges can carry traffic. The kernel notices a moment later that a link was set up.
pub(crate) fn wait_for_ports() {
    let mut netlink = Netlink::open().unwrap();
    let mut watch = Watch::open(Event::Link).unwrap();
    let is_ready = |link: &Link| link.master.is_none() || link.state == OperState::Up;
    let ready = || Ok::<_, linux::Error>(netlink.links(None)?.iter().all(is_ready).then_some(()));
    watch.wait_for("the ports to carry traffic", Deadline::after(timeout()), ready).unwrap();
}

/// Writes a lease without a container, as an ADD that was killed leaves it.
pub(crate) fn leak(ip: &str, content: &str) {
    let path = PathBuf::from("/var/lib/cni/networks/pods");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join(ip), content).unwrap();
}

/// The lock of the lease directory.
pub(crate) const LEASE_LOCK: &str = "/var/lib/cni/networks/pods/lock";

/// Starts a process that holds a lock until it is killed.
pub(crate) fn hold_lock(path: &str) -> Child {
    let mut child = Command::new("flock")
        .args(["--no-fork", path, "sh", "-c", "echo; exec sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The process prints a line when it has the lock.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// Runs a command and parses its output as JSON, regardless of the exit code.
#[track_caller]
pub(crate) fn json(host: &Host, words: &str) -> Value {
    let outcome = host.run(words);
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// Returns the output after asserting that it fits a terminal and has no colours.
#[track_caller]
pub(crate) fn page(outcome: &Outcome) -> String {
    assert_eq!(messages(outcome), "", "{outcome:?}");
    assert!(!outcome.stdout.contains('\x1b'), "{outcome:?}");
    for line in outcome.stdout.lines() {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?} in\n{}", outcome.stdout);
    }
    outcome.stdout.clone()
}

/// Returns everything that a command might change, without what changes by itself.
pub(crate) fn snapshot(host: &Host) -> String {
    // STATUS records which rules the kernel accepts.
    host.lab.sh(
        "find /var/lib /run -path /run/cni0/accepted -prune -o ! -path /run/cni0 -printf '%p %y %s %T@\\n' | sort
         find /var/lib /run/cni0 -type f -exec cat {} +
         ip -j link | jq -c '.[] | [.ifname, .address, .mtu, .master, .ifalias]'
         ip -o -4 address; ip -4 route show table all; nft list ruleset
         for f in ip_forward conf/all/rp_filter; do cat /proc/sys/net/ipv4/$f; done",
    )
}

/// Runs a command without any capability.
pub(crate) fn powerless(host: &Host, words: &str) -> Outcome {
    let program = testing::program_path("cnitool");
    let calling = testing::Process::new("setpriv").arg("--bounding-set=-all").arg("--inh-caps=-all").arg("--");
    let calling = calling.arg(program).env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin());
    words.split(' ').fold(calling, testing::Process::arg).run()
}
