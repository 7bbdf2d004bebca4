//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Code, Delegate, Dns, Error, IfName, Result};
use interface::config::{ArgsKeys, DnsKeys, IpamKeys, MacKeys, MacSource};
use interface::masquerade::Masquerade;
use linux::ip::Cidr;
use linux::netlink::{Port, VlanRange};
use serde::Deserialize;

use crate::vlan::{self, Vlans};

/// The bridge of a network that names none.
const DEFAULT_BRIDGE: &str = "cni0";

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// Name of the bridge.
    pub(crate) bridge: IfName,
    /// MTU of the veth pair and of a new bridge; `None` for the kernel's default.
    pub(crate) mtu: Option<u32>,
    /// Whether the bridge is in promiscuous mode.
    pub(crate) promiscuous: bool,
    /// Settings of the port: hairpin mode and isolation.
    pub(crate) port: Port,
    /// VLANs of the port; `None` if the bridge does not filter VLANs for this network.
    pub(crate) vlans: Option<Vlans>,
    /// Requested MAC address of the container veth.
    pub(crate) mac: MacSource,
    /// Whether to drop frames with a source MAC address other than the container's.
    pub(crate) spoof_check: bool,
    /// Whether to set the container veth up.
    pub(crate) container_up: bool,
    /// Name of the IPAM plugin; `None` for a layer-2 network.
    pub(crate) ipam: Option<String>,
    /// Whether the bridge gets the gateway address.
    pub(crate) gateway: bool,
    /// Whether the container gets a default route to the gateway.
    pub(crate) default_gateway: bool,
    /// Whether conflicting addresses of the bridge are removed.
    pub(crate) force_address: bool,
    /// The masquerade of the network, if it has it.
    pub(crate) masquerade: Option<Masquerade>,
    /// Whether duplicate address detection runs for IPv6 addresses.
    pub(crate) detect_duplicates: bool,
    /// DNS settings that replace those of the IPAM plugin.
    pub(crate) dns: Option<Dns>,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    bridge: Option<String>,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    ip_masq_exclude: Vec<Cidr>,
    mtu: i64,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Option<Vec<Option<Trunk>>>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    stable_mac: bool,
    ipam: IpamKeys,
    dns: DnsKeys,
    args: ArgsKeys,
    runtime_config: MacKeys,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Trunk {
    #[serde(rename = "minID")]
    min: Option<i64>,
    #[serde(rename = "maxID")]
    max: Option<i64>,
    id: Option<i64>,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration and `CNI_ARGS`.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let keys: Keys = call.parse()?;
        let bridge = keys.bridge.as_deref().unwrap_or(DEFAULT_BRIDGE);
        Ok(Config {
            bridge: IfName::from_config(bridge)
                .map_err(|why| invalid("bridge", format_args!("{bridge:?} is not a valid bridge name"), why))?,
            mtu: interface::config::mtu(keys.mtu)?,
            promiscuous: keys.promisc_mode,
            port: Port { hairpin: keys.hairpin_mode, isolated: keys.port_isolation },
            vlans: keys.vlans()?,
            mac: MacSource::new(interface::config::mac(&keys.runtime_config, &keys.args, call)?, keys.stable_mac),
            spoof_check: keys.macspoofchk,
            container_up: !keys.disable_container_interface,
            gateway: keys.is_gateway || keys.is_default_gateway,
            default_gateway: keys.is_default_gateway,
            force_address: keys.force_address,
            masquerade: Masquerade::read(keys.ip_masq, keys.ip_masq_backend.as_deref(), &keys.ip_masq_exclude)?,
            detect_duplicates: keys.enabledad,
            dns: keys.dns.if_set(),
            ipam: keys.ipam.name(),
        })
    }

    /// Returns an error if two keys contradict each other. DEL does not call this: it needs none of these keys.
    pub(crate) fn refuse_contradictions(&self) -> Result<()> {
        let contradiction = |what: &str, remedy: &str| Err(Error::new(Code::CONFIG, what).details(remedy));
        if self.port.hairpin && self.promiscuous {
            return contradiction(
                "keys \"hairpinMode\" and \"promiscMode\" are both true",
                "remove one of them: each lets a container reach itself, both together duplicate its frames",
            );
        }
        if let (Some(ipam), false) = (&self.ipam, self.container_up) {
            return contradiction(
                &format!("key \"disableContainerInterface\" is true, and key \"ipam.type\" is {ipam:?}"),
                "remove one of them: an interface that stays down cannot use addresses",
            );
        }
        if let Some(name) = self.vlan_gateway()
            && let Err(why) = IfName::from_config(&name)
        {
            return contradiction(
                &format!("key \"bridge\": the gateway of the VLAN would be named {name:?}"),
                &format!("{why}; give the bridge a shorter name"),
            );
        }
        Ok(())
    }

    /// Finds the IPAM plugin, if the network has one.
    pub(crate) fn find_ipam<'a>(&self, call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
        self.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
    }

    /// Returns the masquerade that containers with addresses have.
    pub(crate) fn masquerade_with_ipam(&self) -> Option<&Masquerade> {
        self.masquerade.as_ref().filter(|_| self.ipam.is_some())
    }

    /// Returns the name of the interface with the gateway address if the network is a VLAN of the bridge.
    pub(crate) fn vlan_gateway(&self) -> Option<String> {
        let own = self.vlans.as_ref()?.own?;
        (self.gateway && self.ipam.is_some()).then(|| format!("{}.{own}", self.bridge))
    }
}

