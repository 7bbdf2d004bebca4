//! GC removes the files of attachments to its network that are not in the list.

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::{Effect, inject_everywhere};
use testing::{Lab, Process};

use crate::support::{DATA_DIR, config, files, lab, pod};

pub(crate) fn gc(lab: &Lab, network: &str, valid: &[(&str, &str)]) {
    call(lab, network, valid).run().ok();
}

fn call(lab: &Lab, network: &str, valid: &[(&str, &str)]) -> Process {
    let valid: Vec<Value> = valid.iter().map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname })).collect();
    let stdin = config(json!({ "name": network, "cni.dev/valid-attachments": valid }));
    lab.plugin("tuning", "GC").stdin(stdin.to_string())
}

#[test]
fn a_lack_of_resources_is_an_error_or_leaves_nothing() {
    let lab = &lab();
    let (pod, mtu) = (pod(lab, "c1"), config(json!({ "mtu": 1400 })));
    let prepare = || {
        pod.add(&mtu);
        call(lab, "net1", &[])
    };
    inject_everywhere(lab, &[("openat", "EMFILE")], prepare, |effect, place| {
        if effect == Effect::Failed {
            gc(lab, "net1", &[]);
        }
        assert!(files().is_empty(), "{place}: {:?}", files());
    });
}

#[test]
fn only_files_of_the_network_that_are_not_listed_are_removed() {
    let lab = &lab();
    gc(lab, "net1", &[]);
    let mtu = config(json!({ "mtu": 1400 }));
    for (id, network) in [("a", "net1"), ("b", "net1"), ("c", "net2")] {
        pod(lab, id).add(&with(mtu.clone(), json!({ "name": network })));
    }
    // Files of the reference do not name a network, and other files do not belong to the plugin.
    lab.sh(&format!(
        "cd {DATA_DIR}; echo '{{\"mtu\": 1500}}' >d_eth0.json; echo x >e_eth0.json; mkfifo f_eth0.json; mkdir g_eth0.json"
    ));
    let foreign = ["d_eth0.json", "e_eth0.json", "f_eth0.json", "g_eth0.json"];
    let expect = |own: &[&str]| assert_eq!(files(), [own, &foreign].concat());
    gc(lab, "net1", &[("a", "eth0"), ("b", "eth0")]);
    expect(&["a_eth0.json", "b_eth0.json", "c_eth0.json"]);
    gc(lab, "net1", &[("a", "eth0"), ("b", "eth1"), ("c", "eth0")]);
    expect(&["a_eth0.json", "c_eth0.json"]);
    gc(lab, "net3", &[]);
    expect(&["a_eth0.json", "c_eth0.json"]);
    gc(lab, "net1", &[]);
    expect(&["c_eth0.json"]);
}
