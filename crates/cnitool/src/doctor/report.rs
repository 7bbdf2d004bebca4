//! The findings so far, and their output as text or JSON.

use std::collections::BTreeSet;

use cni::inspect::{Command, Finding, Fix, Level, Subject};
use cni::{Error, Result};
use serde_json::{Value, json};

use super::Counts;
use crate::node::Node;
use crate::out;
use crate::table::{self, Paint, Tone};

/// The number of subjects and of commands that the text names. JSON has all.
const MOST: usize = 3;
/// The width of the level in front of a finding.
const MARGIN: usize = 6;

/// How findings are printed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    /// Each immediately, because some checks take long.
    Text(Paint),
    /// All at the end.
    Json,
}

impl Output {
    pub(super) fn text() -> Output {
        Output::Text(Paint::of_stdout())
    }
}

/// The findings so far.
#[derive(Debug)]
pub(super) struct Report {
    output: Output,
    /// Prints only problems.
    quiet: bool,
    /// Each with its network, or `None` for a finding about the host.
    findings: Vec<(Option<String>, Finding)>,
    /// What could not be inspected, and why.
    unseen: Vec<String>,
    /// The rules that drop packets of containers on conditions that only packets show.
    unclear: BTreeSet<String>,
    /// The error of the first failed output.
    output_error: Option<Error>,
}

impl Report {
    pub(super) fn new(output: Output, quiet: bool) -> Report {
        Report { output, quiet, findings: Vec::new(), unseen: Vec::new(), unclear: BTreeSet::new(), output_error: None }
    }

    /// Adds a finding about the host.
    pub(super) fn host(&mut self, finding: Finding) {
        self.push(None, finding);
    }

    /// Adds a finding about a network. A problem without subjects is about the network as a whole.
    pub(super) fn network(&mut self, name: &str, finding: Finding) {
        let is_whole = finding.subjects.is_empty() && finding.level > Level::Ok;
        let finding = finding.about(is_whole.then(|| Subject::new("network", name)));
        self.push(Some(name.to_owned()), finding);
    }

    fn push(&mut self, network: Option<String>, finding: Finding) {
        let is_shown = !self.quiet || finding.level > Level::Ok;
        if let (Output::Text(paint), None, true) = (self.output, &self.output_error, is_shown) {
            self.output_error = out::print(entry(network.as_deref(), &finding, paint)).err();
        }
        self.findings.push((network, finding));
    }

    /// Notes that something could not be inspected.
    pub(super) fn unseen(&mut self, what: impl Into<String>) {
        self.unseen.push(what.into());
    }

