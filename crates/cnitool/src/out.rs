//! Output to the user. The only module that writes to stdout and stderr.

use std::io::{self, Write};

use cni::{Context, Error, Result, json};
use serde_json::Value;

use crate::table::sanitize;

/// Writes `text` to stdout unchanged.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()).context(|| "write to stdout")
}

/// The version of what commands print with `--json`. It grows if a member changes its meaning or its type, or goes.
const VERSION: u32 = 1;

/// Writes an object to stdout as JSON, with the version of its format.
pub(crate) fn print_versioned(mut value: Value) -> Result<()> {
    if let Value::Object(members) = &mut value {
        members.insert("version".to_owned(), VERSION.into());
    }
    print_json(&value)
}

/// Writes a JSON document to stdout.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    let mut text = json::print(value)?;
    text.push(b'\n');
    print(text)
}

/// Formats an error with its details in brackets. The result is one line, even if a plugin's text has several.
pub(crate) fn one_line(error: &Error) -> String {
    let text = match error.details_text() {
        "" => error.to_string(),
        remarks => format!("{error} ({remarks})"),
    };
    let pieces: Vec<&str> = text.split(char::is_control).map(str::trim).filter(|piece| !piece.is_empty()).collect();
    pieces.join(" ")
}

/// Replaces the line on stderr, for a terminal.
pub(crate) fn progress(line: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{}", sanitize(line));
}

/// Writes an error to stderr.
pub(crate) fn print_error(error: &Error) {
    warn(&one_line(error));
}

/// Writes one line to stderr.
pub(crate) fn warn(line: &str) {
    // An error of stderr itself cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "cnitool: {}", sanitize(line));
}
