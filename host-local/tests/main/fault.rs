//! Calls that are killed, or get an error from the kernel, at each of their system calls.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use serde_json::{Value, json};
use testing::fault::inject_all;
use testing::{Lab, Outcome, Process};

use crate::support::{Net, addresses};

/// One system call of a run: its name, its number among those of the same name, and its text.
struct Step {
    name: String,
    count: usize,
    text: String,
}

/// Returns the system calls of a call, from the reading of its configuration.
fn steps(lab: &Lab, call: Process) -> Vec<Step> {
    let trace = lab.dir().join("steps");
    call.strace(&["-o", trace.to_str().unwrap()]).run().ok();
    let text = fs::read_to_string(&trace).unwrap();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut steps = Vec::new();
    for line in text.lines() {
        let Some((name, rest)) =
            line.split_once('(').filter(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
        else {
            continue;
        };
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        steps.push(Step { name: name.to_owned(), count: *count, text: rest.to_owned() });
    }
    let from = steps.iter().position(|step| step.name == "read" && step.text.starts_with("0, ")).unwrap();
    steps.drain(..from);
    steps
}

/// Runs `call` with a fault injected at `step`, and asserts that strace injected it.
fn inject(lab: &Lab, call: Process, step: &Step, what: &str) -> Outcome {
    let trace = lab.dir().join("inject");
    let rule = format!("inject={}:{what}:when={}", step.name, step.count);
    let only = format!("trace={}", step.name);
    let outcome = call.strace(&["-o", trace.to_str().unwrap(), "-e", &only, "-e", &rule]).run();
    let text = fs::read_to_string(&trace).unwrap();
    let injected = if what.starts_with("signal") { "SIGKILL" } else { "INJECTED" };
    assert!(text.contains(injected), "nothing was injected at {} {}: {text}", step.name, step.count);
    outcome
}

fn dual(lab: &Lab) -> Net<'_> {
    Net::new(lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]))
}

#[test]
fn an_add_killed_anywhere_loses_nothing() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    let others = net.leases();
    // An existing network, whose last reserved address becomes longer, and a network that has to be created.
    for name in ["net", "fresh"] {
        let net = net.with("/name", json!(name));
        let prepare = || match name {
            "fresh" => drop(lab.sh("rm -rf /var/lib/cni/networks/fresh")),
            _ => fs::write(net.dir().join("last_reserved_ip.0"), "10.1.0.99").unwrap(),
        };
        // The first ADD creates files of the index, so that the following ones need fewer system calls.
        net.add("a");
        net.del("a");
        prepare();
        let plan = steps(&lab, net.calling("ADD", "a"));
        net.del("a");
        for step in plan {
            let at = format!("killed at {}({}", step.name, step.text);
            prepare();
            inject(&lab, net.calling("ADD", "a"), &step, "signal=KILL");
            for content in net.leases().into_values() {
                assert!(["a\r\neth0", "other\r\neth0"].contains(&content.as_str()), "{content:?}, {at}");
            }
            net.del("a");
            assert_eq!(net.leases(), if name == "net" { others.clone() } else { BTreeMap::new() }, "{at}");
            assert_eq!(net.add("b").len(), 2, "{at}");
            net.del("b");
            net.call("CHECK", "b").error(999);
            assert_eq!(net.leases(), if name == "net" { others.clone() } else { BTreeMap::new() }, "{at}");
            net.assert_tidy();
        }
    }
}

#[test]
fn a_del_killed_anywhere_can_be_repeated() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    let others = net.leases();
    net.add("a");
    for step in steps(&lab, net.calling("DEL", "a")) {
        net.add("a");
        inject(&lab, net.calling("DEL", "a"), &step, "signal=KILL");
        net.del("a");
        assert_eq!(net.leases(), others, "killed at {}({}", step.name, step.text);
        net.call("CHECK", "a").error(999);
        net.assert_tidy();
    }
}

const ERRORS: [&str; 5] = ["ENOSPC", "EIO", "EACCES", "EROFS", "EMFILE"];

/// Returns whether a system call is about files. Excludes the output of the result, whose failure cannot be reported.
fn is_about_files(step: &Step) -> bool {
    let names = [
        "open",
        "openat",
        "read",
        "readv",
        "write",
        "writev",
        "pwrite64",
        "flock",
        "stat",
        "fstat",
        "newfstatat",
        "statx",
        "linkat",
        "rename",
        "renameat",
        "unlink",
        "unlinkat",
        "utimensat",
        "mkdir",
        "getdents64",
        "faccessat",
        "faccessat2",
        "ftruncate",
    ];
    names.contains(&step.name.as_str()) && !(step.name == "write" && step.text.starts_with("1, "))
}

