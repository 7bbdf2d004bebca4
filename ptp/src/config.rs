//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use cni::inspect::Shape;
use cni::{Call, Delegate, Dns, Result};
use interface::config::{ArgsKeys, DnsKeys, IpamKeys, MacKeys, MacSource};
use interface::masquerade::Masquerade;
use linux::ip::Cidr;
use serde::Deserialize;

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// MTU of both ends; `None` for the kernel's default.
    pub(crate) mtu: Option<u32>,
    /// Where the MAC address of the container veth comes from.
    pub(crate) mac: MacSource,
    /// Name of the IPAM plugin; `None` for a layer-2 network.
    pub(crate) ipam: Option<String>,
    /// Whether containers send to a link-local address instead of a gateway address on the host.
    pub(crate) link_local_gateway: bool,
    /// The masquerade of the network, if it has it.
    pub(crate) masquerade: Option<Masquerade>,
    /// DNS settings that replace those of the IPAM plugin.
    pub(crate) dns: Option<Dns>,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    ip_masq_exclude: Vec<Cidr>,
    link_local_gateway: bool,
    mtu: i64,
    stable_mac: bool,
    ipam: IpamKeys,
    dns: DnsKeys,
    args: ArgsKeys,
    runtime_config: MacKeys,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration and `CNI_ARGS`.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let keys: Keys = call.parse()?;
        Ok(Config {
            mtu: interface::config::mtu(keys.mtu)?,
            mac: MacSource::new(interface::config::mac(&keys.runtime_config, &keys.args, call)?, keys.stable_mac),
            ipam: keys.ipam.name(),
            link_local_gateway: keys.link_local_gateway,
            masquerade: Masquerade::read(keys.ip_masq, keys.ip_masq_backend.as_deref(), &keys.ip_masq_exclude)?,
            dns: keys.dns.if_set(),
        })
    }

    /// Finds the IPAM plugin, if the network has one.
    pub(crate) fn find_ipam<'a>(&self, call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
        self.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
    }

    /// Returns the masquerade that containers with addresses have.
    pub(crate) fn masquerade_with_ipam(&self) -> Option<&Masquerade> {
        self.masquerade.as_ref().filter(|_| self.ipam.is_some())
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("ptp", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let bare = serde_json::json!({"cniVersion": "1.1.0", "name": "pods"});
        document::defaults("ptp", &bare, |text| {
            Config::parse(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
