//! `cnitool doctor`: what on this host would make an add fail, or keep traffic from flowing, each with its remedy.
//!
//! A check of one concern per file; each says what it found, good or bad. Nothing is changed.

mod config;
mod firewall;
mod kernel;
mod leases;
mod link;

use cni::{Error, Result};
use serde_json::{Value, json};

use crate::node::Node;
use crate::out;
use crate::table::{self, Paint, Tone};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    /// It works, and may stop to, or works only partly.
    Warn,
    /// An add fails, or traffic does not flow.
    Fail,
}

impl Level {
    fn text(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Level::Ok => Tone::Good,
            Level::Warn => Tone::Doubtful,
            Level::Fail => Tone::Bad,
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// What was looked at, in one word.
    check: &'static str,
    level: Level,
    /// The network that it is about, if not the whole host.
    network: Option<String>,
    what: String,
    /// Empty if all is well.
    remedy: String,
}

/// All that was found so far.
#[derive(Debug)]
struct Report {
    node: Node,
    findings: Vec<Finding>,
    /// What could not be looked at, and why.
    unseen: Vec<String>,
    /// How findings are shown as soon as they are made: some take long. `None` if they are collected.
    live: Option<Paint>,
    /// Why they could not be shown.
    mute: Option<Error>,
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
        let network = network.map(str::to_owned);
        let finding = Finding { check, level, network, what: what.into(), remedy: remedy.into() };
        if let (Some(paint), None) = (self.live, &self.mute) {
            self.mute = out::print(entry(&finding, paint)).err();
        }
        self.findings.push(finding);
    }

    fn ok(&mut self, check: &'static str, network: Option<&str>, what: impl Into<String>) {
        self.add(Level::Ok, check, network, what, "");
    }

    /// An error that says its own remedy.
    fn fail(&mut self, check: &'static str, network: Option<&str>, error: &Error) {
        self.add(Level::Fail, check, network, error.to_string(), error.remarks());
    }

    /// The worst that was found about a network.
    fn worst(&self, network: &str) -> Level {
        let about = self.findings.iter().filter(|finding| finding.network.as_deref() == Some(network));
        about.map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// What kept us from looking.
    fn unseen(&mut self, error: &Error) {
        self.unseen.push(error.to_string());
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

/// Looks at everything; `false` if anything must be mended.
pub(crate) fn run(as_json: bool) -> Result<bool> {
    let node = Node::look()?;
    let live = (!as_json).then(Paint::of_stdout);
    let mut report = Report { node, findings: Vec::new(), unseen: Vec::new(), live, mute: None };
    config::check(&mut report);
    kernel::check(&mut report)?;
    firewall::check(&mut report)?;
    link::check(&mut report)?;
    leases::check(&mut report);
    config::ask_plugins(&mut report);
    let healthy = report.count(Level::Fail) == 0;
    for what in std::mem::take(&mut report.unseen) {
        if !report.node.unseen.contains(&what) {
            report.node.unseen.push(what);
        }
    }
    match (as_json, report.mute.take()) {
        (true, _) => out::print_json(&describe(&report))?,
        (false, Some(error)) => return Err(error),
        (false, None) => out::print(summary(&report))?,
    }
    Ok(healthy)
}

/// A list of names for one finding. Of many, the first are enough to begin with.
fn some(names: &[String]) -> String {
    const MOST: usize = 3;
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// One finding on the page.
fn entry(finding: &Finding, paint: Paint) -> String {
    const MARGIN: usize = 6;
    let network = finding.network.as_ref().map_or_else(String::new, |network| format!("network {network}: "));
    let wrapped = table::wrap(&format!("{}: {network}{}", finding.check, finding.what), MARGIN);
    // The level stands in the margin of the first line.
    let label = finding.level.text();
    let mut text = paint.paint(finding.level.tone(), label);
    text += wrapped.get(label.len()..).unwrap_or_default();
    if !finding.remedy.is_empty() {
        text += &table::wrap(&format!("remedy: {}", finding.remedy), MARGIN);
    }
    text
}

/// The end of the page.
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
        .map(|finding| {
            let remedy = Some(&finding.remedy).filter(|remedy| !remedy.is_empty());
            json!({
                "check": finding.check, "level": finding.level.text(), "network": finding.network,
                "what": finding.what, "remedy": remedy,
            })
        })
        .collect();
    json!({
        "findings": findings, "notSeen": report.node.unseen,
        "ok": report.count(Level::Ok), "warnings": report.count(Level::Warn), "failures": report.count(Level::Fail),
    })
}
