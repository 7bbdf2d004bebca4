//! Settings from environment variables: directories, and the arguments of an attachment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use cni::{Code, Error, IfName, Result};
use linux::process;
use serde_json::{Map, Value};

/// The default of `NETCONFPATH`.
const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// The default of `CNI_PATH`: where runtimes look for plugins, where Debian installs them, and where Fedora and Alpine
/// do.
const PLUGINS: &str = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni";

/// Returns the value of a variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    process::env(name).filter(|value| !value.is_empty())
}

/// Returns the directory of network configurations.
pub(crate) fn configurations() -> PathBuf {
    variable("NETCONFPATH").map_or_else(|| PathBuf::from(CONFIGURATIONS), PathBuf::from)
}

/// Returns the directories of plugins.
pub(crate) fn plugins() -> Vec<PathBuf> {
    let path = variable("CNI_PATH").unwrap_or_else(|| PLUGINS.into());
    env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// Returns the name of the interface in the container.
pub(crate) fn ifname() -> Result<IfName> {
    IfName::parse(&variable("CNI_IFNAME").unwrap_or_else(|| "eth0".into()))
}

/// Returns `CNI_ARGS` as pairs, or `None` if it is not set.
pub(crate) fn args() -> Result<Option<Vec<(String, String)>>> {
    let Some(text) = variable("CNI_ARGS") else { return Ok(None) };
    let text = text.to_string_lossy().into_owned();
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => {
            let error = Error::new(Code::ENVIRONMENT, format!("invalid pair {pair:?} in CNI_ARGS"));
            Err(error.details("write CNI_ARGS as KEY=VALUE;KEY=VALUE"))
        }
    };
    text.split(';').map(pair).collect::<Result<_>>().map(Some)
}

/// Returns `CAP_ARGS`, the arguments for plugins that declare the capability, or `None` if it is not set.
pub(crate) fn capabilities() -> Result<Option<Map<String, Value>>> {
    let Some(text) = variable("CAP_ARGS") else { return Ok(None) };
    let map = serde_json::from_str(&text.to_string_lossy()).map_err(|error| {
        let error = Error::new(Code::ENVIRONMENT, format!("CAP_ARGS is not a JSON object: {error}"));
        error.details("write it as {\"portMappings\": [...]}")
    })?;
    Ok(Some(map))
}
