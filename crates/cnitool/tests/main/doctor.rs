//! `cnitool doctor`: a healthy host, and hosts with one problem each.

mod calls;
mod commands;
mod config;
mod containers;
mod firewall;
pub(crate) mod hooks;
mod identifiers;
mod kernel;
mod leases;
mod link;
mod objects;
mod plugins;
pub(crate) mod routes;
mod unprivileged;

use serde_json::{Value, json};

use crate::node::{attach, host, json, network, page, snapshot};
use crate::support::{Host, failure};

/// Returns the problems, each as `CHECK LEVEL`.
pub(crate) fn problems(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    let mut problems: Vec<String> = findings
        .filter(|finding| finding["level"] != "ok")
        .map(|finding| {
            assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
            assert!(finding["subjects"].as_array().is_some_and(|subjects| !subjects.is_empty()), "{finding}");
            format!("{} {}", finding["check"].as_str().unwrap(), finding["level"].as_str().unwrap())
        })
        .collect();
    problems.dedup();
    problems
}

/// Asserts that there is exactly one problem, with a matching exit code, in JSON and in the text. Returns the finding.
#[track_caller]
pub(crate) fn only_problem(host: &Host, check: &str, level: &str) -> String {
    let outcome = host.run("doctor --json");
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    assert_eq!(problems(&answer), [format!("{check} {level}")], "{answer:#}");
    assert_eq!(outcome.status, Some(if level == "fail" { 3 } else { 0 }), "{outcome:?}");
    let text = page(&host.run("doctor"));
    assert!(text.lines().any(|line| line.starts_with(&format!("{level:<6}{check}: "))), "{text}");
    let findings = answer["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["level"] == level).unwrap().to_string()
}

#[test]
fn a_healthy_host_is_healthy_and_stays_as_it_is() {
    let host = host("10.131.0.0/24");
    attach(&host, "blue");
    let before = snapshot(&host);
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    assert_eq!((&answer["failures"], &answer["warnings"], &answer["notSeen"]), (&0.into(), &0.into(), &json!([])));
    let outcome = host.run("doctor");
    assert_eq!(outcome.status, Some(0));
    let text = page(&outcome);
    assert!(text.contains("0 warnings, 0 failures"), "{text}");
    assert_eq!(snapshot(&host), before);
}

#[test]
fn every_check_is_documented() {
    let host = host("10.160.0.0/24");
    attach(&host, "blue");
    let answer = json(&host, "doctor --json");
    for finding in answer["findings"].as_array().unwrap() {
        let row = format!("| `{}` |", finding["check"].as_str().unwrap());
        assert!(include_str!("../../../../docs/cnitool.md").contains(&row), "{row}");
    }
}

fn claims_all_alive(outcome: &testing::Outcome) -> bool {
    outcome.stdout.contains("of live containers")
}

/// Asserts that a command succeeded, with output as text.
trait OkPage {
    fn ok_page(&self);
}

impl OkPage for testing::Outcome {
    #[track_caller]
    fn ok_page(&self) {
        assert_eq!(self.status, Some(0), "{self:?}");
        page(self);
    }
}

/// Returns the remedies in order.
fn remedies(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings.filter_map(|finding| finding["remedy"].as_str().map(str::to_owned)).collect()
}

/// Asserts that the only remedy is this command and that it helps.
#[track_caller]
fn follow(host: &Host, remedy: &str) {
    let answer = json(host, "doctor --json");
    assert_eq!(remedies(&answer), [remedy], "{answer:#}");
    host.lab.sh(remedy);
    assert_healthy(host, remedy);
}

/// Runs the commands of all problems, and asserts that they help.
#[track_caller]
fn run_commands(host: &Host) {
    let answer = json(host, "doctor --json");
    let findings = answer["findings"].as_array().unwrap();
    for finding in findings.iter().filter(|finding| finding["level"] != "ok") {
        let command = finding["command"].as_str().unwrap_or_else(|| panic!("no command: {finding:#}"));
        match command.strip_prefix("cnitool ") {
            Some(words) => assert_eq!(host.run(words).status, Some(0), "{command}"),
            None => drop(host.lab.sh(command)),
        }
    }
    assert_healthy(host, &answer.to_string());
}

#[track_caller]
pub(crate) fn assert_healthy(host: &Host, context: &str) {
    let answer = json(host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{context}: {answer:#}");
}

/// Returns the names of the subjects of a finding in JSON that have this kind.
fn subjects(finding: &str, kind: &str) -> Vec<String> {
    let finding: Value = serde_json::from_str(finding).unwrap();
    let subjects = finding["subjects"].as_array().unwrap().iter().filter(|subject| subject["kind"] == kind);
    subjects.map(|subject| subject["name"].as_str().unwrap().to_owned()).collect()
}

/// One network has lost its masquerade rules, and the other does not have any container.
#[test]
fn the_argument_selects_one_network() {
    let host = host("10.220.0.0/24");
    let id = attach(&host, "blue");
    host.configure("20-other.conflist", &network("other", "10.220.1.0/24", &json!({})).to_string());
    host.lab.sh("nft flush chain inet cni_plugins_masquerade masq_checks");
    let answer = json(&host, "doctor other --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    let findings = answer["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["network"] != "pods"), "{answer:#}");
    assert!(findings.iter().any(|finding| finding["network"] == "other"), "{answer:#}");
    assert!(findings.iter().any(|finding| finding["check"] == "rp_filter"), "findings about the host: {answer:#}");
    let answer = json(&host, "doctor pods --json");
    assert_eq!(problems(&answer), ["masquerade fail"], "{answer:#}");
    let finding = answer["findings"].as_array().unwrap().iter().find(|finding| finding["level"] == "fail").unwrap();
    assert_eq!(finding["subjects"], json!([{ "kind": "container", "name": id, "interface": "eth0" }]));
    assert_eq!(finding["command"], "cnitool repair pods");
    let text = page(&host.run("doctor pods"));
    assert!(text.contains(&format!("subjects: container {id} eth0\n")), "{text}");
    assert!(text.contains("run: cnitool repair pods\n"), "{text}");
    let line = failure(&host.run("doctor absent"));
    assert!(line.contains("there is no network \"absent\""), "{line}");
}

#[test]
fn a_quiet_doctor_prints_only_problems() {
    let host = host("10.221.0.0/24");
    attach(&host, "blue");
    for words in ["doctor --quiet", "doctor --quiet --json", "doctor pods --quiet"] {
        let outcome = host.run(words);
        assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(0), "", ""), "{words}");
    }
    host.lab.sh("nft flush chain inet cni_plugins_masquerade masq_checks");
    let outcome = host.run("doctor --quiet");
    assert_eq!(outcome.status, Some(3));
    let text = page(&outcome);
    assert!(text.starts_with("fail  masquerade: ") && text.ends_with("run: cnitool repair pods\n"), "{text}");
    assert_eq!(text.lines().filter(|line| !line.starts_with(' ')).count(), 1, "one finding: {text}");
    let answer = json(&host, "doctor --json --quiet");
    assert_eq!(answer["findings"].as_array().unwrap().len(), 1, "{answer:#}");
    assert!(answer["ok"].as_u64().unwrap() > 0, "all are counted: {answer:#}");
}
