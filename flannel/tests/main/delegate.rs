//! Delegates other than `bridge`: what they get, and what becomes of their answers.

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod, Scripted};

use crate::node::{
    REST, V4, V6, assert_clean, config, join_cluster, read_state, recorder, state_files, write_subnet_file,
};

fn recorded(keys: Value) -> Value {
    config(with(json!({ "delegate": { "type": Scripted::NAME } }), keys))
}

#[test]
fn a_delegate_gets_the_generated_configuration_and_the_environment() {
    Lab::for_each_way_to_delegate(|lab| {
        let recorder = recorder(lab);
        write_subnet_file(&format!("{V4}{V6}{REST}"));
        let pod = Pod::new(lab, "c1");
        let config = recorded(json!({
            "cniVersion": "0.3.1",
            "delegate": { "type": Scripted::NAME, "own": { "b": [1, 2.5, "<&>"], "a": null }, "cniVersion": "0.1.0" },
            "ipam": { "dataDir": "/run/leases", "routes": [{ "dst": "10.96.0.0/12" }] },
            "runtimeConfig": { "mac": "00:11:22:33:44:55" },
            "args": { "cni": {} }, "dns": { "domain": "x" }, "ipMasq": true, "other": 1,
        }));
        recorder.answer(json!({ "cniVersion": "0.3.1", "ips": [{ "version": "4", "address": "10.1.17.9/24" }] }));
        recorder.on("ADD", "echo 'for the log' >&2");
        let call = pod.call("ADD", &config).env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=a").env("OTHER", "x y");
        let outcome = call.run();
        assert_eq!(outcome.ok()["ips"][0]["address"], "10.1.17.9/24");
        assert_eq!(outcome.stderr, "for the log\n");
        let text = "{\"cniVersion\":\"0.3.1\",\"ipMasq\":true,\"ipam\":{\"dataDir\":\"/run/leases\",\"ranges\":\
                    [[{\"subnet\":\"10.1.17.0/24\"}],[{\"subnet\":\"fc00::/64\"}]],\"routes\":[{\"dst\":\"10.96.0.0/12\"},\
                    {\"dst\":\"10.1.0.0/16\"},{\"dst\":\"fc00::/48\"}],\"type\":\"host-local\"},\"mtu\":1472,\"name\":\
                    \"net1\",\"own\":{\"a\":null,\"b\":[1,2.5,\"\\u003c\\u0026\\u003e\"]},\"runtimeConfig\":{\"mac\":\
                    \"00:11:22:33:44:55\"},\"type\":\"scripted\"}";
        assert_eq!(recorder.stdin("ADD"), text);
        assert_eq!(read_state("c1"), text.replacen('{', "{\"cni0/ifname\":\"eth0\",", 1));
        let env = recorder.env("ADD");
        let path = format!("CNI_PATH={}", lab.bin().display());
        for line in [
            "CNI_COMMAND=ADD",
            "CNI_CONTAINERID=c1",
            "CNI_IFNAME=eth0",
            "CNI_NETNS=/run/netns/c1",
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=a",
            "OTHER=x y",
            &path,
        ] {
            assert!(env.iter().any(|found| found == line), "{line} in {env:#?}");
        }
        // Nothing has changed, so DEL passes on the very bytes of ADD.
        pod.del(&config);
        assert_eq!(recorder.stdin("DEL"), text);
        assert_eq!(recorder.calls(), ["ADD c1 eth0", "DEL c1 eth0"]);
        assert_clean(lab);
    });
}

#[test]
fn a_result_in_another_layout_is_passed_on() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let pod = Pod::new(lab, "c1");
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/run/netns/c1" }],
        "ips": [{ "address": "10.1.17.9/24", "gateway": "10.1.17.1", "interface": 0 }],
        "routes": [{ "dst": "10.1.0.0/16", "gw": "10.1.17.1" }],
        "dns": { "nameservers": ["10.96.0.10"] },
    });
    recorder.answer(result.clone());
    assert_eq!(pod.add(&recorded(json!({}))), result);
    let old = pod.add(&recorded(json!({ "cniVersion": "0.2.0" })));
    assert_eq!((&old["cniVersion"], &old["ip4"]["ip"]), (&json!("0.2.0"), &json!("10.1.17.9/24")));
}

