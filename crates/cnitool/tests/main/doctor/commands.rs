//! Runs every command that `doctor` can print: it removes its finding, and changes nothing else.

use std::collections::BTreeSet;

use cni::inspect::Command;
use serde_json::{Value, json};
use testing::{Process, program_path, skip, write_script};

use super::{OkPage, assert_healthy};
use crate::master::{forget, on_master, with_master};
use crate::node::{attach, host, host_with, json, lose_namespace, network, port, wait_for_ports};
use crate::support::Host;

/// Defines a test for each problem: a healthy host, what damages it, and what undoes the rest of the damage after the
/// commands. Both are scripts.
macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident: $command:ident, $host:expr, $damage:expr, $undo:expr;)+) => {
        const TESTED: &[Command] = &[$(Command::$command,)+];

        $($(#[$doc])*
        #[test]
        fn $name() {
            run(stringify!($name), &$host, Command::$command, $damage, $undo);
        })+
    };
}

commands! {
    flushed_rules: Repair, plain("10.70.0.0/24"),
        |_| "nft flush table inet cni_plugins_masquerade".to_owned(), "";
    a_container_that_is_gone: Prune, plain("10.71.0.0/24"),
        |host| { lose_namespace(host, "lost", &attach(host, "lost")); String::new() }, "";
    policies_of_a_bridge_that_is_gone: PruneAll, without_bridge("10.72.0.0/24"),
        |host| { lose_bridge(host); String::new() }, "";
    forwarding_is_off: ForwardIpv4, plain("10.73.0.0/24"),
        |_| "sysctl -qw net.ipv4.ip_forward=0".to_owned(), "";
    ipv6_forwarding_is_off: ForwardIpv6, dual("10.74.0.0/24", "fd00:74::/64"),
        |_| "sysctl -qw net.ipv6.conf.all.forwarding=0".to_owned(), "";
    forwarding_of_a_bridge_is_off: ForwardFrom, plain("10.75.0.0/24"),
        |_| "sysctl -qw net.ipv4.conf.br-pods.forwarding=0".to_owned(), "";
    a_default_route_that_expires: AcceptAdvertisements, advertised("10.76.0.0/24", "fd00:76::/64"),
        |_| "sysctl -qw net.ipv6.conf.uplink.accept_ra=1".to_owned(), "";
    /// Forwarding alone would let the default route of the host expire.
    a_default_route_that_would_expire: AcceptAdvertisements, advertised("10.77.0.0/24", "fd00:77::/64"),
        |_| "sysctl -qw net.ipv6.conf.uplink.accept_ra=1; sysctl -qw net.ipv6.conf.all.forwarding=0".to_owned(), "";
    a_strict_filter: FilterLoosely, two_uplinks("10.78.0.0/24"),
        |_| "for link in br-pods up1 up2; do sysctl -qw net.ipv4.conf.$link.rp_filter=0; done".to_owned(), "";
    a_policy: AcceptFrom, filtering("10.79.0.0/24"),
        |_| "iptables -P FORWARD DROP".to_owned(),
        "iptables -P FORWARD ACCEPT; iptables -D FORWARD -i br-pods -j ACCEPT; iptables -D FORWARD -o br-pods -j ACCEPT";
    a_policy_with_a_rule_for_one_direction: AcceptTo, filtering("10.80.0.0/24"),
        |_| "iptables -P FORWARD DROP; iptables -A FORWARD -i br-pods -j ACCEPT".to_owned(),
        "iptables -P FORWARD ACCEPT; iptables -D FORWARD -i br-pods -j ACCEPT; iptables -D FORWARD -o br-pods -j ACCEPT";
    a_last_rule: AcceptFromBefore, filtering("10.81.0.0/24"),
        |_| "iptables -A FORWARD -p tcp --dport 80 -j ACCEPT; iptables -A FORWARD -j REJECT".to_owned(), "iptables -F FORWARD";
    a_last_rule_for_one_direction: AcceptToBefore, filtering("10.82.0.0/24"),
        |_| "iptables -A FORWARD -i br-pods -j ACCEPT; iptables -A FORWARD -j REJECT".to_owned(), "iptables -F FORWARD";
    a_legacy_policy: AcceptFrom, legacy("10.83.0.0/24"),
        |_| "iptables-legacy -P FORWARD DROP".to_owned(), "iptables-legacy -P FORWARD ACCEPT; iptables-legacy -F FORWARD";
    a_master_that_is_down: SetUp, attached("10.254.5.0/24"),
        |_| "ip link set uplink down".to_owned(), "";
    a_port_that_is_down: SetUp, plain("10.84.0.0/24"),
        |_| format!("ip link set {} down", only_port()), "";
    /// The kernel removes IPv6 addresses of a link that goes down.
    a_bridge_that_is_down: SetUp, dual("10.85.0.0/24", "fd00:85::/64"),
        |_| "ip link set br-pods down".to_owned(), "";
    a_port_on_no_bridge: SetMaster, with("10.86.0.0/24", &json!({ "hairpinMode": true, "portIsolation": true })),
        |_| format!("ip link set {} nomaster", only_port()), "";
    a_port_without_hairpin_mode: SetHairpin, with("10.87.0.0/24", &json!({ "hairpinMode": true })),
        |_| format!("ip link set {} type bridge_slave hairpin off", only_port()), "";
    a_port_that_is_not_isolated: Isolate, with("10.88.0.0/24", &json!({ "portIsolation": true })),
        |_| format!("ip link set {} type bridge_slave isolated off", only_port()), "";
    a_bridge_with_another_mtu_than_its_ports: SetMtu, plain("10.89.0.0/24"),
        |_| "ip link set br-pods mtu 1300".to_owned(), "";
    a_bridge_with_another_mtu_than_configured: SetMtu, with("10.90.0.0/24", &json!({ "mtu": 1400 })),
        |_| "ip link set br-pods mtu 1300".to_owned(), "";
    a_lost_gateway: AddAddress, plain("10.91.0.0/24"),
        |_| "ip address del 10.91.0.1/24 dev br-pods".to_owned(), "";
    a_lost_ipv6_gateway: AddAddressIpv6, dual("10.92.0.0/24", "fd00:92::/64"),
        |_| "ip address del fd00:92::1/64 dev br-pods".to_owned(), "";
    a_link_of_the_reference: DeleteLink, chained("10.93.0.0/24", &json!({ "type": "bandwidth" })),
        |_| "ip link add bwp0123456789ab type ifb".to_owned(), "";
    a_way_to_containers_that_are_gone: DeleteLink, on_master("10.98.0.0/24", json!({ "type": "macvlan", "hostAccess": ["10.98.0.200"] })),
        |host| { attach(host, "lost"); forget(host, "lost"); String::new() }, "";
    /// The kernel removes routes and IPv6 addresses of a link that goes down.
    an_interface_that_is_down: SetGuestUp, dual("10.94.0.0/24", "fd00:94::/64"),
        |_| "ip -n blue link set eth0 down".to_owned(), "";
    an_interface_with_a_larger_mtu: SetGuestMtu, plain("10.95.0.0/24"),
        |_| "ip -n blue link set eth0 mtu 9000".to_owned(), "";
    attributes_of_tuning: SetGuestAttribute, tuned("10.96.0.0/24"),
        |_| "ip -n blue link set eth0 address 02:00:00:00:00:08 promisc off allmulticast off txqueuelen 8 mtu 1300".to_owned(), "";
    sysctls_of_tuning: SetGuestSysctl, tuned("10.97.0.0/24"),
        |_| "ip netns exec blue sysctl -qw net.ipv4.conf.eth0.arp_filter=0 'net.ipv4.ip_local_port_range=1024 3000'".to_owned(), "";
    a_lost_address: AddGuestAddress, plain("10.63.0.0/24"),
        |_| "ip -n blue address flush dev eth0".to_owned(), "";
    a_lost_ipv6_address: AddGuestAddressIpv6, dual("10.64.0.0/24", "fd00:64::/64"),
        |_| "ip -n blue -6 address flush dev eth0 scope global".to_owned(), "";
    an_address_of_another_container: DeleteGuestAddress, two("10.65.0.0/24"),
        |_| "ip -n red address add 10.65.0.2/24 dev eth0".to_owned(), "";
    a_lost_route: AddGuestRoute, plain("10.66.0.0/24"),
        |_| "ip -n blue route del default".to_owned(), "";
    a_lost_lease: RestoreLease, plain("10.67.0.0/24"),
        |_| "rm /var/lib/cni/networks/pods/10.67.0.2".to_owned(), "";
    a_lost_directory_of_leases: RestoreLease, plain("10.68.0.0/24"),
        |_| "rm -r /var/lib/cni/networks".to_owned(), "";
}

