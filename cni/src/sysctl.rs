//! Kernel settings under /proc/sys: read first, written only where they differ.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use log::debug;
use nix::fcntl::OFlag;

use crate::error::{Context, Result};
use crate::sys;

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
    match write_if_different(Path::new(&path_of(key)), value) {
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

/// What `key` says in the network namespace of this thread; `None` if this kernel, or this interface, does not have it.
pub fn read(key: &[&str]) -> Result<Option<String>> {
    match std::fs::read_to_string(path_of(key)) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).trying(|| format!("read {}", key.join("."))),
    }
}

/// Could `key` be set? Tries nothing but to open it.
pub fn can_be_set(key: &[&str]) -> io::Result<()> {
    Ok(sys::open(Path::new(&path_of(key)), OFlag::O_WRONLY).map(drop)?)
}

fn path_of(key: &[&str]) -> String {
    format!("/proc/sys/{}", key.join("/"))
}

fn write_if_different(path: &Path, value: &str) -> io::Result<Setting> {
    // What is set already may be on a read-only file system.
    let (file, writable) = match sys::open(path, OFlag::O_RDWR) {
        Err(nix::Error::EROFS | nix::Error::EACCES) => (sys::open(path, OFlag::O_RDONLY)?, false),
        file => (file?, true),
    };
    let mut have = [0; 64];
    let len = file.read_at(&mut have, 0)?;
    if have.get(..len).is_some_and(|have| have.trim_ascii_end() == value.as_bytes()) {
        return Ok(Setting::Kept);
    }
    if !writable {
        return Err(io::Error::from_raw_os_error(libc::EROFS));
    }
    file.write_all_at(value.as_bytes(), 0)?;
    Ok(Setting::Changed)
}
