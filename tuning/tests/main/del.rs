//! DEL restores only what provably belongs to the attachment, removes the file, and succeeds.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use testing::config::with;
use testing::{Pod, skip};

use crate::gc::gc;
use crate::support::{
    DATA_DIR, MAC, NEW_MAC, Tuned, config, everything, files, lab, pod, pod_with_interface, tuned, untouched,
};

#[test]
fn the_file_is_removed_without_the_namespace() {
    let lab = &lab();
    for netns in ["", "/run/netns/absent", "/dev/null"] {
        let pod = pod(lab, "c1");
        let config = config(everything());
        pod.add(&config);
        lab.sh("ip netns del c1");
        pod.call("DEL", &with(config.clone(), json!({ "prevResult": null }))).env("CNI_NETNS", netns).run().ok();
        assert_eq!(pod.backed_up(), Value::Null, "{netns:?}");
        lab.sh("ip link del vethc1 2>/dev/null || true");
        pod.del(&config);
    }
}

#[test]
fn the_configuration_may_have_changed() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    for keys in [
        json!({}),
        json!({ "mtu": 1300 }),
        json!({ "mtu": "garbage", "sysctl": 5, "mac": [] }),
        json!({ "prevResult": { "interfaces": 5 } }),
    ] {
        pod.add(&config(everything()));
        assert_eq!(pod.attributes(), tuned());
        pod.del(&config(keys.clone()));
        assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{keys}");
    }
}

/// The namespace's path leads to another container by now, which may even have the same MAC address.
#[test]
fn another_container_is_not_touched() {
    let lab = &lab();
    let (pod, other) = (pod(lab, "c1"), pod(lab, "c2"));
    let config = config(everything());
    pod.add(&config);
    other.sh(&format!("ip link set eth0 address {NEW_MAC} mtu 1400 txqueuelen 20 promisc on allmulticast on"));
    let before = other.attributes();
    pod.call("DEL", &config).env("CNI_NETNS", &other.netns).run().ok();
    assert_eq!(other.attributes(), before);
    assert_eq!(pod.backed_up(), Value::Null);
}

#[test]
fn the_host_is_not_touched() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh("ip link add eth0 type veth peer name other; ip link set eth0 mtu 1400");
    let config = config(json!({ "mtu": 1300 }));
    pod.add(&config);
    pod.call("DEL", &config).env("CNI_NETNS", "/proc/self/ns/net").run().ok();
    assert_eq!(lab.ip("link show eth0")[0]["mtu"], 1400);
    assert_eq!(pod.backed_up(), Value::Null);
}

/// The first container is gone without a DEL, and another one gets its ID, its namespace's path and its interface's
/// name.
#[test]
fn a_reused_id_does_not_get_the_values_of_the_dead_container() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    pod.sh("ip link set eth0 mtu 1492");
    let config = config(json!({ "mtu": 1400 }));
    pod.add(&config);
    let old = fs::read(pod.backup()).unwrap();
    lab.sh("ip netns del c1; ip link del vethc1 2>/dev/null || true");
    let again = crate::support::pod(lab, "c1");
    // An ADD that changes nothing does not look at the file.
    again.add(&crate::support::config(json!({})));
    again.sh("ip link set eth0 mtu 1450");
    again.del(&crate::support::config(json!({})));
    assert_eq!((again.link()["mtu"].clone(), again.backed_up()), (json!(1450), Value::Null));
    // An ADD that changes something replaces the file.
    fs::write(again.backup(), old).unwrap();
    again.add(&config);
    assert_eq!(again.backed_up()["mtu"], 1450);
    again.del(&config);
    assert_eq!(again.link()["mtu"], 1450);
}

/// The interface was deleted, and another one has its name, in the same namespace.
#[test]
fn another_interface_of_the_same_name_is_not_touched() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(json!({ "mtu": 1400 }));
    pod.add(&config);
    lab.sh("ip link del vethc1");
    pod.connect();
    pod.sh("ip link set eth0 mtu 1300");
    pod.del(&config);
    assert_eq!((pod.link()["mtu"].clone(), pod.backed_up()), (json!(1300), Value::Null));
}

