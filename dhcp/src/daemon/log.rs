//! The log of the daemon: lines on stderr, which the service manager records with the time. A daemon that a plugin has
//! started has no stderr, and sends them to the log daemon of the host.

use std::io::{self, Write};
use std::path::Path;
use std::process::id;
use std::sync::OnceLock;

use linux::process;
use linux::unix::Datagrams;
use log::{Level, LevelFilter, Log, Metadata, Record};

/// Where journald and other log daemons listen for the protocol of syslog.
const SYSLOG: &str = "/dev/log";
/// The facility of system daemons, in the position of the priority byte.
const DAEMON_FACILITY: u8 = 3 << 3;

/// Where the log goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink {
    Stderr,
    Syslog,
}

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A line that is not accepted is lost.
        match self {
            Sink::Stderr => {
                let level = record.level().as_str().to_ascii_lowercase();
                let _ = writeln!(io::stderr(), "{level}: {}", record.args());
            }
            Sink::Syslog => {
                let line = format!("<{}>dhcp[{}]: {}", priority(record.level()), id(), record.args());
                // The log daemon may have been restarted.
                let _ = Datagrams::connect(Path::new(SYSLOG)).and_then(|socket| socket.send(line.as_bytes()));
            }
        }
    }

    fn flush(&self) {}
}

fn priority(level: Level) -> u8 {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    DAEMON_FACILITY | severity
}

/// Starts the log, at the level in `CNI_LOG`, or `info`.
pub(super) fn start(sink: Sink) {
    static SINK: OnceLock<Sink> = OnceLock::new();
    let level = process::env("CNI_LOG").and_then(|name| name.to_str()?.parse().ok()).unwrap_or(LevelFilter::Info);
    if log::set_logger(SINK.get_or_init(|| sink)).is_ok() {
        log::set_max_level(level);
    }
}