#[test]
fn every_command_is_tested_and_documented() {
    let document = include_str!("../../../../../docs/cnitool.md");
    for command in Command::ALL {
        assert!(TESTED.contains(command), "no test runs {:?}", command.template());
        let words = command.template().replace('*', "");
        let mut documented = String::new();
        for part in words.split_inclusive('}') {
            let (text, name) = part.split_once('{').unwrap_or((part, ""));
            documented += &format!("{text}{}", name.trim_end_matches('}').to_uppercase());
        }
        assert!(document.contains(&format!("`{documented}`")), "docs/cnitool.md does not list `{documented}`");
    }
}

fn plain(subnet: &str) -> Host {
    with(subnet, &json!({}))
}

/// A host whose network has these keys of `bridge`.
fn with(subnet: &str, more: &Value) -> Host {
    let host = host(subnet);
    host.configure("10-pods.conflist", &network("pods", subnet, more).to_string());
    attach(&host, "blue");
    host
}

/// A host with a container on a link of the host.
fn attached(subnet: &str) -> Host {
    let host = with_master(subnet);
    attach(&host, "blue");
    host
}

/// A host whose network has a second plugin.
fn chained(subnet: &str, plugin: &Value) -> Host {
    let host = host_with(subnet, plugin);
    attach(&host, "blue");
    host
}

