//! DEL removes only what provably belongs to the attachment, and always succeeds.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use testing::config::with;
use testing::{Lab, wait_until};

use crate::support::{Routed, V4, V6, VERSIONS, chained, config, pod, restore_networks};

#[test]
fn nothing_is_needed() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    let full = chained(&pod, json!({}), &[V4, V6]);
    let before = pod.rules();
    let variants = [
        full.clone(),
        config(json!({ "prevResult": null })),
        config(json!({ "prevResult": 5 })),
        config(json!({ "prevResult": { "ips": [] } })),
        with(full.clone(), json!({ "table": "x", "gateways": 7, "addSourceHints": [] })),
        with(full.clone(), json!({ "table": 5000 })),
    ];
    for config in &variants {
        for version in VERSIONS {
            restore_networks(&pod);
            pod.add(&full);
            let config = with(config.clone(), json!({ "cniVersion": version }));
            pod.del(&config);
            assert_eq!(pod.rules(), before, "{config}");
            assert_eq!((pod.table("-4", "100"), pod.table("-6", "101")), (Vec::new(), Vec::new()), "{config}");
            pod.del(&config);
        }
    }
}

/// The rules stay when their interface is gone. A later interface of the same name is not that of the attachment.
#[test]
fn the_interface_may_be_gone() {
    for again in [false, true] {
        let lab = &Lab::new();
        let pod = pod(lab, "c1", &[V4, V6]);
        let config = chained(&pod, json!({}), &[V4, V6]);
        pod.add(&config);
        pod.sh("ip link del net1");
        if again {
            pod.sh("ip link add net1 type bridge; ip address add 10.66.0.1/24 dev net1; ip link set net1 up");
        }
        assert_eq!(pod.rules().len(), 2);
        pod.del(&with(config, json!({ "prevResult": null })));
        assert_eq!(pod.rules(), [""; 0]);
    }
}

#[test]
fn a_namespace_that_is_gone_is_not_created() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({}), &[V4]);
    pod.add(&config);
    let added = pod.state();
    let del = |netns: &str| pod.call("DEL", &config).env("CNI_NETNS", netns).run().silent();
    del("/run/netns/gone");
    assert!(!Path::new("/run/netns/gone").exists(), "the reference creates a file there");
    lab.sh("touch /run/netns/plain; mkdir /run/netns/dir; ln -s /nowhere /run/netns/dangling; mkfifo /run/netns/fifo");
    for other in ["plain", "dir", "dangling", "fifo", "plain/x"] {
        del(&format!("/run/netns/{other}"));
    }
    pod.call("DEL", &config).without("CNI_NETNS").run().silent();
    pod.call("DEL", &config).env("CNI_NETNS", "").run().silent();
    // The namespace of the host.
    del("/proc/self/ns/net");
    assert_eq!(pod.state(), added);
}

/// By now, the path may lead to the namespace of another container, which has an interface of the same name.
#[test]
fn rules_of_another_container_stay() {
    let lab = &Lab::new();
    let (one, other) = (pod(lab, "c1", &[V4]), pod(lab, "c2", &[V6, V4]));
    let config = chained(&one, json!({}), &[V4]);
    other.add(&chained(&other, json!({}), &[V6, V4]));
    let before = other.state();
    for config in [config.clone(), with(config, json!({ "prevResult": null }))] {
        one.call("DEL", &config).env("CNI_NETNS", &other.netns).run().silent();
        assert_eq!(other.state(), before);
    }
}

#[test]
fn rules_and_routes_of_other_programs_stay() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({}), &[V4]);
    pod.add(&config);
    // With the same source and table, of the same program, or with a mark that is compared.
    pod.sh("ip rule add from 192.168.1.209 table 100; ip rule add from 192.168.1.209 table 77 protocol 142
        ip rule add from 192.168.1.209 fwmark 5 table 78 protocol 142; ip rule add from 192.168.1.0/24 table 79
        ip route add 10.66.0.0/16 dev net1 table 100; ip route add 10.67.0.0/16 dev net1 table 77 protocol 142");
    pod.del(&config);
    assert_eq!(pod.sh("ip rule | grep -c 192.168.1").trim(), "4");
    assert_eq!(pod.table("-4", "100"), ["10.66.0.0/16 dev net1 scope link"]);
    assert_eq!(pod.table("-4", "77").len(), 1);
}

/// Two calls for one container exclude each other by the namespace itself: there is no file that could be left.
#[test]
fn a_call_waits_for_another_one() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4]);
    let config = chained(&pod, json!({}), &[V4]);
    let before = lab.sh("ls /run /run/netns");
    // The lock is held until the other end of the pipe is closed. The call has asked for the lock when the kernel lists
    // it.
    let (held, ends) = std::io::pipe().unwrap();
    let mut holder =
        Command::new("flock").arg(&pod.netns).arg("cat").stdin(held).stdout(Stdio::piped()).spawn().unwrap();
    let locked = || lab.sh("lslocks --noheadings --output COMMAND,MODE").contains("flock");
    wait_until("the lock", locked);
    let added = std::thread::scope(|scope| {
        let call = pod.call("ADD", &config);
        let call = scope.spawn(move || call.run());
        wait_until("a call that waits", || fs::read_to_string("/proc/locks").unwrap().contains("-> FLOCK"));
        assert_eq!(pod.rules(), [""; 0]);
        drop(ends);
        call.join().unwrap()
    });
    added.ok();
    holder.wait().unwrap();
    assert_eq!(pod.rules(), ["192.168.1.209 100"]);
    assert_eq!(lab.sh("ls /run /run/netns"), before, "no lock file");
}
