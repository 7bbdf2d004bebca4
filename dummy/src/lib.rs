//! The `dummy` plugin: gives a container an interface that drops what it sends, for addresses that only the container
//! uses.

use cni::inspect::Shape;
use cni::{Call, Code, Error, Result};
use interface::LinkType;
use interface::config::{AddressKeys, Common, Keys, MacSource};
use linux::netlink::LinkKind;

/// The `dummy` plugin.
#[derive(Debug)]
pub struct Dummy;

interface::link_plugin!(Dummy);

/// The validated configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    mac: MacSource,
}

impl LinkType for Dummy {
    const NAME: &'static str = "dummy";
    const KINDS: &'static [&'static str] = &["dummy"];
    type Config = Config;

    /// Unlike the reference, accepts `mtu`, `mac` and `dns`.
    fn parse(call: &Call<'_>) -> Result<Config> {
        let common = Keys::parse(call)?;
        if common.ipam.is_none() {
            // The text of the reference, by which users recognise the mistake.
            let error = Error::new(Code::CONFIG, "dummy interface requires an IPAM configuration");
            return Err(
                error.details("set \"ipam\": an interface that drops everything is of use only for its addresses")
            );
        }
        Ok(Config { common, mac: MacSource::parse(call)? })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn kind(_: &Config) -> LinkKind<'static> {
        LinkKind::Dummy
    }

    fn mac(config: &Config) -> MacSource {
        config.mac
    }

    fn shape() -> Shape {
        Shape::of::<Keys>().and(Shape::of::<AddressKeys>())
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
