//! The log. Off by default, never written to stdout, and a logging failure never fails a call.
//!
//! Enabled by `CNI_LOG`, or `"logLevel"` and `"logFile"` in the configuration. At level `info`, each call has one line,
//! its outcome; at `debug`, each change to the kernel or the disk has one. In a file and on stderr, a line has the
//! time, the process ID, the microseconds since the log started, plugin, command, network and attachment. A log daemon
//! of the host adds the time and the process ID itself.

mod daemon;
mod subject;
mod summary;
mod time;
mod trace;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use env_logger::fmt::Formatter;
use env_logger::{Builder, Target};
use linux::log::warn;
use log::{LevelFilter, Record};

use crate::error::{Code, Context, Error, Result};
use crate::json::{Fault, Raw};
use daemon::{Daemon, Sender};

pub(crate) use subject::LoggedCall;
pub(crate) use summary::Summary;
pub use time::utc;
pub(crate) use trace::Trace;

/// Whether log warnings go to stderr.
static ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Reports a problem that does not fail the call, to the log and always to stderr.
pub fn report(mistake: &Error) {
    warn!("{mistake:?}");
    if !ON_STDERR.load(Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "warning: {mistake:?}");
    }
}

/// Where the log goes.
#[derive(Debug, PartialEq, Eq)]
enum Destination {
    Stderr,
    File(PathBuf),
    Daemon(Daemon),
}

/// The log level and destination.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    level: LevelFilter,
    destination: Destination,
    /// Invalid settings, which are reported as warnings.
    warnings: Vec<String>,
}

impl LogSettings {
    /// Reads the settings from the configuration and from `CNI_LOG`, which overrides the level. Invalid settings must
    /// not prevent a container from starting or from being removed, so they only cause warnings.
    pub(crate) fn new(level: Option<Raw<'_>>, file: Option<Raw<'_>>, env: Option<OsString>) -> LogSettings {
        let mut warnings = Vec::new();
        let mut text = |key: &str, value: Option<Raw<'_>>| {
            let text: Result<String, Fault> = value.map_or(Ok(String::new()), Raw::parse);
            text.unwrap_or_else(|fault| {
                warnings.push(fault.under(key).to_string());
                String::new()
            })
        };
        let (level, file) = (text("logLevel", level), text("logFile", file));
        let mut parse = |name: &str, from: &str| {
            let parsed = name.parse().ok();
            if parsed.is_none() {
                warnings.push(format!("{from} {name:?} is not a level; use off, error, warn, info or debug"));
            }
            parsed
        };
        let env = env.filter(|name| !name.is_empty()).and_then(|name| parse(&name.to_string_lossy(), "CNI_LOG"));
        let level = env.or_else(|| match level.as_str() {
            // A file without a level enables all messages.
            "" if !file.is_empty() => Some(LevelFilter::Debug),
            "" => None,
            name => parse(name, "\"logLevel\""),
        });
        let destination = match Daemon::named(&file) {
            Some(daemon) => Destination::Daemon(daemon),
            None if Path::new(&file).is_absolute() => Destination::File(PathBuf::from(file)),
            None => {
                if !file.is_empty() {
                    let remedy = "use an absolute path, \"journal\" or \"syslog\"";
                    warnings.push(format!("\"logFile\" {file:?} is not an absolute path; {remedy}"));
                }
                Destination::Stderr
            }
        };
        LogSettings { level: level.unwrap_or(LevelFilter::Off), destination, warnings }
    }

    /// Starts the log for the call of `subject`. Returns its summary, which logs the outcome.
    pub(crate) fn start(mut self, subject: impl FnOnce() -> LoggedCall) -> Summary {
        let opened = match self.destination {
            _ if self.level == LevelFilter::Off => Ok((Target::Stderr, None)),
            Destination::Stderr => Ok((Target::Stderr, None)),
            Destination::File(path) => open(&path).map(|file| (Target::Pipe(Box::new(file)), None)),
            Destination::Daemon(daemon) => {
                Sender::connect(daemon).map(|sender| (Target::Pipe(Box::new(sender)), Some(daemon)))
            }
        };
        let (target, daemon) = opened.unwrap_or_else(|error| {
            self.warnings.push(format!("{error}; the log goes to stderr"));
            (Target::Stderr, None)
        });
        if !self.warnings.is_empty() {
            self.level = self.level.max(LevelFilter::Warn);
        }
        if self.level == LevelFilter::Off {
            return Summary::default();
        }
        let on_stderr = matches!(target, Target::Stderr) && self.level >= LevelFilter::Warn;
        ON_STDERR.store(on_stderr, Ordering::Relaxed);
        let (subject, began) = (subject(), Instant::now());
        let format = move |out: &mut Formatter, record: &Record<'_>| match daemon {
            Some(daemon) => out.write_all(&daemon.datagram(&subject, record)),
            None => {
                let (now, process, since) = (utc(SystemTime::now()), std::process::id(), began.elapsed().as_micros());
                let (level, plugin, message) = (record.level(), subject.plugin, record.args());
                writeln!(out, "{now} [{process}] {since:>6}us {level:<5} {plugin} {subject}: {message}")
            }
        };
        // Writes each record at once, so that lines of different processes do not mix. A record that cannot be written
        // is lost. Fails if an earlier call in the same process has started a log, which continues.
        let _ = Builder::new().filter_level(self.level).target(target).format(format).try_init();
        for warning in &self.warnings {
            warn!("{warning}");
        }
        Summary::since(began)
    }
}

/// Opens the log file, readable only by its owner. Does not follow symbolic links or wait for the reader of a FIFO. An
/// existing file must be a regular file of this user without other hard links.
fn open(path: &Path) -> Result<File> {
    let what = || format!("open \"logFile\" {path:?}");
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).context(what)?;
    let inode = file.metadata().context(what)?;
    // The owner of this directory is the user of this process.
    let own_uid = fs::metadata("/proc/self").map(|process| process.uid()).context(what)?;
    if !inode.is_file() || inode.nlink() > 1 || inode.uid() != own_uid {
        return Err(Error::new(Code::CONFIG, "not a regular file with a single link, owned by this user"))
            .context(what);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn settings(level: &str, file: &str, env: &str) -> LogSettings {
        let [level, file] = [level, file].map(|text| (!text.is_empty()).then(|| json::parse(text).unwrap()));
        LogSettings::new(level, file, Some(env.into()))
    }

    #[test]
    fn levels() {
        for (level, file, env, wanted) in [
            ("", "", "", LevelFilter::Off),
            ("\"Debug\"", "", "", LevelFilter::Debug),
            ("", "\"/tmp/x\"", "", LevelFilter::Debug),
            ("\"warn\"", "\"/tmp/x\"", "", LevelFilter::Warn),
            ("\"warn\"", "", "debug", LevelFilter::Debug),
            ("\"debug\"", "", "off", LevelFilter::Off),
        ] {
            let settings = settings(level, file, env);
            assert_eq!((settings.level, settings.warnings.as_slice()), (wanted, &[][..]), "{level} {file} {env}");
        }
    }

    #[test]
    fn invalid_settings_are_reported_and_ignored() {
        for (level, file, env, culprit) in [
            ("\"loud\"", "", "", "loud"),
            ("5", "", "", "logLevel"),
            ("", "\"relative\"", "", "relative"),
            ("", "[]", "", "logFile"),
            ("", "", "nonsense", "nonsense"),
        ] {
            let settings = settings(level, file, env);
            let [warning] = &settings.warnings[..] else { panic!("{settings:?}") };
            assert!(warning.contains(culprit), "{warning}");
        }
    }
}
