//! State files of earlier versions: `CONTAINER:INTERFACE` for each attachment, and `CONTAINER` as a second name of the
//! first one's.

use std::fs;
use std::path::Path;

use serde_json::json;
use testing::{Lab, Pod, Scripted};

use crate::node::{
    DATA_DIR, assert_clean, config, join_cluster, leases, node_with_pod, read_state, recorder, second_name,
    state_files, write_state,
};

/// Makes the state files of these interfaces of a container those of an earlier version.
fn make_old(interfaces: &[&Pod<'_>]) {
    let path = |name: &str| Path::new(DATA_DIR).join(name);
    for pod in interfaces {
        let key = format!("\"cni0/ifname\":\"{}\",", pod.ifname);
        let mut names = [pod.id.clone(), second_name(pod)].into_iter();
        let name = names.find(|name| path(name).exists() && read_state(name).contains(&key)).unwrap();
        let text = read_state(&name).replace(&key, "");
        fs::remove_file(path(&name)).unwrap();
        write_state(&second_name(pod), &text);
    }
    fs::hard_link(path(&second_name(interfaces[0])), path(&interfaces[0].id)).unwrap();
}

#[test]
fn an_attachment_of_an_earlier_version_is_deleted() {
    Lab::for_each_way_to_delegate(|lab| {
        let (pod, config) = node_with_pod(lab);
        let result = pod.add(&config);
        make_old(&[&pod]);
        assert_eq!(state_files(), ["c1", "c1:eth0"]);
        pod.check_result(&config, &result).ok();
        pod.interface("eth1", &[]).del(&config);
        assert_eq!(state_files(), ["c1", "c1:eth0"]);
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn interfaces_of_an_earlier_version_are_deleted_one_by_one() {
    let lab = &Lab::new();
    for first_goes_first in [true, false] {
        let (pod, config) = node_with_pod(lab);
        let second = pod.interface("eth1", &[]);
        let results = [&pod, &second].map(|pod| pod.add(&config));
        make_old(&[&pod, &second]);
        assert_eq!(state_files(), ["c1", "c1:eth0", "c1:eth1"]);
        let (one, other, result, left) = match first_goes_first {
            true => (&pod, &second, &results[1], vec!["c1:eth1"]),
            false => (&second, &pod, &results[0], vec!["c1", "c1:eth0"]),
        };
        for _ in 0..2 {
            // Without files that say whose they are, a repeated DEL finds none.
            one.del(&config);
            assert_eq!(state_files(), left);
            assert_eq!(leases(lab).len(), 1);
            other.check_result(&config, result).ok();
        }
        other.del(&config);
        assert_clean(lab);
        lab.sh("ip netns delete c1");
    }
}

/// Beside an interface of an earlier version, another one has a file of its own.
#[test]
fn an_interface_is_added_beside_one_of_an_earlier_version() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let result = pod.add(&config);
    make_old(&[&pod]);
    let second = pod.interface("eth1", &[]);
    second.add(&config);
    assert_eq!(state_files(), ["c1", "c1:eth0", "c1:eth1"]);
    second.del(&config);
    assert_eq!(state_files(), ["c1", "c1:eth0"]);
    pod.check_result(&config, &result).ok();
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn gc_removes_both_names() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let second = pod.interface("eth1", &[]);
    [&pod, &second].iter().for_each(|pod| drop(pod.add(&config)));
    make_old(&[&pod, &second]);
    let collect = |valid: serde_json::Value| {
        let config = testing::config::with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
        lab.plugin("flannel", "GC").stdin(config.to_string()).run().ok();
    };
    collect(json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "c1", "ifname": "eth1" }]));
    assert_eq!(state_files(), ["c1", "c1:eth0", "c1:eth1"]);
    collect(json!([{ "containerID": "c1", "ifname": "eth1" }]));
    assert_eq!(state_files(), ["c1:eth1"]);
    collect(json!([]));
    assert_clean(lab);
}

/// The reference removes only the name that it knows. A file of a detached container is never used for a later one.
#[test]
fn a_file_that_the_reference_left_is_not_used() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let state = |of: &str| {
        json!({ "cniVersion": "1.1.0", "name": "net1", "type": Scripted::NAME, "of": of, "ipam": {} }).to_string()
    };
    let (pod, config) = (Pod::new(lab, "c1"), config(json!({ "delegate": { "type": Scripted::NAME } })));
    // An earlier version added the container, and the reference deleted it. Then the reference adds it again.
    let leave = || {
        write_state("c1:eth0", &state("stale"));
        lab.pass_ticks();
    };
    leave();
    write_state("c1", &state("reference"));
    pod.del(&config);
    assert_eq!(recorder.config("DEL")["of"], "reference");
    assert_clean(lab);
    // This version adds it again.
    leave();
    pod.add(&config);
    assert_eq!(state_files(), ["c1"]);
    pod.del(&config);
    assert_eq!(recorder.config("DEL").get("of"), None);
    assert_clean(lab);
    // The reference has added another interface before this one was added.
    write_state("c1", &state("other"));
    pod.add(&config);
    assert_eq!(state_files(), ["c1", "c1:eth0"]);
    pod.del(&config);
    assert_eq!(recorder.config("DEL").get("of"), None);
    assert_eq!(state_files(), ["c1"]);
}

/// A power failure can leave an empty file, because nothing waits for the disk.
#[test]
fn a_broken_file_does_not_take_the_name() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    for content in ["", "{\"cniVersion\":\"1.1", "\0\0\0\0"] {
        write_state("c1", content);
        pod.add(&config);
        assert_eq!(state_files(), ["c1"]);
        assert!(read_state("c1").contains("cni0/ifname"));
        pod.del(&config);
        assert_clean(lab);
    }
}
