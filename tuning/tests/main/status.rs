//! STATUS fails if an ADD would fail now, as far as that is known without a container.

use std::fs;

use serde_json::{Value, json};
use testing::{Lab, Outcome};

use crate::support::{NEW_MAC, Tuned, config, files, lab, pod, untouched};

fn status(lab: &Lab, keys: Value) -> Outcome {
    lab.plugin("tuning", "STATUS").stdin(config(keys).to_string()).run()
}

#[test]
fn sysctls_are_verified_without_a_container() {
    let lab = &lab();
    status(lab, json!({})).ok();
    let good = json!({ "net.core.somaxconn": "1", "net.ipv4.conf.IFNAME.rp_filter": "1", "net.ipv4.conf.eth9.x": "1",
        "net.ipv4.route.flush": "1" });
    status(lab, json!({ "sysctl": good })).ok();
    let error = status(lab, json!({ "sysctl": { "net.core.absent": "1" } })).error(50);
    assert!(error.to_string().contains("net.core.absent"), "{error}");
    status(lab, json!({ "mtu": -1 })).error(7);
    lab.sh("mkdir -p /etc/cni/tuning");
    let list = |text: &str| fs::write("/etc/cni/tuning/allowlist.conf", text).unwrap();
    list("^net\\.ipv4\\.");
    let error = status(lab, json!({ "sysctl": good })).error(50);
    assert!(error.to_string().contains("net.core.somaxconn"), "{error}");
    list("(");
    let error = status(lab, json!({ "sysctl": good })).error(50);
    assert!(error.to_string().contains("line 1"), "{error}");
    status(lab, json!({ "mtu": 1400 })).ok();
    list("^net");
    status(lab, json!({ "sysctl": good })).ok();
}

/// As in many containers, in which a runtime is tested.
#[test]
fn with_read_only_sysctls_only_attributes_can_be_set() {
    let lab = &lab();
    let pod = pod(lab, "c1");
    lab.sh("mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys");
    let sysctls = json!({ "mtu": 1400, "sysctl": { "net.core.somaxconn": "77" } });
    for error in [status(lab, sysctls.clone()).error(50), pod.refused(&config(sysctls), 7)] {
        let what = "\"net.core.somaxconn\" cannot be set, because /proc/sys is read-only";
        assert!(error["msg"].as_str().unwrap().contains(what), "{error}");
    }
    assert_eq!((pod.attributes(), files()), (untouched(), Vec::new()));
    let attributes = config(json!({ "mtu": 1400, "mac": NEW_MAC }));
    pod.add(&attributes);
    pod.check(&attributes).ok();
    pod.del(&attributes);
    assert_eq!(pod.attributes(), untouched());
}
