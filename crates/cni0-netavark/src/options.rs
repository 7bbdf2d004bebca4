//! The options of a network, which users set with `podman network create -o NAME=VALUE`.

use std::str::FromStr;

use cni::{Code, Error, Result};
use serde_json::{Map, Value};

use crate::input::Pairs;

/// What precedes the name of a sysctl in the name of an option.
const SYSCTL: &str = "sysctl.";
/// The names of all options, for messages.
const NAMES: &str = "mtu, vlan, metric, no_default_route, hairpin, isolate, masquerade, firewall_backend, promisc, \
                     allmulti, tx_queue_length and sysctl.NAME";
/// The metric of routes, as of netavark's own drivers.
const METRIC: u32 = 100;

/// The validated options.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mtu: Option<u32>,
    pub(crate) vlan: Option<u16>,
    /// The metric of default routes, and of other routes that have none.
    pub(crate) metric: u32,
    pub(crate) default_route: bool,
    pub(crate) hairpin: bool,
    /// The `ingressPolicy` of the plugin `firewall`.
    pub(crate) ingress_policy: &'static str,
    pub(crate) masquerade: bool,
    /// The `ipMasqBackend` of the plugin `bridge`.
    pub(crate) masquerade_backend: Option<String>,
    /// The `backend` of the plugin `firewall`.
    pub(crate) firewall_backend: Option<String>,
    /// The keys of the plugin `tuning`.
    pub(crate) tuning: Map<String, Value>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mtu: None,
            vlan: None,
            metric: METRIC,
            default_route: true,
            hairpin: true,
            ingress_policy: "open",
            masquerade: true,
            masquerade_backend: None,
            firewall_backend: None,
            tuning: Map::new(),
        }
    }
}

impl Options {
    pub(crate) fn parse(pairs: Option<&Pairs>) -> Result<Options> {
        let mut options = Options::default();
        for (name, value) in pairs.into_iter().flatten() {
            options.set(name, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "mtu" if value == "0" => self.mtu = None,
            "mtu" => self.mtu = Some(number(name, value, "68 to 65535, or 0 for the kernel's default", 68..=65535)?),
            "vlan" => self.vlan = Some(number(name, value, "1 to 4094, or 0 for none", 0..=4094)?),
            "metric" => self.metric = number(name, value, "0 to 4294967295", 0..=u32::MAX)?,
            "no_default_route" => self.default_route = !boolean(name, value)?,
            "hairpin" => self.hairpin = boolean(name, value)?,
            "isolate" => {
                self.ingress_policy = match value {
                    "containers" => "isolated",
                    _ if boolean(name, value).map_err(|error| error.details("or \"containers\""))? => "same-bridge",
                    _ => "open",
                }
            }
            "masquerade" => match value {
                "iptables" | "nftables" => self.masquerade_backend = Some(value.to_owned()),
                _ => {
                    let backends = "or \"iptables\" or \"nftables\"";
                    self.masquerade = boolean(name, value).map_err(|error| error.details(backends))?;
                }
            },
            "firewall_backend" => match value {
                "iptables" | "nftables" | "firewalld" => self.firewall_backend = Some(value.to_owned()),
                _ => return Err(invalid(name, value, "use \"iptables\", \"nftables\" or \"firewalld\"")),
            },
            "promisc" | "allmulti" => {
                self.tuning.insert(name.to_owned(), boolean(name, value)?.into());
            }
            "tx_queue_length" => {
                let length: u32 = number(name, value, "0 to 4294967295", 0..=u32::MAX)?;
                self.tuning.insert("txQLen".to_owned(), length.into());
            }
            _ => match name.strip_prefix(SYSCTL).filter(|sysctl| !sysctl.is_empty()) {
                Some(sysctl) => {
                    let sysctls = self.tuning.entry("sysctl").or_insert_with(|| Map::new().into());
                    if let Value::Object(sysctls) = sysctls {
                        sysctls.insert(sysctl.to_owned(), value.into());
                    }
                }
                None => {
                    let error = Error::new(Code::UNSUPPORTED, format!("unknown option {name:?}"));
                    return Err(error.details(format!("the driver cni0 has the options {NAMES}")));
                }
            },
        }
        Ok(())
    }
}

fn invalid(name: &str, value: &str, remedy: &str) -> Error {
    Error::new(Code::CONFIG, format!("option {name:?}: {value:?} is not a valid value")).details(remedy)
}

/// Parses a Boolean value as podman does.
fn boolean(name: &str, value: &str) -> Result<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(invalid(name, value, "use \"true\" or \"false\"")),
    }
}

fn number<T>(name: &str, value: &str, range: &str, valid: std::ops::RangeInclusive<T>) -> Result<T>
where
    T: FromStr + PartialOrd,
{
    let parsed = value.parse().ok().filter(|number| valid.contains(number));
    parsed.ok_or_else(|| invalid(name, value, &format!("use {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Options> {
        Options::parse(Some(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()))
    }

    #[test]
    fn options_set_the_keys_of_plugins() {
        assert_eq!(Options::parse(None).unwrap(), Options::default());
        let options = parse(&[("isolate", "1"), ("masquerade", "iptables"), ("no_default_route", "True")]).unwrap();
        assert_eq!((options.ingress_policy, options.default_route, options.masquerade), ("same-bridge", false, true));
        assert_eq!(options.masquerade_backend.as_deref(), Some("iptables"));
        assert_eq!(parse(&[("isolate", "containers")]).unwrap().ingress_policy, "isolated");
        assert!(!parse(&[("masquerade", "false")]).unwrap().masquerade);
        let tuning = parse(&[("sysctl.net.core.somaxconn", "500"), ("promisc", "true"), ("tx_queue_length", "9")]);
        let wanted = serde_json::json!({"sysctl": {"net.core.somaxconn": "500"}, "promisc": true, "txQLen": 9});
        assert_eq!(Value::Object(tuning.unwrap().tuning), wanted);
    }

    #[test]
    fn an_invalid_value_is_named_with_its_option() {
        for (name, value) in [
            ("mtu", "x"),
            ("mtu", "67"),
            ("mtu", "-1"),
            ("vlan", "4095"),
            ("metric", "1.5"),
            ("no_default_route", "yes"),
            ("hairpin", ""),
            ("isolate", "strict"),
            ("masquerade", "maybe"),
            ("firewall_backend", "ufw"),
            ("promisc", "2"),
            ("tx_queue_length", "-1"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err();
            assert!(error.to_string().contains(&format!("option {name:?}: {value:?}")), "{error}");
            assert!(!error.details_text().is_empty());
        }
        for name in ["mode", "vrf", "sysctl.", "outbound_addr4"] {
            let error = parse(&[(name, "x")]).unwrap_err();
            assert_eq!(error.to_string(), format!("unknown option {name:?}"));
        }
    }
}
