//! Legacy tables of iptables, which only their tools can change.

use serde_json::{Value, json};
use testing::config::with;
use testing::network::{IPV4, IPV6, Network};
use testing::packets::{HOST, Server, from};
use testing::{Lab, PATH, Pod, Process, legacy, parallel, reference};

use crate::differential::{Case, cases, create_external_chain, nat, without_counters};
use crate::support::config;

/// Returns a host whose legacy nat tables are in use; `None` if the kernel has no such tables.
fn legacy_host(test: &str) -> Option<Lab> {
    legacy::host("nat", test)
}

/// Returns the legacy nat tables without counters and dates.
fn nat_tables(lab: &Lab) -> String {
    without_counters(&lab.sh("iptables-legacy-save -t nat; echo; ip6tables-legacy-save -t nat"))
}

/// Returns the rules of a table, sorted by chain: the tools list chains in different orders.
fn rules(table: &str) -> Vec<String> {
    let is_rule = |line: &&str| line.starts_with("-A ") && !line.starts_with("-A INPUT");
    let mut rules: Vec<String> = table.lines().filter(is_rule).map(str::to_owned).collect();
    rules.sort_by(|a, b| a.split(' ').nth(1).cmp(&b.split(' ').nth(1)));
    rules
}

/// Prepares a call of the reference with legacy tools.
fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Process {
    pod.call_reference(command, config).env("PATH", legacy::path(pod.lab))
}

fn iptables(ports: &[&str]) -> Value {
    with(config(ports), json!({ "backend": "iptables", "cniVersion": "1.0.0" }))
}

#[test]
fn ports_are_published_in_legacy_tables_that_are_in_use() {
    let host = Lab::new();
    let expected: Vec<Vec<String>> = cases()
        .iter()
        .map(|Case { config, ips }| {
            create_external_chain(&host);
            Pod::absent(&host, "id1", ips).add(config);
            let found = rules(&nat(&host));
            host.sh("nft flush ruleset");
            found
        })
        .collect();
    let Some(lab) = &legacy_host("ports_are_published_in_legacy_tables_that_are_in_use") else { return };
    for (Case { config, ips }, expected) in cases().into_iter().zip(expected) {
        lab.sh("for tool in iptables ip6tables; do $tool-legacy -t nat -N KUBE-MARK-MASQ; done");
        let pod = Pod::absent(lab, "id1", ips);
        pod.add(&config);
        pod.check(&config).ok();
        assert_eq!(rules(&nat_tables(lab)), expected, "{config}");
        pod.add(&config);
        assert_eq!(rules(&nat_tables(lab)), expected, "a second ADD replaces the rules");
        // The guard of loopback services is always in nf_tables.
        let elsewhere = lab.sh("nft list ruleset");
        assert!(!elsewhere.contains("dnat to") && !elsewhere.contains("CNI-"), "{elsewhere}");
        pod.del(&config);
        pod.check(&config).error(999);
        let text = nat_tables(lab);
        assert!(!text.contains("CNI-DN") && text.contains("-A INPUT"), "{text}");
        lab.sh("for tool in iptables ip6tables; do $tool-legacy -t nat -F; $tool-legacy -t nat -X; done");
        assert!(legacy::use_tables(lab, "nat"));
    }
}

/// A table without rules and chains may only be left from a program that listed it.
#[test]
fn empty_legacy_tables_are_not_used() {
    let test = "empty_legacy_tables_are_not_used";
    let Some(lab) = &legacy_host(test) else { return };
    lab.sh("for tool in iptables ip6tables; do $tool-legacy -t nat -F; done");
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = iptables(&["8080:80/tcp"]);
    pod.add(&config);
    pod.check(&config).ok();
    assert!(nat(lab).contains("CNI-DN") && !nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
}

#[test]
fn legacy_rules_of_either_implementation_are_removed_by_the_other() {
    let test = "legacy_rules_of_either_implementation_are_removed_by_the_other";
    let Some(lab) = &legacy_host(test) else { return };
    if reference("portmap", test).is_none() {
        return;
    }
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = iptables(&["8080:80/tcp", "53:53/udp"]);
    theirs(&pod, "ADD", &config).run().ok();
    pod.check(&config).ok();
    let other = Pod::absent(lab, "id2", &["10.9.0.3/24"]);
    // Its default form is another one, but the port is the same.
    let error = other.call("ADD", &crate::support::config(&["8080:80/tcp"])).run().error(101);
    assert!(error["msg"].as_str().unwrap().contains("leads to 10.9.0.2:80 (net: net1, id: id1)"), "{error}");
    pod.del(&config);
    assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));

    pod.add(&config);
    let gone = Pod { id: "id3".into(), ..pod.clone() };
    theirs(&gone, "ADD", &iptables(&["99:80/tcp"])).run().ok();
    let mut gc = with(config.clone(), json!({ "cniVersion": "1.1.0" }));
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": "id1", "ifname": "eth0" }]);
    lab.plugin("portmap", "GC").stdin(gc.to_string()).run().ok();
    assert!(!nat_tables(lab).contains("id3"), "{}", nat_tables(lab));
    pod.check(&config).ok();
    theirs(&pod, "DEL", &config).run().ok();
    assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
}

