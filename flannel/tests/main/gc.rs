//! GC reaches the delegate, and removes state files of stale attachments of its network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use testing::config::with;
use testing::fault::{Effect, inject_everywhere};
use testing::{Lab, Outcome, Pod, Process, Scripted};

use crate::node::{
    DATA_DIR, assert_clean, config, join_cluster, leases, node_with_pod, read_state, recorder, state_files, write_state,
};

fn call(lab: &Lab, config: &Value, valid: Value) -> Process {
    let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
    lab.plugin("flannel", "GC").stdin(config.to_string())
}

fn collect(lab: &Lab, config: &Value, valid: Value) -> Outcome {
    call(lab, config, valid).run()
}

#[test]
fn a_lack_of_resources_is_an_error_or_leaves_nothing() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let prepare = || {
        pod.add(&config);
        call(lab, &config, json!([]))
    };
    inject_everywhere(lab, &[("openat", "EMFILE")], prepare, |effect, place| {
        if effect == Effect::Failed {
            collect(lab, &config, json!([])).ok();
        }
        assert!(state_files().is_empty(), "{place}: {:?}", state_files());
        assert_clean(lab);
    });
}

#[test]
fn stale_attachments_are_removed_with_their_state() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let (one, two) = (config(json!({})), config(json!({ "name": "net2", "delegate": { "bridge": "br2" } })));
        let pods = ["c1", "c2", "c3", "c4"].map(|id| Pod::new(lab, id));
        let second = pods[0].interface("eth1", &[]);
        for pod in [&pods[0], &second, &pods[1], &pods[3]] {
            pod.add(&one);
        }
        pods[2].add(&two);
        // The reference wrote this one.
        write_state("c4", &read_state("c4").replace("\"cni0/ifname\":\"eth0\",", ""));
        let valid = json!([{ "containerID": "c1", "ifname": "eth1" }]);
        collect(lab, &one, valid).ok();
        // The name of the reference led to the state of eth0.
        assert_eq!(state_files(), ["c1:eth1", "c3"]);
        assert_eq!(leases(lab).len(), 2);
        collect(lab, &one, json!([])).ok();
        assert_eq!(state_files(), ["c3"]);
        assert_eq!(leases(lab).len(), 1);
        collect(lab, &two, json!([{ "containerID": "c3", "ifname": "eth0" }])).ok();
        assert_eq!(state_files(), ["c3"]);
        collect(lab, &two, json!([])).ok();
        assert_clean(lab);
    });
}

#[test]
fn a_file_of_the_reference_is_kept_with_its_container() {
    let lab = &Lab::new();
    recorder(lab);
    join_cluster();
    let config = config(json!({ "delegate": { "type": Scripted::NAME } }));
    let state =
        json!({ "cniVersion": "1.1.0", "name": "net1", "type": Scripted::NAME, "ipam": { "subnet": "10.1.2.0/24" } });
    write_state("c1", &state.to_string());
    write_state("c2", &state.to_string());
    collect(lab, &config, json!([{ "containerID": "c1", "ifname": "eth0" }])).ok();
    assert_eq!(state_files(), ["c1"]);
}

#[test]
fn files_of_others_stay() {
    let lab = &Lab::new();
    recorder(lab);
    join_cluster();
    let config = config(json!({ "delegate": { "type": Scripted::NAME } }));
    for (name, content) in [
        ("lock", ""),
        ("10.1.17.2", "c9\r\neth0"),
        ("last_reserved_ip.0", "10.1.17.2"),
        ("notes", "nonsense"),
        ("events", "{\"a\":1}\n{\"b\":2}\n"),
        ("settings.json", "{\"name\":\"net1\"}"),
        ("10-bridge.conf", "{\"name\":\"net1\",\"type\":\"bridge\"}"),
        ("partial.json", "{\"name\":\"net1\",\"type\":\"brid"),
        (".hidden", ""),
        ("a b", ""),
        ("a:b:c", ""),
        ("c7:eth0", "{\"name\":\"net2\",\"type\":\"bridge\",\"ipam\":{}}"),
        ("c8", "{\"name\":\"net2\",\"type\":\"bridge\",\"ipam\":{}}"),
        ("script", "#!/bin/sh\n"),
    ] {
        write_state(name, content);
    }
    fs::create_dir(Path::new(DATA_DIR).join("c5")).unwrap();
    symlink("/etc/hostname", Path::new(DATA_DIR).join("c6")).unwrap();
    lab.sh(&format!("mkfifo {DATA_DIR}/c7"));
    let before = state_files();
    collect(lab, &config, json!([])).ok();
    assert_eq!(state_files(), before);
    assert_eq!(read_state("settings.json"), "{\"name\":\"net1\"}");
}

/// A power failure can leave an empty file, because nothing waits for the disk.
#[test]
fn a_file_with_an_own_name_and_without_content_is_removed() {
    let lab = &Lab::new();
    recorder(lab);
    join_cluster();
    let config = config(json!({ "delegate": { "type": Scripted::NAME } }));
    for name in ["c1:eth0", "c2:eth0", "c3:eth0"] {
        write_state(name, if name.starts_with("c2") { "{\"cniVersion\":\"1.1" } else { "" });
    }
    collect(lab, &config, json!([{ "containerID": "c3", "ifname": "eth0" }])).ok();
    assert_eq!(state_files(), ["c3:eth0"]);
}

#[test]
fn the_delegate_gets_the_list() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let config = config(json!({ "delegate": { "type": Scripted::NAME } }));
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    collect(lab, &config, valid.clone()).ok();
    let sent = recorder.config("GC");
    assert_eq!((&sent["cni.dev/valid-attachments"], &sent["name"]), (&valid, &json!("net1")));
    assert_eq!(sent["ipam"]["ranges"], json!([[{ "subnet": "10.1.17.0/24" }]]));
    // Without a subnet file, too.
    fs::remove_file(crate::node::SUBNET_FILE).unwrap();
    collect(lab, &config, valid.clone()).ok();
    assert_eq!(recorder.config("GC")["cni.dev/valid-attachments"], valid);
    // If the delegate fails, the next GC finds the same state.
    write_state("c2:eth0", &json!({ "name": "net1", "type": Scripted::NAME, "ipam": {} }).to_string());
    recorder.fail_with("GC", &json!({ "code": 123, "msg": "not now" }));
    collect(lab, &config, valid.clone()).error(123);
    assert_eq!(state_files(), ["c2:eth0"]);
    recorder.recover("GC");
    collect(lab, &config, valid).ok();
    assert_eq!(state_files(), [] as [&str; 0]);
}

#[test]
fn without_a_list_nothing_is_removed() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let result = pod.add(&config);
    lab.plugin("flannel", "GC").stdin(config.to_string()).run().error(7);
    pod.check_result(&config, &result).ok();
    assert_eq!(state_files(), [pod.id.as_str()]);
}
