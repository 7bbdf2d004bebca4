//! Entry points for the fuzzer: parse a configuration and assert the properties that must hold.

use cni::{Call, IfName};
use interface::config::MacSource;
use linux::ip::MacAddr;

use crate::config::Config;

/// Parses a configuration and asserts that every accepted value is valid.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    let consistent = config.refuse_contradictions().is_ok();
    assert!(IfName::from_config(config.bridge.as_str()).is_ok());
    assert!(config.mtu.is_none_or(|mtu| (68..=65535).contains(&mtu)));
    let excluded = config.masquerade.iter().flat_map(|masquerade| &masquerade.exclude);
    assert!(excluded.into_iter().all(|net| *net == net.network()));
    if let MacSource::Requested(MacAddr([first, ..])) = config.mac {
        assert_eq!(first & 1, 0, "a multicast address");
    }
    if let Some(vlans) = &config.vlans {
        assert!(vlans.own.is_none_or(|id| (1..=4094).contains(&id)));
        assert!(vlans.trunk.iter().all(|range| 1 <= range.first && range.first <= range.last && range.last <= 4094));
        assert!(vlans.trunk.is_sorted_by(|a, b| a.last < b.first), "{:?}", vlans.trunk);
    }
    if let Some(name) = config.vlan_gateway().filter(|_| consistent) {
        assert!(IfName::from_config(&name).is_ok(), "{name}");
    }
}
