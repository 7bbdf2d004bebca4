//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use std::time::Duration;

use cni::inspect::Shape;
use cni::json::Fault;
use cni::{Call, Error, Result};
use linux::netlink::TokenBucket;
use serde::Deserialize;

/// How long a packet may wait when the burst is used up, as in the reference.
pub(crate) const LATENCY: Duration = Duration::from_millis(25);

/// The validated configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Limits what the container receives.
    pub(crate) ingress: Option<TokenBucket>,
    /// Limits what the container sends.
    pub(crate) egress: Option<TokenBucket>,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    max_burst: Option<u64>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    bandwidth: Rates,
}

/// Bits per second, and bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rates {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration. Keys of the network take precedence over those of the runtime, all four
    /// together, as in the reference.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let Keys { ingress_rate, ingress_burst, egress_rate, egress_burst, max_burst, runtime_config } =
            call.parse()?;
        let own = Rates { ingress_rate, ingress_burst, egress_rate, egress_burst };
        let limits = || {
            let max_burst = max_burst.filter(|bits| *bits > 0);
            if let Some(bits @ 1..8) = max_burst {
                return Err(too_small(bits).under("maxBurst"));
            }
            if own != Rates::default() {
                return own.limits();
            }
            let limits = runtime_config.bandwidth.capped(max_burst.unwrap_or(u64::MAX)).limits();
            limits.map_err(|fault| fault.under("runtimeConfig.bandwidth"))
        };
        limits().map_err(|fault| {
            let hint = "write rates in bits per second and bursts in bits, such as \"ingressRate\": 10000000 and \
                        \"ingressBurst\": 1000000, or leave both out";
            Error::from(fault).details(hint)
        })
    }

    /// Returns whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

impl Rates {
    /// Returns the same rates with bursts of at most this number of bits.
    fn capped(self, max_burst: u64) -> Rates {
        let cap = |burst: Option<u64>| burst.map(|bits| bits.min(max_burst));
        Rates { ingress_burst: cap(self.ingress_burst), egress_burst: cap(self.egress_burst), ..self }
    }

    fn limits(&self) -> Result<Config, Fault> {
        Ok(Config {
            ingress: limit(["ingressRate", "ingressBurst"], self.ingress_rate, self.ingress_burst)?,
            egress: limit(["egressRate", "egressBurst"], self.egress_rate, self.egress_burst)?,
        })
    }
}

/// Validates a rate and a burst in bits; 0 means that there is none. The texts are those of the reference, by which
/// users recognise the mistakes.
fn limit(
    [rate_key, burst_key]: [&str; 2],
    rate: Option<u64>,
    burst: Option<u64>,
) -> Result<Option<TokenBucket>, Fault> {
    let (rate, burst) = match (rate.unwrap_or_default(), burst.unwrap_or_default()) {
        (0, 0) => return Ok(None),
        (_, 0) => return Err(Fault::value("if rate is set, burst must also be set").under(burst_key)),
        (0, _) => return Err(Fault::value("if burst is set, rate must also be set").under(rate_key)),
        set => set,
    };
    if rate < 8 {
        return Err(too_small(rate).under(rate_key));
    }
    // The reference refuses the largest number of 32 bits too.
    match u32::try_from(burst / 8) {
        Ok(0) => Err(too_small(burst).under(burst_key)),
        Err(_) | Ok(u32::MAX) => {
            Err(Fault::value(format_args!("{burst}: burst cannot be more than 4GB")).under(burst_key))
        }
        Ok(burst) => Ok(Some(TokenBucket::with_latency(rate / 8, burst, LATENCY))),
    }
}

fn too_small(bits: u64) -> Fault {
    Fault::value(format_args!("{bits} is less than 8 bits, which are one byte"))
}

#[cfg(test)]
mod tests {
    use cni::Code;
    use serde_json::{Value, json};
    use testing::document;

    use super::*;

    fn parse(keys: Value) -> Result<Config> {
        let mut config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "bandwidth" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Config::parse(&Call::for_config(&config.to_string())?)
    }

    fn bucket(rate: u64, burst: u32, limit: u32) -> Option<TokenBucket> {
        Some(TokenBucket { rate, burst, limit })
    }

    #[test]
    fn the_keys_are_described() {
        document::describes("bandwidth", &shape().keys());
    }

    #[test]
    fn bits_become_bytes_and_a_limit() {
        let config = parse(json!({ "ingressRate": 8_000_000, "ingressBurst": 80_000 })).unwrap();
        assert_eq!(config, Config { ingress: bucket(1_000_000, 10_000, 35_000), egress: None });
        let config = parse(json!({ "egressRate": 15, "egressBurst": 15 })).unwrap();
        assert_eq!(config, Config { ingress: None, egress: bucket(1, 1, 1) });
        // The values of the reference overflow.
        let config = parse(json!({ "egressRate": 100_000_000_000_u64, "egressBurst": 34_359_738_352_u64 })).unwrap();
        assert_eq!(config.egress, bucket(12_500_000_000, 4_294_967_294, u32::MAX));
        let config = parse(json!({ "egressRate": u64::MAX, "egressBurst": 8 })).unwrap();
        assert_eq!(config.egress, bucket(u64::MAX / 8, 1, u32::MAX));
    }

