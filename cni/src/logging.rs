//! A log for people who look for trouble: off unless asked for, never on stdout.
//!
//! `CNI_LOG=debug`, or `"logLevel"` and `"logFile"` in the configuration. A line tells the microseconds since the
//! start, the plugin, the command, the network and the attachment, and one change of the kernel or of the disk.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Instant;

use env_logger::{Builder, Target};
use log::{LevelFilter, warn};

use crate::error::{Context, Result};
use crate::json::Fault;

/// What should be logged, and where to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    level: LevelFilter,
    /// `None` is stderr.
    file: Option<PathBuf>,
}

impl Wish {
    pub(crate) fn of_config(level: String, file: String) -> Result<Wish, Fault> {
        let level = match level.as_str() {
            // A file alone asks for everything.
            "" if !file.is_empty() => LevelFilter::Debug,
            "" => LevelFilter::Off,
            name => name.parse().map_err(|_| {
                Fault::value(format!("{name:?} is no level; use off, error, warn, info or debug"))
                    .under("logLevel")
            })?,
        };
        let file = Some(file).filter(|file| !file.is_empty()).map(PathBuf::from);
        if let Some(path) = file.as_ref().filter(|path| !path.is_absolute()) {
            return Err(Fault::value(format!("{path:?} is no absolute path")).under("logFile"));
        }
        Ok(Wish { level, file })
    }

    /// `CNI_LOG` wins over the configuration's level. A value that is no level is not worth failing for.
    pub(crate) fn or_env(mut self, level: Option<OsString>) -> Wish {
        if let Some(level) = level.and_then(|level| level.to_str()?.parse().ok()) {
            self.level = level;
        }
        self
    }

    /// Starts the log; `context` stands in every line.
    pub(crate) fn start(self, began: Instant, context: String) {
        if self.level == LevelFilter::Off {
            return;
        }
        let (target, trouble) = match self.file.map(open) {
            None => (Target::Stderr, None),
            Some(Ok(file)) => (Target::Pipe(Box::new(file)), None),
            Some(Err(error)) => (Target::Stderr, Some(error)),
        };
        let mut builder = Builder::new();
        builder.filter_level(self.level).target(target).format(move |out, record| {
            let elapsed = began.elapsed().as_micros();
            writeln!(out, "{elapsed:>7}us {:<5} {context}: {}", record.level(), record.args())
        });
        // It fails only if a log was started before, by an earlier call in the same process.
        let _ = builder.try_init();
        if let Some(error) = trouble {
            warn!("{error}; the log goes to stderr");
        }
    }
}

/// Never through a symbolic link, and for nobody else to read.
fn open(path: PathBuf) -> Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(&path).trying(|| format!("open \"logFile\" {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        let wish = |level: &str, file: &str| Wish::of_config(level.into(), file.into());
        assert_eq!(wish("", "").unwrap().level, LevelFilter::Off);
        assert_eq!(wish("Debug", "").unwrap().level, LevelFilter::Debug);
        assert_eq!(wish("", "/tmp/x").unwrap().level, LevelFilter::Debug);
        assert_eq!(
            wish("warn", "").unwrap().or_env(Some("debug".into())).level,
            LevelFilter::Debug
        );
        assert_eq!(
            wish("warn", "").unwrap().or_env(Some("nonsense".into())).level,
            LevelFilter::Warn
        );
        assert!(wish("loud", "").unwrap_err().to_string().contains("\"loud\""));
        assert!(wish("debug", "cni.log").unwrap_err().to_string().contains("\"cni.log\""));
    }
}