#[test]
fn an_error_of_the_delegate_is_passed_on_unchanged() {
    Lab::for_each_way_to_delegate(|lab| {
        let recorder = recorder(lab);
        join_cluster();
        let (pod, config) = (Pod::new(lab, "c1"), recorded(json!({})));
        for error in [
            json!({ "code": 123, "msg": "no more addresses", "details": "in 10.1.17.0/24" }),
            json!({ "code": 11, "msg": "later" }),
        ] {
            recorder.fail_with("ADD", &error);
            let outcome = pod.call("ADD", &config).run();
            assert_eq!((outcome.status, serde_json::from_str(&outcome.stdout).ok()), (Some(1), Some(error)));
            assert_eq!(recorder.calls().last().unwrap(), "DEL c1 eth0", "a failed ADD is rolled back");
            assert_eq!(recorder.stdin("DEL"), recorder.stdin("ADD"));
            assert_clean(lab);
        }
        recorder.recover("ADD");
        pod.add(&config);
        let before = read_state("c1");
        let error = json!({ "code": 124, "msg": "not now", "details": "try again" });
        for command in ["DEL", "CHECK"] {
            recorder.fail_with(command, &error);
            let previous = json!({ "cniVersion": "1.1.0", "ips": [] });
            let outcome = pod.call(command, &with(config.clone(), json!({ "prevResult": previous }))).run();
            assert_eq!(outcome.error(124), error);
            assert_eq!((state_files(), read_state("c1")), (vec![pod.id.clone()], before.clone()));
        }
        recorder.recover("DEL");
        pod.del(&config);
        assert_clean(lab);
    });
}

#[test]
fn a_delegate_that_crashes_is_named() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let (pod, config) = (Pod::new(lab, "c1"), recorded(json!({})));
    for (script, culprit) in
        [("kill -9 $$", "signal: 9"), ("exit 3", "exit status: 3"), ("echo nonsense; exit 0", "invalid JSON")]
    {
        recorder.on("ADD", script);
        let outcome = pod.call("ADD", &config).run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert!(
            outcome.stdout.contains(Scripted::NAME) && outcome.stdout.contains(culprit),
            "{script}: {}",
            outcome.stdout
        );
        assert_clean(lab);
    }
}

#[test]
fn a_missing_delegate_is_named_and_nothing_is_left() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let pod = Pod::new(lab, "c1");
        let config = recorded(json!({}));
        let error = pod.call("ADD", &config).run().error(999);
        let wanted = format!("failed to find plugin \"scripted\" in path [{}]", lab.bin().display());
        assert!(error["msg"].as_str().unwrap().contains(&wanted), "{error}");
        assert_clean(lab);
        // The runtime deletes after a failed ADD.
        pod.del(&config);
    });
}

#[test]
fn a_delegate_cannot_be_flannel_itself() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let pod = Pod::new(lab, "c1");
        let own = config(json!({ "delegate": { "type": "flannel" } }));
        let error = pod.call("ADD", &own).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains("\"flannel\" cannot be the delegate"), "{error}");
        pod.call("DEL", &own).run().ok();
        pod.add(&config(json!({})));
        pod.call("DEL", &own).run().ok();
        assert_clean(lab);
    });
}

#[test]
fn the_version_of_the_delegate_counts_without_an_own_one() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    join_cluster();
    let pod = Pod::new(lab, "c1");
    recorder.answer(json!({ "cniVersion": "0.4.0", "ips": [{ "version": "4", "address": "10.1.17.9/24" }] }));
    let config =
        json!({ "name": "net1", "type": "flannel", "delegate": { "type": Scripted::NAME, "cniVersion": "0.4.0" } });
    pod.add(&config);
    assert_eq!(recorder.config("ADD")["cniVersion"], "0.4.0");
    pod.del(&config);
    assert_clean(lab);
}
