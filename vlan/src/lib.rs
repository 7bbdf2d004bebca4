//! The `vlan` plugin: gives a container the frames of a link of the host that have a VLAN tag.

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{AttachmentKey, Call, Result, ValidAttachment};
use interface::LinkType;
use interface::config::{Common, Keys, MacSource};
use interface::master::{Master, MasterKeys};
use interface::shared_vlan;
use linux::netlink::{LinkKind, MacvlanMode, Upper, VlanProtocol, VlanTag};
use serde::Deserialize;

/// The `vlan` plugin.
#[derive(Debug)]
pub struct Vlan;

interface::link_plugin!(Vlan);

/// The largest number of a VLAN.
const LAST: i64 = 4094;

/// The keys that only this plugin has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnKeys {
    vlan_id: Option<i64>,
    protocol: String,
    shared: bool,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    master: Master,
    tag: VlanTag,
    shared: bool,
}

impl LinkType for Vlan {
    const NAME: &'static str = "vlan";
    const KINDS: &'static [&'static str] = &["vlan", "macvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { vlan_id, protocol, shared } = call.parse()?;
        let master = Master::parse(call)?;
        if master.name.is_none() {
            // The text of the reference, by which users recognise the mistake.
            let what = format_args!(
                "\"master\" field is required. It specifies the host interface name to create the VLAN for"
            );
            return Err(invalid("master", what, "name the link that carries the VLAN"));
        }
        let remedy = "write the number of the VLAN, 0 to 4094";
        // Unlike the reference, which takes 0 for a missing key.
        let id = vlan_id.ok_or_else(|| invalid("vlanId", format_args!("is missing"), remedy))?;
        let id = u16::try_from(id).ok().filter(|_| id <= LAST).ok_or_else(|| {
            invalid("vlanId", format_args!("invalid VLAN ID {id} (must be between 0 and {LAST} inclusive)"), remedy)
        })?;
        let protocol = match protocol.as_str() {
            "" => VlanProtocol::Dot1q,
            word => VlanProtocol::named(word).ok_or_else(|| {
                invalid("protocol", format_args!("unknown VLAN protocol: {word:?}"), "use \"802.1Q\" or \"802.1ad\"")
            })?,
        };
        if shared && master.in_container {
            let what = format_args!("true with \"linkInContainer\": only links of the host can be shared");
            return Err(invalid("shared", what, "remove one of the keys"));
        }
        Ok(Config { common: Keys::parse(call)?, master, tag: VlanTag { id, protocol }, shared })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(config: &Config) -> LinkKind<'static> {
        LinkKind::Upper(match config.shared {
            true => Upper::Macvlan { mode: MacvlanMode::Bridge, broadcast_queue: 0 },
            false => Upper::Vlan(config.tag),
        })
    }

    fn mac(config: &Config) -> MacSource {
        if config.shared { MacSource::Random } else { MacSource::Master }
    }

    fn master(config: &Config) -> Option<&Master> {
        Some(&config.master)
    }

    fn shared_vlan(config: &Config) -> Option<VlanTag> {
        config.shared.then_some(config.tag)
    }

    fn remove_from_host(call: &Call<'_>, _: AttachmentKey<'_>) -> Result<()> {
        shared_vlan::remove_unused(&mut call.home()?.netlink)
    }

    fn collect_on_host(call: &Call<'_>, _: &[ValidAttachment]) -> Result<()> {
        shared_vlan::remove_unused(&mut call.home()?.netlink)
    }

    fn shape() -> Shape {
        Shape::of::<Keys>().and(Shape::of::<MasterKeys>()).and(Shape::of::<OwnKeys>())
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("vlan", &Vlan::shape().keys());
    }
}
