//! The `macvlan` plugin: gives a container an interface with its own MAC address on the wire of a link of the host.

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Result};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use interface::master::{Master, MasterKeys};
use linux::netlink::{LinkKind, MacvlanMode, Upper};
use serde::Deserialize;

/// The `macvlan` plugin.
#[derive(Debug)]
pub struct Macvlan;

interface::link_plugin!(Macvlan);

/// The keys that only this plugin has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnKeys {
    mode: String,
    bcqueuelen: u32,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    master: Master,
    mac: MacSource,
    mode: MacvlanMode,
    broadcast_queue: u32,
}

impl LinkType for Macvlan {
    const NAME: &'static str = "macvlan";
    const KINDS: &'static [&'static str] = &["macvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { mode, bcqueuelen: broadcast_queue } = call.parse()?;
        let mode = match mode.as_str() {
            "" => MacvlanMode::Bridge,
            word => MacvlanMode::named(word).ok_or_else(|| {
                let remedy = "use \"bridge\", \"private\", \"vepa\" or \"passthru\"";
                invalid("mode", format_args!("unknown macvlan mode: {word:?}"), remedy)
            })?,
        };
        let mac = match (MacSource::parse(call)?, mode) {
            // The kernel would give the requested address to the master as well.
            (MacSource::Requested(mac), MacvlanMode::Passthru) => {
                let what =
                    format_args!("\"passthru\" with the MAC address {mac}: the container gets that of the master");
                return Err(invalid("mode", what, "remove the address, or use another mode"));
            }
            (_, MacvlanMode::Passthru) => MacSource::Master,
            (mac, _) => mac,
        };
        Ok(Config { common: Keys::parse(call)?, master: Master::parse(call)?, mac, mode, broadcast_queue })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(config: &Config) -> LinkKind<'static> {
        let Config { mode, broadcast_queue, .. } = *config;
        LinkKind::Upper(Upper::Macvlan { mode, broadcast_queue })
    }

    fn mac(config: &Config) -> MacSource {
        config.mac
    }

    fn master(config: &Config) -> Option<&Master> {
        Some(&config.master)
    }

    fn shape() -> Shape {
        let keys = [Shape::of::<OwnKeys>(), Shape::of::<MasterKeys>(), Shape::of::<AddressKeys>()];
        keys.into_iter().fold(Shape::of::<Keys>(), Shape::and)
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("macvlan", &Macvlan::shape().keys());
    }
}
