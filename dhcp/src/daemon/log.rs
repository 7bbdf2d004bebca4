//! The log of the daemon: lines on stderr, which the service manager records with the time.

use std::io::{self, Write};

use linux::process;
use log::{LevelFilter, Log, Metadata, Record};

struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // If stderr is closed, the line is lost.
        let _ = writeln!(io::stderr(), "{}: {}", record.level().as_str().to_ascii_lowercase(), record.args());
    }

    fn flush(&self) {}
}

/// Starts the log, at the level in `CNI_LOG`, or `info`.
pub(super) fn start() {
    let level = process::env("CNI_LOG").and_then(|name| name.to_str()?.parse().ok()).unwrap_or(LevelFilter::Info);
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(level);
    }
}
