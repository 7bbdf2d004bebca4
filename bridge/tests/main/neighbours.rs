//! DEL after all kinds of changes since ADD: it succeeds, removes everything of its attachment, and affects no other.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, REFERENCE, reference};

use crate::pod::host_veth;

/// Where `CNI_NETNS` leads when DEL arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Netns {
    Alive,
    Gone,
    ReusedByOurs,
    ReusedByReference,
    Host,
}

/// What the runtime passes as `prevResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Previous {
    Given,
    Missing,
    Strange,
    OtherVersion,
}

/// What else changed since ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    ValueOutOfRange,
    ValueOfWrongType,
    OtherNetwork,
    UnknownArgs,
    GarbledLease,
}

const NETNS: [Netns; 5] = [Netns::Alive, Netns::Gone, Netns::ReusedByOurs, Netns::ReusedByReference, Netns::Host];
const PREVIOUS: [Previous; 4] = [Previous::Given, Previous::Missing, Previous::Strange, Previous::OtherVersion];
const CHANGES: [Change; 6] = [
    Change::Nothing,
    Change::ValueOutOfRange,
    Change::ValueOfWrongType,
    Change::OtherNetwork,
    Change::UnknownArgs,
    Change::GarbledLease,
];

fn config(backend: &str) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br0", "isDefaultGateway": true,
        "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/16" }], [{ "subnet": "fd01::/64" }]] },
    })
}

/// A host with two neighbours, one attached by each implementation, and with its own interface `eth0`, the name that
/// containers use.
struct Host<'a> {
    lab: &'a Lab,
    config: Value,
    ours: Pod<'a>,
    theirs: Pod<'a>,
}

impl<'a> Host<'a> {
    fn new(lab: &'a Lab, backend: &str) -> Host<'a> {
        lab.sh("ip link add eth0 type veth peer name uplink && ip link set eth0 up && ip link set lo up");
        let config = config(backend);
        let (ours, theirs) = (Pod::new(lab, "ours"), Pod::new(lab, "theirs"));
        ours.add(&config);
        attach(&theirs, &config, AddedBy::Reference);
        Host { lab, config, ours, theirs }
    }

    /// Returns the state of the neighbours and of the host itself, which DEL must not change.
    fn bystanders(&self) -> String {
        let mut all = self.lab.sh("ip -o -d link show dev eth0; ip -o address show dev br0; ip -o address show dev lo");
        for pod in [&self.ours, &self.theirs] {
            all.push_str(&pod.sh("ip -o -d link show dev eth0; ip -o address show dev eth0; ip route; ip -6 route"));
            all.push_str(&traces(self.lab, &pod.id));
        }
        all
    }
}

/// The implementation that attached the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddedBy {
    Ours,
    Reference,
}

fn attach(pod: &Pod<'_>, config: &Value, added_by: AddedBy) -> Value {
    match added_by {
        AddedBy::Ours => pod.add(config),
        AddedBy::Reference => crate::upgrade::theirs(pod, "ADD", config).ok(),
    }
}

/// Lists the ports, leases and rules of a container. Of the rules, only comments contain its ID.
fn traces(lab: &Lab, id: &str) -> String {
    lab.sh(&format!(
        "ip -o link show type veth | grep -F ' {id} ' || true
         grep -rlxF -e '{id}' -e '{id}\r' /var/lib/cni || true
         nft list ruleset | grep -E '(id: |-){id}[\"-]' | sed -E 's/^\\s*(elements = \\{{)?\\s*//; s/(,| \\}})$//' || true
         iptables-save -t nat | grep -F '\\\"{id}\\\"' || true
         ip6tables-save -t nat | grep -F '\\\"{id}\\\"' || true"
    ))
}

/// Returns a result with strange interfaces.
fn strange(previous: &Value) -> Value {
    let mut strange = previous.clone();
    strange["interfaces"] = json!([
        { "name": "a-name-that-no-interface-can-have", "mac": "nonsense" },
        { "name": "", "sandbox": "" },
        { "name": "../../etc/passwd" },
        { "name": "uplink" },
        { "name": "eth0" },
        { "name": "eth0", "sandbox": "/run/netns/elsewhere" },
    ]);
    strange
}

