//! Entry points for the fuzzer: they parse arbitrary configurations and messages, and assert the properties that must
//! hold.

use cni::Call;

use crate::config::{Config, Zone};
use crate::dbus;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert!((1..=28).contains(&config.admin_chain.len()), "{config:?}");
    assert!(
        !config.admin_chain.contains(|letter: char| letter.is_whitespace() || "\"'".contains(letter)),
        "{config:?}"
    );
    assert_eq!(Zone::parse(config.zone.as_str()), Ok(config.zone));
}

/// Parses what a bus sends.
pub fn bus(bytes: &[u8]) {
    dbus::fuzz(bytes);
}