    /// Notes rules that drop packets of containers on conditions that are not examined.
    pub(super) fn unclear_rules<'a>(&mut self, rules: impl Iterator<Item = &'a str>) {
        self.unclear.extend(rules.map(str::to_owned));
    }

    /// Returns what no inspection can find.
    fn not_checked(&self) -> Vec<String> {
        let always =
            ["firewalls inside containers", "programs of eBPF", "switches, clouds and networks behind the uplink"];
        let rules: Vec<String> = self.unclear.iter().cloned().collect();
        let unclear = (!rules.is_empty()).then(|| {
            let number = table::count(rules.len(), "rule");
            format!(
                "{number} that may drop packets of containers, by other conditions than doctor knows: {}",
                first_few(&rules)
            )
        });
        unclear.into_iter().chain(always.map(str::to_owned)).collect()
    }

    /// Returns the worst level of the findings about a network.
    pub(super) fn worst(&self, network: &str) -> Level {
        let about = self.findings.iter().filter(|(about, _)| about.as_deref() == Some(network));
        about.map(|(_, finding)| finding.level).max().unwrap_or(Level::Ok)
    }

    /// Returns whether a check of the network has failed.
    pub(super) fn has_failed(&self, network: &str, check: &str) -> bool {
        let is_it = |finding: &Finding| finding.check == check && finding.level == Level::Fail;
        self.findings.iter().any(|(about, finding)| about.as_deref() == Some(network) && is_it(finding))
    }

    /// Returns whether a problem of the network names this subject.
    pub(super) fn is_problem(&self, network: &str, subject: &Subject) -> bool {
        self.findings.iter().any(|(about, finding)| {
            let is_about = about.as_deref() == Some(network) && finding.level > Level::Ok;
            is_about && finding.subjects.contains(subject)
        })
    }

    /// Counts the findings by network, identifier and level.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for (network, finding) in &self.findings {
            *counts.entry((network.clone(), finding.id.0, label(finding.level))).or_default() += 1;
        }
        counts
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|(_, finding)| finding.level == level).count()
    }

    /// Prints what is not printed yet. Returns false if there is a failure.
    pub(super) fn finish(mut self, mut node: Node) -> Result<bool> {
        for what in std::mem::take(&mut self.unseen) {
            if !node.unseen.contains(&what) {
                node.unseen.push(what);
            }
        }
        let is_silent = self.quiet && self.count(Level::Warn) + self.count(Level::Fail) == 0;
        match (self.output, self.output_error.take()) {
            (_, Some(error)) => return Err(error),
            (_, None) if is_silent => {}
            (Output::Json, None) => out::print_versioned(self.describe(&node.unseen))?,
            (Output::Text(_), None) if self.quiet => {}
            (Output::Text(_), None) => out::print(self.summary(&node))?,
        }
        Ok(self.count(Level::Fail) == 0)
    }

    /// Formats the end of the text.
    fn summary(&self, node: &Node) -> String {
        let counts = [
            format!("{} ok", self.count(Level::Ok)),
            table::count(self.count(Level::Warn), "warning"),
            table::count(self.count(Level::Fail), "failure"),
        ];
        let list = self.not_checked().join("; ");
        let not_checked = format!("not checked, because only packets show it: {list}. `cnitool test` sends some");
        format!("\n{}\n", counts.join(", ")) + &node.not_seen() + "\n" + &table::wrap(&not_checked, 0)
    }

    fn describe(&self, unseen: &[String]) -> Value {
        let shown = self.findings.iter().filter(|(_, finding)| !self.quiet || finding.level > Level::Ok);
        let findings: Vec<Value> = shown.map(|(network, finding)| describe(network.as_deref(), finding)).collect();
        json!({
            "findings": findings, "notSeen": unseen, "notChecked": self.not_checked(),
            "ok": self.count(Level::Ok), "warnings": self.count(Level::Warn), "failures": self.count(Level::Fail),
        })
    }
}

/// Joins names for a finding: the first few, and the number of the others.
pub(super) fn first_few(names: &[String]) -> String {
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Returns the commands that repair a finding.
fn commands(network: Option<&str>, finding: &Finding) -> Vec<String> {
    let commands = match (&finding.fix, network) {
        // Only attachments to a network can be repaired.
        (None, _) | (Some(Fix::Repair), None) => Vec::new(),
        (Some(Fix::Repair), Some(network)) => vec![Command::Repair.line(&[network])],
        (Some(Fix::Prune), Some(network)) => vec![Command::Prune.line(&[network])],
        (Some(Fix::Prune), None) => vec![Command::PruneAll.line(&[])],
        (Some(Fix::Run(commands)), _) => commands.clone(),
    };
    commands.iter().map(ToString::to_string).collect()
}

fn label(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    }
}

fn tone(level: Level) -> Tone {
    match level {
        Level::Ok => Tone::Good,
        Level::Warn => Tone::Warning,
        Level::Fail => Tone::Bad,
    }
}

/// Formats one finding.
fn entry(network: Option<&str>, finding: &Finding, paint: Paint) -> String {
    let prefix = network.map_or_else(String::new, |network| format!("network {network}: "));
    let wrapped = table::wrap(&format!("{}: {prefix}{}", finding.check, finding.what), MARGIN);
    // The level is in the margin of the first line.
    let label = label(finding.level);
    let mut text = paint.paint(tone(finding.level), label);
    text += wrapped.get(label.len()..).unwrap_or_default();
    if finding.level == Level::Ok {
        return text;
    }
    let subjects: Vec<String> = finding.subjects.iter().map(ToString::to_string).collect();
    for (title, line) in [("subjects", first_few(&subjects)), ("remedy", finding.remedy.clone())] {
        if !line.is_empty() {
            text += &table::wrap(&format!("{title}: {line}"), MARGIN);
        }
    }
    text + &command_lines(&commands(network, finding))
}