/// Attaches a container, applies the changes, detaches it twice, and checks that nothing is left or damaged.
fn case(host: &Host<'_>, added_by: AddedBy, id: &str, netns: Netns, previous: Previous, change: Change) {
    let what = format!("{added_by:?} {netns:?} {previous:?} {change:?}");
    let lab = host.lab;
    let mut pod = Pod::new(lab, id);
    let result = attach(&pod, &host.config, added_by);
    let port = host_veth(&result);
    let own_netns = pod.netns.clone();
    let attached = traces(lab, id);
    // The reference sets no alias.
    assert!(
        added_by == AddedBy::Reference || attached.contains(&format!("alias cni-attachment net1 {id} eth0")),
        "{what}: {attached}"
    );
    let check = if added_by == AddedBy::Reference { "drop comment" } else { &format!("\"{port}\" comment") };
    for wanted in ["/10.1.", "/fd01::", check, "asquerade"] {
        assert!(attached.to_lowercase().contains(wanted), "{what}: no {wanted} in {attached}");
    }
    let before = host.bystanders();

    if netns != Netns::Alive {
        lab.sh(&format!("umount {0} && rm {0}", own_netns.display()));
    }
    pod.netns = match netns {
        Netns::Alive | Netns::Gone => own_netns.clone(),
        Netns::ReusedByOurs => host.ours.netns.clone(),
        Netns::ReusedByReference => host.theirs.netns.clone(),
        Netns::Host => PathBuf::from("/proc/self/ns/net"),
    };
    let mut config = host.config.clone();
    match previous {
        Previous::Given => config["prevResult"] = result.clone(),
        Previous::Missing => {}
        Previous::Strange => config["prevResult"] = strange(&result),
        Previous::OtherVersion => {
            config["prevResult"] = json!({ "cniVersion": "0.2.0", "ip4": { "ip": "10.1.0.2/16" } })
        }
    }
    match change {
        Change::Nothing | Change::UnknownArgs => {}
        Change::ValueOutOfRange => config["mtu"] = json!(99999),
        Change::ValueOfWrongType => config["isGateway"] = json!("yes"),
        Change::OtherNetwork => {
            let more = json!({
                "bridge": "br9", "ipMasq": false, "macspoofchk": false, "hairpinMode": true, "promiscMode": true,
                "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] },
            });
            config = with(config, more);
        }
        Change::GarbledLease => {
            for ip in result["ips"].as_array().unwrap() {
                let ip = ip["address"].as_str().unwrap().split('/').next().unwrap();
                fs::write(Path::new("/var/lib/cni/networks/net1").join(ip), "\0garbage").unwrap();
            }
        }
    }
    for time in ["first", "second"] {
        let call = pod.call("DEL", &config);
        let call = if change == Change::UnknownArgs { call.env("CNI_ARGS", "COLOUR=green") } else { call };
        let outcome = call.run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{what}: {time} DEL: {}", outcome.stderr);
        let expects_warning =
            matches!(change, Change::ValueOutOfRange | Change::ValueOfWrongType | Change::UnknownArgs);
        assert_eq!(outcome.stderr.contains("warning: "), expects_warning, "{what}: {}", outcome.stderr);
    }

    // Nothing proves whose a pair without an alias is when the result of ADD is lost, and its lease is lost too or the
    // network has another bridge by now. The pair stays until the runtime deletes the namespace.
    let unproven = added_by == AddedBy::Reference
        && previous != Previous::Given
        && matches!(change, Change::GarbledLease | Change::OtherNetwork);
    if netns == Netns::Alive {
        let left = lab.sh(&format!("nsenter --net={} ip -o link show type veth", own_netns.display()));
        assert_eq!(left.is_empty(), !unproven, "{what}: {left}");
        lab.sh(&format!("umount {0} && rm {0}", own_netns.display()));
    }
    assert_eq!(traces(lab, id), "", "{what}");
    assert!(!Path::new("/sys/class/net").join(port).exists() || unproven, "{what}");
    assert_eq!(host.bystanders(), before, "{what}");
}