/// A host whose network with an ingress policy had a container once.
fn without_bridge(subnet: &str) -> Host {
    let host = host_with(subnet, &json!({ "type": "firewall", "ingressPolicy": "same-bridge" }));
    lose_bridge(&host);
    host.run("prune --force").ok_page();
    host
}

/// Attaches and detaches a container, and deletes the bridge, whose policies stay, as after a DEL of the reference.
fn lose_bridge(host: &Host) {
    attach(host, "lost");
    let policy = host.lab.sh("iptables -S | grep '^-A CNI-ISOLATION-'");
    host.run("del pods lost").ok();
    policy.lines().for_each(|rule| drop(host.lab.sh(&format!("iptables {rule}"))));
    host.lab.sh("ip link delete br-pods; umount /run/netns/lost; rm /run/netns/lost");
}

fn dual(subnet: &str, second: &str) -> Host {
    let ranges = json!([[{ "subnet": subnet }], [{ "subnet": second }]]);
    with(subnet, &json!({ "ipam": { "type": "host-local", "ranges": ranges } }))
}

fn two(subnet: &str) -> Host {
    let host = plain(subnet);
    attach(&host, "red");
    host
}

/// A host with a default route that it got from a router.
fn advertised(subnet: &str, second: &str) -> Host {
    let host = dual(subnet, second);
    host.lab.outside();
    host.lab
        .sh("sysctl -qw net.ipv6.conf.uplink.accept_ra=2; ip -6 route add default via 2001:db8::2 dev uplink proto ra");
    host
}

fn two_uplinks(subnet: &str) -> Host {
    let host = plain(subnet);
    host.lab.netns("outside");
    host.lab.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1
         for n in 1 2; do
             ip link add up$n type veth peer name eth$n netns outside; ip address add 192.0.$n.1/24 dev up$n
             ip link set up$n up; ip -n outside link set eth$n up; ip route add default via 192.0.$n.2 metric $n
         done
         for link in br-pods up1 up2; do sysctl -qw net.ipv4.conf.$link.rp_filter=2; done");
    host
}

/// A host with a table of iptables.
fn filtering(subnet: &str) -> Host {
    let host = plain(subnet);
    host.lab.sh("iptables -P FORWARD ACCEPT");
    host
}

/// A host with a legacy table, and with the plugin `firewall`, whose rules are in nf_tables only.
fn legacy(subnet: &str) -> Host {
    let host = chained(subnet, &json!({ "type": "firewall", "backend": "iptables" }));
    Process::new("iptables-legacy").arg("-P").arg("FORWARD").arg("ACCEPT").run();
    host
}

fn tuned(subnet: &str) -> Host {
    let keys = json!({
        "type": "tuning", "mac": "02:00:00:00:00:07", "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 7,
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_local_port_range": "1024 2000" },
    });
    chained(subnet, &keys)
}

/// Returns the port of the only container.
fn only_port() -> String {
    port("")
}

