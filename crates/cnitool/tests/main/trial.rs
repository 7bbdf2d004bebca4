//! `test`: healthy networks of several kinds, interruptions, and many containers.

mod broken;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::{Outcome, Process, kubernetes};

use crate::doctor::hooks::load_rules_of_others;
use crate::support::{Host, failure};

/// A network of both families with published ports, on the bridge br-t, and a plugin of another project.
const PODS: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
    {"type": "bridge", "bridge": "br-t", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd22::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "other"}
]}"#;

/// Passes the previous result on. Runs the file `../ADD` with the container's number and a command to run in it.
const OTHER: &str = r#"dir=$(dirname "$0")/..
config=$(cat)
[ "$CNI_COMMAND" != VERSION ] || echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}'
inside="nsenter --net=$CNI_NETNS" number=${CNI_CONTAINERID##*-}
if [ -e "$dir/$CNI_COMMAND" ]; then
    [ "$CNI_COMMAND" != ADD ] || port=$(printf %s "$config" | jq -r '.prevResult.interfaces[1].name')
    . "$dir/$CNI_COMMAND" >&2
fi
[ "$CNI_COMMAND" != ADD ] || printf %s "$config" | jq .prevResult"#;

/// Creates a host with a default route, and a network of this name and text.
fn host_with(config: &str) -> Host {
    let host = Host::new();
    host.lab.script("other", OTHER);
    host.configure("10-net.conflist", config);
    host.lab.outside();
    host.lab.sh("ip link set lo up; ip route add default via 192.0.2.2");
    host
}

fn host() -> Host {
    host_with(PODS)
}

/// Runs a shell script whenever the plugin `other` gets this command.
fn on(host: &Host, command: &str, script: &str) {
    fs::write(host.lab.dir().join(command), script).unwrap();
}

fn answer(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// Returns the probes of the only network.
fn probes(answer: &Value) -> &Vec<Value> {
    answer["networks"][0]["probes"].as_array().unwrap()
}

/// Returns the probes with an outcome, each as `ID FAMILY`.
fn with_outcome(answer: &Value, outcome: &str) -> Vec<String> {
    let found = probes(answer).iter().filter(|probe| probe["outcome"] == outcome);
    let name = |probe: &Value| {
        let (id, family) = (probe["id"].as_str().unwrap(), probe["family"].as_str().unwrap_or_default());
        format!("{id} {family}").trim_end().to_owned()
    };
    found.map(name).collect()
}

/// Asserts that nothing of a test is left.
#[track_caller]
fn assert_clean(host: &Host) {
    assert_eq!(
        host.lab.sh(
            "ls /run/cni0/test 2>/dev/null || :; ls /run/netns | grep cnitool || :; ip -o link show type veth | grep -v uplink || :"
        ),
        ""
    );
    assert_eq!(host.lab.sh("grep -rl cnitool-test /var/lib/cni || :"), "");
    assert!(!host.lab.sh("nft list ruleset").contains("cnitool"), "rules");
    assert_eq!(host.cached(), [""; 0]);
}

#[test]
fn a_healthy_network_passes_all_probes() {
    let host = host();
    let outcome = host.run("test pods --json");
    let answer = answer(&outcome);
    assert_eq!(outcome.status, Some(0), "{answer:#}");
    assert_eq!((&answer["version"], &answer["healthy"]), (&json!(1), &json!(true)));
    assert_eq!(with_outcome(&answer, "fail"), [""; 0]);
    let passed = with_outcome(&answer, "ok");
    for id in [
        "first-packet",
        "address",
        "gateway",
        "neighbour-icmp",
        "neighbour-tcp",
        "neighbour-udp",
        "neighbour-mtu",
        "host",
        "port-host",
        "port-udp",
        "port-neighbour",
        "port-itself",
    ] {
        for family in ["ipv4", "ipv6"] {
            assert!(passed.contains(&format!("{id} {family}")), "{id} {family}: {answer:#}");
        }
    }
    for id in ["add", "outside ipv4", "masquerade ipv4", "port-loopback ipv4", "check", "del"] {
        assert!(passed.contains(&id.to_owned()), "{id}: {answer:#}");
    }
    assert_clean(&host);
    let given = r#"{"portMappings": [{"hostPort": 8080, "containerPort": 8080, "protocol": "tcp"}]}"#;
    let text = host.call("test pods").env("CAP_ARGS", given).run();
    assert!(text.stdout.contains("\n  ok   neighbour-tcp  ipv6"), "{}", text.stdout);
    assert!(text.stdout.contains(" 0 failed, "), "{}", text.stdout);
}

#[test]
fn limits_isolation_and_spoof_checks_are_probed() {
    let host = host_with(
        r#"{"cniVersion": "1.0.0", "name": "strict", "plugins": [
            {"type": "bridge", "bridge": "br-t", "isDefaultGateway": true, "macspoofchk": true, "dns": {"nameservers": ["192.0.2.2"]},
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]]}},
            {"type": "bandwidth", "ingressRate": 20000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 800000}
        ]}"#,
    );
    // A server that answers every question.
    let server = std::thread::scope(|scope| {
        let socket = testing::packets::udp(Some(Path::new("/run/netns/outside")), "192.0.2.2", 53);
        host.lab.sh("ip -n outside route add 10.22.0.0/24 via 192.0.2.1");
        scope.spawn(move || {
            let mut question = [0; 512];
            let (length, from) = socket.recv_from(&mut question).unwrap();
            socket.send_to(&question[..length], from).unwrap();
        });
        answer(&host.run("test --json"))
    });
    assert_eq!(server["healthy"], true, "{server:#}");
    let passed = with_outcome(&server, "ok");
    for id in ["rate-ingress", "rate-egress", "isolation ipv4", "dns ipv4"] {
        assert!(passed.contains(&id.to_owned()), "{id}: {server:#}");
    }
    host.configure(
        "10-net.conflist",
        r#"{"cniVersion": "1.0.0", "name": "strict", "plugins": [
            {"type": "bridge", "bridge": "br-u", "isGateway": true, "portIsolation": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.23.0.0/24"}]]}}
        ]}"#,
    );
    let isolated = answer(&host.run("test --json"));
    assert_eq!(isolated["healthy"], true, "{isolated:#}");
    assert!(with_outcome(&isolated, "ok").contains(&"isolation ipv4".to_owned()), "{isolated:#}");
    assert_clean(&host);
}

