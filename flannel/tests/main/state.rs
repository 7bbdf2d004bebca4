//! State files: when they are written, read and removed, and what DEL does without them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Scripted};

use crate::node::{
    DATA_DIR, REST, V4, assert_clean, assert_no_attachments, config, join_cluster, leases, lose_state, read_state,
    recorder, second_name, state_files, write_state, write_subnet_file,
};

fn path(name: &str) -> PathBuf {
    Path::new(DATA_DIR).join(name)
}

#[test]
fn a_failed_add_leaves_nothing() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        // The name of the interface is taken.
        pod.sh("ip link add eth0 type bridge");
        pod.call("ADD", &config).run().error(999);
        assert_clean(lab);
        assert!(pod.sh("ip link show eth0").contains("eth0"), "the interface of another program");
        pod.del(&config);
        assert!(pod.sh("ip link show eth0").contains("eth0"), "the interface of another program");
        assert_clean(lab);
    });
}

#[test]
fn a_full_subnet_leaves_nothing_of_the_failed_add() {
    Lab::for_each_way_to_delegate(|lab| {
        write_subnet_file(&format!("{}{REST}", V4.replace("/24", "/30")));
        let (first, second, config) = (Pod::new(lab, "c1"), Pod::new(lab, "c2"), config(json!({})));
        first.add(&config);
        second.call("ADD", &config).run().error(100);
        assert_eq!(state_files(), [first.id.as_str()]);
        assert_eq!(leases(lab), ["net1/10.1.17.2"]);
        assert_eq!(lab.sh("ip -o link show type veth").lines().count(), 1);
        second.del(&config);
        first.ping("10.1.17.1");
        first.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn an_add_without_a_place_for_its_state_leaves_nothing() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        fs::create_dir_all("/var/lib/cni").unwrap();
        fs::write(DATA_DIR, "a file").unwrap();
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        let error = pod.call("ADD", &config).run().error(5);
        assert!(error["msg"].as_str().unwrap().contains("write the state file"), "{error}");
        assert_no_attachments(lab);
        // DEL does not depend on the directory either.
        pod.del(&config);
        assert_eq!(fs::read_to_string(DATA_DIR).unwrap(), "a file");
    });
}

#[test]
fn a_failed_del_keeps_the_state_for_the_next_one() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        pod.add(&config);
        for _ in 0..2 {
            let error = pod.call("DEL", &config).env("CNI_PATH", lab.dir()).run().error(999);
            assert!(error["msg"].as_str().unwrap().contains("failed to find plugin \"bridge\""), "{error}");
            assert_eq!(state_files(), [pod.id.as_str()]);
            assert_eq!(leases(lab).len(), 1);
        }
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn del_does_without_a_valid_state_file() {
    let huge = format!("{{\"name\":\"net1\",\"type\":\"bridge\",\"filler\":\"{}\"}}", "x".repeat(1 << 20));
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        for content in [
            "",
            "{\"cniVersion\":\"1.1.0\",\"ipMa",
            "nonsense",
            "[]",
            "null",
            "{}",
            r#"{"name":"net1"}"#,
            r#"{"name":"net1","type":5}"#,
            r#"{"name":"net1","type":""}"#,
            r#"{"name":"net1","type":"flannel"}"#,
            r#"{"name":"net1","type":"bridge","cniVersion":"9.9.9"}"#,
            r#"{"name":"net1","type":"bridge","cniVersion":5}"#,
            r#"{"name":"net1","type":"../bridge"}"#,
            r#"{"name":"net1","type":"bridge","ipam":5,"bridge":7,"mtu":"x"}"#,
            "\u{0}\u{0}\u{0}\u{0}",
            &huge,
        ] {
            eprintln!("{content:.80}");
            for reaches_subnet_file in [true, false] {
                join_cluster();
                let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
                pod.add(&config);
                write_state("c1", content);
                if !reaches_subnet_file {
                    fs::remove_file(crate::node::SUBNET_FILE).unwrap();
                }
                pod.del(&config);
                assert_clean(lab);
                pod.del(&config);
                lab.sh("ip netns delete c1");
            }
        }
    });
}

