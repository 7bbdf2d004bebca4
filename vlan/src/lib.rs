//! The `vlan` plugin: gives a container the frames of a link of the host that have a VLAN tag.

use std::collections::BTreeMap;

use cni::inspect::{NetworkView, Shape};
use cni::json::invalid;
use cni::{AttachmentKey, Call, Keep, Result};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use interface::master::{Master, MasterKeys};
use interface::shared_vlan;
use linux::netlink::{FrameRules, Link, LinkKind, MacvlanMode, Netlink, Upper, VlanProtocol, VlanTag};
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
    reorder_hdr: Option<bool>,
    ingress_qos: BTreeMap<String, u32>,
    egress_qos: BTreeMap<String, u32>,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    master: Master,
    tag: VlanTag,
    shared: bool,
    mac: MacSource,
    reorders_headers: Option<bool>,
    ingress: Vec<(u32, u32)>,
    egress: Vec<(u32, u32)>,
}

impl LinkType for Vlan {
    const NAME: &'static str = "vlan";
    const KINDS: &'static [&'static str] = &["vlan", "macvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { vlan_id, protocol, shared, reorder_hdr: reorders_headers, ingress_qos, egress_qos } =
            call.parse()?;
        let master = Master::parse(call)?;
        if !master.is_named() {
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
        let (ingress, egress) = (qos("ingressQos", ingress_qos)?, qos("egressQos", egress_qos)?);
        if shared && (reorders_headers.is_some() || !ingress.is_empty() || !egress.is_empty()) {
            let what =
                format_args!("true with \"reorderHdr\" or priorities: those of one container would be those of all");
            return Err(invalid(
                "shared",
                what,
                "remove \"shared\", or \"reorderHdr\", \"ingressQos\" and \"egressQos\"",
            ));
        }
        let mac = match MacSource::parse(call)? {
            MacSource::Random if !shared => MacSource::Master,
            mac => mac,
        };
        let (common, tag) = (Keys::parse(call)?, VlanTag { id, protocol });
        Ok(Config { common, master, tag, shared, mac, reorders_headers, ingress, egress })
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
        config.mac
    }

    fn frames(config: &Config) -> Option<FrameRules<'_>> {
        let Config { reorders_headers, ref ingress, ref egress, .. } = *config;
        let is_set = reorders_headers.is_some() || !ingress.is_empty() || !egress.is_empty();
        is_set.then_some(FrameRules::Vlan { reorders_headers, ingress, egress })
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

    fn collect_on_host(call: &Call<'_>, _: &Keep<'_>) -> Result<()> {
        shared_vlan::remove_unused(&mut call.home()?.netlink)
    }

    fn unused_on_host(config: &Config, network: &NetworkView<'_>) -> Result<Vec<Link>> {
        if !config.shared || !network.alive.is_empty() {
            return Ok(Vec::new());
        }
        let mut host = Netlink::open()?;
        let master = config.master.find_by(&mut host)?;
        Ok(shared_vlan::find_unused(&mut host, &master, config.tag)?.into_iter().collect())
    }

    fn shape() -> Shape {
        let keys = [Shape::of::<OwnKeys>(), Shape::of::<MasterKeys>(), Shape::of::<AddressKeys>()];
        keys.into_iter().fold(Shape::of::<Keys>(), Shape::and)
    }
}

/// Validates a map between the priorities of packets and frames. That of a frame has three bits.
fn qos(key: &str, map: BTreeMap<String, u32>) -> Result<Vec<(u32, u32)>> {
    let remedy = "use 0 to 7: the names in \"ingressQos\", the values in \"egressQos\"";
    let refuse = |what: &str| invalid(key, format_args!("{what} is not a priority"), remedy);
    let parse = |(name, to): (String, u32)| {
        let from = name.parse().map_err(|_| refuse(&name))?;
        let of_frame = if key == "ingressQos" { from } else { to };
        if of_frame > 7 { Err(refuse(&of_frame.to_string())) } else { Ok((from, to)) }
    };
    map.into_iter().map(parse).collect()
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
