//! The elements of the spoof check: who replaces and removes them. `traffic` has their effect, `upgrade` the chains of
//! others.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

use crate::pod::{assert_clean, host_veth, layer3};

fn config() -> Value {
    layer3(json!({ "macspoofchk": true }))
}

/// Attaches a container whose host veth gets the name `veth00000000`.
fn add_with_the_same_name(pod: &Pod<'_>, config: &Value) -> Value {
    let zero = "inject=getrandom:poke_exit=@arg1=00000000:when=1";
    let (outcome, log) = pod.call("ADD", config).trace(pod.lab, &["-f", "-e", "trace=getrandom", "-e", zero]);
    let result = outcome.ok();
    assert_eq!(host_veth(&result), "veth00000000", "{log}");
    result
}

/// Every frame passes this one rule.
#[test]
fn all_containers_share_one_rule() {
    let lab = &Lab::new();
    for n in 2..5 {
        Pod::with_ips(lab, &format!("c{n}"), &[&format!("10.1.0.{n}/24")]).add(&config());
    }
    let chain = lab.sh("nft list chain bridge cni_spoofcheck prerouting");
    assert!(chain.contains("type filter hook prerouting priority dstnat; policy accept;"), "{chain}");
    let rules: Vec<&str> = chain.lines().map(str::trim).filter(|line| line.contains("iif")).collect();
    assert_eq!(rules, ["iifname @ports iifname . ether saddr != @macs drop"]);
    assert_eq!(lab.sh("nft list tables bridge"), "table bridge cni_spoofcheck\n");
}

/// The DEL of the first attachment was lost.
#[test]
fn a_repeated_add_replaces_the_check() {
    let lab = &Lab::new();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let first = pod.add(&config());
    lab.sh(&format!("ip link del {}", host_veth(&first)));
    let second = pod.add(&config());
    pod.check_result(&config(), &second).ok();
    assert!(!lab.sh("nft list ruleset").contains(&host_veth(&first)));
    pod.del(&config());
    assert_clean(lab);
}

#[test]
fn a_check_that_a_lost_del_left_for_a_port_of_the_same_name_is_replaced() {
    let lab = &Lab::new();
    let [gone, pod] = ["a", "b"].map(|id| Pod::with_ips(lab, id, &["10.1.0.2/24"]));
    add_with_the_same_name(&gone, &config());
    lab.sh("ip link del veth00000000");
    let result = add_with_the_same_name(&pod, &config());
    pod.check_result(&config(), &result).ok();
    assert!(!lab.sh("nft list ruleset").contains("id: a\""));
    gone.del(&config());
    pod.check_result(&config(), &result).ok();
    pod.del(&config());
    assert_clean(lab);
}

/// The key of the attachment's element still leads to the port, which belongs to another attachment now.
#[test]
fn del_keeps_the_check_of_another_attachment_with_the_same_port() {
    let lab = &Lab::new();
    let [gone, pod] = ["a", "b"].map(|id| Pod::with_ips(lab, id, &["10.1.0.2/24"]));
    add_with_the_same_name(&gone, &config());
    // Another program flushes two of the three sets, so that the next ADD does not find the old check.
    lab.sh(
        "ip link del veth00000000; nft 'flush set bridge cni_spoofcheck ports; flush set bridge cni_spoofcheck macs'",
    );
    let result = add_with_the_same_name(&pod, &config());
    gone.del(&config());
    pod.check_result(&config(), &result).ok();
    assert!(!lab.sh("nft list ruleset").contains("id: a\""));
    pod.del(&config());
    assert_clean(lab);
}

#[test]
fn a_check_of_which_a_part_was_deleted_is_found_and_removed() {
    let lab = &Lab::new();
    let mac = json!({ "args": { "cni": { "mac": "02:00:00:00:00:0a" } } });
    for (set, id) in [("ports", "a"), ("macs", "b"), ("attachments", "c")] {
        let pod = Pod::with_ips(lab, id, &["10.1.0.2/24"]);
        let config = with(config(), mac.clone());
        let result = pod.add(&config);
        pod.check_result(&config, &result).ok();
        lab.sh(&format!("nft flush set bridge cni_spoofcheck {set}"));
        let error = pod.check_result(&config, &result).error(999);
        let wanted = format!("set bridge cni_spoofcheck {set} has no element of port \"{}\"", host_veth(&result));
        assert!(error["msg"].as_str().unwrap().contains(&wanted), "{error}");
        pod.del(&config);
        // Without the element of the attachment, DEL does not know the port. GC finds that it is gone.
        if set == "attachments" {
            let gc = with(config, json!({ "cni.dev/valid-attachments": [] }));
            lab.plugin("bridge", "GC").stdin(gc.to_string()).run().ok();
        }
        assert_clean(lab);
    }
}

#[test]
fn the_next_add_restores_a_rule_that_was_flushed() {
    let lab = &Lab::new();
    let first = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = first.add(&config());
    lab.sh("nft flush chain bridge cni_spoofcheck prerouting");
    let error = first.check_result(&config(), &result).error(999);
    assert!(error["msg"].as_str().unwrap().contains("no rule in chain bridge cni_spoofcheck prerouting"), "{error}");
    Pod::with_ips(lab, "b", &["10.1.0.3/24"]).add(&config());
    first.check_result(&config(), &result).ok();
}

/// GC of one network removes what is left of another one if the port is gone, and keeps what belongs to live
/// containers.
#[test]
fn gc_of_another_network_keeps_the_checks_of_live_containers() {
    let lab = &Lab::new();
    let [alive, gone] = [("a", "10.1.0.2/24"), ("b", "10.1.0.3/24")].map(|(id, ip)| Pod::with_ips(lab, id, &[ip]));
    let result = alive.add(&config());
    let port = host_veth(&gone.add(&config()));
    lab.sh(&format!("ip link del {port}"));
    let gc = with(config(), json!({ "name": "net2", "bridge": "br2", "cni.dev/valid-attachments": [] }));
    lab.plugin("bridge", "GC").stdin(gc.to_string()).run().ok();
    alive.check_result(&config(), &result).ok();
    assert!(!lab.sh("nft list ruleset").contains(&port));
}