/// Formats commands so that they can be copied into a shell: a line that continues ends with a backslash.
fn command_lines(commands: &[String]) -> String {
    const CONTINUED: &str = " \\";
    let shown: Vec<&str> = commands.iter().take(MOST).map(String::as_str).collect();
    if shown.is_empty() {
        return String::new();
    }
    // The lines are two columns shorter, for the backslash.
    let wrapped = table::wrap(&format!("run: {}", shown.join("; ")), MARGIN + CONTINUED.len());
    let lines: Vec<&str> = wrapped.lines().map(|line| line.get(CONTINUED.len()..).unwrap_or_default()).collect();
    let text = lines.join(&format!("{CONTINUED}\n")) + "\n";
    match commands.len().saturating_sub(MOST) {
        0 => text,
        more => text + &table::wrap(&format!("and {} (all with --json)", table::count(more, "more command")), MARGIN),
    }
}

fn describe(network: Option<&str>, finding: &Finding) -> Value {
    let command = Some(commands(network, finding).join("; ")).filter(|command| !command.is_empty());
    let remedy = Some(finding.remedy.clone()).filter(|remedy| !remedy.is_empty()).or_else(|| command.clone());
    let subjects: Vec<Value> = finding
        .subjects
        .iter()
        .map(|Subject { kind, name, interface }| match interface {
            Some(interface) => json!({ "kind": kind, "name": name, "interface": interface }),
            None => json!({ "kind": kind, "name": name }),
        })
        .collect();
    json!({
        "id": finding.id.0, "check": finding.check, "level": label(finding.level), "network": network, "what": finding.what,
        "subjects": subjects, "remedy": remedy, "command": command,
    })
}

#[cfg(test)]
mod tests {
    use cni::inspect::Id;

    use super::*;

    #[test]
    fn the_text_names_some_subjects_and_commands_and_json_all() {
        let names: Vec<String> = (1..=5).map(|number| format!("c{number}")).collect();
        let subjects = names.iter().map(|name| Subject::container(name, Some("eth0")));
        let commands = names.iter().map(|name| Command::SetUp.line(&[name]));
        let finding = Finding::fail("bridge", Id("x"), "down").about(subjects).run(commands);
        let text = entry(Some("pods"), &finding, Paint::of_stdout());
        assert!(text.contains("bridge: network pods: down\n      subjects: container c1 eth0,"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("c3 eth0 and 2 more") && words.contains("and 2 more commands (all with --json)"),
            "{text}"
        );
        let json = describe(Some("pods"), &finding);
        assert_eq!(json["subjects"].as_array().map(Vec::len), Some(5));
        let commands: Vec<String> = names.iter().map(|name| format!("ip link set {name} up")).collect();
        assert_eq!(json["command"], commands.join("; "));
        assert_eq!(json["remedy"], json["command"], "there is no other text");
    }

    #[test]
    fn a_long_command_can_be_copied_into_a_shell() {
        let command = format!("sh -c 'set -C; printf {} >x'", "word ".repeat(30).trim_end());
        let text = command_lines(std::slice::from_ref(&command));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= table::WIDTH), "{text}");
        let read: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").skip(1).collect();
        assert_eq!(read.join(" "), command);
        let (last, others) = text.lines().collect::<Vec<_>>().split_last().map(|(l, o)| (*l, o.to_vec())).unwrap();
        assert!(others.iter().all(|line| line.ends_with(" \\")) && !last.ends_with('\\'), "{text}");
    }

    #[test]
    fn commands_of_cnitool_name_the_network() {
        let finding = Finding::warn("leases", Id("x"), "x").fix(Fix::Prune);
        assert_eq!(commands(Some("pods"), &finding), ["cnitool prune pods"]);
        assert_eq!(commands(None, &finding), ["cnitool prune"]);
        assert_eq!(commands(Some("a b"), &finding.fix(Fix::Repair)), ["cnitool repair 'a b'"]);
    }
}
