//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use std::fmt;

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Result};
use linux::log::debug;
use serde::Deserialize;

/// The chain for the administrator's rules, unless the configuration names another.
const DEFAULT_ADMIN_CHAIN: &str = "CNI-ADMIN";
/// The zone for container addresses, unless the configuration names another.
const DEFAULT_ZONE: &str = "trusted";
/// The bit of the packet mark that accepted packets have, unless the configuration names another. `portmap` uses 13,
/// kube-proxy 14 and 15, other programs the upper half or the lowest bits.
const DEFAULT_MARK_BIT: u8 = 12;
/// Chains that have another purpose.
const RESERVED_CHAINS: [&str; 6] =
    ["INPUT", "FORWARD", "OUTPUT", "CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];
/// The targets of iptables. Its tools do not create or use a chain with such a name.
const TARGETS: &str = "ACCEPT DROP QUEUE RETURN AUDIT CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT DNAT DNPT DSCP ECN HL \
                       HMARK IDLETIMER LED LOG MARK MASQUERADE NETMAP NFLOG NFQUEUE NOTRACK RATEEST REDIRECT REJECT SECMARK \
                       SET SNAT SNPT SYNPROXY TCPMSS TCPOPTSTRIP TEE TOS TPROXY TRACE TTL ULOG standard";

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) backend: Backend,
    /// The chain for the administrator's rules, which take precedence over those of the plugin.
    pub(crate) admin_chain: String,
    pub(crate) zone: Zone,
    pub(crate) ingress: IngressPolicy,
    /// The bit of the packet mark that accepted packets have.
    pub(crate) accept_bit: u32,
}

/// How traffic of containers is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// firewalld if it is running, otherwise iptables.
    Auto,
    /// Rules in the tables of iptables.
    Iptables,
    /// The same rules, written without the tools of iptables.
    Nftables,
    Firewalld,
}

/// From where containers accept connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IngressPolicy {
    /// From everywhere.
    Open,
    /// Not from other bridges that have a policy.
    SameBridge,
    /// In addition, not from other containers of the bridge.
    Isolated,
}

/// The name of a firewalld zone. It is not empty: firewalld would take its default zone. It has no NUL, which D-Bus
/// does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone(String);

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    backend: Option<String>,
    iptables_admin_chain_name: Option<String>,
    firewalld_zone: Option<String>,
    ingress_policy: Option<String>,
    accept_mark_bit: Option<i64>,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration. An empty value means the default, as in the reference.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let keys: Keys = call.parse()?;
        Ok(Config {
            backend: keys.backend()?,
            admin_chain: keys.admin_chain()?,
            zone: Zone::parse(given(&keys.firewalld_zone).unwrap_or(DEFAULT_ZONE))?,
            ingress: keys.ingress()?,
            accept_bit: keys.accept_bit()?,
        })
    }
}

impl Config {
    /// Returns the configuration for DEL. Of an invalid one, the network may have any policy; the other values are the
    /// defaults.
    pub(crate) fn parse_to_clean_up(call: &Call<'_>) -> Config {
        Config::parse(call).unwrap_or_else(|mistake| {
            debug!("ignore the configuration: {mistake:?}");
            Config {
                backend: Backend::Auto,
                admin_chain: DEFAULT_ADMIN_CHAIN.to_owned(),
                zone: Zone(DEFAULT_ZONE.to_owned()),
                ingress: IngressPolicy::Isolated,
                accept_bit: 1 << DEFAULT_MARK_BIT,
            }
        })
    }
}

/// Returns the value of a key, unless it is absent or empty.
fn given(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|value| !value.is_empty())
}

impl Keys {
    fn backend(&self) -> Result<Backend> {
        match given(&self.backend) {
            None => Ok(Backend::Auto),
            Some("iptables") => Ok(Backend::Iptables),
            Some("nftables") => Ok(Backend::Nftables),
            Some("firewalld") => Ok(Backend::Firewalld),
            // Unlike the reference, which takes any other word for "".
            Some(other) => Err(invalid(
                "backend",
                format_args!("unrecognized backend {other:?}"),
                "use \"iptables\", \"nftables\" or \"firewalld\", or leave it out",
            )),
        }
    }

    fn accept_bit(&self) -> Result<u32> {
        let bit = self.accept_mark_bit.unwrap_or_else(|| DEFAULT_MARK_BIT.into());
        u32::try_from(bit).ok().and_then(|bit| 1_u32.checked_shl(bit)).ok_or_else(|| {
            invalid("acceptMarkBit", format_args!("{bit} is out of range"), "use a bit between 0 and 31")
        })
    }

