//! The `ipvlan` plugin: gives a container its own IP addresses on the wire of a link of the host, with the MAC address
//! of that link.

mod agreement;

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{AddResult, Call, IfName, Namespaces, Result};
use interface::LinkType;
use interface::config::{Common, Keys, MacSource};
use interface::lock::HostLock;
use interface::master::{Master, MasterKeys};
use linux::netlink::{IpvlanIsolation, IpvlanMode, Link, LinkKind, Upper};
use serde::Deserialize;

/// The `ipvlan` plugin.
#[derive(Debug)]
pub struct Ipvlan;

interface::link_plugin!(Ipvlan);

/// The keys that only this plugin has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnKeys {
    mode: String,
    flag: String,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    master: Master,
    mode: IpvlanMode,
    isolation: IpvlanIsolation,
    /// The result of the previous plugin, if the addresses come from it.
    previous: Option<AddResult>,
}

impl LinkType for Ipvlan {
    const NAME: &'static str = "ipvlan";
    const KINDS: &'static [&'static str] = &["ipvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { mode, flag } = call.parse()?;
        let (common, mut master) = (Keys::parse(call)?, Master::parse(call)?);
        let mode = match mode.as_str() {
            "" => IpvlanMode::L2,
            word => IpvlanMode::named(word).ok_or_else(|| {
                invalid("mode", format_args!("unknown ipvlan mode: {word:?}"), "use \"l2\", \"l3\" or \"l3s\"")
            })?,
        };
        let isolation = match flag.as_str() {
            "" => IpvlanIsolation::Bridge,
            word => IpvlanIsolation::named(word).ok_or_else(|| {
                invalid(
                    "flag",
                    format_args!("unknown ipvlan flag: {word:?}"),
                    "use \"bridge\", \"private\" or \"vepa\"",
                )
            })?,
        };
        let previous = call.prev_result()?.filter(|previous| common.ipam.is_none() && !previous.ips.is_empty());
        if let Some(previous) = previous.as_ref().filter(|_| master.name.is_none() && !master.in_container) {
            master.name = only_interface(previous)?;
        }
        Ok(Config { common, master, mode, isolation, previous })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(config: &Config) -> LinkKind<'static> {
        let Config { mode, isolation, .. } = *config;
        LinkKind::Upper(Upper::Ipvlan { mode, isolation })
    }

    fn mac(_: &Config) -> MacSource {
        MacSource::Master
    }

    fn master(config: &Config) -> Option<&Master> {
        Some(&config.master)
    }

    fn agree(config: &Config, namespaces: &mut Namespaces, master: &Link) -> Result<Option<HostLock>> {
        agreement::keep(&mut namespaces.host, master, config.mode, config.isolation).map(Some)
    }

    fn previous(config: &Config) -> Option<&AddResult> {
        config.previous.as_ref()
    }

    fn shape() -> Shape {
        Shape::of::<Keys>().and(Shape::of::<MasterKeys>()).and(Shape::of::<OwnKeys>())
    }
}

/// Returns the interface of a previous result that becomes the master; `None` if the result is that of this plugin, for
/// CHECK.
fn only_interface(previous: &AddResult) -> Result<Option<IfName>> {
    let refuse = || {
        // The text of the reference, by which users recognise the mistake.
        let what = format_args!("chained master failure: \"prevResult\" lacks a single named interface");
        invalid("master", what, "name the link of the host")
    };
    match previous.interfaces.as_slice() {
        [only] if !only.sandbox.is_empty() => Ok(None),
        [only] => IfName::from_config(&only.name).map(Some).map_err(|_| refuse()),
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("ipvlan", &Ipvlan::shape().keys());
    }
}
