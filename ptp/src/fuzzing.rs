//! Entry points for the fuzzer: parse a configuration and assert the properties that must hold.

use cni::Call;
use interface::config::MacSource;
use linux::ip::MacAddr;

use crate::config::Config;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    assert!(config.mtu.is_none_or(|mtu| (68..=65535).contains(&mtu)));
    assert!(config.ipam.is_none_or(|ipam| !ipam.is_empty()));
    if let MacSource::Requested(MacAddr([first, ..])) = config.mac {
        assert_eq!(first & 1, 0, "a multicast address");
    }
}
