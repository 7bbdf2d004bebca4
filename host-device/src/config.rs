//! The network configuration, parsed and validated into [`Config`].

use std::collections::BTreeMap;

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Code, Delegate, Dns, Error, Result};
use interface::config::{AddressKeys, DnsKeys, IpamKeys, MacSource};
use serde::Deserialize;

use crate::device::Device;

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The device; `None` if no key describes it.
    pub(crate) device: Option<Device>,
    /// Whether the runtime passes the device to each ADD.
    from_runtime: bool,
    dpdk_mode: bool,
    /// Whether the device may be that of a default route of the host.
    pub(crate) allow_default_route: bool,
    /// Whether DEL restores MTU, MAC address, state, addresses and routes.
    pub(crate) restore: bool,
    /// The MAC address in the container. [`MacSource::Random`] keeps that of the device.
    pub(crate) mac: MacSource,
    /// Name of the IPAM plugin; `None` for a device without addresses.
    pub(crate) ipam: Option<String>,
    /// DNS settings that replace those of the IPAM plugin.
    pub(crate) dns: Option<Dns>,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "DPDKMode")]
    dpdk_mode: bool,
    allow_default_route: bool,
    restore: bool,
    ipam: IpamKeys,
    dns: DnsKeys,
    capabilities: BTreeMap<String, bool>,
    runtime_config: RuntimeKeys,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeKeys {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>().and(Shape::of::<AddressKeys>())
}

impl Config {
    /// Parses and validates the configuration and `CNI_ARGS`.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let Keys { device, hwaddr, kernelpath, pci_bus_id, runtime_config, .. } = call.parse()?;
        let device = match () {
            () if !device.is_empty() => Some(Device::named(&device)?),
            () if !hwaddr.is_empty() => Some(Device::with_mac(&hwaddr)?),
            () if !kernelpath.is_empty() => Some(Device::at_kernel_path(&kernelpath)?),
            // The reference reads the keys in this order, too.
            () if !runtime_config.device_id.is_empty() => Some(Device::with_id(&runtime_config.device_id)?),
            () if !pci_bus_id.is_empty() => Some(Device::on_pci_bus("pciBusID", &pci_bus_id)?),
            () => None,
        };
        let keys: Keys = call.parse()?;
        Ok(Config {
            device,
            from_runtime: keys.capabilities.get("deviceID") == Some(&true),
            dpdk_mode: keys.dpdk_mode,
            allow_default_route: keys.allow_default_route,
            restore: keys.restore,
            mac: MacSource::parse(call)?,
            ipam: keys.ipam.name(),
            dns: keys.dns.if_set(),
        })
    }

    /// Returns the device. Returns an error if no key describes it.
    pub(crate) fn require_device(&self) -> Result<&Device> {
        self.device.as_ref().ok_or_else(|| {
            // The text of the reference, by which users recognise the mistake.
            let what = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
            let remedy = "set one of these keys; with the capability \"deviceID\", the runtime must pass one";
            Error::new(Code::CONFIG, what).details(remedy)
        })
    }

    /// As [`Config::require_device`]; `None` if only the runtime knows the device, at ADD.
    pub(crate) fn device_of_network(&self) -> Result<Option<&Device>> {
        match self.device.is_none() && self.from_runtime {
            true => Ok(None),
            false => self.require_device().map(Some),
        }
    }

    /// Returns whether the device stays where it is, because a program uses it without the kernel's network.
    pub(crate) fn is_dpdk(&self, device: &Device) -> bool {
        self.dpdk_mode || device.has_dpdk_driver()
    }

    /// Finds the IPAM plugin, if the network has one.
    pub(crate) fn find_ipam<'a>(&self, call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
        self.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
    }
}

/// Returns the error for the value of a key.
pub(crate) fn refuse(key: &str, value: &str, why: &str, remedy: &str) -> Error {
    invalid(key, format_args!("{value:?} {why}"), remedy)
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("host-device", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let bare = serde_json::json!({"cniVersion": "1.1.0", "name": "nic", "device": "eth1"});
        document::defaults("host-device", &bare, |text| {
            Config::parse(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
