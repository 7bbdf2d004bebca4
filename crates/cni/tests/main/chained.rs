//! A chained plugin: `examples/passthrough.rs` passes the previous result on, as the reference does.

use std::fs;
use std::path::Path;

use cni::Version;
use serde_json::{Value, json};
use testing::{Outcome, Process, reference};

use crate::example;

/// Calls a chained plugin.
fn call(program: &Path, command: &str, version: Version, previous: Option<&Value>) -> Outcome {
    let mut config = json!({"cniVersion": version.as_str(), "name": "net", "type": "any"});
    if let Some(previous) = previous {
        config["prevResult"] = previous.clone();
    }
    let call = Process::plugin(program, command).env("CNI_PATH", "/none").attachment("c1", "eth0", "/run/netns/c1");
    call.stdin(config.to_string()).run()
}

/// Adds an unknown key to each object.
fn with_unknown_keys(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(with_unknown_keys);
            members.insert("unknown".into(), json!({"x": [1.5, null]}));
        }
        Value::Array(items) => items.iter_mut().for_each(with_unknown_keys),
        _ => {}
    }
}

#[test]
fn a_result_passes_unchanged_in_every_version() {
    let program = example("passthrough");
    for version in Version::ALL {
        for case in ["full", "plain"] {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/result");
            let text = fs::read_to_string(dir.join(version.as_str()).join(case).with_extension("json")).unwrap();
            let mut previous: Value = serde_json::from_str(&text).unwrap();
            for round in ["as it is", "with unknown keys", "without a version"] {
                let added = call(&program, "ADD", version, Some(&previous));
                assert_eq!((added.stdout.as_str(), added.stderr.as_str()), (text.as_str(), ""), "{version} {round}");
                match round {
                    "as it is" => with_unknown_keys(&mut previous),
                    _ => drop(previous.as_object_mut().unwrap().remove("cniVersion")),
                }
            }
            if version >= Version::since("CHECK") {
                assert_eq!(call(&program, "CHECK", version, Some(&previous)).ok(), Value::Null);
            }
            assert_eq!(call(&program, "DEL", version, Some(&previous)).ok(), Value::Null);
        }
    }
}

/// Compares with `portmap` without port mappings, which only passes the previous result on.
#[test]
fn the_reference_passes_the_same_on() {
    let Some(portmap) = reference("portmap", "chained::the_reference_passes_the_same_on") else { return };
    let old = json!({
        "ip4": {"ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.1.0.9"}]},
        "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": {"nameservers": ["10.1.0.1"], "domain": "example.org"},
    });
    let new = json!({
        "interfaces": [{"name": "cni0", "mac": "00:00:00:00:00:01"}, {"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [
            {"version": "4", "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1},
            {"version": "6", "address": "fd00::2/64"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
        "dns": {"search": ["example.org"], "options": ["ndots:2"]},
    });
    for version in Version::ALL.into_iter().filter(|version| *version <= Version::V1_0_0) {
        let mut previous = if version < Version::V0_3_0 { old.clone() } else { new.clone() };
        with_unknown_keys(&mut previous);
        let ours = call(&example("passthrough"), "ADD", version, Some(&previous));
        let theirs = call(&portmap, "ADD", version, Some(&previous));
        assert_eq!(ours.ok(), theirs.ok(), "{version}");
        // Since 1.0.0, the order of the keys depends on the version of the reference.
        if version < Version::V1_0_0 {
            assert_eq!(ours.stdout, theirs.stdout, "{version}");
        }
    }
}

#[test]
fn only_add_and_check_need_a_previous_result() {
    let program = example("passthrough");
    for version in Version::ALL {
        for command in ["ADD", "CHECK"].into_iter().filter(|command| version >= Version::since(command)) {
            for previous in [None, Some(&Value::Null)] {
                let error = call(&program, command, version, previous).error(7);
                assert_eq!(error["msg"], "Required prevResult missing: must be called as chained plugin");
            }
            let invalid = call(&program, command, version, Some(&json!([]))).error(6);
            assert!(invalid["msg"].as_str().unwrap().contains("prevResult"), "{invalid}");
        }
        for previous in [None, Some(&json!([])), Some(&json!({"cniVersion": "9.9.9"})), Some(&json!({"ips": 5}))] {
            assert_eq!(call(&program, "DEL", version, previous).ok(), Value::Null);
        }
    }
}
