//! The log, for debugging. Off by default, never written to stdout, and a logging failure never fails a call.
//!
//! Enabled by `CNI_LOG=debug`, or `"logLevel"` and `"logFile"` in the configuration. Each line has the time, the
//! process ID, the microseconds since the log started, plugin, command, network and attachment, and describes one
//! change to the kernel or the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use env_logger::{Builder, Target};
use log::{LevelFilter, warn};

use crate::error::{Code, Context, Error, Result};
use crate::json::{Fault, Raw};

/// Whether log warnings go to stderr.
static ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Reports a problem that does not fail the call, to the log and always to stderr.
pub fn report(mistake: &Error) {
    warn!("{mistake:?}");
    if !ON_STDERR.load(Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "warning: {mistake:?}");
    }
}

/// The log level and destination.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    level: LevelFilter,
    /// `None` means stderr.
    file: Option<PathBuf>,
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
        if !file.is_empty() && !Path::new(&file).is_absolute() {
            warnings.push(format!("\"logFile\" {file:?} is not an absolute path"));
        }
        let file = Some(PathBuf::from(file)).filter(|file| file.is_absolute());
        LogSettings { level: level.unwrap_or(LevelFilter::Off), file, warnings }
    }

    /// Starts the log; every line includes `context`.
    pub(crate) fn start(mut self, context: String) {
        let target = match self.file.filter(|_| self.level > LevelFilter::Off).map(|path| open(&path)) {
            None => Target::Stderr,
            Some(Ok(file)) => Target::Pipe(Box::new(file)),
            Some(Err(error)) => {
                self.warnings.push(format!("{error}; the log goes to stderr"));
                Target::Stderr
            }
        };
        if !self.warnings.is_empty() {
            self.level = self.level.max(LevelFilter::Warn);
        }
        if self.level == LevelFilter::Off {
            return;
        }
        let on_stderr = matches!(target, Target::Stderr) && self.level >= LevelFilter::Warn;
        ON_STDERR.store(on_stderr, Ordering::Relaxed);
        let (process, began) = (std::process::id(), Instant::now());
        let mut builder = Builder::new();
        builder.filter_level(self.level).target(target).format(move |out, record| {
            let (now, since) = (utc(SystemTime::now()), began.elapsed().as_micros());
            writeln!(out, "{now} [{process}] {since:>6}us {:<5} {context}: {}", record.level(), record.args())
        });
        // Fails only if an earlier call in the same process has started a log.
        let _ = builder.try_init();
        for warning in self.warnings {
            warn!("{warning}");
        }
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

/// Formats a time as RFC 3339 with milliseconds.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // In years that begin in March, the leap day comes last. 400 years have 146,097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let year = era * 400 + year;
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z", "a century without a leap day");
    }
}
