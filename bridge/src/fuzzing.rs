//! Doors for the fuzzer: a configuration is read, and what must hold of it is asserted.

use cni::ip::MacAddr;
use cni::{Call, IfName};

use crate::config::Config;

/// A configuration of this plugin.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::parse(call) else { return };
    let consistent = config.refuse_contradictions().is_ok();
    assert!(IfName::from_config(config.bridge.as_str()).is_ok());
    assert!(config.mtu.is_none_or(|mtu| (68..=65535).contains(&mtu)));
    if let Some(MacAddr([first, ..])) = config.mac {
        assert_eq!(first & 1, 0, "the address of a group");
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
