//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::inspect::Shape;
use cni::json::invalid;
use cni::{Call, Code, Error, Result, SortedSet};
use linux::ip::{self, Protocol};
use linux::netlink::nft::Family;
use serde::Deserialize;

use crate::condition::{Condition, Spelling};
use crate::mapping::{HostAddress, Port};

/// The bit of the packet mark that requests masquerade in the iptables backend, unless the configuration names another.
const DEFAULT_MARK_BIT: i64 = 13;

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) ports: Vec<Port>,
    pub(crate) backend: Backend,
    pub(crate) masquerade: Masquerade,
    pub(crate) conditions_v4: Vec<Condition>,
    pub(crate) conditions_v6: Vec<Condition>,
    /// How the iptables backend requests masquerade.
    pub(crate) marking: Marking,
}

/// How ports are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// nftables if the kernel supports it, otherwise iptables. Unlike the reference, which prefers iptables.
    Auto,
    Nftables,
    Iptables,
}

/// Which connections to published ports are masqueraded, so that their replies return through this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masquerade {
    /// None.
    Never,
    /// Those from the container's own subnet and from this host's loopback addresses.
    Local,
    /// All.
    Always,
}

/// What the iptables backend does with packets to be masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    /// Its own chain sets this bit of the packet mark.
    Bit(u32),
    /// The chain of another program marks the packet.
    Chain(String),
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<PortMapping>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PortMapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys>()
}

impl Config {
    /// Parses and validates the configuration.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let keys: Keys = call.parse()?;
        let backend = keys.backend()?;
        let conditions_v4 = conditions("conditionsV4", keys.conditions_v4.as_deref(), Family::Ipv4)?;
        let conditions_v6 = conditions("conditionsV6", keys.conditions_v6.as_deref(), Family::Ipv6)?;
        keys.refuse_other_backend(backend)?;
        Ok(Config {
            ports: keys.ports()?,
            backend,
            masquerade: match (keys.snat.unwrap_or(true), keys.masq_all) {
                (false, _) => Masquerade::Never,
                (true, false) => Masquerade::Local,
                (true, true) => Masquerade::Always,
            },
            conditions_v4,
            conditions_v6,
            marking: keys.marking()?,
        })
    }

    /// Returns the conditions for packets of the family of `ip`.
    pub(crate) fn conditions(&self, ip: IpAddr) -> &[Condition] {
        if ip.is_ipv4() { &self.conditions_v4 } else { &self.conditions_v6 }
    }
}

fn conditions(key: &str, words: Option<&[String]>, family: Family) -> Result<Vec<Condition>> {
    Condition::parse(words.unwrap_or_default(), family).map_err(|fault| {
        let hint = "write for example \"-s\", \"10.0.0.0/8\" or \"ip\", \"saddr\", \"10.0.0.0/8\"; sources, destinations \
                    and interfaces are supported";
        Error::from(fault.under(key)).details(hint)
    })
}

impl Keys {
    fn backend(&self) -> Result<Backend> {
        match self.backend.as_deref() {
            None | Some("") => Ok(Backend::Auto),
            Some("nftables") => Ok(Backend::Nftables),
            Some("iptables") => Ok(Backend::Iptables),
            Some(other) => Err(invalid(
                "backend",
                format_args!("unrecognized backend {other:?}"),
                "use \"nftables\" or \"iptables\", or leave it out",
            )),
        }
    }

    /// Returns an error if options are written for another backend than the requested one.
    fn refuse_other_backend(&self, backend: Backend) -> Result<()> {
        let spelled = |words: &Option<Vec<String>>, spelling| {
            words.as_deref().is_some_and(|words| Spelling::of(words) == Some(spelling))
        };
        let (name, other, spelling) = match backend {
            Backend::Auto => return Ok(()),
            Backend::Nftables => ("nftables", "iptables", Spelling::Iptables),
            Backend::Iptables => ("iptables", "nftables", Spelling::Nftables),
        };
        let keys = [
            ("externalSetMarkChain", backend == Backend::Nftables && self.external_chain().is_some()),
            ("conditionsV4", spelled(&self.conditions_v4, spelling)),
            ("conditionsV6", spelled(&self.conditions_v6, spelling)),
        ];
        let found: Vec<_> = keys.into_iter().filter(|(_, is_found)| *is_found).map(|(key, _)| key).collect();
        if found.is_empty() {
            return Ok(());
        }
        let found = found.join(" ");
        let what =
            format!("{name} backend was requested but configuration contains {other}-specific options [{found}]");
        Err(Error::new(Code::CONFIG, what).details(format!("remove \"backend\", or write the options for {name}")))
    }

    fn external_chain(&self) -> Option<&str> {
        self.external_set_mark_chain.as_deref().filter(|chain| !chain.is_empty())
    }

    fn marking(&self) -> Result<Marking> {
        if let Some(chain) = self.external_chain() {
            if self.mark_masq_bit.is_some() {
                let what = "Cannot specify externalSetMarkChain and markMasqBit";
                return Err(Error::new(Code::CONFIG, what).details("remove one of them"));
            }
            // The limit of iptables.
            if chain.len() > 28 || !chain.chars().all(|letter| letter.is_ascii_graphic() && !"\"'\\".contains(letter)) {
                let what = format_args!("{chain:?} is not the name of a chain");
                return Err(invalid(
                    "externalSetMarkChain",
                    what,
                    "use at most 28 characters, without blanks and quotes",
                ));
            }
            return Ok(Marking::Chain(chain.to_owned()));
        }
        let bit = self.mark_masq_bit.unwrap_or(DEFAULT_MARK_BIT);
        match u32::try_from(bit).ok().and_then(|bit| 1_u32.checked_shl(bit)) {
            Some(mark) => Ok(Marking::Bit(mark)),
            None => Err(invalid(
                "markMasqBit",
                format_args!("{bit} is out of range"),
                "MasqMarkBit must be between 0 and 31",
            )),
        }
    }

