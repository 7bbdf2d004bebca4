//! A network whose subnets change: the old gateway addresses, and nothing else, are removed when no container needs
//! them.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Set};

use crate::pod::layer3;

/// Returns the configuration of a dual-stack network with `10.N.0.0/24` and `fd0N::/64`.
pub(crate) fn network(n: u8, more: Value) -> Value {
    let ranges = json!([[{ "subnet": format!("10.{n}.0.0/24") }], [{ "subnet": format!("fd0{n}::/64") }]]);
    with(layer3(json!({ "ipam": { "type": "host-local", "ranges": ranges } })), more)
}

/// Returns the global addresses of a link in ascending order.
pub(crate) fn global_addresses(lab: &Lab, link: &str) -> Vec<String> {
    let listing = lab.sh(&format!("ip -o address show dev {link} scope global | awk '{{ print $4 }}' | sort"));
    listing.lines().map(str::to_owned).collect()
}

/// Calls DEL with the result of ADD.
fn del(pod: &Pod<'_>, config: &Value, previous: &Value) {
    let mut config = config.clone();
    config["prevResult"] = previous.clone();
    pod.call("DEL", &config).run().ok();
}

/// Calls GC with a list of valid containers.
pub(crate) fn collect(lab: &Lab, config: &Value, alive: &[&str]) {
    let mut config = config.clone();
    let valid = alive.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" }));
    config["cni.dev/valid-attachments"] = valid.collect();
    lab.plugin("bridge", "GC").stdin(config.to_string()).run().ok();
}

const OLD: [&str; 2] = ["10.1.0.1/24", "fd01::1/64"];
const NEW: [&str; 2] = ["10.2.0.1/24", "fd02::1/64"];
const BOTH: [&str; 4] = ["10.1.0.1/24", "10.2.0.1/24", "fd01::1/64", "fd02::1/64"];

#[test]
fn force_address_keeps_only_the_new_gateway() {
    Lab::for_each_way_to_delegate(|lab| {
        let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
        a.add(&network(1, json!({ "forceAddress": true })));
        assert_eq!(global_addresses(lab, "br0"), OLD);
        lab.sh("ip address add 10.9.0.1/24 dev br0; ip address add fd09::1/64 dev br0 nodad");
        let link_local = lab.sh("ip -o -6 address show dev br0 scope link");
        let config = network(2, json!({ "forceAddress": true }));
        let result = b.add(&config);
        assert_eq!(global_addresses(lab, "br0"), NEW);
        assert_eq!(lab.sh("ip -o -6 address show dev br0 scope link"), link_local);
        b.check_result(&config, &result).ok();
        // The next ADD also removes an address that was added later.
        lab.sh("ip address add 10.9.0.1/24 dev br0");
        Pod::new(lab, "c").add(&config);
        assert_eq!(global_addresses(lab, "br0"), NEW);
    });
}

/// With the first IPv4 address of a subnet the kernel would remove it, too.
#[test]
fn an_address_by_hand_in_the_old_subnet_keeps_the_gateway() {
    let lab = &Lab::new();
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let pod = Pod::new(lab, "a");
    let result = pod.add(&old);
    lab.sh("ip address add 10.1.0.99/24 dev br0");
    del(&pod, &new, &result);
    Pod::new(lab, "b").del(&new);
    assert_eq!(global_addresses(lab, "br0"), ["10.1.0.1/24", "10.1.0.99/24"]);
}

