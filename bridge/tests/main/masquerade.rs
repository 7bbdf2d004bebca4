//! Masquerade after another program damaged the host's rules: STATUS succeeds, because the next ADD repairs the chains.

use std::fs;

use serde_json::json;
use testing::packets::{send, udp};
use testing::{Lab, Pod, legacy};

use crate::pod::{assert_clean, layer3};

/// Lists the base chain.
const LIST_BASE_CHAIN: &str = "nft list chain inet cni_plugins_masquerade postrouting";

/// Damages by a firewall reload or an administrator, and whether they remove the rules of containers.
const DAMAGES: [(&str, bool); 8] = [
    ("nft flush table inet cni_plugins_masquerade", true),
    ("nft flush chain inet cni_plugins_masquerade postrouting", false),
    (
        "nft flush chain inet cni_plugins_masquerade postrouting
         nft delete chain inet cni_plugins_masquerade postrouting",
        false,
    ),
    (
        "nft delete rule inet cni_plugins_masquerade postrouting handle \
         $(nft -a list ruleset | sed -n 's/.*goto masq_checks # handle //p')",
        false,
    ),
    (
        "nft replace rule inet cni_plugins_masquerade postrouting handle \
         $(nft -a list ruleset | sed -n 's/.*goto masq_checks # handle //p') counter",
        false,
    ),
    (
        "nft flush table inet cni_plugins_masquerade
         nft delete chain inet cni_plugins_masquerade masq_checks",
        true,
    ),
    ("nft delete table inet cni_plugins_masquerade", true),
    ("nft flush ruleset", true),
];

#[test]
fn the_next_add_repairs_the_chains_and_status_succeeds() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true }));
    let first = Pod::with_ips(lab, "first", &["10.1.0.2/24"]);
    let mut first_result = first.add(&config);
    let base_chain = lab.sh(LIST_BASE_CHAIN);
    for (n, (damage, loses_rules)) in DAMAGES.iter().enumerate() {
        lab.sh(damage);
        lab.plugin("bridge", "STATUS").stdin(config.to_string()).run().ok();
        let error = first.check_result(&config, &first_result).error(999);
        assert!(error["details"].as_str().unwrap().contains("cnitool repair"), "{damage}: {error}");

        let next = Pod::with_ips(lab, &format!("next{n}"), &[&format!("10.1.0.{}/24", n + 10)]);
        let result = next.add(&config);
        assert_eq!(lab.sh(LIST_BASE_CHAIN), base_chain, "{damage}");
        next.check_result(&config, &result).ok();
        // An ADD restores only the rules of its own container. `cnitool repair` restores the others.
        let outcome = first.check_result(&config, &first_result);
        if *loses_rules {
            let error = outcome.error(999);
            assert!(error["msg"].as_str().unwrap().contains("masquerades 10.1.0.2"), "{damage}: {error}");
            first.del(&config);
            first_result = first.add(&config);
        } else {
            outcome.ok();
        }
        next.del(&config);
    }
}

#[test]
fn packets_are_masqueraded_after_a_flush() {
    let lab = &Lab::new();
    let outside = lab.outside();
    let config = layer3(json!({ "ipMasq": true, "isDefaultGateway": true }));
    Pod::with_ips(lab, "first", &["10.1.0.2/24"]).add(&config);
    lab.sh("nft flush table inet cni_plugins_masquerade");
    let next = Pod::with_ips(lab, "next", &["10.1.0.3/24"]);
    next.add(&config);
    let seen = send(&next.udp("0.0.0.0"), &udp(Some(&outside), "192.0.2.2", 0), "192.0.2.2");
    assert_eq!(seen, Some([192, 0, 2, 1].into()));
}

/// Another program may hold the lock of the iptables tools for a moment. STATUS must not fail then.
#[test]
fn status_waits_for_the_lock_of_iptables_as_an_add_does() {
    let test = "status_waits_for_the_lock_of_iptables_as_an_add_does";
    let Some(lab) = &legacy::host("nat", test) else { return };
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let config = layer3(json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let (tools, log) = (lab.dir().join("tools"), lab.dir().join("options"));
    fs::create_dir(&tools).unwrap();
    for tool in ["iptables-legacy-restore", "iptables-restore"] {
        testing::write_script(&tools.join(tool), &format!("echo \"$@\" >>{}\ncat >/dev/null", log.display()));
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display());
    pod.call("ADD", &config).env("PATH", &path).run().ok();
    lab.plugin("bridge", "STATUS").env("PATH", &path).stdin(config.to_string()).run().ok();
    let calls = fs::read_to_string(&log).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls, ["--noflush --wait=15", "--noflush --wait=15 --test"]);
}

/// Another process may delete a rule between the listing and the transaction, which then deletes none of them.
#[test]
fn rules_are_listed_again_when_one_of_them_is_gone() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipMasq": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "10.1.1.2/24"]);
    // The number of the message that deletes the rules depends on the kernel.
    for n in 1..60 {
        pod.add(&config);
        let inject = format!("inject=sendto:error=ENOENT:when={n}");
        let call = pod.call("DEL", &config).env("CNI_LOG", "debug");
        let (outcome, log) = call.trace(lab, &["-s0", "-e", "trace=sendto", "-e", &inject]);
        assert!(log.contains("INJECTED"), "no message deletes rules: {log}");
        // A message is logged before it is sent.
        let deletions = outcome.stderr.matches("of chain inet cni_plugins_masquerade masq_checks").count();
        if deletions > 2 {
            outcome.ok();
            assert_eq!(deletions, 4, "{}", outcome.stderr);
            return assert_clean(lab);
        }
        pod.del(&config);
        assert_clean(lab);
    }
    panic!("messages are sent without end");
}
