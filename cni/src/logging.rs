//! A log for people who look for trouble: off unless asked for, never on stdout, and never a reason to fail.
//!
//! `CNI_LOG=debug`, or `"logLevel"` and `"logFile"` in the configuration. A line tells the time, the process, the
//! microseconds since the log began, the plugin, the command, the network and the attachment, and one change of the kernel
//! or of the disk.

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

/// Whether warnings of the log reach stderr.
static ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Reports a mistake that does not make the call fail: to the log, and in any case to stderr.
pub fn report(mistake: &Error) {
    warn!("{mistake:?}");
    if !ON_STDERR.load(Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "warning: {mistake:?}");
    }
}

/// What should be logged, and where to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    level: LevelFilter,
    /// `None` is stderr.
    file: Option<PathBuf>,
    /// What was wished for and cannot be had.
    troubles: Vec<String>,
}

impl Wish {
    /// What the configuration says, and `CNI_LOG`, which wins over its level. A mistake in them must not keep a
    /// container from starting, let alone from being removed.
    pub(crate) fn new(level: Option<Raw<'_>>, file: Option<Raw<'_>>, env: Option<OsString>) -> Wish {
        let mut troubles = Vec::new();
        let mut text = |key: &str, value: Option<Raw<'_>>| {
            let text: Result<String, Fault> = value.map_or(Ok(String::new()), Raw::parse);
            text.unwrap_or_else(|fault| {
                troubles.push(fault.under(key).to_string());
                String::new()
            })
        };
        let (level, file) = (text("logLevel", level), text("logFile", file));
        let mut parse = |name: &str, from: &str| {
            let parsed = name.parse().ok();
            if parsed.is_none() {
                troubles.push(format!("{from} {name:?} is not a level; use off, error, warn, info or debug"));
            }
            parsed
        };
        let env = env.filter(|name| !name.is_empty()).and_then(|name| parse(&name.to_string_lossy(), "CNI_LOG"));
        let level = env.or_else(|| match level.as_str() {
            // A file alone asks for everything.
            "" if !file.is_empty() => Some(LevelFilter::Debug),
            "" => None,
            name => parse(name, "\"logLevel\""),
        });
        if !file.is_empty() && !Path::new(&file).is_absolute() {
            troubles.push(format!("\"logFile\" {file:?} is not an absolute path"));
        }
        let file = Some(PathBuf::from(file)).filter(|file| file.is_absolute());
        Wish { level: level.unwrap_or(LevelFilter::Off), file, troubles }
    }

    /// Starts the log; `context` stands in every line.
    pub(crate) fn start(mut self, context: String) {
        let target = match self.file.filter(|_| self.level > LevelFilter::Off).map(|path| open(&path)) {
            None => Target::Stderr,
            Some(Ok(file)) => Target::Pipe(Box::new(file)),
            Some(Err(error)) => {
                self.troubles.push(format!("{error}; the log goes to stderr"));
                Target::Stderr
            }
        };
        if !self.troubles.is_empty() {
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
        // It fails only if a log was started before, by an earlier call in the same process.
        let _ = builder.try_init();
        for trouble in self.troubles {
            warn!("{trouble}");
        }
    }
}

/// Never through a symbolic link, never waiting for the reader of a FIFO, and for nobody else to read: a file of ours
/// that has no other name, or none.
fn open(path: &Path) -> Result<File> {
    let what = || format!("open \"logFile\" {path:?}");
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).trying(what)?;
    let inode = file.metadata().trying(what)?;
    // The owner of this directory is the user that we are.
    let ours = fs::metadata("/proc/self").map(|process| process.uid()).trying(what)?;
    if !inode.is_file() || inode.nlink() > 1 || inode.uid() != ours {
        return Err(Error::new(Code::CONFIG, "it is no file of our own")).trying(what);
    }
    Ok(file)
}

/// RFC 3339, to the millisecond.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end; 400 of them have 146,097 days.
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

    fn wish(level: &str, file: &str, env: &str) -> Wish {
        let [level, file] = [level, file].map(|text| (!text.is_empty()).then(|| json::parse(text).unwrap()));
        Wish::new(level, file, Some(env.into()))
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
            let wish = wish(level, file, env);
            assert_eq!((wish.level, wish.troubles.as_slice()), (wanted, &[][..]), "{level} {file} {env}");
        }
    }

    #[test]
    fn mistakes_are_told_and_passed_over() {
        for (level, file, env, culprit) in [
            ("\"loud\"", "", "", "loud"),
            ("5", "", "", "logLevel"),
            ("", "\"relative\"", "", "relative"),
            ("", "[]", "", "logFile"),
            ("", "", "nonsense", "nonsense"),
        ] {
            let wish = wish(level, file, env);
            let [trouble] = &wish.troubles[..] else { panic!("{wish:?}") };
            assert!(trouble.contains(culprit), "{trouble}");
        }
    }

    #[test]
    fn time_is_told_as_people_write_it() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z", "a century without a leap day");
    }
}
