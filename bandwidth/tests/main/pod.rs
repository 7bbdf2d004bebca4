//! Helpers for all tests: configurations, and pods with a veth pair that the test itself creates.

use serde_json::{Value, json};
pub(crate) use testing::config::with;
use testing::{Lab, Pod};

/// Returns a configuration with these keys.
pub(crate) fn config(keys: Value) -> Value {
    with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bandwidth" }), keys)
}

/// Returns a configuration that limits both directions to different rates: 1 MB/s and 2 MB/s, burst 100 kB.
pub(crate) fn both() -> Value {
    config(
        json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000 }),
    )
}

/// The name of the ifb link of container `c1` on `net1`, as the reference calls it.
pub(crate) const IFB: &str = "bwpc2d892b58e87";

/// Creates a container `c1` with `eth0`, 10.9.0.2; the host veth has 10.9.0.1.
pub(crate) fn container(lab: &Lab) -> Pod<'_> {
    let pod = container_named(lab, "c1");
    lab.sh("ip address add 10.9.0.1/24 dev vethc1");
    pod.sh("ip address add 10.9.0.2/24 dev eth0");
    pod.ping("10.9.0.1");
    pod
}

/// Creates a container without addresses. Its previous result has one.
pub(crate) fn container_named<'a>(lab: &'a Lab, id: &str) -> Pod<'a> {
    lab.netns(id);
    let pod = Pod { bridge: String::new(), ..Pod::absent(lab, id, &["10.9.0.2/24"]) };
    connect(&pod);
    pod
}

/// Creates a second interface of the container.
pub(crate) fn second<'a>(pod: &Pod<'a>) -> Pod<'a> {
    let pod = Pod { ifname: "eth1".to_owned(), port: format!("{}b", pod.port), ..pod.clone() };
    connect(&pod);
    pod
}

fn connect(pod: &Pod<'_>) {
    let Pod { port, ifname, netns, .. } = pod;
    let netns = netns.file_name().unwrap().to_str().unwrap();
    pod.lab.sh(&format!("ip link add {port} type veth peer name {ifname} netns {netns}; ip link set {port} up"));
    pod.sh(&format!("ip link set lo up; ip link set {ifname} up"));
}

/// Returns the names of all ifb links.
pub(crate) fn ifbs(lab: &Lab) -> Vec<String> {
    let links = lab.ip("link show type ifb");
    let mut names: Vec<String> = links.as_array().into_iter().flatten().map(|link| text(&link["ifname"])).collect();
    names.sort();
    names
}

/// Returns rate, burst and limit of a link in bytes; `None` if it is not limited.
pub(crate) fn limit(lab: &Lab, link: &str) -> Option<[u64; 3]> {
    let qdiscs: Value = serde_json::from_str(&lab.sh(&format!("tc -j qdisc show dev {link} root"))).unwrap();
    let options = qdiscs.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "tbf")?["options"].clone();
    let [rate, burst, latency] = ["rate", "burst", "lat"].map(|name| options[name].as_u64().unwrap_or_default());
    Some([rate, burst, latency])
}

/// Returns the link to which a link redirects what it receives.
pub(crate) fn redirect(lab: &Lab, link: &str) -> Option<String> {
    let filters = lab.sh(&format!("tc filter show dev {link} ingress"));
    Some(filters.split_once("Egress Redirect to device ")?.1.split(')').next().unwrap().to_owned())
}

/// Describes everything that the plugin changes on the host, to find out whether something has changed.
pub(crate) fn state(lab: &Lab) -> String {
    lab.sh("ip -o link show type ifb | cut -d' ' -f2-
         tc qdisc show | sed 's/ [0-9a-f]*: / /; s/refcnt [0-9]*//'
         for link in $(ip -o link show | sed 's/^[0-9]*: //; s/[@:].*//'); do tc filter show dev $link ingress; done")
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
