//! The network configuration, parsed and validated into [`Config`].

use std::net::IpAddr;

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Result};
use linux::ip::parse_ip;
use serde::Deserialize;

/// The validated configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// The table of all rules, with the routes of another program; `None` for a table of each address, with its routes.
    pub(crate) table: Option<u32>,
    /// The next hops of the default routes, at most one of each family.
    pub(crate) gateways: Vec<IpAddr>,
    /// Whether the main table keeps the routes without a next hop.
    pub(crate) keeps_subnets: bool,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    table: Option<i64>,
    gateways: Vec<String>,
    add_source_hints: bool,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let keys: Keys = call.parse()?;
        let table = keys.table.map(|table| match u32::try_from(table) {
            Ok(0) | Err(_) => {
                let what = format_args!("{table} is not the number of a routing table");
                Err(invalid("table", what, "use a number from 1 to 4294967295, or leave it out"))
            }
            Ok(table) => Ok(table),
        });
        let gateways = gateways(&keys.gateways)?;
        Ok(Config { table: table.transpose()?, gateways, keeps_subnets: keys.add_source_hints })
    }

    /// Returns the next hop that the configuration has for the family of an address.
    pub(crate) fn gateway(&self, like: IpAddr) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == like.is_ipv4())
    }
}

/// Validates `gateways`. The texts are those of the reference, by which users recognise the mistakes.
fn gateways(texts: &[String]) -> Result<Vec<IpAddr>> {
    let hint = "write at most one IPv4 address and one IPv6 address, such as [\"192.168.1.1\", \"fd00::1\"]";
    let mut gateways: Vec<IpAddr> = Vec::new();
    if texts.len() > 2 {
        let what = format_args!("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)");
        return Err(invalid("gateways", what, hint));
    }
    for (index, text) in texts.iter().enumerate() {
        let key = format!("gateways[{index}]");
        let gateway = parse_ip(text).ok().filter(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
        let Some(gateway) = gateway else {
            return Err(invalid(&key, format_args!("invalid static gateway IP address: {text:?}"), hint));
        };
        if gateways.iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
            let family = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
            let what = format_args!("gateways list cannot contain multiple {family} addresses: {text:?}");
            return Err(invalid(&key, what, hint));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}

#[cfg(test)]
mod tests {
    use cni::Code;
    use serde_json::{Value, json};
    use testing::document;

    use super::*;

    fn parse(keys: Value) -> Result<Config> {
        let config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "sbr" });
        Config::parse(&Call::for_config(&testing::config::with(config, keys).to_string())?)
    }

    #[test]
    fn the_keys_are_described() {
        document::describes("sbr", &shape().keys());
    }

    #[test]
    fn keys_are_read() {
        assert_eq!(parse(json!({})).unwrap(), Config::default());
        let config = parse(json!({ "table": 4_294_967_295_u32, "GATEWAYS": ["10.1.0.1"], "addSourceHints": true }));
        let gateways = vec!["10.1.0.1".parse().unwrap()];
        assert_eq!(config.unwrap(), Config { table: Some(u32::MAX), gateways, keeps_subnets: true });
        let both = parse(json!({ "gateways": ["fd00::1", "10.1.0.1"] })).unwrap();
        assert_eq!(both.gateway("10.9.0.9".parse().unwrap()), "10.1.0.1".parse().ok());
        assert_eq!(both.gateway("fd99::9".parse().unwrap()), "fd00::1".parse().ok());
        assert_eq!(parse(json!({ "table": null, "gateways": null })).unwrap(), Config::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (keys, text) in [
            (json!({ "table": 0 }), "key \"table\": 0 is not"),
            (json!({ "table": -1 }), "key \"table\": -1 is not"),
            (json!({ "table": 4_294_967_296_u64 }), "4294967296 is not"),
            (json!({ "gateways": ["10.1.0.1", "fd00::1", "10.1.0.2"] }), "cannot contain more than 2 entries"),
            (
                json!({ "gateways": ["10.1.0.1", "10.1.0.2"] }),
                "key \"gateways[1]\": gateways list cannot contain multiple IPv4",
            ),
            (json!({ "gateways": ["fd00::1", "fd00::2"] }), "multiple IPv6 addresses"),
            (json!({ "gateways": ["10.1.0.1/24"] }), "invalid static gateway IP address: \"10.1.0.1/24\""),
            (json!({ "gateways": ["0.0.0.0"] }), "invalid static gateway IP address"),
            (json!({ "gateways": [""] }), "key \"gateways[0]\": invalid static gateway"),
        ] {
            let error = parse(keys.clone()).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG, "{keys}");
            assert!(error.to_string().contains(text) && !error.details_text().is_empty(), "{keys}: {error:?}");
        }
    }
}
