//! Masquerade in tables of iptables: those in nf_tables, and legacy tables, which only their tools can change.

use linux::iptables::FAMILIES;
use linux::netlink::nft::{Nftables, Rule};
use serde_json::{Value, json};
use testing::config::with;
use testing::fault::inject_all;
use testing::{Lab, PATH, Pod, Process, legacy, reference};

use crate::gc::collect;
use crate::pod::{assert_clean, host_veth, layer3};

fn config() -> Value {
    let ranges = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]]);
    let ipam = json!({ "type": "host-local", "ranges": ranges });
    layer3(json!({ "cniVersion": "1.0.0", "ipMasq": true, "ipMasqBackend": "iptables", "ipam": ipam }))
}

/// Prepares a call of the reference, whose tools are the legacy ones if `is_legacy`.
fn theirs(pod: &Pod<'_>, command: &str, config: &Value, is_legacy: bool) -> Process {
    let path = if is_legacy { legacy::path(pod.lab) } else { PATH.to_owned() };
    pod.call_reference(command, config).env("PATH", path)
}

/// Returns the rules of the nat tables as the tools list them, without those that show that legacy tables are in use.
fn listed(lab: &Lab, is_legacy: bool) -> Vec<String> {
    let kind = if is_legacy { "legacy" } else { "nft" };
    let rules = lab.sh(&format!("iptables-{kind} -t nat -S; ip6tables-{kind} -t nat -S"));
    rules.lines().filter(|line| !line.starts_with("-P ") && !line.starts_with("-A INPUT")).map(str::to_owned).collect()
}

/// Returns the rules of the nat tables in nf_tables, by their expressions, ordered by chain.
fn in_nft() -> Vec<Rule> {
    let mut nft = Nftables::open().unwrap();
    let mut rules: Vec<Rule> = FAMILIES.iter().flat_map(|tools| nft.table_rules(tools.table("nat")).unwrap()).collect();
    for rule in &mut rules {
        rule.handle = 0;
    }
    rules.sort_by(|a, b| a.chain.cmp(&b.chain));
    rules
}

fn assert_interchangeable(lab: &Lab, is_legacy: bool) {
    let (pod, config) = (Pod::new(lab, "a"), config());
    let before = listed(lab, is_legacy);
    let result = theirs(&pod, "ADD", &config, is_legacy).run().ok();
    let expected = (listed(lab, is_legacy), in_nft());
    assert_eq!(expected.0.len(), before.len() + 8, "{expected:?}");
    pod.check_result(&config, &result).ok();
    pod.del(&with(config.clone(), json!({ "prevResult": result })));
    assert_eq!(listed(lab, is_legacy), before);

    // The next lease would be another one.
    lab.sh("rm -r /var/lib/cni/networks");
    let result = pod.add(&config);
    assert!((listed(lab, is_legacy), in_nft()) == expected, "{:?}", (listed(lab, is_legacy), expected.0));
    pod.check_result(&config, &result).ok();
    theirs(&pod, "CHECK", &with(config.clone(), json!({ "prevResult": result })), is_legacy).run().ok();
    // The tools read what they did not write.
    let kind = if is_legacy { "legacy" } else { "nft" };
    lab.sh(&format!("for t in iptables ip6tables; do $t-{kind}-save | $t-{kind}-restore; done"));
    assert_eq!(listed(lab, is_legacy), expected.0);
    pod.check_result(&config, &result).ok();
    theirs(&pod, "DEL", &config, is_legacy).run().ok();
    assert_eq!(listed(lab, is_legacy), before);
    assert_clean(lab);

    pod.add(&config);
    collect(&pod, &with(config, json!({ "cniVersion": "1.1.0" })), json!([])).ok();
    assert_eq!(listed(lab, is_legacy), before);
    assert_clean(lab);
}

#[test]
fn the_rules_are_those_of_the_reference_in_nf_tables() {
    if reference("bridge", "the_rules_are_those_of_the_reference_in_nf_tables").is_some() {
        assert_interchangeable(&Lab::new(), false);
    }
}

#[test]
fn the_rules_are_those_of_the_reference_in_legacy_tables() {
    let test = "the_rules_are_those_of_the_reference_in_legacy_tables";
    let Some(lab) = &legacy::host("nat", test) else { return };
    if reference("bridge", test).is_some() {
        assert_interchangeable(lab, true);
    }
}

/// The tables may exist only because a program listed them.
#[test]
fn empty_legacy_tables_are_not_used() {
    let Some(lab) = &legacy::host("nat", "empty_legacy_tables_are_not_used") else { return };
    lab.sh("for tool in iptables ip6tables; do $tool-legacy -t nat -F; done");
    let pod = Pod::new(lab, "a");
    pod.add(&config());
    assert_eq!((listed(lab, true).len(), listed(lab, false).len()), (0, 8));
    pod.del(&config());
    assert_clean(lab);
}

