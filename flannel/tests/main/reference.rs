//! Together with the reference, which writes one state file per container. The init container of kube-flannel copies it
//! over ours. A script stands in for it, because no Linux distribution packages it.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Scripted, plugins};

use crate::node::{
    DATA_DIR, assert_clean, config, join_cluster, leases, node_with_pod, read_state, recorder, state_files, write_state,
};

/// Installs the script as the init container does. It writes `state` at ADD; the bytes of the file go to the delegate.
fn copy_over_ours(lab: &Lab, state: &Value) {
    fs::write(lab.dir().join("state"), state.to_string()).unwrap();
    let script = lab.script(
        "draft",
        &format!(
            "cat >/dev/null
             file={DATA_DIR}/$CNI_CONTAINERID
             case $CNI_COMMAND in
             ADD) mkdir -p -m 700 {DATA_DIR}; (umask 077; cat {} >$file); exec {1}/bridge <$file ;;
             DEL) [ -e $file ] || exit 0; {1}/bridge <$file; status=$?; rm -f $file; exit $status ;;
             esac",
            lab.dir().join("state").display(),
            lab.bin().display(),
        ),
    );
    lab.sh(&format!("cp -f {} {}/flannel; rm {0}", script.display(), lab.bin().display()));
}

/// Installs our plugin again.
fn restore_ours(lab: &Lab) {
    lab.sh(&format!("cp -f {0}/ours {0}/flannel", lab.bin().display()));
}

fn keep_ours(lab: &Lab) {
    lab.sh(&format!("cp {0}/flannel {0}/ours", lab.bin().display()));
}

/// Returns what the reference would write, in its present form, and in that of before 2021.
fn states() -> [Value; 2] {
    let state = json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "ipMasq": true, "isGateway": true, "mtu": 1472,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.17.0/24" }]], "routes": [{ "dst": "10.1.0.0/16" }] },
    });
    let ipam = json!({ "type": "host-local", "subnet": "10.1.17.0/24", "routes": [{ "dst": "10.1.0.0/16" }] });
    [state.clone(), with(state, json!({ "ipam": ipam }))]
}

#[test]
fn what_the_reference_added_is_deleted_by_ours() {
    Lab::for_each_way_to_delegate(|lab| {
        keep_ours(lab);
        for state in states() {
            join_cluster();
            let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
            copy_over_ours(lab, &state);
            let result = pod.add(&config);
            assert_eq!(state_files(), ["c1"]);
            restore_ours(lab);
            pod.check_result(&config, &result).ok();
            // The configuration and the subnet do not matter.
            fs::remove_file(crate::node::SUBNET_FILE).unwrap();
            pod.del(&with(config, json!({ "delegate": { "type": "other", "bridge": "br9" } })));
            assert_clean(lab);
            lab.sh("ip netns delete c1");
        }
    });
}

#[test]
fn what_ours_added_is_deleted_by_the_reference() {
    Lab::for_each_way_to_delegate(|lab| {
        keep_ours(lab);
        join_cluster();
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        pod.add(&config);
        copy_over_ours(lab, &Value::Null);
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn copying_the_reference_over_ours_harms_no_other_plugin() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let content = || {
            plugins().into_iter().filter(|name| name != "flannel").map(|name| fs::read(lab.bin().join(name)).unwrap())
        };
        let before: Vec<_> = content().collect();
        copy_over_ours(lab, &states()[0]);
        assert!(content().eq(before), "another plugin has changed");
        let pods = ["c1", "c2"].map(|id| Pod::new(lab, id));
        for pod in &pods {
            pod.add(&config(json!({})));
            pod.ping("10.1.17.1");
        }
        pods.iter().for_each(|pod| pod.del(&config(json!({}))));
        assert_clean(lab);
    });
}

/// The reference passes the bytes of the file to the delegate.
#[test]
fn the_file_has_what_the_delegate_got_and_the_interface() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let config = config(json!({ "delegate": { "type": Scripted::NAME, "text": "<\u{e9}>" } }));
    let pod = Pod::new(lab, "c1");
    pod.add(&config);
    assert_eq!(read_state("c1"), recorder.stdin("ADD").replacen('{', "{\"cni0/ifname\":\"eth0\",", 1));
    pod.del(&config);
    assert_eq!(recorder.stdin("DEL"), recorder.stdin("ADD"));
}

#[test]
fn the_bytes_of_the_reference_reach_the_delegate_unchanged() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let pod = Pod::new(lab, "c1");
    // Not as we would write it: other order, white space, unknown keys.
    let text = "{ \"type\": \"scripted\", \"name\": \"net1\", \"zeta\": 1.50, \"cniVersion\": \"0.4.0\",\n\
                \"ipam\": {\"ranges\": [[{\"subnet\": \"10.1.17.0/24\"}]], \"type\": \"x\"} }\n";
    write_state("c1", text);
    pod.del(&config(json!({ "delegate": { "type": "bridge" } })));
    assert_eq!(recorder.stdin("DEL"), text);
    assert_eq!(recorder.calls(), ["DEL c1 eth0"]);
    assert_clean(lab);
    // The previous result is passed on if it is in the version of ADD.
    let previous = json!({ "cniVersion": "0.4.0", "ips": [] });
    for (version, has_result) in [("0.4.0", true), ("1.0.0", false)] {
        write_state("c1", text);
        let previous = with(previous.clone(), json!({ "cniVersion": version }));
        pod.del(&config(json!({ "cniVersion": version, "prevResult": previous })));
        let sent = recorder.config("DEL");
        assert_eq!((sent.get("prevResult").is_some(), &sent["cniVersion"]), (has_result, &json!("0.4.0")));
    }
}

#[test]
fn the_reference_and_ours_attach_one_container() {
    let lab = &Lab::new();
    keep_ours(lab);
    let (pod, config) = node_with_pod(lab);
    copy_over_ours(lab, &states()[0]);
    pod.add(&config);
    restore_ours(lab);
    let second = pod.interface("eth1", &[]);
    let result = second.add(&config);
    assert_eq!(state_files(), ["c1", "c1:eth1"]);
    assert_eq!(leases(lab).len(), 2);
    pod.del(&config);
    assert_eq!(state_files(), ["c1:eth1"]);
    second.check_result(&config, &result).ok();
    second.del(&config);
    assert_clean(lab);
}
