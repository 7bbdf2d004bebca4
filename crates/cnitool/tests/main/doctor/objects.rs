//! What plugins have created, such as masquerade rules.

use super::{only_problem, problems};
use crate::node::{attach, host, json, page};

#[test]
fn flushed_rules() {
    let host = host("10.142.0.0/24");
    attach(&host, "blue");
    host.lab.sh("nft flush chain inet cni_plugins_masquerade postrouting");
    let what = only_problem(&host, "masquerade", "fail");
    assert!(what.contains("no packet reaches the masquerade rules"), "{what}");
    let remedy = what.split('`').nth(1).unwrap().strip_prefix("cnitool ").unwrap();
    page(&host.run(remedy));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "the remedy helps");
    host.lab.sh("nft flush table inet cni_plugins_masquerade");
    let all = host.run("doctor --json").stdout;
    assert!(all.contains("lack a masquerade rule") && all.contains("no packet reaches"), "{all}");
    page(&host.run(remedy));
    host.lab.sh("nft flush chain inet cni_plugins_masquerade masq_checks");
    assert!(only_problem(&host, "masquerade", "fail").contains("1 of 1 live containers lack a masquerade rule"));
    page(&host.run(remedy));
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0], "the remedy helps");
}
