//! Faults: a system call fails, or the plugin is killed there.

use std::fs;

use serde_json::json;
use testing::fault::{Effect, inject, inject_at, inject_everywhere, kill_everywhere};
use testing::{Lab, Pod, Scripted};

use crate::node::{
    DATA_DIR, SUBNET_FILE, assert_clean, assert_no_attachments, config, join_cluster, node_with_pod, recorder,
    state_files,
};

/// With an executed delegate, so that only the plugin's own system calls fail.
#[test]
fn a_failed_add_leaves_no_state() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let (pod, config) = (Pod::new(lab, "c1"), config(json!({ "delegate": { "type": Scripted::NAME } })));
    let prepare = || {
        lab.sh("rm -rf /var/lib/cni");
        pod.call("ADD", &config)
    };
    let faults = [
        ("openat", "EACCES"),
        ("openat", "EMFILE"),
        ("openat", "ENOSPC"),
        ("write", "ENOSPC"),
        ("linkat", "EPERM"),
        ("renameat", "EIO"),
        ("unlinkat", "EROFS"),
        ("mkdir", "ENOSPC"),
    ];
    let failures = inject_everywhere(lab, &faults, prepare, |effect, place| {
        if effect == Effect::Failed {
            assert_clean(lab);
            let calls = recorder.calls();
            assert!(calls.is_empty() || calls.last().unwrap() == "DEL c1 eth0", "{place}: {calls:?}");
        } else {
            pod.del(&config);
            assert_eq!(state_files(), [] as [&str; 0], "{place}");
        }
    });
    assert!(failures >= 9, "only {failures} failures");
}

/// With the delegate in the same process.
#[test]
fn a_failed_add_leaves_no_attachment() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let faults = [("linkat", "EIO"), ("openat", "ENOSPC"), ("mkdir", "EACCES"), ("renameat", "ENOSPC")];
    let failures = inject_everywhere(
        lab,
        &faults,
        || pod.call("ADD", &config),
        |effect, _| {
            if effect != Effect::Failed {
                pod.del(&config);
            }
            assert_clean(lab);
        },
    );
    assert!(failures >= 4, "only {failures} failures");
}

#[test]
fn a_file_system_without_hard_links_is_enough() {
    let lab = &Lab::new();
    recorder(lab);
    join_cluster();
    let (pod, config) = (Pod::new(lab, "c1"), config(json!({ "delegate": { "type": Scripted::NAME } })));
    assert_eq!(inject(lab, pod.call("ADD", &config), "linkat", 1, "error=EPERM"), Effect::Tolerated);
    assert_eq!(state_files(), ["c1"]);
    pod.del(&config);
    assert_clean(lab);
}

#[test]
fn a_subnet_file_that_cannot_be_read_is_an_error() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    // C libraries open files with different calls.
    for (call, errno) in [("open,openat", "EACCES"), ("open,openat", "ENFILE"), ("read", "EIO")] {
        let add = pod.call("ADD", &config);
        let error = inject_at(lab, add, SUBNET_FILE, call, &format!("error={errno}")).error(5);
        assert!(error["msg"].as_str().unwrap().contains(SUBNET_FILE), "{error}");
        assert_clean(lab);
    }
    // DEL does not depend on it.
    pod.add(&config);
    let del = pod.call("DEL", &config);
    inject_at(lab, del, SUBNET_FILE, "read", "error=EIO").silent();
    assert_clean(lab);
}

#[test]
fn a_directory_of_state_files_that_cannot_be_read_prevents_only_add() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    fs::create_dir_all(DATA_DIR).unwrap();
    for (call, errno) in [("openat", "EACCES"), ("newfstatat", "EIO")] {
        let fault = format!("error={errno}");
        inject_at(lab, pod.call("ADD", &config), DATA_DIR, call, &fault).error(5);
        assert_clean(lab);
        pod.add(&config);
        inject_at(lab, pod.call("DEL", &config), DATA_DIR, call, &fault).silent();
        assert_no_attachments(lab);
        pod.del(&config);
        assert_clean(lab);
    }
}

/// Otherwise the state file would stay: the runtime does not repeat a DEL that succeeded.
#[test]
fn a_lack_of_resources_for_the_state_files_fails_del() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    for (call, errno) in [("openat", "EMFILE"), ("newfstatat", "ENOMEM")] {
        pod.add(&config);
        inject_at(lab, pod.call("DEL", &config), DATA_DIR, call, &format!("error={errno}")).error(5);
        pod.del(&config);
        assert_clean(lab);
    }
}

#[test]
fn a_failed_del_is_completed_by_the_next_one() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let prepare = || {
        pod.add(&config);
        pod.call("DEL", &config)
    };
    let faults = [("openat", "EACCES"), ("unlinkat", "EROFS")];
    let failures = inject_everywhere(lab, &faults, prepare, |_, _| {
        pod.del(&config);
        assert_clean(lab);
    });
    assert!(failures >= 2, "only {failures} failures");
}

/// A container that is added for the first time, and one whose state file of an earlier ADD is replaced.
#[test]
fn del_removes_what_a_killed_add_left() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    for has_earlier in [false, true] {
        let prepare = || {
            if has_earlier {
                pod.add(&config);
                pod.sh("ip link delete eth0");
                lab.sh("rm -r /var/lib/cni/networks");
            }
            pod.call("ADD", &config)
        };
        let names = ["openat", "linkat", "unlinkat", "renameat", "write", "newfstatat"];
        let killed = kill_everywhere(lab, &names, prepare, |_| {
            pod.del(&config);
            assert_clean(lab);
        });
        assert!(killed > 10, "killed only {killed} times");
    }
}

#[test]
fn del_completes_a_killed_del() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let prepare = || {
        pod.add(&config);
        pod.call("DEL", &config)
    };
    let killed = kill_everywhere(lab, &["openat", "unlinkat", "newfstatat"], prepare, |_| {
        pod.del(&config);
        assert_clean(lab);
    });
    assert!(killed > 5, "killed only {killed} times");
}
