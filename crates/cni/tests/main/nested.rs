//! Delegation with a generated configuration, three deep: `preset` calls `relay`, which calls `stock` (see
//! `examples/delegation`), in one process, in three, or in two.

use std::fs;
use std::path::{Path, PathBuf};

use cni::Version;
use serde_json::{Value, json};
use testing::{Lab, Outcome, Process, Set, copy_to_set};

use crate::example;

/// A host with the three plugins, of which some are of another set and therefore executed by the others.
struct Host {
    dir: PathBuf,
}

impl Host {
    fn new(lab: &Lab, another: &[&str]) -> Host {
        let dir = lab.dir().join(format!("another {}", another.join(" ")));
        fs::create_dir(&dir).unwrap();
        for name in ["preset", "relay", "stock"] {
            let set = if another.contains(&name) { Set::Another } else { Set::One };
            copy_to_set(&example(name), &dir.join(name), set);
        }
        Host { dir }
    }

    /// Returns hosts on which the plugins run in one process, in two (two different ways), and in three.
    fn all(lab: &Lab) -> [Host; 4] {
        [&[][..], &["stock"], &["relay", "stock"], &["relay"]].map(|another| Host::new(lab, another))
    }

    /// Prepares a call of `preset`.
    fn call(&self, command: &str, config: &Value) -> Process {
        let mut config = config.clone();
        config["stateFile"] = json!(self.dir.join("state"));
        config["delegate"]["ipam"]["lease"] = json!(self.dir.join("lease"));
        let call = Process::plugin(&self.dir.join("preset"), command).env("CNI_PATH", &self.dir);
        call.env("CNI_ARGS", "A=1;B=2").attachment("c1", "eth0", "/run/netns/c1").stdin(config.to_string())
    }

    /// Returns the files of an attachment.
    fn files(&self) -> Vec<(&'static str, String)> {
        let read = |name| Some((name, self.generic(&fs::read_to_string(self.dir.join(name)).ok()?)));
        ["state", "lease"].into_iter().filter_map(read).collect()
    }

    /// Runs a call; returns its outcome, and the files after it.
    fn run(&self, command: &str, config: &Value) -> (Outcome, Vec<(&'static str, String)>) {
        let Outcome { stdout, stderr, status } = self.call(command, config).run();
        (Outcome { stdout: self.generic(&stdout), stderr: self.generic(&stderr), status }, self.files())
    }

    /// Replaces the directory, which differs between hosts.
    fn generic(&self, text: &str) -> String {
        text.replace(self.dir.to_str().unwrap(), "DIR")
    }
}

/// Returns a configuration in `version`, with these keys in `delegate` and `delegate.ipam`.
fn config(version: &str, delegate: &Value) -> Value {
    let mut config = json!({"cniVersion": version, "name": "net", "cni.dev/valid-attachments": []});
    config["delegate"] = json!({"type": "relay", "ipam": {"type": "stock", "ips": [{"address": "10.1.0.2/24"}]}});
    let mut set = |place: &str, keys: &Value| {
        for (key, value) in keys.as_object().unwrap().iter().filter(|(key, _)| *key != "ipam") {
            config.pointer_mut(place).unwrap()[key] = value.clone();
        }
    };
    set("/delegate", delegate);
    if let Some(ipam) = delegate.get("ipam") {
        set("/delegate/ipam", ipam);
    }
    config
}

#[test]
fn the_outcome_does_not_depend_on_the_number_of_processes() {
    let lab = Lab::without_plugins();
    let hosts = Host::all(&lab);
    let plain =
        [json!({}), json!({"ipam": {"ips": [{"address": "fd00::2/64"}], "routes": [{"dst": "::/0", "mtu": 1400}]}})];
    let odd = [
        json!({"ipam": {"ips": []}}),
        json!({"ipam": {"ips": "nonsense"}}),
        json!({"ipam": {"refuse": {"code": 11, "msg": "later", "details": "much later"}}}),
        json!({"ipam": {"panic": "a mistake of ours"}}),
        json!({"ipam": {"type": "nowhere"}}),
        json!({"fail": {"code": 123, "msg": "after the lease"}}),
        json!({"type": "nowhere"}),
        json!({"type": "../relay"}),
        json!({"type": 5}),
        json!({"name": "other"}),
        json!({"name": "in/valid"}),
        json!({"cniVersion": "0.2.0"}),
        json!({"cniVersion": "1.1.0"}),
        json!({"cniVersion": ""}),
        json!({"cniVersion": "9.9.9"}),
        json!({"cni.dev/valid-attachments": [{"ifname": "eth0"}]}),
    ];
    let one_per_layout = [Version::V0_2_0, Version::V0_4_0, Version::V1_1_0];
    let plain = Version::ALL.into_iter().flat_map(|version| plain.each_ref().map(|delegate| (version, delegate)));
    let odd = one_per_layout.into_iter().flat_map(|version| odd.each_ref().map(|delegate| (version, delegate)));
    let mut successes = 0;
    for (version, delegate) in plain.chain(odd) {
        let config = config(version.as_str(), delegate);
        for command in ["STATUS", "ADD", "CHECK", "GC", "DEL", "DEL"] {
            let [first, others @ ..] = hosts.each_ref().map(|host| host.run(command, &config));
            for (other, host) in others.iter().zip(&hosts[1..]) {
                assert_eq!(&first, other, "{command} {config} {:?}", host.dir);
            }
            let (outcome, files) = first;
            successes += u32::from(outcome.status == Some(0));
            if command == "DEL" || (command == "ADD" && outcome.status != Some(0)) {
                assert_eq!(files, [], "{command} {config}: {}", outcome.stdout);
            }
        }
    }
    assert!(successes > 150, "{successes}");
}

#[test]
fn the_delegates_get_everything_that_they_need() {
    let lab = Lab::without_plugins();
    for host in Host::all(&lab) {
        let config = config("1.1.0", &json!({"cniVersion": "0.4.0"}));
        let (added, files) = host.run("ADD", &config);
        let result = added.ok();
        assert_eq!(result["cniVersion"], "1.1.0", "the version of the call, not of the generated configuration");
        assert_eq!(result["interfaces"], json!([{"name": "eth0", "sandbox": "/run/netns/c1"}]));
        let received = result["dns"]["domain"].as_str().unwrap();
        assert!(received.contains("A=1;B=2") && received.contains("10.1.0.2"), "CNI_ARGS, ipam: {received}");
        let [("state", state), ("lease", _)] = files.as_slice() else { panic!("{files:?}") };
        let state: Value = serde_json::from_str(state).unwrap();
        assert_eq!(
            (&state["type"], &state["cniVersion"], &state["name"]),
            (&json!("relay"), &json!("0.4.0"), &json!("net"))
        );
        // DEL uses the configuration of ADD.
        host.call("DEL", &json!({"cniVersion": "1.1.0", "name": "net", "delegate": {"type": "nowhere"}})).run().ok();
        assert_eq!(host.files(), []);
    }
}

#[test]
fn one_build_is_one_process() {
    let lab = Lab::without_plugins();
    let processes = |host: &Host| {
        let trace = lab.dir().join("trace");
        let options = ["-f", "-qq", "-e", "trace=execve", "-o", trace.to_str().unwrap()];
        host.call("ADD", &config("1.1.0", &json!({}))).strace(&options).run().ok();
        fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("execve(")).count()
    };
    assert_eq!(Host::all(&lab).each_ref().map(processes), [1, 2, 2, 3]);
}