#[test]
fn the_last_del_removes_the_old_gateway() {
    let lab = &Lab::new();
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let [a, b, c] = ["a", "b", "c"].map(|id| Pod::new(lab, id));
    let [first, second] = [&a, &b].map(|pod| pod.add(&old));
    let alive = c.add(&new);
    assert_eq!(global_addresses(lab, "br0"), BOTH);
    lab.sh("ip address add 10.9.0.1/24 dev br0; ip address add fd09::1/64 dev br0 nodad");
    del(&a, &new, &first);
    let all = [BOTH.as_slice(), &["10.9.0.1/24", "fd09::1/64"]].concat();
    let sorted = |mut list: Vec<&str>| {
        list.sort_unstable();
        list.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(global_addresses(lab, "br0"), sorted(all), "one container still needs the old gateway");
    del(&b, &new, &second);
    assert_eq!(global_addresses(lab, "br0"), sorted([NEW.as_slice(), &["10.9.0.1/24", "fd09::1/64"]].concat()));
    c.check_result(&new, &alive).ok();
    // Back to the old subnets.
    let result = a.add(&old);
    assert!(OLD.iter().all(|address| global_addresses(lab, "br0").contains(&(*address).to_owned())));
    a.check_result(&old, &result).ok();
}

#[test]
fn gc_removes_the_old_gateway() {
    let lab = &Lab::new();
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let [a, b, c] = ["a", "b", "c"].map(|id| Pod::new(lab, id));
    a.add(&old);
    b.add(&old);
    let alive = c.add(&new);
    collect(lab, &new, &["a", "c"]);
    assert_eq!(global_addresses(lab, "br0"), BOTH, "container a still exists");
    collect(lab, &new, &["c"]);
    assert_eq!(global_addresses(lab, "br0"), NEW);
    c.check_result(&new, &alive).ok();
    // The ranges of the runtime and `subnet` count as configured.
    let mut elsewhere = network(2, json!({ "ipam": { "type": "host-local", "subnet": "10.2.0.0/24" } }));
    elsewhere["runtimeConfig"] = json!({ "ipRanges": [[{ "subnet": "fd02::/64" }]] });
    c.del(&new);
    collect(lab, &elsewhere, &[]);
    assert_eq!(global_addresses(lab, "br0"), NEW);
    // Without subnets in the configuration, the plugin cannot know which addresses the network needs.
    collect(lab, &layer3(json!({ "ipam": { "type": "host-local" } })), &[]);
    assert_eq!(global_addresses(lab, "br0"), NEW);
}

#[test]
fn an_ordinary_del_does_not_list_addresses() {
    let lab = &Lab::new();
    let config = network(1, json!({}));
    let pod = Pod::new(lab, "a");
    let mut with_previous = config.clone();
    with_previous["prevResult"] = pod.add(&config);
    let outcome = pod.call("DEL", &with_previous).strace(&["-f", "-e", "trace=sendto"]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("sendto(") && !outcome.stderr.contains("RTM_GETADDR"), "{}", outcome.stderr);
}

/// Neither the gateway of another network is removed, nor one that containers of another network may use.
#[test]
fn networks_that_share_a_bridge_keep_their_gateways() {
    let lab = &Lab::new();
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let other = network(3, json!({ "name": "net2" }));
    let [a, b] = ["a", "b"].map(|id| Pod::new(lab, id));
    b.add(&other);
    b.del(&other);
    a.add(&old);
    a.del(&old);
    b.add(&other);
    collect(lab, &new, &[]);
    assert_eq!(
        global_addresses(lab, "br0"),
        ["10.1.0.1/24", "10.3.0.1/24", "fd01::1/64", "fd03::1/64"],
        "net2 has a port"
    );
    b.del(&other);
    collect(lab, &new, &[]);
    assert_eq!(global_addresses(lab, "br0"), ["10.3.0.1/24", "fd03::1/64"], "net2 has no port, but its gateway stays");
}

#[test]
fn a_lease_of_another_network_and_an_unknown_port_keep_the_gateway() {
    let lab = &Lab::new();
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let pod = Pod::new(lab, "a");
    for (prevent, allow) in [
        (
            "mkdir -p /var/lib/cni/networks/x; echo c >/var/lib/cni/networks/x/10.1.0.77",
            "rm -r /var/lib/cni/networks/x",
        ),
        ("mkdir -p /var/lib/cni/networks/x; echo c >/var/lib/cni/networks/x/fd01::77", "rm -r /var/lib/cni/networks/x"),
        ("ip link add uplink0 master br0 type veth peer name uplink1", "ip link del uplink0"),
    ] {
        pod.add(&old);
        pod.del(&old);
        lab.sh(prevent);
        collect(lab, &new, &[]);
        let kept = global_addresses(lab, "br0");
        assert!(kept.contains(&OLD[usize::from(prevent.contains("fd01"))].to_owned()), "{prevent}: {kept:?}");
        lab.sh(allow);
    }
    collect(lab, &new, &[]);
    assert_eq!(global_addresses(lab, "br0"), [""; 0]);
}

/// CNI has no command that asks an IPAM program for its leases.
#[test]
fn the_gateway_stays_if_ipam_cannot_report_its_leases() {
    let lab = &Lab::with(Set::None);
    let (old, new) = (network(1, json!({})), network(2, json!({})));
    let pod = Pod::new(lab, "a");
    let result = pod.add(&old);
    del(&pod, &new, &result);
    collect(lab, &new, &[]);
    assert_eq!(global_addresses(lab, "br0"), OLD);
}