/// A late DEL of one network must not undo the ADD of another for the same interface.
#[test]
fn the_file_of_another_network_stays() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(everything());
    pod.add(&config);
    pod.del(&with(config.clone(), json!({ "name": "net2" })));
    assert_eq!(pod.attributes(), tuned());
    pod.del(&config);
    assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null));
}

/// `a` with `b_c`, and `a_b` with `c`, have the same file name.
#[test]
fn an_ambiguous_name_is_resolved() {
    let lab = &lab();
    let one = pod_with_interface(lab, "a", "b_c");
    let other = pod_with_interface(lab, "a_b", "c");
    assert_eq!(one.backup(), other.backup());
    let config = config(json!({ "mtu": 1400 }));
    one.add(&config);
    other.del(&config);
    assert_eq!(one.backed_up()["mtu"], 1500);
    // Both are tuned at the same time.
    for _ in 0..2 {
        other.add(&config);
    }
    assert_eq!(files().len(), 2, "{:?}", files());
    one.del(&config);
    assert_eq!((one.link()["mtu"].clone(), other.link()["mtu"].clone()), (json!(1500), json!(1400)));
    other.add(&config);
    other.del(&config);
    assert_eq!((other.link()["mtu"].clone(), files()), (json!(1500), vec![]));
}

/// The reference cannot create a file with such a name.
#[test]
fn a_container_id_may_be_longer_than_the_name_of_a_file() {
    let lab = &lab();
    let config = config(everything());
    for len in [240, 245, 246, 1000] {
        // The namespace has a shorter name.
        let pod = Pod { id: "c".repeat(len), ..pod(lab, &format!("c{len}")) };
        for _ in 0..2 {
            pod.add(&config);
            pod.check(&config).ok();
        }
        assert_eq!(files().len(), 1, "{len}");
        pod.del(&config);
        let link = pod.sh("ip link show eth0");
        assert!(link.contains("mtu 1500") && files().is_empty(), "{len}: {link} {:?}", files());
        pod.add(&config);
        gc(lab, "net1", &[(&pod.id, "eth0")]);
        assert_eq!(files().len(), 1, "{len}");
        gc(lab, "net1", &[]);
        assert!(files().is_empty(), "{len}");
    }
}