/// Returns a network of both families with this ingress policy, on a bridge of its own.
fn with_policy(name: &str, subnet: u8, policy: &str) -> String {
    let ranges = json!([[{ "subnet": format!("10.{subnet}.0.0/24") }], [{ "subnet": format!("fd{subnet}::/64") }]]);
    let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [
        { "type": "bridge", "bridge": format!("br-{name}"), "isDefaultGateway": true, "ipMasq": true,
          "ipam": { "type": "host-local", "ranges": ranges } },
        { "type": "firewall", "ingressPolicy": policy },
        { "type": "other" },
    ]});
    list.to_string()
}

#[test]
fn a_policy_between_bridges_is_probed() {
    let host = host_with(&with_policy("a", 31, "same-bridge"));
    let isolation = |outcome: &Value, state: &str| {
        let found = with_outcome(outcome, state);
        found.into_iter().filter(|id| id.starts_with("isolation")).collect::<Vec<_>>()
    };
    let test = || answer(&host.run("test a --json"));
    // Without another bridge, there is nothing to keep out.
    assert_eq!(isolation(&test(), "not-applicable"), ["isolation"]);
    host.configure("20-b.conflist", &with_policy("b", 32, "same-bridge"));
    let kept_out = test();
    assert_eq!(kept_out["healthy"], true, "{kept_out:#}");
    assert_eq!(isolation(&kept_out, "ok"), ["isolation ipv4", "isolation ipv6"]);
    // A rule of another program accepts the packets before the policy drops them.
    on(&host, "ADD", "iptables -I FORWARD -j ACCEPT; ip6tables -I FORWARD -j ACCEPT");
    let open = test();
    assert_eq!(isolation(&open, "fail"), ["isolation ipv4", "isolation ipv6"], "{open:#}");
    assert!(open.to_string().contains("keeps out a container of network"), "{open:#}");
    // An ADD of the other network fails.
    on(&host, "ADD", "case $config in *br-b*) exit 1; esac");
    assert_eq!(isolation(&test(), "not-applicable"), ["isolation"]);
    host.lab.sh("iptables -F FORWARD; ip6tables -F FORWARD");
    assert_clean(&host);
}

/// kube-proxy leads the port to a service before the plugin does.
#[test]
fn a_port_that_is_a_node_port_is_explained() {
    let host = host();
    let mapping = json!({ "hostPort": 30080, "containerPort": 8080, "protocol": "tcp" });
    let capabilities = json!({ "portMappings": [mapping] }).to_string();
    let test = || answer(&host.call("test --json").env("CAP_ARGS", &capabilities).run());
    let passed = test();
    let ok = with_outcome(&passed, "ok");
    assert!(ok.contains(&"port-host ipv4".to_owned()) && !ok.contains(&"port-udp ipv4".to_owned()), "{passed:#}");
    kubernetes::add_node_port(&host.lab, "nftables");
    let failed = test();
    let probe = probes(&failed).iter().find(|probe| probe["id"] == "port-host" && probe["family"] == "ipv4").unwrap();
    let cause = &probe["causes"][0];
    assert_eq!((&probe["outcome"], &cause["kind"]), (&json!("fail"), &json!("translation")), "{failed:#}");
    assert!(cause["text"].as_str().unwrap().contains("kube-proxy"), "{failed:#}");
    assert_clean(&host);
}

