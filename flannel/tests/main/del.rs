//! DEL removes what belongs to its attachment, and nothing else.

use std::fs;

use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod};

use crate::node::{assert_clean, config, join_cluster, leases, lose_state, state_files};

#[test]
fn the_namespace_or_result_of_another_container_does_not_matter() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        for has_state in [true, false] {
            let config = config(json!({}));
            let (pod, other) = (Pod::new(lab, "c1"), Pod::new(lab, "c2"));
            pod.add(&config);
            let result = other.add(&config);
            if !has_state {
                lose_state(&pod);
            }
            let previous = with(config.clone(), json!({ "prevResult": result }));
            pod.call("DEL", &previous).env("CNI_NETNS", &other.netns).run().ok();
            other.check_result(&config, &result).ok();
            other.ping("10.1.17.1");
            assert_eq!(leases(lab).len(), 1);
            assert_eq!(state_files(), [other.id.as_str()]);
            pod.del(&config);
            other.check_result(&config, &result).ok();
            other.del(&config);
            lab.sh("ip netns delete c1; ip netns delete c2");
            assert_clean(lab);
        }
    });
}

#[test]
fn similar_container_ids_are_different() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let config = config(json!({}));
        let ids = ["c", "c1", "c10", "c1.eth0", "c1..", "c1.new", "c1_eth0", "C1", "c1-eth0"];
        let pods: Vec<_> = ids.iter().map(|id| Pod::new(lab, id)).collect();
        let results: Vec<_> = pods.iter().map(|pod| pod.add(&config)).collect();
        assert_eq!(state_files().len(), ids.len());
        for (n, pod) in pods.iter().enumerate() {
            pod.del(&config);
            assert_eq!(leases(lab).len(), ids.len() - n - 1, "{}", pod.id);
            assert_eq!(state_files().len(), ids.len() - n - 1, "{}", pod.id);
            for (pod, result) in pods.iter().zip(&results).skip(n + 1) {
                pod.check_result(&config, result).ok();
            }
        }
        assert_clean(lab);
    });
}

#[test]
fn a_container_that_was_never_added_is_deleted_without_effect() {
    Lab::for_each_way_to_delegate(|lab| {
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        pod.del(&config);
        join_cluster();
        let other = Pod::new(lab, "c2");
        let result = other.add(&config);
        pod.del(&config);
        // Another interface of a container that has one.
        other.interface("eth1", &[]).del(&config);
        other.check_result(&config, &result).ok();
        assert_eq!(state_files(), [other.id.as_str()]);
        // Nothing was added without the delegate.
        pod.call("DEL", &config).env("CNI_PATH", lab.dir()).run().ok();
    });
}

#[test]
fn a_foreign_directory_stays_as_it_is() {
    let lab = &Lab::new();
    join_cluster();
    let data = lab.dir().join("data");
    fs::create_dir(&data).unwrap();
    let config = config(json!({ "dataDir": data }));
    let pod = Pod::new(lab, "c1");
    pod.add(&config);
    fs::write(data.join("c2"), "nonsense").unwrap();
    fs::write(data.join("lock"), "").unwrap();
    pod.del(&config);
    assert_eq!(lab.sh(&format!("ls {}", data.display())), "c2\nlock\n");
    assert_clean(lab);
}
