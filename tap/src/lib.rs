//! The `tap` plugin: gives a container a device whose frames a program reads and writes, such as that of a virtual
//! machine.

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, IfName, Result};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use linux::netlink::{LinkKind, TapDevice};
use serde::Deserialize;

/// The `tap` plugin.
#[derive(Debug)]
pub struct Tap;

interface::link_plugin!(Tap);

/// The keys that only this plugin has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnKeys {
    multi_queue: bool,
    vnet_hdr: bool,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    mac: MacSource,
    tap: TapDevice,
    selinux_context: Option<String>,
    bridge: Option<IfName>,
}

impl LinkType for Tap {
    const NAME: &'static str = "tap";
    const KINDS: &'static [&'static str] = &["tun"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { multi_queue, vnet_hdr, owner, group, selinux_context, bridge } = call.parse()?;
        // For the kernel, the largest number means no user and no group.
        for (key, id) in [("owner", owner), ("group", group)] {
            if id == Some(u32::MAX) {
                return Err(invalid(key, format_args!("{} is no ID", u32::MAX), "write the number of a user or group"));
            }
        }
        let refuse =
            |why| invalid("bridge", format_args!("{bridge:?} {why}"), "write the name of a bridge in the container");
        let bridge = match bridge.as_str() {
            "" => None,
            name => Some(IfName::from_config(name).map_err(refuse)?),
        };
        if selinux_context.contains('\0') {
            let what = format_args!("{selinux_context:?} contains a NUL");
            return Err(invalid("selinuxContext", what, "write the label of a process, as `ps -Z` shows it"));
        }
        Ok(Config {
            common: Keys::parse(call)?,
            mac: MacSource::parse(call)?,
            tap: TapDevice { multi_queue, vnet_hdr, owner, group },
            selinux_context: Some(selinux_context).filter(|context| !context.is_empty()),
            bridge,
        })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(config: &Config) -> LinkKind<'_> {
        LinkKind::Tap { tap: config.tap, label: config.selinux_context.as_deref() }
    }

    fn mac(config: &Config) -> MacSource {
        config.mac
    }

    fn bridge(config: &Config) -> Option<&IfName> {
        config.bridge.as_ref()
    }

    fn shape() -> Shape {
        Shape::of::<Keys>().and(Shape::of::<AddressKeys>()).and(Shape::of::<OwnKeys>())
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("tap", &Tap::shape().keys());
    }
}