/// Kubernetes passes rates, and containerd a burst of 512 MiB.
#[test]
fn limits_of_the_runtime_are_probed() {
    let host = host_with("");
    let configure = |max_burst: u32| {
        let list = json!({ "cniVersion": "1.0.0", "name": "limited", "plugins": [
            { "type": "bridge", "bridge": "br-l", "isGateway": true,
              "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.26.0.0/24" }]] } },
            { "type": "bandwidth", "capabilities": { "bandwidth": true }, "maxBurst": max_burst },
        ]});
        host.configure("10-net.conflist", &list.to_string());
    };
    let rates = json!({ "ingressRate": 20_000_000, "ingressBurst": u32::MAX,
                        "egressRate": 40_000_000, "egressBurst": u32::MAX });
    let capabilities = json!({ "bandwidth": rates }).to_string();
    let test = || answer(&host.call("test --json").env("CAP_ARGS", &capabilities).run());
    let rates = ["rate-ingress".to_owned(), "rate-egress".to_owned()];
    configure(800_000);
    let capped = test();
    assert!(rates.iter().all(|id| with_outcome(&capped, "ok").contains(id)), "{capped:#}");
    configure(0);
    let unlimited = test();
    assert!(rates.iter().all(|id| with_outcome(&unlimited, "not-applicable").contains(id)), "{unlimited:#}");
    assert!(unlimited.to_string().contains("maxBurst"), "{unlimited:#}");
    assert_clean(&host);
}

#[test]
fn networks_of_other_kinds_are_tested() {
    let host = host_with(
        r#"{"cniVersion": "1.0.0", "name": "wire", "plugins": [
            {"type": "macvlan", "master": "uplink",
             "ipam": {"type": "static", "addresses": [{"address": "192.0.2.77/24", "gateway": "192.0.2.2"}]}}
        ]}"#,
    );
    let wire = answer(&host.run("test --json"));
    assert!(with_outcome(&wire, "not-applicable").contains(&"neighbour-icmp ipv4".to_owned()), "{wire:#}");
    let passed = with_outcome(&wire, "ok");
    assert!(passed.contains(&"gateway ipv4".to_owned()), "{wire:#}");
    assert!(with_outcome(&wire, "not-applicable").contains(&"host ipv4".to_owned()), "{wire:#}");
    host.configure(
        "10-net.conflist",
        r#"{"cniVersion": "1.0.0", "name": "routed", "plugins": [
            {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.24.0.0/24"}]],
             "routes": [{"dst": "0.0.0.0/0"}]}}
        ]}"#,
    );
    host.lab.sh("ip -n outside route add 10.24.0.0/24 via 192.0.2.1");
    let routed = answer(&host.run("test --json"));
    assert_eq!(routed["healthy"], true, "{routed:#}");
    host.configure("10-net.conflist", r#"{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "other"}]}"#);
    on(&host, "ADD", "config='{\"prevResult\": {\"cniVersion\": \"1.0.0\"}}'");
    let nothing = answer(&host.run("test --json"));
    let skipped = with_outcome(&nothing, "not-applicable");
    assert!(skipped.contains(&"address".to_owned()), "{nothing:#}");
    assert_eq!(nothing["healthy"], true);
    assert_clean(&host);
}

#[test]
fn many_containers_are_attached_and_measured() {
    let host = host();
    let outcome = host.run("test pods --count 40 --parallel 8");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    for text in ["Network pods: 40 containers, 8 at a time", "P50", "first packet", "nothing is left"] {
        assert!(outcome.stdout.contains(text), "{text}: {}", outcome.stdout);
    }
    let answer = answer(&host.run("test pods --count 5 --json"));
    let of = &answer["networks"][0];
    assert_eq!(
        (&of["add"]["count"], &of["firstPacket"]["count"], &of["del"]["count"]),
        (&json!(5), &json!(5), &json!(5))
    );
    assert!(of["add"]["p50Milliseconds"].as_f64() <= of["add"]["worstMilliseconds"].as_f64(), "{answer:#}");
    assert_clean(&host);
    on(&host, "ADD", "[ $number != 2 ] || { echo '{\"code\": 7, \"msg\": \"asked to fail\"}' >&3; exit 1; }");
    host.lab.script("other", &OTHER.replacen("dir=", "exec 3>&1\ndir=", 1));
    let outcome = host.run("test pods --count 3");
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains("asked to fail"), "{}", outcome.stdout);
    assert_clean(&host);
}