/// Returns the name of the bridge, whatever the other keys say; `None` if the key has another type.
pub(crate) fn bridge(call: &Call<'_>) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Only {
        bridge: Option<String>,
    }
    let only: Only = call.parse().ok()?;
    Some(only.bridge.unwrap_or_else(|| DEFAULT_BRIDGE.to_owned()))
}

/// Returns the subnets of the network from the keys that `host-local` and similar plugins use. The list is empty if the
/// configuration uses other keys or cannot be parsed.
pub(crate) fn subnets(call: &Call<'_>) -> Vec<Cidr> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Network {
        ipam: Ranges,
        runtime_config: RuntimeRanges,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Ranges {
        subnet: Option<Cidr>,
        ranges: Vec<Vec<Range>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct RuntimeRanges {
        ip_ranges: Vec<Vec<Range>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Range {
        subnet: Option<Cidr>,
    }
    let Ok(Network { ipam, runtime_config }) = call.parse() else { return Vec::new() };
    let ranges = ipam.ranges.iter().chain(&runtime_config.ip_ranges).flatten();
    ranges.filter_map(|range| range.subnet).chain(ipam.subnet).collect()
}

impl Keys {
    /// Validates `vlan`, `vlanTrunk` and `preserveDefaultVlan`.
    fn vlans(&self) -> Result<Option<Vlans>> {
        if !(0..=i64::from(vlan::MAX_ID)).contains(&self.vlan) {
            let what = format_args!("{} is not a VLAN ID", self.vlan);
            return Err(invalid("vlan", what, "use 1 to 4094, or 0 for none"));
        }
        let own = vlan_id("vlan", self.vlan).ok();
        if own.is_none() && self.vlan_trunk.is_none() {
            return Ok(None);
        }
        let mut trunk = vec![false; usize::from(vlan::MAX_ID) + 1];
        for (index, element) in self.vlan_trunk.iter().flatten().enumerate() {
            let key = format!("vlanTrunk[{index}]");
            let Some(element) = element else {
                return Err(invalid(&key, format_args!("null is not a VLAN"), TRUNK_HINT));
            };
            for (first, last) in element.ranges(&key)? {
                trunk.iter_mut().take(usize::from(last) + 1).skip(first.into()).for_each(|id| *id = true);
            }
        }
        let trunk = VlanRange::covering((0..).zip(trunk).filter_map(|(id, wanted)| wanted.then_some(id)));
        Ok(Some(Vlans { own, trunk, keep_default: self.preserve_default_vlan }))
    }
}

impl Trunk {
    /// Validates an element of `vlanTrunk`, which is at `key`. Returns the first and the last VLAN of each of its
    /// ranges.
    fn ranges(&self, key: &str) -> Result<impl Iterator<Item = (u16, u16)>> {
        let id_at = |name: &str, id: i64| vlan_id(&format!("{key}.{name}"), id);
        let range = match (self.min, self.max) {
            (Some(min), Some(max)) => {
                let (first, last) = (id_at("minID", min)?, id_at("maxID", max)?);
                if first > last {
                    return Err(invalid(key, format_args!("minID {first} is above maxID {last}"), TRUNK_HINT));
                }
                Some((first, last))
            }
            (None, None) => None,
            (Some(min), None) => {
                return Err(invalid(key, format_args!("minID is {min}, and maxID is missing"), TRUNK_HINT));
            }
            (None, Some(max)) => {
                return Err(invalid(key, format_args!("maxID is {max}, and minID is missing"), TRUNK_HINT));
            }
        };
        let single = self.id.map(|id| id_at("id", id)).transpose()?.map(|id| (id, id));
        Ok(range.into_iter().chain(single))
    }
}

/// The remedy for an invalid element of `vlanTrunk`.
const TRUNK_HINT: &str =
    "set \"id\", or \"minID\" and \"maxID\", with values from 1 to 4094 and \"minID\" not above \"maxID\"";

/// Validates a VLAN ID.
fn vlan_id(key: &str, id: i64) -> Result<u16> {
    match u16::try_from(id) {
        Ok(fits) if (1..=vlan::MAX_ID).contains(&fits) => Ok(fits),
        _ => Err(invalid(key, format_args!("{id} is not a VLAN ID"), TRUNK_HINT)),
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("bridge", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let bare = serde_json::json!({"cniVersion": "1.1.0", "name": "pods"});
        document::defaults("bridge", &bare, |text| {
            Config::parse(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
