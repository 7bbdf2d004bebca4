//! STATUS: reports whether an ADD could succeed.

use std::fs;

use serde_json::{Value, json};
use testing::{Lab, Outcome, Scripted};

use crate::node::{V4, assert_clean, config, join_cluster, recorder, write_subnet_file};

fn status(lab: &Lab, config: &Value) -> Outcome {
    lab.plugin("flannel", "STATUS").stdin(config.to_string()).run()
}

#[test]
fn a_node_without_a_subnet_is_not_ready() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = config(json!({}));
        let error = status(lab, &config).error(50);
        let wanted = "open /run/flannel/subnet.env: no such file or directory";
        assert!(error["msg"].as_str().unwrap().contains(wanted), "{error}");
        write_subnet_file(V4);
        let error = status(lab, &config).error(50);
        assert!(error["msg"].as_str().unwrap().contains("is missing FLANNEL_MTU, FLANNEL_IPMASQ"), "{error}");
        join_cluster();
        let outcome = status(lab, &config);
        outcome.ok();
        assert_eq!(outcome.stdout, "");
        assert_clean(lab);
    });
}

#[test]
fn a_delegate_that_is_missing_or_not_ready_is_reported() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let config = config(json!({ "delegate": { "type": Scripted::NAME } }));
        let error = status(lab, &config).error(50);
        assert!(error["msg"].as_str().unwrap().contains("failed to find plugin \"scripted\""), "{error}");
        let recorder = recorder(lab);
        status(lab, &config).ok();
        assert_eq!(recorder.config("STATUS")["name"], "net1");
        let not_ready = json!({ "code": 51, "msg": "limited connectivity" });
        recorder.fail_with("STATUS", &not_ready);
        assert_eq!(status(lab, &config).error(51), not_ready);
    });
}

#[test]
fn a_missing_ipam_plugin_is_reported() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        fs::remove_file(lab.bin().join("host-local")).unwrap();
        let error = status(lab, &config(json!({}))).error(50);
        assert!(error["msg"].as_str().unwrap().contains("host-local"), "{error}");
    });
}

#[test]
fn a_mistake_in_the_configuration_is_reported() {
    let lab = &Lab::new();
    join_cluster();
    status(lab, &config(json!({ "delegate": { "name": "x" } }))).error(7);
    status(lab, &config(json!({ "cniVersion": "1.0.0" }))).error(1);
}
