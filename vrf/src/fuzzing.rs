//! Entry point for the fuzzer: it parses arbitrary configurations, and asserts the properties that must hold.

use cni::Call;

use crate::config::{Config, RESERVED};

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert!((1..16).contains(&config.name.as_str().len()), "{config:?}");
    assert!(config.table.is_none_or(|table| table > 0 && !RESERVED.contains(&table)), "{config:?}");
}
