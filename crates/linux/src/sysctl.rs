//! Kernel settings in /proc/sys. They are read first and written only if they differ.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::error::{Context, Result};
use crate::log::{debug, warn};
use crate::sys;

/// The outcome of [`set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The setting already had the value.
    Kept,
    /// The setting was changed to the value.
    Changed,
    /// The kernel or the interface does not have the setting.
    Missing,
    /// /proc/sys is read-only, as in many containers.
    ReadOnly,
}

/// Sets `key`, such as `["net", "ipv4", "ip_forward"]`, to `value`, in the network namespace of the calling thread.
///
/// A missing or read-only setting is reported as [`Setting`], for the caller to decide; any other failure is an error.
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
            _ => Err(error).context(|| format!("set {} to {value}", key.join("."))),
        },
    }
}

/// Sets `key` to `value`, and logs a warning if that fails. For settings that improve something but are not required.
pub fn set_best_effort(key: &[&str], value: &str) {
    match set(key, value) {
        Ok(Setting::ReadOnly) => warn!("{} is not {value}, and /proc/sys is read-only", key.join(".")),
        Ok(_) => {}
        Err(error) => warn!("{error}"),
    }
}

/// Makes the kernel ignore IPv6 router advertisements on a link, as far as possible: a container could send them.
pub fn ignore_router_advertisements(link: &str) {
    set_best_effort(&["net", "ipv6", "conf", link, "accept_ra"], "0");
}

/// Returns the value of `key` in the network namespace of the calling thread; `None` if the kernel or the interface
/// does not have the setting.
pub fn read(key: &[&str]) -> Result<Option<String>> {
    let file = sys::open(Path::new(&path_of(key)), OFlag::O_RDONLY);
    match file.map_err(io::Error::from).and_then(|file| value_of(&file)) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(|| format!("read {}", key.join("."))),
    }
}

/// Returns the value of an open setting. One system call is enough for most: the kernel ends a value only if it fits.
fn value_of(mut file: &File) -> io::Result<String> {
    let mut value = vec![0; 128];
    let len = file.read_at(&mut value, 0)?;
    if len == value.len() {
        value.clear();
        file.read_to_end(&mut value)?;
    } else {
        value.truncate(len);
    }
    Ok(String::from_utf8_lossy(value.trim_ascii_end()).into_owned())
}

/// An open setting of the network namespace in which it was opened, even if the thread moves.
#[derive(Debug)]
pub struct Sysctl {
    file: File,
    value: Option<String>,
}

impl Sysctl {
    /// Opens `key` for writing, in the network namespace of the calling thread, and reads its value.
    pub fn open(key: &[&str]) -> io::Result<Sysctl> {
        let path = path_of(key);
        let file = match sys::open(Path::new(&path), OFlag::O_RDWR) {
            // A few settings can only be written, such as `net.ipv4.route.flush`.
            Err(nix::Error::EACCES) => {
                return Ok(Sysctl { file: sys::open(Path::new(&path), OFlag::O_WRONLY)?, value: None });
            }
            file => file?,
        };
        let value = Some(value_of(&file)?);
        Ok(Sysctl { file, value })
    }

    /// Returns the value when the setting was opened; `None` if it can only be written.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Sets the value that the setting had when it was opened. Does nothing if it can only be written.
    pub fn restore(&self) -> io::Result<()> {
        let Some(value) = self.value() else { return Ok(()) };
        self.write(value).or_else(|error| match value_of(&self.file) {
            // The kernel refuses some values that it shows itself, such as groups that a user namespace does not map.
            Ok(current) if current == value => Ok(()),
            _ => Err(error),
        })
    }

    /// Sets the value. An empty one is written as an empty line, as sysctl(8) does: to write nothing changes nothing.
    pub fn write(&self, value: &str) -> io::Result<()> {
        let value = if value.is_empty() { "\n" } else { value };
        self.file.write_all_at(value.as_bytes(), 0)
    }
}

/// Returns an error if `key` cannot be opened for writing. Changes nothing.
pub fn check_writable(key: &[&str]) -> io::Result<()> {
    Ok(sys::open(Path::new(&path_of(key)), OFlag::O_WRONLY).map(drop)?)
}

fn path_of(key: &[&str]) -> String {
    format!("/proc/sys/{}", key.join("/"))
}

fn write_if_different(path: &Path, value: &str) -> io::Result<Setting> {
    // A setting on a read-only file system may already have the value.
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