/// Runs all combinations of `Netns` and `Previous`, with enough changes that every pair of conditions occurs.
fn every_case(added_by: AddedBy, backend: &str) {
    let lab = &Lab::new();
    let host = Host::new(lab, backend);
    for (n, netns) in NETNS.into_iter().enumerate() {
        for (p, previous) in PREVIOUS.into_iter().enumerate() {
            for (c, change) in CHANGES.into_iter().enumerate() {
                if change == Change::Nothing || (n + p + c) % 3 == 0 {
                    case(&host, added_by, &format!("victim{n}{p}{c}"), netns, previous, change);
                }
            }
        }
    }
}

#[test]
fn del_with_nftables_affects_no_neighbour() {
    if reference("bridge", "del_with_nftables_affects_no_neighbour").is_some() {
        every_case(AddedBy::Ours, "nftables");
    }
}

#[test]
fn del_with_iptables_affects_no_neighbour() {
    if reference("bridge", "del_with_iptables_affects_no_neighbour").is_some() {
        every_case(AddedBy::Ours, "iptables");
    }
}

#[test]
fn del_of_an_attachment_of_the_reference_affects_no_neighbour() {
    if reference("bridge", "del_of_an_attachment_of_the_reference_affects_no_neighbour").is_some() {
        every_case(AddedBy::Reference, "iptables");
    }
}

#[test]
fn del_after_the_bridge_was_deleted_affects_no_neighbour() {
    if reference("bridge", "del_after_the_bridge_was_deleted_affects_no_neighbour").is_none() {
        return;
    }
    for (added_by, backend) in
        [(AddedBy::Ours, "nftables"), (AddedBy::Ours, "iptables"), (AddedBy::Reference, "iptables")]
    {
        for previous in PREVIOUS {
            let lab = &Lab::new();
            let host = Host::new(lab, backend);
            let pod = Pod::new(lab, "victim");
            let result = attach(&pod, &host.config, added_by);
            lab.sh("ip link del br0 && ip link add br0 type bridge");
            let before = host.bystanders();
            let mut config = host.config.clone();
            match previous {
                Previous::Given => config["prevResult"] = result,
                Previous::Strange => config["prevResult"] = strange(&result),
                Previous::Missing | Previous::OtherVersion => {}
            }
            pod.del(&config);
            assert_eq!(traces(lab, "victim"), "", "{added_by:?} {backend} {previous:?}");
            assert_eq!(pod.sh("ip -o link show type veth"), "", "{added_by:?} {backend} {previous:?}");
            assert_eq!(host.bystanders(), before, "{added_by:?} {backend} {previous:?}");
        }
    }
}

#[test]
fn del_without_the_bridge_and_the_result_of_add_finds_the_pair() {
    if reference("bridge", "del_without_the_bridge_and_the_result_of_add_finds_the_pair").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = config("iptables");
    let pod = Pod::new(lab, "a");
    attach(&pod, &config, AddedBy::Reference);
    lab.sh("ip link del br0");
    pod.del(&config);
    assert_eq!(pod.sh("ip -o link show type veth"), "");
}

/// Without a result of ADD only the lease says whose a pair of the reference is, and that is not enough where another
/// network has the same addresses, or another container has taken the address in addition to its own.
#[test]
fn the_address_of_a_dead_container_does_not_prove_whose_an_interface_is() {
    if reference("bridge", "the_address_of_a_dead_container_does_not_prove_whose_an_interface_is").is_none() {
        return;
    }
    let lab = &Lab::new();
    let other = {
        let more = json!({ "name": "net2", "bridge": "br2", "isDefaultGateway": false, "isGateway": false });
        with(config("iptables"), more)
    };
    let (dead, twin) = (Pod::new(lab, "dead"), Pod::new(lab, "twin"));
    let result = attach(&dead, &config("iptables"), AddedBy::Reference);
    let same = attach(&twin, &other, AddedBy::Reference);
    assert_eq!(result["ips"][0]["address"], same["ips"][0]["address"]);
    let vip = Pod::new(lab, "vip");
    attach(&vip, &config("iptables"), AddedBy::Reference);
    vip.sh(&format!("ip address add {} dev eth0", result["ips"][0]["address"].as_str().unwrap()));
    lab.sh("ip netns del dead");
    for (pod, previous) in [(&twin, true), (&twin, false), (&vip, true), (&vip, false)] {
        let mut config = config("iptables");
        if previous {
            config["prevResult"] = result.clone();
        }
        // The path of the dead container leads to this one by now. Each DEL meets the lease, which is made again.
        let late = Pod { id: "dead".into(), ..pod.clone() };
        let lease = format!("/var/lib/cni/networks/net1/{}", "10.1.0.2");
        fs::write(&lease, "dead\r\neth0").unwrap();
        late.del(&config);
        pod.sh("ip link show dev eth0");
        assert!(!Path::new(&lease).exists());
    }
}

