//! `cnitool doctor`: reports what on this host would make an add fail or block traffic, with remedies.
//!
//! Each submodule checks one concern and reports findings, good or bad. Read-only.

mod config;
mod firewall;
mod kernel;
mod leases;
mod link;
mod objects;

use cni::inspect::{Finding, Level};
use cni::{Error, Result};
use serde_json::{Value, json};

use crate::node::Node;
use crate::out;
use crate::table::{self, Paint, Tone};

fn text(level: Level) -> &'static str {
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

/// The findings so far.
#[derive(Debug)]
struct Report {
    node: Node,
    /// Each with its network, or `None` for a finding about the host.
    findings: Vec<(Option<String>, Finding)>,
    /// What could not be inspected, and why.
    unseen: Vec<String>,
    /// Prints each finding immediately, because some checks take long. `None` for JSON, which is printed at the end.
    live: Option<Paint>,
    /// The error of the first failed output.
    output_error: Option<Error>,
}

impl Report {
    fn add(
        &mut self,
        level: Level,
        check: &'static str,
        network: Option<&str>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(network, Finding { check, level, what: what.into(), remedy: remedy.into() });
    }

    fn push(&mut self, network: Option<&str>, finding: Finding) {
        if let (Some(paint), None) = (self.live, &self.output_error) {
            self.output_error = out::print(entry(network, &finding, paint)).err();
        }
        self.findings.push((network.map(str::to_owned), finding));
    }

    fn ok(&mut self, check: &'static str, network: Option<&str>, what: impl Into<String>) {
        self.add(Level::Ok, check, network, what, "");
    }

    /// Adds a failure from an error whose details are the remedy.
    fn fail(&mut self, check: &'static str, network: Option<&str>, error: &Error) {
        self.add(Level::Fail, check, network, error.to_string(), error.details_text());
    }

    /// Returns the worst level of the findings about a network.
    fn worst(&self, network: &str) -> Level {
        let about = self.findings.iter().filter(|(about, _)| about.as_deref() == Some(network));
        about.map(|(_, finding)| finding.level).max().unwrap_or(Level::Ok)
    }

    /// Notes that something could not be inspected.
    fn unseen(&mut self, error: &Error) {
        self.unseen.push(error.to_string());
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|(_, finding)| finding.level == level).count()
    }
}

/// Runs all checks. Returns false if there is a failure.
pub(crate) fn run(as_json: bool) -> Result<bool> {
    let node = Node::inspect()?;
    let live = (!as_json).then(Paint::of_stdout);
    let mut report = Report { node, findings: Vec::new(), unseen: Vec::new(), live, output_error: None };
    config::check(&mut report);
    kernel::check(&mut report)?;
    firewall::check(&mut report)?;
    objects::check(&mut report);
    link::check(&mut report)?;
    leases::check(&mut report);
    config::call_status(&mut report);
    let healthy = report.count(Level::Fail) == 0;
    for what in std::mem::take(&mut report.unseen) {
        if !report.node.unseen.contains(&what) {
            report.node.unseen.push(what);
        }
    }
    match (as_json, report.output_error.take()) {
        (true, _) => out::print_json(&describe(&report))?,
        (false, Some(error)) => return Err(error),
        (false, None) => out::print(summary(&report))?,
    }
    Ok(healthy)
}

/// Joins names for a finding: the first three, and the number of the others.
fn first_few(names: &[String]) -> String {
    const MOST: usize = 3;
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Formats one finding.
fn entry(network: Option<&str>, finding: &Finding, paint: Paint) -> String {
    const MARGIN: usize = 6;
    let network = network.map_or_else(String::new, |network| format!("network {network}: "));
    let wrapped = table::wrap(&format!("{}: {network}{}", finding.check, finding.what), MARGIN);
    // The level is in the margin of the first line.
    let label = text(finding.level);
    let mut text = paint.paint(tone(finding.level), label);
    text += wrapped.get(label.len()..).unwrap_or_default();
    if !finding.remedy.is_empty() {
        text += &table::wrap(&format!("remedy: {}", finding.remedy), MARGIN);
    }
    text
}

/// Formats the end of the output.
fn summary(report: &Report) -> String {
    let counts = [
        format!("{} ok", report.count(Level::Ok)),
        table::count(report.count(Level::Warn), "warning"),
        table::count(report.count(Level::Fail), "failure"),
    ];
    format!("\n{}\n", counts.join(", ")) + &report.node.not_seen()
}

fn describe(report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|(network, finding)| {
            let remedy = Some(&finding.remedy).filter(|remedy| !remedy.is_empty());
            json!({
                "check": finding.check, "level": text(finding.level), "network": network,
                "what": finding.what, "remedy": remedy,
            })
        })
        .collect();
    json!({
        "findings": findings, "notSeen": report.node.unseen,
        "ok": report.count(Level::Ok), "warnings": report.count(Level::Warn), "failures": report.count(Level::Fail),
    })
}