/// The first tool to fail has changed nothing, unless it was killed. If the second one fails, the first has replaced
/// what was published.
#[test]
fn a_repeated_add_whose_tool_fails_keeps_or_removes_everything() {
    let Some(lab) = &legacy_host("a_repeated_add_whose_tool_fails_keeps_or_removes_everything") else { return };
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let (first, second) = (iptables(&["8080:80/tcp"]), iptables(&["8081:80/tcp"]));
    let (ipv4, ipv6) = ("iptables-legacy-restore", "ip6tables-legacy-restore");
    let fails = "exit 4".to_owned();
    let is_killed = format!("[ $calls -gt 1 ] && exit 4; /usr/sbin/{ipv4} \"$@\"; kill -9 $$");
    for (tool, body, count, is_kept) in
        [(ipv4, &fails, 1, true), (ipv6, &fails, 1, false), (ipv4, &is_killed, 2, false)]
    {
        pod.add(&first);
        let before = nat_tables(lab);
        let calls = lab.dir().join("calls");
        let script = lab.script(
            tool,
            &format!(
                "echo >>{0}; calls=$(wc -l <{0}); [ $calls -gt {count} ] && exec /usr/sbin/{tool} \"$@\"; {body}",
                calls.display()
            ),
        );
        let path = format!("{}:{PATH}", lab.bin().display());
        let error = pod.call("ADD", &second).env("PATH", path).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains(tool), "{error}");
        if is_kept {
            assert_eq!(nat_tables(lab), before);
            pod.check(&first).ok();
        } else {
            assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
        }
        lab.sh(&format!("rm {} {}", script.display(), calls.display()));
    }
}

