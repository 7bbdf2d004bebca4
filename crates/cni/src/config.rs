//! The common keys of a configuration, which the protocol defines for all plugins.

use std::borrow::Cow;
use std::ffi::OsString;

use serde::Deserialize;

use crate::error::{Code, Error, Result};
use crate::json::{self, Fault, Raw};
use crate::logging::LogSettings;
use crate::name::NetworkName;
use crate::shape::Shape;
use crate::version::Version;

/// The keys of GC's list. libcni 1.2.0 sends only the second.
const VALID: &str = "cni.dev/valid-attachments";
const OLD_VALID: &str = "cni.dev/attachments";

/// The remedy for an error in the configuration that has no better one.
pub const FIX_HINT: &str = "correct the network's configuration, usually a file in /etc/cni/net.d";

/// Converts the configuration to text. Invalid UTF-8 is replaced, as in the reference.
pub(crate) fn text(stdin: &[u8]) -> Cow<'_, str> {
    // The conversion that replaces takes ten times as many instructions.
    std::str::from_utf8(stdin).map_or_else(|_| String::from_utf8_lossy(stdin), Cow::Borrowed)
}

/// Parses a configuration, which [`Head::parse`] has accepted, as any type.
pub(crate) fn parse<'a, T: Deserialize<'a>>(config: &'a str) -> Result<T> {
    json::parse_again(config).map_err(with_hint)
}

fn with_hint(fault: Fault) -> Error {
    Error::from(fault).details(FIX_HINT)
}

/// The keys that every command needs. They are parsed one by one, so that the first error is reported.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Head<'a> {
    #[serde(borrow)]
    name: Option<Raw<'a>>,
    #[serde(borrow)]
    cni_version: Option<Raw<'a>>,
    #[serde(borrow)]
    log_level: Option<Raw<'a>>,
    #[serde(borrow)]
    log_file: Option<Raw<'a>>,
}

impl<'a> Head<'a> {
    pub(crate) fn parse(config: &'a str) -> Result<Head<'a>> {
        // The reference treats `null` as an empty object.
        let head: Option<Head<'a>> = json::parse(config)?;
        Ok(head.unwrap_or_default())
    }

    pub(crate) fn network(&self) -> Result<NetworkName> {
        NetworkName::parse(&string("name", self.name)?)
    }

    /// Returns the version, which must have `command`.
    pub(crate) fn version(&self, command: &str) -> Result<Version> {
        Version::of_request(&string("cniVersion", self.cni_version)?, command)
    }

    pub(crate) fn log(&self, env: Option<OsString>) -> LogSettings {
        LogSettings::new(self.log_level, self.log_file, env)
    }
}

fn string(key: &'static str, value: Option<Raw<'_>>) -> Result<String> {
    let Some(raw) = value else { return Ok(String::new()) };
    raw.parse().map_err(|fault: Fault| with_hint(fault.under(key)))
}

/// The previous result.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Previous<'a> {
    #[serde(borrow)]
    pub(crate) prev_result: Option<Raw<'a>>,
}

/// The lists of a GC's configuration.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Lists {
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<ValidAttachment>>,
    #[serde(rename = "cni.dev/attachments")]
    old: Option<Vec<ValidAttachment>>,
}

/// An attachment that the runtime reports as valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct ValidAttachment {
    /// The container ID.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface in the container.
    pub ifname: String,
}

/// Returns the keys that all plugins read, for tools.
pub fn common_shape() -> Shape {
    Shape::of::<Head<'_>>().and(Shape::of::<Previous<'_>>()).and(Shape::of::<Lists>())
}

/// Returns the attachments that GC must keep. A missing list is an error, because an empty list means that all
/// attachments are removed.
pub(crate) fn valid_attachments(config: &str) -> Result<Vec<ValidAttachment>> {
    let lists: Lists = parse(config)?;
    if let Some(valid) = lists.valid.or(lists.old) {
        return Ok(valid);
    }
    // libcni sends an empty list as `null`.
    if json::has_key(config, VALID)? || json::has_key(config, OLD_VALID)? {
        return Ok(Vec::new());
    }
    let error = Error::new(Code::CONFIG, "GC needs a list of valid attachments");
    Err(error.details("the configuration needs \"cni.dev/valid-attachments\"; an empty list removes everything"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::document;

    #[test]
    fn the_keys_of_the_protocol_are_described() {
        document::describes("Every network", &common_shape().keys());
    }
}
