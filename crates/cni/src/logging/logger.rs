//! The logger: formats a record and writes it at once, so that lines of different processes do not mix.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Instant, SystemTime};

use log::{LevelFilter, Log, Metadata, Record};

use super::daemon::Sender;
use super::{LoggedCall, utc};

/// An open destination.
#[derive(Debug)]
pub(super) enum Output {
    Stderr,
    File(File),
    Daemon(Sender),
}

/// The log of one call.
#[derive(Debug)]
pub(super) struct Logger {
    pub(super) output: Output,
    pub(super) subject: LoggedCall,
    pub(super) began: Instant,
}

impl Logger {
    /// Receives all records up to this level until the process ends, unless an earlier call in the same process has started
    /// a log.
    pub(super) fn start(self, level: LevelFilter) {
        if log::set_logger(Box::leak(Box::new(self))).is_ok() {
            log::set_max_level(level);
        }
    }

    /// Formats a record as a line.
    fn line(&self, record: &Record<'_>) -> String {
        let (now, process, since) = (utc(SystemTime::now()), std::process::id(), self.began.elapsed().as_micros());
        let LoggedCall { plugin, .. } = self.subject;
        format!("{now} [{process}] {since:>6}us {:<5} {plugin} {}: {}\n", record.level(), self.subject, record.args())
    }
}

impl Log for Logger {
    /// The level is compared before this is called.
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    /// Writes a record. A record that cannot be written is lost: logging never fails a call.
    fn log(&self, record: &Record<'_>) {
        let _ = match &self.output {
            Output::Stderr => io::stderr().write_all(self.line(record).as_bytes()),
            Output::File(file) => { file }.write_all(self.line(record).as_bytes()),
            Output::Daemon(sender) => {
                sender.send(&self.subject, record);
                Ok(())
            }
        };
    }

    fn flush(&self) {}
}