    fn ports(&self) -> Result<Vec<Port>> {
        let mut ports: Vec<Port> = Vec::with_capacity(self.runtime_config.port_mappings.len());
        let place = |index: usize, name: &str| format!("runtimeConfig.portMappings[{index}].{name}");
        for (index, mapping) in self.runtime_config.port_mappings.iter().enumerate() {
            ports.push(mapping.read(&|name| place(index, name))?);
        }
        if let Some((first, second)) = find_repetition(&ports)
            && let Some(Port { protocol, host_port, .. }) = ports.get(second)
        {
            let what = format_args!("{protocol} port {host_port} is already in element {first}");
            return Err(invalid(&place(second, "hostPort"), what, "publish each port once for each address"));
        }
        Ok(ports)
    }
}

/// Returns the places of two ports that no packet could distinguish. There may be thousands of ports, so they are
/// sorted.
fn find_repetition(ports: &[Port]) -> Option<(usize, usize)> {
    let mut keys = Vec::with_capacity(ports.len());
    for (place, port) in ports.iter().enumerate() {
        // All addresses are all of both families.
        let [v4, v6] = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        let (host, other) = match port.host {
            HostAddress::Any => (v4, Some(v6)),
            HostAddress::AnyOf(host) | HostAddress::One(host) => (host, None),
        };
        let key = |host| ((port.protocol, port.host_port, host), place);
        keys.extend([Some(host), other].into_iter().flatten().map(key));
    }
    let keys: SortedSet<_> = keys.into_iter().collect();
    let neighbours = keys.iter().zip(keys.iter().skip(1));
    neighbours.filter(|((key, _), (next, _))| key == next).map(|((_, first), (_, second))| (*first, *second)).min()
}

impl PortMapping {
    fn read(&self, key: &dyn Fn(&str) -> String) -> Result<Port> {
        let port = |name: &str, what: &str, number: i64| match u16::try_from(number) {
            Ok(port) if port > 0 => Ok(port),
            // The words of the reference, which users may search for.
            _ => Err(invalid(&key(name), format_args!("Invalid {what} port number: {number}"), "use 1 to 65535")),
        };
        Ok(Port {
            host_port: port("hostPort", "host", self.host_port)?,
            container_port: port("containerPort", "container", self.container_port)?,
            protocol: Protocol::named(&self.protocol).ok_or_else(|| {
                let what = format_args!("unknown protocol {:?} specified", self.protocol);
                invalid(&key("protocol"), what, "use \"tcp\", \"udp\", \"sctp\" or \"dccp\"")
            })?,
            host: match self.host_ip.as_str() {
                "" => HostAddress::Any,
                text => match ip::parse_ip(text) {
                    Ok(ip) if ip.is_unspecified() => HostAddress::AnyOf(ip),
                    Ok(ip) => HostAddress::One(ip),
                    Err(why) => {
                        let hint = "write an address of this host, such as 10.0.0.1, or leave it out for all";
                        return Err(invalid(&key("hostIP"), format_args!("{why}"), hint));
                    }
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("portmap", &shape().keys());
    }

    /// Returns the places of a repetition in a list such as `tcp 80`, `udp 10.0.0.1 53`.
    fn repeated(ports: &[(&str, &str)]) -> Option<(usize, usize)> {
        let port = |(protocol, host): &(&str, &str)| Port {
            protocol: Protocol::named(protocol).unwrap(),
            host: match host.parse::<IpAddr>() {
                Ok(ip) if ip.is_unspecified() => HostAddress::AnyOf(ip),
                Ok(ip) => HostAddress::One(ip),
                Err(_) => HostAddress::Any,
            },
            host_port: 80,
            container_port: 80,
        };
        find_repetition(&ports.iter().map(port).collect::<Vec<_>>())
    }

    #[test]
    fn a_port_is_repeated_if_no_packet_could_distinguish_both() {
        let distinct =
            [("tcp", ""), ("udp", "0.0.0.0"), ("udp", "::"), ("tcp", "10.0.0.1"), ("tcp", "10.0.0.2"), ("sctp", "::1")];
        assert_eq!(repeated(&distinct), None);
        for (again, first) in [
            (("tcp", ""), 0),
            (("tcp", "0.0.0.0"), 0),
            (("tcp", "::"), 0),
            (("udp", ""), 1),
            (("udp", "0.0.0.0"), 1),
            (("udp", "::"), 2),
            (("tcp", "10.0.0.2"), 4),
            (("sctp", "::1"), 5),
        ] {
            assert_eq!(repeated(&[&distinct[..], &[again]].concat()), Some((first, 6)), "{again:?}");
        }
        // The first of several.
        assert_eq!(repeated(&[("udp", ""), ("tcp", ""), ("tcp", ""), ("udp", ""), ("udp", "")]), Some((0, 3)));
    }

    #[test]
    fn defaults_are_as_described() {
        let mapping = serde_json::json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        let bare = serde_json::json!({
            "cniVersion": "1.1.0", "name": "pods", "runtimeConfig": {"portMappings": [mapping]},
        });
        document::defaults("portmap", &bare, |text| {
            Config::parse(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
