//! The same calls of the reference and of cni0, on identical hosts: results and kernel state must be equal, except for
//! the differences that are listed here with a reason.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Outcome, Pod, REFERENCE, reference};

/// The state that is compared after each step, by name.
type State = BTreeMap<&'static str, String>;

/// A configuration to compare, and a command that prepares the host.
struct Case {
    name: &'static str,
    prepare: &'static str,
    config: Value,
    args: &'static str,
}

fn case(name: &'static str, more: Value) -> Case {
    let config = with(json!({ "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br0" }), more);
    Case { name, prepare: "true", config, args: "" }
}

fn v4() -> Value {
    json!({ "type": "host-local", "subnet": "10.1.0.0/24" })
}

fn ranges(subnets: &[&str], routes: Value) -> Value {
    let ranges: Vec<_> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    json!({ "type": "host-local", "ranges": ranges, "routes": routes })
}

fn cases() -> Vec<Case> {
    let dual = || ranges(&["10.1.0.0/24", "fd01::/64"], json!([]));
    let mut cases = vec![
        case("layer 2", json!({})),
        case("layer 2, other bridge", json!({ "bridge": "other" })),
        case("layer 2, hairpin", json!({ "hairpinMode": true })),
        case("layer 2, promiscuous", json!({ "promiscMode": true })),
        case("layer 2, MTU", json!({ "mtu": 1400 })),
        case("layer 2, negative MTU", json!({ "mtu": -5 })),
        case("layer 2, gateway has no effect", json!({ "isGateway": true, "isDefaultGateway": true, "ipMasq": true })),
        case("layer 2, dns", json!({ "dns": { "nameservers": ["1.1.1.1"], "search": ["a", "b"] } })),
        case("layer 2, mac by runtime", json!({ "runtimeConfig": { "mac": "02:00:00:00:00:07" } })),
        case("layer 2, mac by args", json!({ "args": { "cni": { "mac": "02:00:00:00:00:08" } } })),
        case("keys in any case", json!({ "ISGATEWAY": true, "Mtu": 1300, "IPAM": v4() })),
        case("null is nothing", json!({ "mtu": null, "vlan": null, "ipam": null, "hairpinMode": null })),
        case("unknown keys", json!({ "frobnicate": [1, 2], "capabilities": { "mac": true } })),
        case("plain", json!({ "ipam": v4() })),
        case("gateway", json!({ "isGateway": true, "ipam": v4() })),
        case("default gateway", json!({ "isDefaultGateway": true, "ipam": v4() })),
        case("default gateway, hairpin", json!({ "isDefaultGateway": true, "hairpinMode": true, "ipam": v4() })),
        case("IPv6", json!({ "isDefaultGateway": true, "ipam": ranges(&["fd01::/64"], json!([])) })),
        case("IPv6 without gateway", json!({ "ipam": ranges(&["fd01::/64"], json!([])) })),
        case("dual stack", json!({ "isDefaultGateway": true, "ipam": dual() })),
        case(
            "dual stack, IPv6 first",
            json!({ "isDefaultGateway": true, "ipam": ranges(&["fd01::/64", "10.1.0.0/24"], json!([])) }),
        ),
        case("dual stack, MTU", json!({ "isGateway": true, "mtu": 1400, "ipam": dual() })),
        case("small networks", json!({ "isGateway": true, "ipam": ranges(&["10.1.0.0/29", "fd01::/120"], json!([])) })),
        case(
            "routes",
            json!({ "isGateway": true, "ipam": ranges(&["10.1.0.0/24"], json!([{ "dst": "10.9.0.0/16" }, { "dst": "10.8.0.0/16", "gw": "10.1.0.9" }])) }),
        ),
        case(
            "routes of both families",
            json!({ "isGateway": true, "ipam": ranges(&["10.1.0.0/24", "fd01::/64"], json!([{ "dst": "10.9.0.0/16" }, { "dst": "fd09::/64", "gw": "fd01::9" }])) }),
        ),
        case("routes without gateway", json!({ "ipam": ranges(&["10.1.0.0/24"], json!([{ "dst": "10.9.0.0/16" }])) })),
        case(
            "own default route",
            json!({ "isDefaultGateway": true, "ipam": ranges(&["10.1.0.0/24"], json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.9" }])) }),
        ),
        case(
            "default route to everywhere",
            json!({ "ipam": ranges(&["10.1.0.0/24"], json!([{ "dst": "0.0.0.0/0" }])) }),
        ),
        case(
            "named gateway",
            json!({ "isDefaultGateway": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24", "gateway": "10.1.0.254" } }),
        ),
        case(
            "static address",
            json!({ "isGateway": true, "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.77/24", "gateway": "10.1.0.1" }] } }),
        ),
        case(
            "two static addresses, no gateway",
            json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.77/24" }, { "address": "10.2.0.77/24" }] } }),
        ),
        case(
            "dns replaces that of ipam",
            json!({ "dns": { "domain": "d" }, "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.77/24" }], "dns": { "nameservers": ["9.9.9.9"] } } }),
        ),
        case(
            "dns of ipam",
            json!({ "dns": {}, "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.77/24" }], "dns": { "nameservers": ["9.9.9.9"] } } }),
        ),
        case(
            "duplicate detection",
            json!({ "isGateway": true, "enabledad": true, "ipam": ranges(&["fd01::/64"], json!([])) }),
        ),
        case("masquerade", json!({ "ipMasq": true, "ipMasqBackend": "iptables", "ipam": v4() })),
        case(
            "masquerade, dual stack",
            json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual() }),
        ),
        case("spoof check", json!({ "macspoofchk": true, "ipam": v4() })),
        case("spoof check, layer 2", json!({ "macspoofchk": true })),
        case(
            "everything",
            json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "macspoofchk": true, "hairpinMode": true, "mtu": 1400, "ipam": dual() }),
        ),
        case("force address", json!({ "isGateway": true, "forceAddress": true, "ipam": v4() })),
    ];
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0"] {
        cases.push(case("older version", json!({ "cniVersion": version, "isDefaultGateway": true, "ipam": dual() })));
    }
    cases.push(Case {
        prepare: "ip link add br0 type bridge; ip link set br0 up",
        ..case("existing bridge", json!({ "isGateway": true, "ipam": v4() }))
    });
    cases.push(Case {
        prepare: "ip link add br0 type bridge; ip address add 10.1.0.200/24 dev br0; ip link set br0 up",
        ..case("existing bridge, forced", json!({ "isGateway": true, "forceAddress": true, "ipam": v4() }))
    });
    cases.push(Case {
        prepare: "sysctl -qw net.ipv4.ip_forward=1",
        ..case("forwarding is on", json!({ "isGateway": true, "ipam": v4() }))
    });
    cases.push(Case {
        args: "IgnoreUnknown=1;MAC=02:00:00:00:00:09;K=V",
        ..case("mac by CNI_ARGS", json!({ "ipam": v4() }))
    });
    cases
}

