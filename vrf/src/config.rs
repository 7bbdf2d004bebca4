//! The network configuration, parsed and validated into [`Config`].

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Code, Error, IfName, Result};
use serde::Deserialize;

/// The tables that the kernel uses itself.
pub(crate) const RESERVED: std::ops::RangeInclusive<u32> = 253..=255;

/// The validated configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The name of the VRF.
    pub(crate) name: IfName,
    /// Its routing table; `None` for one that nothing uses.
    pub(crate) table: Option<u32>,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    vrfname: String,
    table: i64,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let Keys { vrfname, table } = call.parse()?;
        if vrfname.is_empty() {
            // The text of the reference, by which users recognise the mistake.
            let error = Error::new(Code::CONFIG, "configuration is expected to have a valid vrf name");
            return Err(error.details("set \"vrfname\", such as \"blue\""));
        }
        let name = IfName::from_config(&vrfname).map_err(|why| {
            let what = format_args!("{vrfname:?} is not a name for a VRF: {why}");
            invalid("vrfname", what, "use at most 15 characters without spaces, slashes and colons")
        })?;
        let table = match u32::try_from(table) {
            Ok(0) => None,
            Ok(table) if !RESERVED.contains(&table) => Some(table),
            _ => {
                let what = format_args!("{table} is not the number of a routing table for a VRF");
                let remedy = "use a number from 1 to 4294967295, except those of the kernel: 253, 254 and 255";
                return Err(invalid("table", what, remedy));
            }
        };
        Ok(Config { name, table })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use testing::document;

    use super::*;

    fn parse(keys: Value) -> Result<Config> {
        let config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "vrf" });
        Config::parse(&Call::for_config(&testing::config::with(config, keys).to_string())?)
    }

    #[test]
    fn the_keys_are_described() {
        document::describes("vrf", &shape().keys());
    }

    #[test]
    fn keys_are_read() {
        let config = parse(json!({ "vrfname": "blue" })).unwrap();
        assert_eq!((config.name.as_str(), config.table), ("blue", None));
        for (table, expected) in
            [(json!(0), None), (json!(null), None), (json!(1), Some(1)), (json!(u32::MAX), Some(u32::MAX))]
        {
            assert_eq!(parse(json!({ "VRFName": "a-b_c.d", "table": table })).unwrap().table, expected);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (keys, text) in [
            (json!({}), "configuration is expected to have a valid vrf name"),
            (json!({ "vrfname": "" }), "configuration is expected to have a valid vrf name"),
            (json!({ "vrfname": "sixteen-letters-" }), "key \"vrfname\": \"sixteen-letters-\" is not a name for a VRF"),
            (json!({ "vrfname": "a/b" }), "key \"vrfname\": \"a/b\""),
            (json!({ "vrfname": "b", "table": -1 }), "key \"table\": -1 is not"),
            (json!({ "vrfname": "b", "table": 254 }), "key \"table\": 254 is not"),
            (json!({ "vrfname": "b", "table": 4_294_967_296_u64 }), "key \"table\": 4294967296"),
        ] {
            let error = parse(keys.clone()).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG, "{keys}");
            assert!(error.to_string().contains(text) && !error.details_text().is_empty(), "{keys}: {error:?}");
        }
    }
}