/// A lease must outlive the interface that has its address.
#[test]
fn del_and_gc_that_cannot_remove_the_interface_keep_the_lease() {
    let lab = &Lab::new();
    let config = config("nftables");
    let pod = Pod::new(lab, "a");
    pod.add(&config);
    let leases = || lab.sh("ls /var/lib/cni/networks/net1 | grep -c '[.:].*[0-9a-f]$' || true");
    let before = leases();
    let powerless = "setpriv --bounding-set=-net_admin --inh-caps=-net_admin -- \"$0\"";
    let outcome = pod.call("DEL", &config).via_shell(powerless).run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert_eq!(leases(), before);
    let gc = with(config.clone(), json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": [] }));
    let outcome = lab.plugin("bridge", "GC").stdin(gc.to_string()).via_shell(powerless).run();
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert_eq!(leases(), before);
    pod.del(&config);
    assert_eq!(traces(lab, "a"), "");
}

#[test]
fn the_spoof_check_of_a_live_container_stays() {
    let lab = &Lab::new();
    let config = config("nftables");
    let pod = Pod::new(lab, "a");
    let result = pod.add(&config);
    let mut other = with(config.clone(), json!({ "name": "net2", "bridge": "br2" }));
    other["ipam"]["ranges"] = json!([[{ "subnet": "10.2.0.0/24" }]]);
    // A second ADD to the same network fails, and its rollback leaves the first alone.
    let again = Pod { netns: lab.netns("again"), ..pod.clone() };
    let error = again.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("has a spoof check"), "{error}");
    pod.check_result(&config, &result).ok();
    // Another network has its own check, with the same container ID and interface name.
    let second = again.add(&other);
    again.check_result(&other, &second).ok();
    again.del(&other);
    pod.check_result(&config, &result).ok();
    pod.del(&config);
    assert_eq!(traces(lab, "a"), "");
}

/// The reference's plugins do their work in the host's own namespace, and then fail.
#[test]
fn an_ipam_program_is_not_called_with_the_hosts_own_namespace() {
    if reference("host-local", "an_ipam_program_is_not_called_with_the_hosts_own_namespace").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = config("nftables");
    let mut pod = Pod::new(lab, "a");
    pod.call("ADD", &config).env("CNI_PATH", REFERENCE).run().ok();
    pod.netns = "/proc/self/ns/net".into();
    pod.call("DEL", &config).env("CNI_PATH", REFERENCE).run().ok();
    assert_eq!(traces(lab, "a"), "");
}

/// Without an alias, a lease or a result, an interface does not belong to any attachment that DEL knows.
#[test]
fn an_interface_of_the_same_name_that_another_tool_created_stays() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "a");
    lab.sh(&format!("ip link add veth1 type veth peer name eth0 netns {}", pod.netns.display()));
    for config in [config("nftables"), json!({ "cniVersion": "1.0.0", "name": "net1", "type": "bridge" })] {
        pod.del(&config);
        pod.sh("ip link show dev eth0");
    }
}

#[test]
fn add_into_the_hosts_own_namespace_is_still_rejected() {
    let lab = &Lab::new();
    let pod = Pod { netns: "/proc/self/ns/net".into(), ..Pod::new(lab, "a") };
    let error = pod.call("ADD", &config("nftables")).run().error(8);
    assert!(error["details"].as_str().unwrap().contains("CNI_NETNS_OVERRIDE"), "{error}");
    assert_eq!(lab.ip("link show type bridge"), json!([]));
}