/// Such entries are not the plugin's, and remain.
#[test]
fn entries_that_are_not_files_do_not_disturb() {
    let lab = &Lab::new();
    join_cluster();
    let target = lab.dir().join("target");
    fs::write(&target, r#"{"name":"net1","type":"scripted"}"#).unwrap();
    for name in ["c1", "c1:eth0"] {
        let create: [&dyn Fn(); 3] =
            [&|| fs::create_dir(path(name)).unwrap(), &|| symlink(&target, path(name)).unwrap(), &|| {
                drop(lab.sh(&format!("mkfifo {}", path(name).display())))
            }];
        for create in create {
            let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
            pod.add(&config);
            lose_state(&pod);
            create();
            pod.del(&config);
            assert_no_attachments(lab);
            assert_eq!(state_files(), [name]);
            lab.sh(&format!("ip netns delete c1; rm -r {}", path(name).display()));
        }
    }
    assert!(target.exists());
}

/// Every input of DEL that can be lost or broken, alone and together.
#[test]
fn del_does_without_its_other_inputs() {
    Lab::for_each_way_to_delegate(|lab| {
        let broken = [
            json!({}),
            json!({ "delegate": 5, "ipam": "host-local", "subnetFile": 7, "dataDir": [], "runtimeConfig": "x" }),
            json!({ "delegate": { "type": "bridge", "name": "x", "ipam": {} }, "ipam": { "routes": [{ "dst": "x" }] } }),
            json!({ "delegate": { "type": "" }, "subnetFile": "" }),
            json!({ "delegate": { "type": 5 }, "ipam": { "type": 5, "ranges": 7 } }),
        ];
        for (keys, has_state, has_subnet_file, has_result, has_netns) in broken.iter().flat_map(|keys| {
            (0..16).map(move |bits| (keys, bits & 1 == 0, bits & 2 == 0, bits & 4 == 0, bits & 8 == 0))
        }) {
            let case = format!("{keys} {has_state} {has_subnet_file} {has_result} {has_netns}");
            // The type of the IPAM plugin is only known from the state.
            if keys["ipam"]["type"] == 5 && !has_state {
                continue;
            }
            eprintln!("{case}");
            join_cluster();
            let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
            let result = pod.add(&config);
            if !has_state {
                lose_state(&pod);
            }
            if !has_subnet_file {
                fs::remove_file(crate::node::SUBNET_FILE).unwrap();
            }
            let mut call = with(config, keys.clone());
            if has_result {
                call["prevResult"] = result;
            }
            let del = pod.call("DEL", &call);
            let del = if has_netns { del } else { del.without("CNI_NETNS") };
            del.run().ok();
            lab.sh("ip netns delete c1");
            assert_clean(lab);
        }
    });
}

#[test]
fn the_state_of_another_network_is_neither_used_nor_removed() {
    let lab = &Lab::new();
    join_cluster();
    let recorder = recorder(lab);
    let foreign = json!({ "cniVersion": "1.1.0", "name": "net2", "type": Scripted::NAME, "ipam": {} }).to_string();
    for name in ["c1", "c1:eth0"] {
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        pod.add(&config);
        lose_state(&pod);
        write_state(name, &foreign);
        pod.del(&config);
        assert_no_attachments(lab);
        assert_eq!((state_files(), read_state(name)), (vec![name.to_owned()], foreign.clone()));
        assert_eq!(recorder.calls(), [] as [&str; 0]);
        // The DEL of that network uses it.
        pod.del(&with(config, json!({ "name": "net2" })));
        assert_eq!(recorder.calls(), ["DEL c1 eth0"]);
        assert_clean(lab);
        lab.sh("ip netns delete c1");
        recorder.forget_calls();
    }
}

/// Returns a configuration of a second network, with its own bridge and subnet.
fn second_network(lab: &Lab) -> Value {
    let file = lab.dir().join("second.env");
    fs::write(&file, format!("{}{REST}", V4.replace("10.1.", "10.2."))).unwrap();
    config(json!({ "name": "net2", "subnetFile": file, "delegate": { "bridge": "br2" } }))
}

#[test]
fn interfaces_of_one_container_have_separate_states() {
    Lab::for_each_way_to_delegate(|lab| {
        for has_second_network in [false, true] {
            for first_goes_first in [true, false] {
                join_cluster();
                let pod = Pod::new(lab, "c1");
                let first = (pod.clone(), config(json!({})));
                let second = if has_second_network { second_network(lab) } else { first.1.clone() };
                let second = (pod.interface("eth1", &[]), second);
                let results = [&first, &second].map(|(pod, config)| pod.add(config));
                let names = ["c1".to_owned(), second_name(&second.0)];
                assert_eq!(state_files(), names);
                let [one, other] = if first_goes_first { [0, 1] } else { [1, 0] };
                let all = [&first, &second];
                // A repeated DEL does not take the state of the other interface.
                for _ in 0..2 {
                    all[one].0.del(&all[one].1);
                    assert_eq!(state_files(), [names[other].as_str()]);
                    assert_eq!(leases(lab).len(), 1);
                    all[other].0.check_result(&all[other].1, &results[other]).ok();
                }
                all[other].0.del(&all[other].1);
                assert_clean(lab);
                lab.sh("ip netns delete c1");
            }
        }
    });
}
