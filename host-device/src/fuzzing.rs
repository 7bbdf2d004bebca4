//! Entry points for the fuzzer: parse a configuration and assert the properties that must hold.

use std::path::Component;

use cni::Call;

use crate::config::Config;
use crate::device::Device;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert!(config.ipam.is_none_or(|ipam| !ipam.is_empty()));
    if let Some(Device::Hardware { dir, .. }) = config.device {
        assert!(dir.starts_with("/sys") && !dir.components().any(|part| part == Component::ParentDir));
    }
}