    fn admin_chain(&self) -> Result<String> {
        let key = "iptablesAdminChainName";
        let Some(chain) = given(&self.iptables_admin_chain_name) else { return Ok(DEFAULT_ADMIN_CHAIN.to_owned()) };
        let letters = |letter: char| letter.is_ascii_graphic() && !"\"'\\".contains(letter);
        // The limits of iptables.
        if chain.len() > 28 || !chain.chars().all(letters) || chain.starts_with(['-', '!']) {
            let what = format_args!("{chain:?} is not the name of a chain");
            return Err(invalid(key, what, "use at most 28 characters, without blanks and quotes"));
        }
        if RESERVED_CHAINS.contains(&chain) || TARGETS.split(' ').any(|target| target == chain) {
            let what = format_args!("{chain:?} has another purpose");
            return Err(invalid(key, what, "use a name of your own, such as \"MY-RULES\""));
        }
        Ok(chain.to_owned())
    }

    fn ingress(&self) -> Result<IngressPolicy> {
        match given(&self.ingress_policy) {
            None | Some("open") => Ok(IngressPolicy::Open),
            Some("same-bridge") => Ok(IngressPolicy::SameBridge),
            Some("isolated") => Ok(IngressPolicy::Isolated),
            // The words of the reference, which users may search for.
            Some(other) => Err(invalid(
                "ingressPolicy",
                format_args!("unknown ingress policy: {other:?}"),
                "use \"open\", \"same-bridge\" or \"isolated\", or leave it out",
            )),
        }
    }
}

impl Zone {
    /// Validates the name of a zone by the rules of firewalld. Whether the zone exists, only firewalld knows.
    pub(crate) fn parse(name: &str) -> Result<Zone> {
        let letters = |letter: char| letter.is_alphanumeric() || "_-/".contains(letter);
        if name.is_empty() || !name.chars().all(letters) {
            let what = format_args!("{name:?} is not the name of a zone");
            return Err(invalid("firewalldZone", what, "use letters, digits, '-', '_' and '/'"));
        }
        Ok(Zone(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use cni::Code;
    use serde_json::{Value, json};
    use testing::document;

    use super::*;

    fn parse(keys: Value) -> Result<Config> {
        let mut config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "firewall" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Config::parse(&Call::for_config(&config.to_string())?)
    }

    #[test]
    fn the_keys_are_described() {
        document::describes("firewall", &shape().keys());
    }

    #[test]
    fn empty_values_are_defaults() {
        let default = parse(json!({})).unwrap();
        assert_eq!((default.backend, default.ingress), (Backend::Auto, IngressPolicy::Open));
        assert_eq!((default.admin_chain.as_str(), default.zone.as_str()), ("CNI-ADMIN", "trusted"));
        let empty = json!({ "backend": "", "iptablesAdminChainName": "", "firewalldZone": "", "ingressPolicy": "" });
        assert_eq!(format!("{:?}", parse(empty).unwrap()), format!("{default:?}"));
        let null =
            json!({ "backend": null, "iptablesAdminChainName": null, "firewalldZone": null, "ingressPolicy": null });
        assert_eq!(format!("{:?}", parse(null).unwrap()), format!("{default:?}"));
    }

    #[test]
    fn every_value_is_recognised() {
        let backend = |name: &str| parse(json!({ "backend": name })).unwrap().backend;
        assert_eq!(backend("iptables"), Backend::Iptables);
        assert_eq!(backend("nftables"), Backend::Nftables);
        assert_eq!(backend("firewalld"), Backend::Firewalld);
        let ingress = |name: &str| parse(json!({ "ingressPolicy": name })).unwrap().ingress;
        assert_eq!(ingress("open"), IngressPolicy::Open);
        assert_eq!(ingress("same-bridge"), IngressPolicy::SameBridge);
        assert_eq!(ingress("isolated"), IngressPolicy::Isolated);
        for zone in ["trusted", "my_zone-2", "a/b", "zöne"] {
            assert_eq!(parse(json!({ "firewalldZone": zone })).unwrap().zone.as_str(), zone);
        }
        let longest = "A".repeat(28);
        assert_eq!(parse(json!({ "iptablesAdminChainName": longest })).unwrap().admin_chain, longest);
    }

    #[test]
    fn invalid_values_are_refused() {
        let refuse = |key: &str, value: &str| {
            let error = parse(json!({ key: value })).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG, "{key} {value}: {error:?}");
            assert!(error.to_string().contains(key) && !error.details_text().is_empty(), "{error:?}");
            error.to_string()
        };
        assert!(refuse("backend", "foo").ends_with("unrecognized backend \"foo\""));
        assert!(refuse("ingressPolicy", "closed").ends_with("unknown ingress policy: \"closed\""));
        for zone in [" ", "my zone", "a\0", "a\"b", "$(id)"] {
            refuse("firewalldZone", zone);
        }
        for chain in [&"A".repeat(29), "MY RULES", "it's", "a\"b", "-A", "!A", "a\n", "ACCEPT", "CNI-FORWARD"] {
            refuse("iptablesAdminChainName", chain);
        }
    }
}
