//! The `macvlan` plugin: gives a container an interface with its own MAC address on the wire of a link of the host.

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{AttachmentKey, Call, Result, ValidAttachment};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use interface::host_access::{self, HostAccess};
use interface::master::{Master, MasterKeys};
use linux::netlink::{LinkKind, MacvlanMode, Upper};
use serde::Deserialize;

/// The `macvlan` plugin.
#[derive(Debug)]
pub struct Macvlan;

interface::link_plugin!(Macvlan);

/// The keys that only this plugin has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnKeys {
    mode: String,
    bcqueuelen: u32,
    host_access: Vec<String>,
}

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    master: Master,
    mac: MacSource,
    mode: MacvlanMode,
    broadcast_queue: u32,
    host_access: Option<HostAccess>,
}

impl LinkType for Macvlan {
    const NAME: &'static str = "macvlan";
    const KINDS: &'static [&'static str] = &["macvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { mode, bcqueuelen: broadcast_queue, host_access } = call.parse()?;
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
        let (common, master) = (Keys::parse(call)?, Master::parse(call)?);
        let host_access = HostAccess::parse(&host_access)?;
        if host_access.is_some() {
            let refuse = |what: &str, remedy: &str| Err(invalid("hostAccess", format_args!("{what}"), remedy));
            match () {
                () if mode != MacvlanMode::Bridge => {
                    return refuse(
                        "needs the mode \"bridge\": in others, links do not reach each other",
                        "correct \"mode\"",
                    );
                }
                () if master.in_container => {
                    return refuse("needs a master on the host", "remove \"hostAccess\" or \"linkInContainer\"");
                }
                () if common.ipam.is_none() => {
                    return refuse("needs the addresses of containers", "set \"ipam\", or remove \"hostAccess\"");
                }
                () => {}
            }
        }
        Ok(Config { common, master, mac, mode, broadcast_queue, host_access })
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

    fn host_access(config: &Config) -> Option<&HostAccess> {
        config.host_access.as_ref()
    }

    fn remove_from_host(call: &Call<'_>, key: AttachmentKey<'_>) -> Result<()> {
        host_access::remove(&mut call.home()?.netlink, key)
    }

    fn collect_on_host(call: &Call<'_>, valid: &[ValidAttachment]) -> Result<()> {
        host_access::collect(&mut call.home()?.netlink, call.network.as_str(), valid)
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