/// Returns the reason if the results of a step differ on purpose.
fn intended_difference(case: &str, step: &str) -> Option<&'static str> {
    match (case, step) {
        ("routes" | "routes of both families" | "routes without gateway", "CHECK") => {
            Some("the reference looks for the route without the next hop that it added, and fails")
        }
        ("dns of ipam", "ADD") => Some("1.1.1 replaces the DNS settings of IPAM by an empty \"dns\", 1.9.1 does not"),
        _ => None,
    }
}

/// One of the two implementations, on its host.
struct Side<'a> {
    pod: Pod<'a>,
    ours: bool,
}

impl Side<'_> {
    fn call(&self, command: &str, case: &Case, previous: Option<&Value>) -> Outcome {
        let mut config = case.config.clone();
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        let calling = if self.ours {
            let path = format!("{}:{REFERENCE}", self.pod.lab.bin().display());
            self.pod.call(command, &config).env("CNI_PATH", path)
        } else {
            self.pod.call_reference(command, &config)
        };
        calling.env("CNI_ARGS", case.args).run()
    }

    /// Returns the kernel's state, without random values and intended differences.
    fn state(&self, result: &Value) -> State {
        let lab = self.pod.lab;
        let mut state = State::new();
        let mut note = |name, text: String| {
            state.insert(name, self.normalize(&text, result));
        };
        // Not compared: link-local addresses and interface indexes, which depend on random MAC addresses and on the
        // order of creation; `nodad`, because addresses of cni0 are usable at once; the queue lengths of the veth pair,
        // which the reference sets to 0 by accident; keep_addr_on_down, which the reference sets since 1.2.0.
        let tidy = r"sed -E 's/^[0-9]+: //; s/(nodad|tentative|dadfailed) ?//g; s/ qlen [0-9]+//; s/ if[0-9]+//g; s/@[a-z0-9]+//'";
        let addresses = format!("ip -o address show scope global | sed 's/.*: //' | {tidy}");
        note("host addresses", lab.sh(&format!("{addresses} | sort")));
        note("container addresses", self.pod.sh(&addresses.replace('\'', "\"")));
        note(
            "container routes",
            self.pod.sh("ip -4 route show table all; ip -6 route show table all | grep -v fe80 | grep -v ff00 || true"),
        );
        let bridge = |key: &str| format!("ip -j -d link show master {} | jq -c \"[.[] | {key}]\"", self.bridge());
        if self.has_bridge() {
            note("port", lab.sh(&bridge("[.operstate, .mtu, .linkinfo.info_slave_data.hairpin, .linkinfo.info_slave_data.isolated, .linkinfo.info_slave_data.state]")));
            // A bridge of the reference gets the default MTU when it has no ports any more.
            let has_ports = !lab.sh(&format!("ip -o link show master {}", self.bridge())).is_empty();
            let mtu = if has_ports { ".mtu, " } else { "" };
            note(
                "bridge",
                lab.sh(&format!("ip -j -d link show {} | jq -c '.[0] | [{mtu}.promiscuity, .flags]'", self.bridge())),
            );
            note("bridge settings", lab.sh(&format!("sysctl -n net.ipv6.conf.{}.accept_ra", self.bridge())));
        }
        note("forwarding", lab.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding"));
        let keys = "net.ipv6.conf.eth0.accept_dad net.ipv6.conf.eth0.enhanced_dad net.ipv4.conf.eth0.arp_notify net.ipv6.conf.eth0.accept_ra net.ipv6.conf.lo.disable_ipv6";
        note("container settings", self.pod.sh(&format!("sysctl -n {keys} 2>/dev/null || true")));
        note("container link", self.pod.sh("ip -j link show | jq -c \"[.[] | [.ifname, .mtu, .operstate, .flags]]\""));
        note("iptables", lab.sh("iptables-save -t nat 2>/dev/null | grep -v '^[#:]' | sort; ip6tables-save -t nat 2>/dev/null | grep -v '^[#:]' | sort"));
        note("leases", lab.sh("find /var/lib/cni -type f ! -name lock ! -name '.*' 2>/dev/null | sort || true"));
        state
    }

    fn bridge(&self) -> &'static str {
        if self.pod.lab.sh("ip -o link show other 2>/dev/null || true").is_empty() { "br0" } else { "other" }
    }

    fn has_bridge(&self) -> bool {
        !self.pod.lab.sh("ip -o link show type bridge").is_empty()
    }

    /// Replaces random names and MAC addresses by placeholders.
    fn normalize(&self, text: &str, result: &Value) -> String {
        let mut text = text.to_owned();
        for (index, interface) in result["interfaces"].as_array().into_iter().flatten().enumerate() {
            for (key, mark) in [("mac", "MAC"), ("name", "NAME")] {
                if let Some(value) = interface[key].as_str().filter(|value| value.len() > 5) {
                    text = text.replace(value, &format!("{mark}{index}"));
                }
            }
        }
        text.trim().to_owned()
    }
}