#[test]
fn an_add_whose_result_is_lost_is_rolled_back_at_every_level() {
    let lab = Lab::without_plugins();
    for host in Host::all(&lab) {
        let outcome = host.call("ADD", &config("1.1.0", &json!({}))).via_shell("exec \"$0\" >/dev/full").run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert_eq!(host.files(), [], "{:?}", host.dir);
    }
}

#[test]
fn an_add_that_fails_leaves_the_attachment_of_an_earlier_one() {
    let lab = Lab::without_plugins();
    let host = Host::new(&lab, &[]);
    let good = config("1.1.0", &json!({}));
    host.call("ADD", &good).run().ok();
    let before = host.files();
    for delegate in [json!({"ipam": {"refuse": {"code": 11, "msg": "later"}}}), json!({"type": "nowhere"})] {
        assert_eq!(host.call("ADD", &config("1.1.0", &delegate)).run().status, Some(1));
        assert_eq!(host.files(), before, "{delegate}");
    }
}

#[test]
fn mistakes_of_the_innermost_plugin_are_found_before_anything_changes() {
    let lab = Lab::without_plugins();
    let host = Host::new(&lab, &[]);
    fs::create_dir(host.dir.join("state")).unwrap(); // so that the state file cannot be written
    let fails = |delegate: Value, code| host.call("ADD", &config("1.1.0", &delegate)).run().error(code);
    let error = fails(json!({"ipam": {"ips": [{"address": "nonsense"}]}}), 7);
    assert!(error["msg"].as_str().unwrap().contains("ipam.ips[0].address"), "{error}");
    fails(json!({"ipam": {"type": "nowhere"}}), 999);
    fails(json!({"type": "nowhere"}), 999);
    fails(json!({}), 5);
}

/// A generated configuration may have a version without the command, although the call has it.
#[test]
fn a_generated_configuration_must_have_the_command() {
    let lab = Lab::without_plugins();
    for host in Host::all(&lab) {
        let config = config("1.1.0", &json!({"cniVersion": "0.3.1"}));
        host.call("ADD", &config).run().ok();
        for command in ["CHECK", "GC", "STATUS"] {
            let error = host.call(command, &config).run().error(1);
            let (msg, details) = (error["msg"].as_str().unwrap(), error["details"].as_str().unwrap());
            let path = host.dir.join("relay");
            assert_eq!(msg, format!("call plugin {path:?}: cniVersion \"0.3.1\" does not have the command {command}"));
            assert!(details.contains("plugin \"relay\" supports cniVersion 0.1.0, "), "{details}");
        }
        host.call("DEL", &config).run().ok();
    }
}

/// The delegates find each other in `CNI_PATH`, not beside the program.
#[test]
fn a_replaced_plugin_is_never_bypassed() {
    let lab = Lab::without_plugins();
    let host = Host::new(&lab, &[]);
    let first = lab.dir().join("first");
    fs::create_dir(&first).unwrap();
    testing::write_script(&first.join("stock"), "echo '{\"dns\": {\"domain\": \"replaced\"}}'");
    let path = std::env::join_paths([&first as &Path, &host.dir]).unwrap();
    let added = host.call("ADD", &config("1.1.0", &json!({}))).env("CNI_PATH", path).run().ok();
    assert!(added["dns"]["domain"].as_str().unwrap().contains("replaced"), "{added}");
}
