//! CHECK asks the delegate.

use cni::Version;
use serde_json::json;
use testing::config::with;
use testing::{Lab, Pod, Scripted};

use crate::node::{REST, V4, config, join_cluster, lose_state, recorder, write_subnet_file};

#[test]
fn a_removed_address_is_noticed() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        for version in Version::ALL.into_iter().filter(|version| *version >= Version::since("CHECK")) {
            for has_state in [true, false] {
                let pod = Pod::new(lab, "c1");
                let config = config(json!({ "cniVersion": version.as_str() }));
                let result = pod.add(&config);
                if !has_state {
                    lose_state(&pod);
                }
                pod.check_result(&config, &result).ok();
                pod.sh("ip address flush dev eth0");
                let error = pod.check_result(&config, &result).error(999);
                assert!(error["msg"].as_str().unwrap().contains("10.1.17."), "{error}");
                pod.del(&config);
                lab.sh("ip netns delete c1");
            }
        }
    });
}

#[test]
fn the_delegate_gets_the_configuration_of_add() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let pod = Pod::new(lab, "c1");
    let config = config(json!({ "delegate": { "type": Scripted::NAME, "own": 1 } }));
    let result = pod.add(&config);
    // Configuration and subnet have changed since.
    write_subnet_file(&format!("{}{REST}", V4.replace("17", "18")));
    pod.check_result(&with(config, json!({ "delegate": { "type": Scripted::NAME } })), &result).ok();
    let wanted = with(recorder.config("ADD"), json!({ "prevResult": result }));
    assert_eq!(recorder.config("CHECK"), wanted);
}

#[test]
fn old_versions_have_no_check() {
    let lab = &Lab::new();
    join_cluster();
    let pod = Pod::new(lab, "c1");
    let config = config(json!({ "cniVersion": "0.3.1" }));
    let result = pod.add(&config);
    pod.check_result(&config, &result).error(1);
}