/// Runs a case on a host of its own. Returns the answer of every step and the state after it.
fn run(case: &Case, ours: bool) -> Vec<(String, State)> {
    let lab = &Lab::new();
    lab.sh("ip link set lo up");
    lab.sh(case.prepare);
    let side = Side { pod: Pod::new(lab, "twin"), ours };
    let mut steps = Vec::new();
    let added = side.call("ADD", case, None);
    let result = added.ok();
    let mut answer = result.clone();
    // MAC addresses are replaced by position: the reference's bridge has the MAC address of its port until it is a
    // gateway.
    for (index, interface) in answer["interfaces"].as_array_mut().into_iter().flatten().enumerate() {
        interface["mac"] = json!(format!("MAC{index}"));
        if index == 1 {
            interface["name"] = json!("PORT");
        }
    }
    // 1.1.1 prints an empty `dns` for cniVersion 1.0.0, the newest reference does not.
    if case.config["cniVersion"] == "1.0.0" && answer["dns"] == json!({}) {
        answer.as_object_mut().unwrap().remove("dns");
    }
    steps.push((format!("ADD {answer}"), side.state(&result)));
    // The reference's CHECK always fails without IPAM, and versions before 0.4.0 have no CHECK.
    if case.config.get("ipam").is_some_and(Value::is_object)
        && !case.config["cniVersion"].as_str().unwrap().starts_with("0.1")
        && case.config["cniVersion"].as_str().unwrap() >= "0.4.0"
    {
        let outcome = side.call("CHECK", case, Some(&result));
        steps.push((format!("CHECK {:?} {}", outcome.status, outcome.stdout), side.state(&result)));
    }
    for _ in 0..2 {
        let outcome = side.call("DEL", case, None);
        steps.push((format!("DEL {:?} {}", outcome.status, outcome.stdout), side.state(&result)));
    }
    steps
}

fn compare(cases: &[Case]) {
    if reference("bridge", "differential").is_none() {
        return;
    }
    let mut differences = Vec::new();
    for case in cases {
        let (theirs, ours) = (run(case, false), run(case, true));
        assert_eq!(theirs.len(), ours.len());
        for ((their_answer, their_state), (our_answer, our_state)) in theirs.iter().zip(&ours) {
            let step = their_answer.split(' ').next().unwrap();
            if their_answer != our_answer && intended_difference(case.name, step).is_none() {
                differences.push(format!("{} {step}\n  theirs: {their_answer}\n  ours:   {our_answer}", case.name));
            }
            for (key, theirs) in their_state {
                if our_state.get(key) != Some(theirs) {
                    differences.push(format!(
                        "{} {step} {key}\n  theirs: {theirs}\n  ours:   {}",
                        case.name,
                        our_state.get(key).map_or("", |s| s)
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn there_are_enough_cases() {
    assert!(cases().len() >= 40, "{}", cases().len());
}

/// Runs a quarter of the cases, so that the quarters run in parallel.
fn part(n: usize) {
    let cases: Vec<_> =
        cases().into_iter().enumerate().filter(|(index, _)| index % 4 == n).map(|(_, case)| case).collect();
    compare(&cases);
}

#[test]
fn equal_to_the_reference_1() {
    part(0);
}

#[test]
fn equal_to_the_reference_2() {
    part(1);
}

#[test]
fn equal_to_the_reference_3() {
    part(2);
}

#[test]
fn equal_to_the_reference_4() {
    part(3);
}
