//! The `macvlan` plugin: gives a container an interface with its own MAC address on the wire of a link of the host.

use cni::inspect::{NetworkView, Shape};
use cni::json::invalid;
use cni::{AttachmentKey, Call, Keep, Result};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use interface::host_access::{self, HostAccess};
use interface::master::{Master, MasterKeys};
use linux::ip::MacAddr;
use linux::netlink::{FrameRules, Link, LinkKind, MacvlanMode, Netlink, Upper};
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
    bccutoff: Option<i32>,
    sources: Vec<String>,
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
    broadcast_cutoff: Option<i32>,
    sources: Vec<MacAddr>,
    host_access: Option<HostAccess>,
}

impl LinkType for Macvlan {
    const NAME: &'static str = "macvlan";
    const KINDS: &'static [&'static str] = &["macvlan"];
    type Config = Config;

    fn parse(call: &Call<'_>) -> Result<Config> {
        let OwnKeys { mode, bcqueuelen: broadcast_queue, bccutoff: broadcast_cutoff, sources, host_access } =
            call.parse()?;
        let mode = match mode.as_str() {
            "" if !sources.is_empty() => MacvlanMode::Source,
            "" => MacvlanMode::Bridge,
            word => MacvlanMode::named(word).ok_or_else(|| {
                let remedy = "use \"bridge\", \"private\", \"vepa\", \"passthru\" or \"source\"";
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
        let sources = parse_sources(&sources, mode)?;
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
        Ok(Config { common, master, mac, mode, broadcast_queue, broadcast_cutoff, sources, host_access })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(config: &Config) -> LinkKind<'static> {
        let Config { mode, broadcast_queue, .. } = *config;
        LinkKind::Upper(Upper::Macvlan { mode, broadcast_queue })
    }

    fn frames(config: &Config) -> Option<FrameRules<'_>> {
        let Config { ref sources, broadcast_cutoff, .. } = *config;
        (!sources.is_empty() || broadcast_cutoff.is_some()).then_some(FrameRules::Macvlan { sources, broadcast_cutoff })
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

    fn collect_on_host(call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        host_access::collect(&mut call.home()?.netlink, keep)
    }

    fn unused_on_host(_: &Config, network: &NetworkView<'_>) -> Result<Vec<Link>> {
        host_access::find_unused(&mut Netlink::open()?, network.call.network.as_str(), network.is_used)
    }

    fn shape() -> Shape {
        let keys = [Shape::of::<OwnKeys>(), Shape::of::<MasterKeys>(), Shape::of::<AddressKeys>()];
        keys.into_iter().fold(Shape::of::<Keys>(), Shape::and)
    }
}

/// Validates the key `sources`, which belongs to one mode.
fn parse_sources(texts: &[String], mode: MacvlanMode) -> Result<Vec<MacAddr>> {
    let refuse = |what: &str, remedy: &str| Err(invalid("sources", format_args!("{what}"), remedy));
    match (texts, mode) {
        ([], MacvlanMode::Source) => {
            return refuse("is empty: the container would receive nothing", "list the MAC addresses of the senders");
        }
        ([_, ..], MacvlanMode::Source) | ([], _) => {}
        ([_, ..], _) => return refuse("needs the mode \"source\"", "remove \"mode\", or \"sources\""),
    }
    let parse = |(index, text): (usize, &String)| {
        let refuse =
            |why| invalid(&format!("sources[{index}]"), format_args!("{why}"), "write it as 02:00:00:00:00:01");
        text.parse::<MacAddr>().map_err(refuse)
    };
    texts.iter().enumerate().map(parse).collect()
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