/// Without nf_tables, the host's tools create the tables.
#[test]
fn without_nf_tables_the_tools_are_used() {
    if legacy::host("nat", "without_nf_tables_the_tools_are_used").is_none() {
        return;
    }
    // Without any table.
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    for (more, sockets) in [(json!({ "ipMasqBackend": "iptables" }), 1), (json!({}), 2)] {
        let config = with(layer3(json!({ "ipMasq": true })), more);
        let add = |options: &[&str]| {
            let call = pod.call("ADD", &config).env("PATH", legacy::path(lab));
            let (outcome, log) = call.trace(lab, &[&["-e", "trace=socket"], options].concat());
            (outcome.ok(), log)
        };
        let (_, log) = add(&[]);
        let is_netfilter = |line: &&str| line.contains("NETFILTER");
        let before = log.lines().filter(|line| line.contains("socket(")).take_while(|line| !is_netfilter(line)).count();
        pod.del(&config);
        assert_clean(lab);
        // The C library repeats the call after EPROTONOSUPPORT.
        let (first, last) = (before + 1, before + sockets);
        let (result, log) = add(&["-e", &format!("inject=socket:error=EAFNOSUPPORT:when={first}..{last}")]);
        assert!(log.lines().filter(is_netfilter).all(|line| line.contains("INJECTED")), "{log}");
        assert_eq!((listed(lab, true).len(), listed(lab, false).len()), (8, 0), "{config}");
        pod.check_result(&config, &result).ok();
        pod.del(&config);
        assert_eq!(listed(lab, true).len(), 0, "{config}");
    }
}

/// As after a crash of the host's runtime: the interface is gone, but no DEL came.
#[test]
fn a_repeated_add_adds_no_rule_twice() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let mut expected = Vec::new();
    for _ in 0..3 {
        let port = host_veth(&pod.add(&config));
        let rules = listed(lab, false);
        if expected.is_empty() {
            expected.clone_from(&rules);
        }
        assert_eq!(rules, expected);
        lab.sh(&format!("ip link del {port}"));
    }
    pod.del(&config);
    assert_clean(lab);
}

/// The name of a chain is the hash of network and container, without anything between them.
#[test]
fn a_container_whose_chain_has_the_same_name_keeps_its_rules() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let other = with(config.clone(), json!({ "name": "net" }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let neighbour = Pod::with_ips(lab, "1a", &["10.1.0.3/24"]);
    let result = neighbour.add(&other);
    for remove in [
        |pod: &Pod<'_>, config: &Value| pod.del(config),
        |pod: &Pod<'_>, config: &Value| {
            collect(pod, config, json!([])).ok();
        },
    ] {
        pod.add(&config);
        remove(&pod, &config);
        assert!(!lab.sh("iptables-nft -t nat -S POSTROUTING").contains("10.1.0.2"));
        neighbour.check_result(&other, &result).ok();
    }
    neighbour.del(&other);
    assert_clean(lab);
}

/// A rule of another program leads to the chain, so that it cannot be deleted.
#[test]
fn a_chain_that_another_program_uses_is_emptied() {
    for is_legacy in [false, true] {
        let test = "a_chain_that_another_program_uses_is_emptied";
        let Some(lab) = &(if is_legacy { legacy::host("nat", test) } else { Some(Lab::new()) }) else { return };
        let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
        pod.add(&config);
        let tool = if is_legacy { "iptables-legacy" } else { "iptables-nft" };
        let chain = lab.sh(&format!("{tool} -t nat -S | sed -n 's/^-N //p'")).trim().to_owned();
        lab.sh(&format!("{tool} -t nat -N OTHER; {tool} -t nat -A OTHER -j {chain}"));
        pod.del(&config);
        let left = [format!("-N {chain}"), "-N OTHER".to_owned(), format!("-A OTHER -j {chain}")];
        assert_eq!(listed(lab, is_legacy), left);
    }
}

/// Another program commits between the listing and the transaction.
#[test]
fn the_rules_are_computed_again_if_another_program_changes_any() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    for n in 1..60 {
        let call = pod.call("ADD", &config).env("CNI_LOG", "debug");
        let outcome = inject_all(lab, call, "sendto", &format!("error=ERESTART:when={n}"));
        let added = outcome.stderr.matches("nf_tables: add rule to chain ip nat POSTROUTING").count();
        if added > 1 {
            outcome.ok();
            assert_eq!(listed(lab, false).len(), 4);
            pod.del(&config);
            return assert_clean(lab);
        }
        pod.del(&config);
        assert_clean(lab);
    }
    panic!("messages are sent without end");
}
