//! Kernel settings under /proc/sys: read first, written only where they differ.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use log::debug;

use crate::error::{Context, Result};

/// What became of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// It had the value already.
    Kept,
    /// It has the value now.
    Changed,
    /// This kernel, or this interface, does not have it.
    Missing,
    /// /proc/sys is read-only, as in many containers.
    ReadOnly,
}

/// Gives `key`, such as `["net", "ipv4", "ip_forward"]`, the value `value`, in the network namespace of this thread.
///
/// That it is missing or read-only is for the caller to judge; everything else that fails is an error.
pub fn set(key: &[&str], value: &str) -> Result<Setting> {
    let path: PathBuf = ["/proc/sys"].iter().chain(key).collect();
    match write_if_different(&path, value) {
        Ok(setting) => {
            if setting == Setting::Changed {
                debug!("set {} to {value}", key.join("."));
            }
            Ok(setting)
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(Setting::Missing),
            Some(libc::EROFS) => Ok(Setting::ReadOnly),
            _ => Err(error).trying(|| format!("set {} to {value}", key.join("."))),
        },
    }
}

fn write_if_different(path: &PathBuf, value: &str) -> io::Result<Setting> {
    if fs::read_to_string(path)?.trim_end() == value {
        return Ok(Setting::Kept);
    }
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())?;
    Ok(Setting::Changed)
}