/// Asserts that a failed call prints one CNI error.
fn assert_error(outcome: &Outcome, step: &Step) {
    let error: Value = serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|e| panic!("{e} at {}({}: {outcome:?}", step.name, step.text));
    assert!(error["code"].is_u64() && error["msg"].is_string(), "{error}");
}

#[test]
fn an_add_with_an_error_anywhere_succeeds_or_leaves_nothing() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    // The first ADD creates files of the index, so that the following ones need fewer system calls.
    net.add("a");
    net.del("a");
    let plan = steps(&lab, net.calling("ADD", "a"));
    net.del("a");
    let others = net.leases();
    for step in plan.iter().filter(|step| is_about_files(step)) {
        for error in ERRORS {
            let at = format!("{error} at {}({}", step.name, step.text);
            let outcome = inject(&lab, net.calling("ADD", "a"), step, &format!("error={error}"));
            if outcome.status == Some(0) {
                let mut want = others.clone();
                want.extend(addresses(&outcome.ok()).into_iter().map(|ip| (ip, "a\r\neth0".to_owned())));
                assert_eq!(net.leases(), want, "{at}");
            } else {
                assert_error(&outcome, step);
                assert_eq!(net.leases(), others, "{at}");
            }
            net.assert_tidy();
            net.del("a");
            assert_eq!(net.leases(), others, "{at}");
        }
    }
    assert_eq!(net.add("a").len(), 2);
}

#[test]
fn a_del_with_an_error_anywhere_succeeds_or_can_be_repeated() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    let others = net.leases();
    net.add("a");
    let plan = steps(&lab, net.calling("DEL", "a"));
    for step in plan.iter().filter(|step| is_about_files(step)) {
        for error in ERRORS {
            let at = format!("{error} at {}({}", step.name, step.text);
            net.add("a");
            let outcome = inject(&lab, net.calling("DEL", "a"), step, &format!("error={error}"));
            if outcome.status == Some(0) {
                assert_eq!(net.leases(), others, "{at}");
            } else {
                assert_error(&outcome, step);
            }
            net.del("a");
            assert_eq!(net.leases(), others, "{at}");
        }
    }
}

#[test]
fn without_unnamed_files_leases_are_written_to_a_temporary_file() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    let plan = steps(&lab, net.calling("ADD", "a"));
    net.del("a");
    let unnamed = plan.iter().find(|step| step.text.contains("O_TMPFILE")).unwrap();
    let outcome = inject(&lab, net.calling("ADD", "a"), unnamed, "error=EOPNOTSUPP");
    assert_eq!(addresses(&outcome.ok()).len(), 2);
    net.call("CHECK", "a").ok();
    net.assert_tidy();
    let linked = plan.iter().find(|step| step.name == "linkat").unwrap();
    assert_eq!(addresses(&inject(&lab, net.calling("ADD", "b"), linked, "error=ENOENT").ok()).len(), 2);
    net.assert_tidy();
}

#[test]
fn a_failure_to_close_a_directory_is_ignored() {
    let lab = Lab::new();
    let net = dual(&lab);
    net.add("other");
    // Without an index, the call lists all leases.
    let forget = || lab.sh("rm -rf /run/cni0");
    forget();
    let plan = steps(&lab, net.calling("ADD", "a"));
    net.del("a");
    assert!(plan.iter().any(|step| step.name == "getdents64"), "the directory is listed");
    for step in plan.iter().filter(|step| step.name == "close") {
        forget();
        let outcome = inject(&lab, net.calling("ADD", "a"), step, "error=EIO");
        assert_eq!(addresses(&outcome.ok()).len(), 2, "close({}", step.text);
        net.del("a");
    }
}

/// The rollback must not release an address that the call did not get.
#[test]
fn a_failed_request_for_an_address_in_use_does_not_release_it() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/24");
    let taken = net.add("other")[0];
    let before = net.leases();
    let request = net.calling("ADD", "a").env("CNI_ARGS", format!("IP={taken}"));
    assert_eq!(inject_all(&lab, request, "linkat", "error=EIO").status, Some(1));
    assert_eq!(net.leases(), before);
}