/// Damages a healthy host, runs the commands that `doctor` prints, and asserts that one is `command`, that the host is
/// healthy again, and that it is then as it was before.
#[track_caller]
fn run(test: &str, host: &Host, command: Command, damage: fn(&Host) -> String, undo: &str) {
    let is_legacy = undo.contains("-legacy");
    if is_legacy && Process::new("iptables-legacy").arg("-S").run().status != Some(0) {
        return skip(test, "the kernel or the host has no iptables-legacy");
    }
    wait_for_ports();
    let before = state(host);
    assert_healthy(host, "before");
    host.lab.sh(&damage(host));
    let answer = json(host, "doctor --json");
    let findings = answer["findings"].as_array().unwrap();
    let commands: Vec<&str> = findings.iter().filter_map(|finding| finding["command"].as_str()).collect();
    let is_printed = commands.iter().flat_map(|line| line.split("; ")).any(|line| matches(command, line));
    assert!(is_printed, "{:?} is not among {commands:#?} in {answer:#}", command.template());
    let without = findings.iter().filter(|finding| finding["level"] != "ok" && finding["command"].is_null());
    assert_eq!(without.count(), 0, "{answer:#}");
    let tools = host.lab.dir().join("tools");
    std::fs::create_dir(&tools).unwrap();
    // `prune` refuses to run in another namespace than the host's, as in this test.
    let script = format!("[ $1 != prune ] || set -- \"$@\" --force\nexec {} \"$@\"", program_path("cnitool").display());
    write_script(&tools.join("cnitool"), &script);
    for line in &commands {
        let outcome = Process::new("sh")
            .arg("-ec")
            .arg(line)
            .env("PATH", format!("{}:{}", tools.display(), testing::PATH))
            .env("CNI_PATH", host.lab.bin())
            .env("NETCONFPATH", host.conf_dir())
            .run();
        assert_eq!(outcome.status, Some(0), "{line}: {outcome:?}");
    }
    wait_for_ports();
    assert_healthy(host, &format!("{commands:#?}"));
    host.lab.sh(undo);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (lines(&before), lines(&state(host)));
    let changes: Vec<&String> = before.symmetric_difference(&after).collect();
    assert_eq!(changes, [""; 0], "{commands:#?}");
}

/// Returns whether a line is this command with any values.
fn matches(command: Command, line: &str) -> bool {
    let mut words = line.split(' ');
    for wanted in command.template().split(' ') {
        let Some(word) = words.next() else { return false };
        let Some((start, rest)) = wanted.split_once('{') else {
            if word != wanted {
                return false;
            }
            continue;
        };
        let (name, end) = rest.split_once('}').unwrap();
        if name.ends_with('*') || word.starts_with('\'') {
            return true;
        }
        if !word.starts_with(start) || !word.ends_with(end) {
            return false;
        }
    }
    words.next().is_none()
}

/// Returns everything that a command might change on the host and in its containers, one fact in a line, without what
/// changes by itself.
fn state(host: &Host) -> String {
    let of_namespace = "
        ip -j -d link | jq -c '.[] | [.ifname, .address, .mtu, .txqlen, .master, .ifalias, .linkinfo.info_kind,
            .linkinfo.info_slave_data.hairpin, .linkinfo.info_slave_data.isolated,
            (.flags - [\"LOWER_UP\", \"NO-CARRIER\"] | sort)]'
        ip -j address | jq -c '.[] | .ifname as $name | .addr_info[] | select(.scope == \"global\") |
            [$name, .local, .prefixlen]'
        { ip -4 route show table all; ip -6 route show table all | grep -v 'fe80\\|ff00\\|^anycast'; } |
            sed 's/ linkdown//; s/ expires [0-9a-z]*//; s/ *$//'
        grep -rs . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/conf \
            /proc/sys/net/ipv6/conf
        tc qdisc show";
    host.lab.sh(&format!(
        "for netns in /proc/self/ns/net $(find /run/netns -type f); do
             export netns
             nsenter --net=$netns sh -c '{}' | sed \"s|^|$netns: |\"
         done
         nft -s list ruleset | sed 's/^[ \\t]*//'
         {{ iptables-legacy-save 2>/dev/null || true; }} | sed '/^#/d; s/\\[.*\\]//'
         find /var/lib/cni -type f ! -name 'last_reserved_ip*' ! -name lock | while read -r file; do
             echo \"$file: $(tr '\\r\\n' '  ' <$file)\"
         done",
        of_namespace.replace('\'', "'\\''")
    ))
}
