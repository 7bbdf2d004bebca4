//! What the environment says: where things are, and what goes along with an attachment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use cni::{Code, Error, IfName, Result, process_env};
use serde_json::{Map, Value};

/// Where network configurations are unless `NETCONFPATH` says otherwise.
const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// Where plugins are unless `CNI_PATH` says otherwise: where runtimes look, and where Debian puts them.
const PLUGINS: &str = "/opt/cni/bin:/usr/lib/cni";

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    process_env(name).filter(|value| !value.is_empty())
}

/// The directory of network configurations.
pub(crate) fn configurations() -> PathBuf {
    variable("NETCONFPATH").map_or_else(|| PathBuf::from(CONFIGURATIONS), PathBuf::from)
}

/// The directories of plugins.
pub(crate) fn plugins() -> Vec<PathBuf> {
    let path = variable("CNI_PATH").unwrap_or_else(|| PLUGINS.into());
    env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// The interface in the container.
pub(crate) fn ifname() -> Result<IfName> {
    IfName::parse(&variable("CNI_IFNAME").unwrap_or_else(|| "eth0".into()))
}

/// `CNI_ARGS` as pairs; `None` if there is none.
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

/// `CAP_ARGS`: what plugins get that declare the capability; `None` if there is none.
pub(crate) fn capabilities() -> Result<Option<Map<String, Value>>> {
    let Some(text) = variable("CAP_ARGS") else { return Ok(None) };
    let map = serde_json::from_str(&text.to_string_lossy()).map_err(|error| {
        let error = Error::new(Code::ENVIRONMENT, format!("CAP_ARGS is not a JSON object: {error}"));
        error.details("write it as {\"portMappings\": [...]}")
    })?;
    Ok(Some(map))
}
