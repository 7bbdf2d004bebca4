//! The output of `cnitool validate`.

use cni::inspect::FIX_HINT;
use cni::{Error, Result, Version};
use serde_json::{Value, json};

use crate::out;
use crate::table::{self, Paint, Tone, sanitize};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// It may be intended.
    Warning,
    /// An ADD fails.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// Something that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// The plugin with its place in the list; empty for the network.
    place: String,
    /// The key; empty if the text names it.
    key: String,
    what: String,
    /// What to do about it; may be empty.
    remedy: String,
}

impl Finding {
    pub(super) fn new(
        level: Level,
        place: &str,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let (place, key) = (place.to_owned(), key.to_owned());
        Finding { level, place, key, what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn of_error(level: Level, place: &str, error: &Error) -> Finding {
        // The name of the file says as much.
        let remedy = Some(error.details_text()).filter(|remedy| *remedy != FIX_HINT);
        Finding::new(level, place, "", error.to_string(), remedy.unwrap_or_default())
    }

    /// Returns the text in one line.
    fn line(&self) -> String {
        let mut line = String::new();
        if !self.place.is_empty() {
            line += &format!("{}: ", self.place);
        }
        if !self.key.is_empty() {
            line += &format!("key {:?}: ", self.key);
        }
        line += &self.what;
        if !self.remedy.is_empty() {
            line += &format!(" ({})", self.remedy);
        }
        line
    }
}

/// A file that was checked.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) file: String,
    /// Line and column of the first mistake of a file that cannot be parsed.
    pub(super) position: Option<(usize, usize)>,
    /// The name of the network; `None` if the file cannot be parsed.
    pub(super) network: Option<String>,
    pub(super) version: Option<Version>,
    pub(super) plugins: Vec<String>,
    pub(super) findings: Vec<Finding>,
}

impl Checked {
    /// Returns a file with nothing but this finding.
    pub(super) fn broken(finding: Finding) -> Checked {
        Checked { findings: vec![finding], ..Checked::default() }
    }
}

/// Prints all findings.
pub(super) fn print(checked: &[Checked], as_json: bool) -> Result<()> {
    if as_json {
        return out::print_versioned(describe(checked));
    }
    let paint = Paint::of_stdout();
    let mut text = String::new();
    for file in checked {
        let position = file.position.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"));
        let name = sanitize(&format!("{}{position}", file.file));
        for finding in &file.findings {
            let tone = if finding.level == Level::Error { Tone::Bad } else { Tone::Warning };
            text += &format!("{name}: {}: {}\n", paint.paint(tone, finding.level.word()), sanitize(&finding.line()));
        }
        let is_valid = !file.findings.iter().any(|finding| finding.level == Level::Error);
        if let (true, Some(network), Some(version)) = (is_valid, &file.network, file.version) {
            let plugins = file.plugins.join(", ");
            let line = format!("network {network}, cniVersion {version}{}: {plugins}", lacking(version));
            text += &format!("{name}: {}: {}\n", paint.paint(Tone::Good, "valid"), sanitize(&line));
        }
    }
    let [errors, warnings] = [Level::Error, Level::Warning].map(|level| count(checked, level));
    text += &format!("\n{}, {}\n", table::count(errors, "error"), table::count(warnings, "warning"));
    out::print(text)
}

/// Names the commands that a version lacks.
fn lacking(version: Version) -> String {
    let lacking: Vec<&str> =
        ["CHECK", "GC", "STATUS"].into_iter().filter(|command| version < Version::since(command)).collect();
    match lacking.split_last() {
        None => String::new(),
        Some((last, [])) => format!(" (without {last})"),
        Some((last, others)) => format!(" (without {} and {last})", others.join(", ")),
    }
}

fn count(checked: &[Checked], level: Level) -> usize {
    checked.iter().flat_map(|file| &file.findings).filter(|finding| finding.level == level).count()
}

fn describe(checked: &[Checked]) -> Value {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let finding = |finding: &Finding| {
        json!({
            "level": finding.level.word(), "place": given(&finding.place), "key": given(&finding.key),
            "what": finding.what, "remedy": given(&finding.remedy),
        })
    };
    let file = |file: &Checked| {
        json!({
            "file": file.file, "network": file.network, "cniVersion": file.version.map(Version::as_str),
            "plugins": file.plugins, "line": file.position.map(|(line, _)| line),
            "column": file.position.map(|(_, column)| column),
            "findings": file.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    };
    json!({
        "files": checked.iter().map(file).collect::<Vec<_>>(),
        "errors": count(checked, Level::Error), "warnings": count(checked, Level::Warning),
    })
}
