//! What the user sees. The only module that writes to stdout and stderr.

use std::io::{self, Write};

use cni::{Context, Error, Result, json};
use serde_json::Value;

use crate::table::harmless;

/// Writes `text` to stdout as it is.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()).trying(|| "write to stdout")
}

/// Writes a JSON document to stdout.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    let mut text = json::print(value)?;
    text.push(b'\n');
    print(text)
}

/// An error as it is told: what, and in brackets why and what to do. One line, whatever a plugin put into its text.
pub(crate) fn one_line(error: &Error) -> String {
    let text = match error.remarks() {
        "" => error.to_string(),
        remarks => format!("{error} ({remarks})"),
    };
    let pieces: Vec<&str> = text.split(char::is_control).map(str::trim).filter(|piece| !piece.is_empty()).collect();
    pieces.join(" ")
}

/// Writes an error to stderr.
pub(crate) fn complain(error: &Error) {
    warn(&one_line(error));
}

/// Writes one line to stderr.
pub(crate) fn warn(line: &str) {
    // Whoever does not listen cannot be helped.
    let _ = writeln!(io::stderr(), "cnitool: {}", harmless(line));
}
