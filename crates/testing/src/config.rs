//! Changes of network configurations.

use serde_json::{Value, json};

/// Adds or replaces the keys of `more` in `config`.
pub fn with(mut config: Value, more: Value) -> Value {
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        config[key] = value;
    }
    config
}

/// Returns the same configuration for another network.
pub fn on_network(name: &str, config: Value) -> Value {
    with(config, json!({ "name": name }))
}
