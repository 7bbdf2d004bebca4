//! Entry point for the fuzzer: it parses arbitrary configurations, and asserts the properties that must hold.

use cni::Call;

use crate::config::Config;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert_ne!(config.table, Some(0), "{config:?}");
    let families: Vec<bool> = config.gateways.iter().map(std::net::IpAddr::is_ipv4).collect();
    assert!(matches!(families[..], [] | [_] | [true, false] | [false, true]), "{config:?}");
}