    #[test]
    fn nothing_is_limited_without_rates() {
        for keys in [
            json!({}),
            json!({ "ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0 }),
            json!({ "ingressRate": null, "runtimeConfig": null }),
            json!({ "runtimeConfig": { "bandwidth": {} } }),
            json!({ "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": 5 }),
        ] {
            assert!(parse(keys.clone()).unwrap().is_empty(), "{keys}");
        }
    }

    #[test]
    fn keys_of_the_network_take_precedence() {
        let runtime =
            json!({ "bandwidth": { "ingressRate": 8, "ingressBurst": 8, "egressRate": 8, "egressBurst": 8 } });
        let both = parse(json!({ "runtimeConfig": runtime })).unwrap();
        assert_eq!(both, Config { ingress: bucket(1, 1, 1), egress: bucket(1, 1, 1) });
        let own = parse(json!({ "egressRate": 16, "egressBurst": 16, "runtimeConfig": runtime })).unwrap();
        assert_eq!(own, Config { ingress: None, egress: bucket(2, 2, 2) });
        let none = parse(json!({ "egressRate": 0, "runtimeConfig": runtime })).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn bursts_of_the_runtime_are_capped() {
        // What containerd passes for `kubernetes.io/ingress-bandwidth: 8M`.
        let runtime = |max_burst: Value| {
            let rates = json!({ "ingressRate": 8_000_000, "ingressBurst": u32::MAX });
            parse(json!({ "maxBurst": max_burst, "runtimeConfig": { "bandwidth": rates } })).unwrap()
        };
        let capped = Config { ingress: bucket(1_000_000, 10_000, 35_000), egress: None };
        assert_eq!(runtime(json!(80_000)), capped);
        for none in [json!(null), json!(0), json!(u64::MAX)] {
            assert_eq!(runtime(none).ingress.unwrap().burst, u32::MAX / 8);
        }
        // Smaller bursts, those of the network, and a missing one stay.
        let smaller = json!({ "egressRate": 16, "egressBurst": 16 });
        let config = parse(json!({ "maxBurst": 80_000, "runtimeConfig": { "bandwidth": smaller } })).unwrap();
        assert_eq!(config, Config { ingress: None, egress: bucket(2, 2, 2) });
        let own = json!({ "maxBurst": 8, "ingressRate": 8_000_000, "ingressBurst": 80_000 });
        assert_eq!(parse(own).unwrap(), capped);
        let error = parse(json!({ "maxBurst": 8, "runtimeConfig": { "bandwidth": { "egressRate": 8 } } })).unwrap_err();
        assert!(error.to_string().contains("burst must also be set"), "{error}");
        // More than the kernel accepts becomes valid.
        let huge = json!({ "egressRate": 8, "egressBurst": u64::MAX });
        let config = parse(json!({ "maxBurst": 8, "runtimeConfig": { "bandwidth": huge } })).unwrap();
        assert_eq!(config.egress, bucket(1, 1, 1));
    }

    #[test]
    fn invalid_values_are_refused() {
        let refuse = |keys: Value, text: &str| {
            let error = parse(keys.clone()).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG, "{keys}: {error:?}");
            assert!(error.to_string().contains(text) && !error.details_text().is_empty(), "{error:?}");
        };
        for direction in ["ingress", "egress"] {
            let (rate, burst) = (format!("{direction}Rate"), format!("{direction}Burst"));
            let (rate, burst) = (rate.as_str(), burst.as_str());
            refuse(json!({ rate: 8 }), &format!("key {burst:?}: if rate is set, burst must also be set"));
            refuse(json!({ burst: 8 }), &format!("key {rate:?}: if burst is set, rate must also be set"));
            refuse(json!({ rate: 7, burst: 8 }), &format!("key {rate:?}: 7 is less"));
            refuse(json!({ rate: 8, burst: 7 }), &format!("key {burst:?}: 7 is less"));
            refuse(json!({ rate: 8, burst: 34_359_738_360_u64 }), "burst cannot be more than 4GB");
            refuse(json!({ rate: 8, burst: u64::MAX }), "burst cannot be more than 4GB");
            let runtime = json!({ "runtimeConfig": { "bandwidth": { rate: 8 } } });
            refuse(runtime, &format!("runtimeConfig.bandwidth.{burst}"));
        }
        refuse(json!({ "maxBurst": 7 }), "key \"maxBurst\": 7 is less");
    }
}