#[test]
fn whatever_has_the_name_of_the_file_is_survived() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let victim = lab.dir().join("victim");
    let file = pod.backup();
    let file = file.display();
    lab.sh(&format!("mkdir -p {DATA_DIR}"));
    let mut cases = vec![
        (format!("ln -s {} {file}", victim.display()), false),
        (format!("ln -s /nowhere {file}"), false),
        (format!("mkfifo {file}"), false),
        (format!("mkdir -p {file}/x"), true),
        (format!("truncate -s 10G {file}"), false),
        (format!("yes | head -c 3000000 >{file}"), false),
        (format!("printf '\\377\\000' >{file}"), false),
        (format!("echo '{{\"mtu\": 99999999999}}' >{file}"), false),
        (format!("echo '{{\"mtu\": 1300, \"attachment\": {{}}}}' >{file}"), true),
        (format!("echo '{{\"mtu\": 1300, \"attachment\": 5}}' >{file}"), false),
    ];
    if lab.sh("mknod /run/device c 1 5 2>&1 || true").is_empty() {
        cases.push((format!("mknod {file} c 1 5"), false));
    } else {
        skip("whatever_has_the_name_of_the_file_is_survived, a device", "an ordinary user cannot create one");
    }
    for (command, stays) in cases {
        fs::write(&victim, "{\"mtu\": 1300}").unwrap();
        lab.sh(&command);
        pod.del(&config(json!({ "mtu": 1500 })));
        assert_eq!(pod.attributes(), untouched(), "{command}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "{\"mtu\": 1300}", "{command}");
        assert_eq!(fs::symlink_metadata(pod.backup()).is_ok(), stays, "{command}");
        // ADD replaces it, unless it is a directory.
        let is_dir = Path::new(&pod.backup()).is_dir();
        lab.sh(&format!("rm -rf {file}; {command}"));
        if is_dir {
            let before = pod.attributes();
            pod.refused(&config(everything()), 5);
            assert_eq!(pod.attributes(), before);
        } else {
            pod.add(&config(everything()));
            assert_eq!(pod.attributes(), tuned(), "{command}");
            pod.del(&config(json!({})));
            assert_eq!(pod.attributes(), untouched(), "{command}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "{\"mtu\": 1300}", "{command}");
        lab.sh(&format!("rm -rf {file}"));
    }
}

/// Another user may be able to write in a `dataDir` that the configuration names.
#[test]
fn a_file_that_another_user_can_write_is_not_used() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let (planted, wanted) = (json!({ "mtu": 1300, "mac": NEW_MAC }), config(json!({ "mtu": 1500, "mac": MAC })));
    // It is in the form of the reference, and the interface has what the configuration requests: DEL would use it.
    let plant = |command: &str| {
        lab.sh(&format!("mkdir -p {DATA_DIR}; cd {DATA_DIR}; echo '{planted}' >c1_eth0.json; {command} c1_eth0.json"));
    };
    for command in ["chown 1000", "chown 1000:1000", "chmod 0620", "chmod 0602", "chmod 0666"] {
        let chown = "touch /run/file; chown 1000:1000 /run/file 2>&1 || true";
        if command.starts_with("chown") && !lab.sh(chown).is_empty() {
            skip("a_file_that_another_user_can_write_is_not_used, chown", "this user namespace has one user");
            continue;
        }
        plant(command);
        pod.del(&wanted);
        assert_eq!((pod.attributes(), pod.backed_up()), (untouched(), Value::Null), "{command}");
        // ADD does not take the values for those of an earlier ADD.
        plant(command);
        pod.add(&wanted);
        assert_eq!(pod.backed_up()["mtu"], 1500, "{command}");
        pod.del(&wanted);
        assert_eq!(pod.attributes(), untouched(), "{command}");
    }
    // Without these permissions, it would have been used.
    plant("chmod 0644");
    pod.del(&wanted);
    assert_eq!(pod.link()["mtu"], 1300);
}

/// For an interface that outlives the container.
#[test]
fn an_add_whose_answer_is_lost_is_reverted() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let before = pod.state();
    for keys in [everything(), json!({ "sysctl": { "net.core.somaxconn": "77" } })] {
        let outcome = pod.call("ADD", &config(keys)).via_shell("exec \"$0\" >/dev/full").run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert_eq!(pod.state(), before);
    }
}

/// A file of the reference does not say which namespace its interface is in.
#[test]
fn the_plugins_own_namespace_counts_as_gone() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    let config = config(json!({ "mac": NEW_MAC }));
    lab.sh(&format!("mkdir -p {DATA_DIR}; echo '{{\"mac\": \"{MAC}\"}}' >{DATA_DIR}/c1_eth0.json"));
    let outcome = pod.call("DEL", &config).env("CNI_NETNS", "/proc/self/ns/net").env("CNI_LOG", "warn").run();
    assert!(outcome.stderr.contains("the container's is gone"), "{}", outcome.stderr);
    outcome.ok();
    assert_eq!(pod.backed_up(), Value::Null);
}

/// The backup file proves that ADD tuned this interface of the host.
#[test]
fn an_interface_in_the_plugins_own_namespace_is_restored() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh(&format!("ip link add eth0 address {MAC} txqueuelen 1000 type veth peer name other"));
    let link = || lab.ip("link show eth0")[0].clone();
    let before = link();
    let config = config(json!({ "mtu": 1400, "mac": NEW_MAC, "txQLen": 20 }));
    let call = |command: &str| pod.call(command, &config).env("CNI_NETNS", "/proc/self/ns/net");
    call("ADD").env("CNI_NETNS_OVERRIDE", "1").run().ok();
    assert_eq!((link()["mtu"].clone(), link()["address"].clone()), (json!(1400), json!(NEW_MAC)));
    // Whatever the runtime sets at DEL.
    call("DEL").run().ok();
    assert_eq!((link(), pod.backed_up()), (before, Value::Null));
}