/// Each tool reads and writes the whole table. An ADD whose chain another one has just created starts again.
#[test]
fn first_adds_at_the_same_time_lose_no_rules() {
    let Some(lab) = &legacy_host("first_adds_at_the_same_time_lose_no_rules") else { return };
    const PODS: usize = 12;
    let pods: Vec<_> = (1..=PODS).map(|n| Pod::absent(lab, &format!("p{n}"), &[&format!("10.1.0.{n}/16")])).collect();
    let all_at_once = |command: &str| {
        let call = |(n, pod): (usize, &Pod<'_>)| pod.call(command, &iptables(&[&format!("{}:80/tcp", 8001 + n)]));
        for outcome in parallel::run(pods.iter().enumerate().map(call).collect()) {
            outcome.ok();
        }
    };
    all_at_once("ADD");
    let text = nat_tables(lab);
    assert_eq!(text.matches("--to-destination").count(), PODS, "{text}");
    assert_eq!(text.matches("-m multiport").count(), PODS, "{text}");
    for jump in ["-A PREROUTING -m addrtype", "-A OUTPUT -m addrtype", "-j CNI-HOSTPORT-MASQ", "--set-xmark"] {
        assert_eq!(text.matches(jump).count(), 1, "{jump}: {text}");
    }
    all_at_once("DEL");
    assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
}

/// Two networks with containers whose chains have the same name, and two interfaces of one container.
#[test]
fn attachments_that_share_a_legacy_chain_are_told_apart() {
    let Some(lab) = &legacy_host("attachments_that_share_a_legacy_chain_are_told_apart") else { return };
    let named = |name: &str, port: &str| with(iptables(&[port]), json!({ "name": name }));
    let attachments = [
        (Pod::absent(lab, "1id", &["10.9.0.2/24"]), named("net1", "8080:80/tcp")),
        (Pod { ifname: "eth1".into(), ..Pod::absent(lab, "1id", &["10.9.0.3/24"]) }, named("net1", "8081:80/tcp")),
        (Pod::absent(lab, "11id", &["10.8.0.2/24"]), named("net", "8082:80/tcp")),
    ];
    for removed in 0..attachments.len() {
        for (pod, config) in &attachments {
            pod.add(config);
        }
        let (gone, config) = &attachments[removed];
        gone.del(config);
        for (index, (pod, config)) in attachments.iter().enumerate() {
            let outcome = pod.check(config);
            if index == removed {
                outcome.error(999)
            } else {
                outcome.ok()
            };
        }
        for (pod, config) in &attachments {
            pod.del(config);
        }
        assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
    }
}

/// Without nf_tables, the host's tools create the tables.
#[test]
fn without_nf_tables_the_tools_are_used() {
    if legacy_host("without_nf_tables_the_tools_are_used").is_none() {
        return;
    }
    // Without any table.
    let lab = &Lab::new();
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    for config in [iptables(&["8080:80/tcp"]), with(iptables(&["8080:80/tcp"]), json!({ "backend": "" }))] {
        // The second socket is the one for nf_tables. The C library repeats the call after EPROTONOSUPPORT.
        let call = pod.call("ADD", &config).env("PATH", legacy::path(lab));
        let inject = "inject=socket:error=EAFNOSUPPORT:when=2";
        let (outcome, sockets) = call.trace(lab, &["-e", "trace=socket", "-e", inject]);
        outcome.ok();
        assert!(sockets.lines().any(|line| line.contains("NETFILTER") && line.contains("INJECTED")), "{sockets}");
        assert_eq!(lab.sh("nft list tables"), "");
        assert_eq!(nat_tables(lab).matches("--to-destination").count(), 2, "{}", nat_tables(lab));
        pod.check(&config).ok();
        pod.del(&config);
        assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
    }
}

#[test]
#[ignore = "needs a kernel without nf_tables: `ci/kernels no-nftables`"]
fn on_a_kernel_without_nf_tables_ports_are_published_in_legacy_tables() {
    let lab = &Lab::new();
    assert!(lab.sh("nft list tables 2>&1 || true").contains("rror"), "this kernel has nf_tables");
    let network = Network::new(lab);
    let config = config(&["8080:80/tcp", "8080:80/udp"]);
    let path = legacy::path(lab);
    let call = |command: &str, config: &Value| network.a.call(command, config).env("PATH", &path);

    let nftables = with(config.clone(), json!({ "backend": "nftables" }));
    for (command, code) in [("STATUS", 50), ("ADD", 999)] {
        let error = call(command, &nftables).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains("nf_tables"), "{command}: {error}");
        assert!(error["details"].as_str().unwrap().contains("nft_fib_inet"), "{command}: {error}");
    }
    // The host's iptables tools may themselves need nf_tables.
    lab.sh("for f in /usr/sbin/*tables-legacy*; do mount --bind /dev/null $f; done");
    for (command, code) in [("STATUS", 50), ("ADD", 999)] {
        let error = network.a.call(command, &config).run().error(code).to_string();
        assert!(error.contains("iptables") && error.contains("nf_tables"), "{command}: {error}");
    }
    lab.sh("for f in /usr/sbin/*tables-legacy*; do umount $f; done");

    call("STATUS", &config).run().ok();
    call("ADD", &config).run().ok();
    call("CHECK", &config).run().ok();
    for family in [&IPV4, &IPV6] {
        for protocol in ["tcp", "udp"] {
            let server = Server::start(protocol, Some(&network.a.netns), family.any, 80);
            network.outside().expect(&from(family.outside), family.uplink, 8080, &server);
            HOST.expect(&from(family.uplink), family.uplink, 8080, &server);
            if family.uplink == IPV4.uplink {
                HOST.expect(&from("10.1.0.1"), "127.0.0.1", 8080, &server);
            }
        }
    }
    let other = network.b.call("ADD", &config).env("PATH", &path).run().error(101);
    assert!(other["msg"].as_str().unwrap().contains("10.1.0.2:80"), "{other}");

    for command in ["DEL", "DEL"] {
        call(command, &config).run().ok();
        assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
    }
    call("ADD", &config).run().ok();
    let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
    lab.plugin("portmap", "GC").env("PATH", &path).stdin(gc.to_string()).run().ok();
    assert!(!nat_tables(lab).contains("CNI-DN"), "{}", nat_tables(lab));
}

/// A chain to which a rule of the administrator leads cannot be deleted, but its rules can.
#[test]
fn a_legacy_chain_with_a_foreign_reference_is_emptied() {
    let Some(lab) = &legacy_host("a_legacy_chain_with_a_foreign_reference_is_emptied") else { return };
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24", "fd00::2/64"]);
    let config = iptables(&["8080:80/tcp"]);
    pod.add(&config);
    lab.sh("iptables-legacy -t nat -A OUTPUT -d 192.0.2.1 -j CNI-DN-a19237f207ed3fa9670f3");
    pod.del(&config);
    let text = nat_tables(lab);
    assert!(!text.contains("DNAT --to") && !text.contains("name:"), "{text}");
}
