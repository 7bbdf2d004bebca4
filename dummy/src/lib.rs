//! The `dummy` plugin: gives a container an interface that drops what it sends, for addresses that only the container uses.

use cni::inspect::Shape;
use cni::{Call, Code, Error, Result};
use interface::config::{Common, Keys};
use interface::{LinkType, name};
use linux::ip::MacAddr;
use linux::netlink::{LinkKind, Netlink, NewLink};

/// The `dummy` plugin.
#[derive(Debug)]
pub struct Dummy;

interface::link_plugin!(Dummy);

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    /// The requested MAC address, or a random one.
    mac: MacAddr,
}

impl LinkType for Dummy {
    const NAME: &'static str = "dummy";
    const KIND: &'static str = "dummy";
    type Config = Config;

    /// Unlike the reference, accepts `mtu`, `mac` and `dns`.
    fn parse(call: &Call<'_>) -> Result<Config> {
        let common = call.parse::<Keys>()?.read(call)?;
        if common.ipam.is_none() {
            // The text of the reference, by which users recognise the mistake.
            let error = Error::new(Code::CONFIG, "dummy interface requires an IPAM configuration");
            return Err(
                error.details("set \"ipam\": an interface that drops everything is of use only for its addresses")
            );
        }
        let mac = common.mac.map_or_else(name::random_mac, Ok)?;
        Ok(Config { common, mac })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn describe<'a>(config: &'a Config, _: &mut Netlink) -> Result<NewLink<'a>> {
        Ok(NewLink { mac: Some(config.mac), mtu: config.common.mtu, ..NewLink::of(LinkKind::Dummy) })
    }

    fn status(_: &Config, host: &mut Netlink) -> Result<()> {
        match host.can_create(LinkKind::Dummy)? {
            true => Ok(()),
            false => Err(Error::new(Code::NOT_AVAILABLE, "this kernel has no dummy interfaces")
                .details("load the module \"dummy\", or use a kernel with CONFIG_DUMMY")),
        }
    }

    fn shape() -> Shape {
        Shape::of::<Keys>()
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("dummy", &Dummy::shape().keys());
    }
}