#[test]
fn a_full_network_is_reported() {
    let host = host_with(&PODS.replace("10.22.0.0/24", "10.22.0.0/30"));
    let outcome = host.run("test pods");
    assert_eq!(outcome.status, Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains("fail add"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("no IP addresses available in range set 0"), "{}", outcome.stdout);
    assert_clean(&host);
}

/// The rules of other programs drop what they do not know, but not packets of containers that `firewall` accepts.
#[test]
fn a_node_with_rules_of_other_programs_is_healthy() {
    let host = host_with(
        &PODS
            .replace("br-t", "br-pods")
            .replace("{\"type\": \"other\"}", "{\"type\": \"firewall\", \"backend\": \"iptables\"}"),
    );
    load_rules_of_others(&host);
    for _ in 0..2 {
        let outcome = host.run("test pods --json");
        assert_eq!(outcome.status, Some(0), "{:#}", answer(&outcome));
        assert_clean(&host);
    }
}

/// A signal arrives while a plugin runs: the plugin completes, and everything is removed.
#[test]
fn an_interrupted_test_removes_everything() {
    let host = host();
    for signal in ["INT", "TERM", "HUP"] {
        on(&host, "ADD", &format!("kill -{signal} $PPID"));
        let outcome = host.run("test pods");
        assert!(failure(&Outcome { stdout: String::new(), ..outcome }).contains("interrupted"), "{signal}");
        assert_clean(&host);
    }
}

/// A signal arrives while a plugin hangs, which ignores it, and hangs in its DEL, too.
#[test]
fn an_interrupted_test_does_not_wait_for_a_plugin_that_hangs() {
    let host = host();
    on(&host, "DEL", "exec sleep 1000");
    for options in ["", " --count 3"] {
        on(&host, "ADD", "trap '' INT; kill -INT $PPID; exec sleep 1000");
        let outcome = host.run(&format!("test pods{options}"));
        assert!(outcome.stderr.contains("interrupted by a signal"), "{outcome:?}");
        assert_clean(&host);
    }
}

/// The next test removes what a killed one has left.
#[test]
fn a_killed_test_is_cleaned_up_by_the_next() {
    let host = host();
    for number in [1, 2] {
        on(&host, "ADD", &format!("[ $number != {number} ] || {{ kill -KILL $PPID; exit 1; }}"));
        let killed = host.run("test pods");
        assert_eq!(killed.status, None, "{killed:?}");
        assert_ne!(host.lab.sh("ls /run/cni0/test"), "");
        on(&host, "ADD", "");
        // The configuration may be gone by then.
        host.configure("10-net.conflist", &PODS.replace("pods", "others"));
        let next = host.run("test others");
        assert_eq!(next.status, Some(0), "{next:?}");
        assert!(next.stderr.contains("removed what 1 interrupted test left"), "{next:?}");
        assert_clean(&host);
        host.configure("10-net.conflist", PODS);
    }
}

/// The record of a killed test is corrupt, or its plugins are gone.
#[test]
fn what_cannot_be_cleaned_up_does_not_prevent_a_test() {
    let host = host();
    assert_eq!(host.run("test pods").status, Some(0));
    let record = Path::new("/run/cni0/test/cnitool-test-00000000");
    fs::write(record, "garbage").unwrap();
    let outcome = host.run("test pods");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("cnitool-test-00000000 is corrupt"), "{outcome:?}");
    fs::remove_file(record).unwrap();
    assert_clean(&host);
}

#[test]
fn two_tests_at_the_same_time_do_not_disturb_each_other() {
    let host = host();
    let outcomes = testing::parallel::run((0..4).map(|_| host.call("test pods --json")).collect());
    for outcome in outcomes {
        assert_eq!(outcome.status, Some(0), "{:#}", answer(&outcome));
    }
    assert_clean(&host);
}

#[test]
fn bad_words_are_refused() {
    let host = host();
    for (words, text) in [
        ("test nothing", "nothing"),
        ("test --outside here", "--outside: expected an IP address, got \"here\""),
        ("test --count 0", "--count: expected a number from 1"),
        ("test --parallel 3", "--parallel needs --count"),
    ] {
        let outcome: Outcome = Process::run(host.call(words));
        assert!(matches!(outcome.status, Some(1 | 2)), "{outcome:?}");
        assert!(outcome.stderr.contains(text), "{words}: {}", outcome.stderr);
    }
    assert_clean(&host);
}
