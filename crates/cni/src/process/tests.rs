//! Tests the interface between runtime and plugin, with a simulated environment and a test plugin.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use super::*;
use crate::plugin::Attachment;
use crate::result::{AddResult, Interface};

/// Counts its calls, and returns a result with the attachment.
struct Probe {
    name: &'static str,
    calls: AtomicU32,
}

impl Probe {
    fn done(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Plugin for Probe {
    fn name(&self) -> &'static str {
        self.name
    }
    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        self.done()?;
        let interface = Interface { name: at.ifname.to_string(), sandbox: at.sandbox(), ..Interface::default() };
        let previous = call.prev_result()?.unwrap_or_default();
        Ok(AddResult { interfaces: vec![interface], ..previous })
    }
    fn del(&self, _: &Call<'_>, _: &Attachment) -> Result<()> {
        self.done()
    }
    fn check(&self, _: &Call<'_>, _: &Attachment) -> Result<()> {
        self.done()
    }
    fn gc(&self, call: &Call<'_>) -> Result<()> {
        call.valid_attachments()?;
        self.done()
    }
    fn status(&self, _: &Call<'_>) -> Result<()> {
        self.done()
    }
}

struct Case {
    env: HashMap<&'static str, OsString>,
    stdin: String,
}

impl Case {
    /// Creates a call with all variables that any command needs.
    fn new(command: &str) -> Case {
        let pairs = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/nowhere"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/bin"),
        ];
        let env = pairs.map(|(name, value)| (name, OsString::from(value))).into();
        Case { env, stdin: r#"{"cniVersion": "1.1.0", "name": "net"}"#.into() }
    }

    fn env(mut self, name: &'static str, value: &str) -> Case {
        self.env.insert(name, value.into());
        self
    }

    fn without(mut self, name: &'static str) -> Case {
        self.env.remove(name);
        self
    }

    fn stdin(mut self, text: &str) -> Case {
        self.stdin = text.into();
        self
    }

    fn version(self, version: &str) -> Case {
        self.stdin(&format!(r#"{{"cniVersion": "{version}", "name": "net"}}"#))
    }

    /// Returns the answer, and how often the plugin was called.
    fn run(&self) -> (ProcessOutput, u32) {
        let probe = Probe { name: "probe", calls: AtomicU32::new(0) };
        let env = |name: &str| self.env.get(name).cloned();
        let printed = RefCell::new(Vec::new());
        let print = |bytes: &[u8]| printed.borrow_mut().write_all(bytes);
        let mut answer = answer(&probe, &[], None, &env, &mut self.stdin.as_bytes(), &print);
        answer.stdout.splice(0..0, printed.into_inner());
        (answer, probe.calls.into_inner())
    }

    #[track_caller]
    fn succeeds(&self) -> Value {
        let (answer, calls) = self.run();
        assert!(answer.success && calls == 1, "{answer:?}");
        if answer.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&answer.stdout).unwrap() }
    }

    /// Asserts that the call fails with this code and names `culprit`, without calling the plugin.
    #[track_caller]
    fn fails(&self, code: u32, culprit: &str) {
        let (answer, calls) = self.run();
        let text = String::from_utf8(answer.stdout.clone()).unwrap();
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(!answer.success && calls == 0, "{text}");
        assert_eq!(error["code"], code, "{text}");
        assert!(error["msg"].as_str().unwrap().contains(culprit), "{culprit:?} in {text}");
    }
}

#[test]
fn every_command_reaches_the_plugin() {
    assert_eq!(Case::new("ADD").succeeds()["interfaces"][0]["sandbox"], "/nowhere");
    for command in ["DEL", "CHECK", "STATUS"] {
        assert_eq!(Case::new(command).succeeds(), Value::Null, "{command}");
    }
    let gc = r#"{"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": []}"#;
    assert_eq!(Case::new("GC").stdin(gc).succeeds(), Value::Null);
    Case::new("DEL").without("CNI_NETNS").succeeds();
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        Case::new("STATUS").without(name).succeeds();
        Case::new("STATUS").env(name, "").succeeds();
        Case::new("GC").stdin(gc).env(name, "in/valid:").succeeds();
    }
}

#[test]
fn an_add_whose_result_cannot_be_written_is_rolled_back() {
    let probe = Probe { name: "probe", calls: AtomicU32::new(0) };
    let lose = |command: &str| {
        let case = Case::new(command);
        let env = |name: &str| case.env.get(name).cloned();
        let full = |_: &[u8]| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        answer(&probe, &[], None, &env, &mut case.stdin.as_bytes(), &full)
    };
    let refused = lose("ADD");
    assert!(!refused.success && probe.calls.load(Ordering::Relaxed) == 2, "ADD, then DEL: {refused:?}");
    assert!(String::from_utf8(refused.stdout).unwrap().contains("stdout"));
    assert!(lose("DEL").success, "DEL prints nothing");
}

#[test]
fn missing_variables_are_reported_together_in_order() {
    let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
    let bare = |command| all.iter().fold(Case::new(command), |case, name| case.without(name)).stdin("");
    let wanted = "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing";
    bare("ADD").fails(4, wanted);
    bare("CHECK").fails(4, wanted);
    bare("DEL").fails(4, "[CNI_CONTAINERID,CNI_IFNAME,CNI_PATH]");
    bare("GC").fails(4, "[CNI_PATH]");
    bare("STATUS").fails(4, "[CNI_PATH]");
    Case::new("ADD").env("CNI_NETNS", "").without("CNI_PATH").fails(4, "[CNI_NETNS,CNI_PATH]");
    // An invalid value is reported before missing ones, in any order.
    bare("ADD").env("CNI_IFNAME", "a/b").fails(4, "a/b");
    bare("ADD").env("CNI_CONTAINERID", "a/b").env("CNI_IFNAME", "c/d").fails(4, "a/b");
}

#[test]
fn the_environment_is_validated_first_then_stdin_then_the_command() {
    Case::new("ADD").env("CNI_IFNAME", "a:b").stdin("nonsense").fails(4, "a:b");
    Case::new("NONSENSE").stdin("").fails(6, "empty");
    Case::new("NONSENSE").stdin("{").fails(6, "invalid JSON");
    Case::new("NONSENSE").stdin("{}").fails(7, "name");
    Case::new("NONSENSE").version("9.9.9").fails(4, "unknown CNI_COMMAND: NONSENSE");
    Case::new("add").fails(4, "unknown CNI_COMMAND: add");
    Case::new("ADD ").fails(4, "unknown CNI_COMMAND: ADD ");
    Case::new("ADD").stdin(r#"{"name": "a/b", "cniVersion": 5}"#).fails(7, "a/b");
    Case::new("ADD").stdin(r#"{"name": 5, "cniVersion": 5}"#).fails(6, "name");
    Case::new("ADD").stdin(r#"{"name": "net", "cniVersion": 5}"#).fails(6, "cniVersion");
}

#[test]
fn unsupported_versions_are_rejected() {
    for version in Version::ALL {
        Case::new("DEL").version(version.as_str()).succeeds();
        let old = |command: &str, since: Version| {
            let case = Case::new(command).version(version.as_str());
            if version < since { case.fails(1, command) } else { drop(case.succeeds()) }
        };
        old("CHECK", Version::V0_4_0);
        old("STATUS", Version::V1_1_0);
    }
    Case::new("DEL").version("").succeeds();
    Case::new("DEL").stdin(r#"{"name": "net"}"#).succeeds();
    Case::new("CHECK").version("").fails(1, "CHECK");
    for (version, code) in [("0.9.0", 1), ("1.1", 1), ("1.2.0", 1), ("1.1.0.0", 6), ("x", 6)] {
        Case::new("CHECK").version(version).fails(code, version);
    }
}

#[test]
fn the_own_namespace_is_rejected_before_anything_is_done() {
    let own = Case::new("ADD").env("CNI_NETNS", "/proc/self/ns/net");
    own.fails(8, "/proc/self/ns/net");
    own.env("CNI_NETNS_OVERRIDE", "0").fails(8, "own");
    for yes in ["1", "true", "TRUE"] {
        let own = Case::new("ADD").env("CNI_NETNS", "/proc/thread-self/ns/net");
        own.env("CNI_NETNS_OVERRIDE", yes).succeeds();
    }
    for command in ["CHECK", "DEL"] {
        Case::new(command).env("CNI_NETNS", "/proc/self/ns/net").succeeds();
    }
}

#[test]
fn without_a_command_the_program_describes_itself() {
    let (answer, calls) = Case::new("").run();
    assert!(answer.success && calls == 0 && answer.stdout.is_empty());
    let wanted = "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n";
    let (first, rest) = answer.stderr.split_once('\n').unwrap();
    assert!(first.starts_with("CNI probe plugin v") && rest == wanted, "{}", answer.stderr);
}

#[test]
fn version_needs_nothing_else() {
    let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
    let (answer, calls) = names.iter().fold(Case::new("VERSION"), |case, name| case.without(name)).stdin("junk").run();
    assert!(answer.success && calls == 0);
    let want =
        r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), format!("{want}\n"));
}

#[test]
fn previous_results_are_read_by_the_configurations_version() {
    let add = |version: &str, previous: &str| {
        let text = format!(r#"{{"cniVersion": "{version}", "name": "net", "prevResult": {previous}}}"#);
        Case::new("ADD").stdin(&text)
    };
    let ips = r#"{"ips": [{"address": "10.0.0.1/8"}]}"#;
    assert_eq!(add("1.1.0", ips).succeeds()["ips"][0]["address"], "10.0.0.1/8");
    let older = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/8"}]}"#;
    assert_eq!(add("1.1.0", older).succeeds()["ips"][0]["address"], "10.0.0.1/8", "the same family");
    assert_eq!(add("1.1.0", "null").succeeds()["ips"], Value::Null);
    let fails = |case: Case, code: u32, culprit: &str| {
        let (answer, _) = case.run();
        let text = String::from_utf8(answer.stdout).unwrap();
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(!answer.success && error["code"] == code && text.contains(culprit), "{text}");
    };
    fails(add("0.4.0", older), 999, "1.0.0");
    fails(add("1.1.0", r#"{"cniVersion": "0.4.0"}"#), 999, "0.4.0");
    fails(add("1.1.0", "[]"), 6, "prevResult");
    fails(add("1.1.0", r#"{"ips": [{"address": "10.0.0.1"}]}"#), 7, "ips[0].address");
}

#[test]
fn a_gc_without_a_list_removes_nothing() {
    Case::new("GC").fails(7, "valid attachments");
    Case::new("GC").stdin(r#"{"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": null}"#).succeeds();
    let one = r#"[{"containerID": "c1", "ifname": "eth0"}]"#;
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        Case::new("GC").stdin(&format!(r#"{{"cniVersion": "1.1.0", "name": "net", "{key}": {one}}}"#)).succeeds();
        let bad = format!(r#"{{"cniVersion": "1.1.0", "name": "net", "{key}": [{{"ifname": "eth0"}}]}}"#);
        Case::new("GC").stdin(&bad).fails(7, "containerID");
    }
}
