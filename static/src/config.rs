//! Reads and validates the configuration of `static`, and chooses the addresses among those of the configuration and of
//! the runtime.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use cni::inspect::Shape;
use cni::json::Fault;
use cni::lease;
use cni::{Args, Call, Code, Dns, Error, IpConfig, Result, Route, Version};
use linux::ip::{self, Cidr};
use linux::log::{debug, warn};
use serde::Deserialize;

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The lease directory; `None` if the network keeps no leases.
    pub(crate) lease_dir: Option<PathBuf>,
    /// The addresses of the attachment. STATUS may get none: the runtime passes them only for attachments.
    pub(crate) ips: Vec<IpConfig>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    ipam: Option<Ipam>,
    #[serde(default)]
    runtime_config: Addresses,
    #[serde(default)]
    args: CustomArgs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    addresses: Vec<AddressConfig>,
    routes: Vec<Route>,
    dns: Dns,
    leases: Option<bool>,
    data_dir: String,
}

impl Ipam {
    fn keeps_leases(&self) -> bool {
        self.leases.unwrap_or(false)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AddressConfig {
    address: String,
    #[serde(deserialize_with = "ip::optional")]
    gateway: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CustomArgs {
    cni: Addresses,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Addresses {
    ips: Vec<String>,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Network>()
}

impl Config {
    /// Reads and validates the whole configuration, without side effects.
    pub(crate) fn read(call: &Call<'_>) -> Result<Config> {
        let network: Network = call.parse()?;
        let Some(ipam) = network.ipam else {
            let error = Error::new(Code::CONFIG, "IPAM config missing 'ipam' key");
            return Err(error.details("add \"ipam\" with \"type\": \"static\" and \"addresses\""));
        };
        let ips = choose(call, &ipam, &network.args.cni.ips, &network.runtime_config.ips)?;
        for (family, v4) in [("IPv4", true), ("IPv6", false)] {
            let count = ips.iter().filter(|ip| ip.address.ip().is_ipv4() == v4).count();
            if call.version < Version::V0_3_0 && count > 1 {
                let what = format!("CNI version {} does not support more than 1 address per family", call.version);
                let error = Error::new(Code::CONFIG, what).details(format!("there are {count} {family} addresses"));
                return Err(error.details("set \"cniVersion\" to 0.3.0 or later"));
            }
        }
        let dir = lease::directory(call, &ipam.data_dir)?;
        let lease_dir = ipam.keeps_leases().then_some(dir);
        Ok(Config { lease_dir, ips, routes: ipam.routes, dns: ipam.dns })
    }
}

/// The lease directory for calls that look for leases in any case, because the keys may have changed since ADD.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// Whether the network keeps leases now. Otherwise, a failure to read them does not matter.
    is_used: bool,
}

impl Directory {
    pub(crate) fn of(call: &Call<'_>) -> Result<Directory> {
        let network: Result<Network> = call.parse();
        let is_used = network.is_ok_and(|network| network.ipam.is_some_and(|ipam| ipam.keeps_leases()));
        let path = lease::data_dir(call).and_then(|data_dir| lease::directory(call, &data_dir));
        // With an invalid "dataDir", no ADD can have succeeded.
        let path = path.or_else(|error| {
            debug!("look for leases in the default directory: {error}");
            lease::directory(call, "")
        });
        Ok(Directory { path: path?, is_used })
    }

    /// Returns the path if the network keeps leases now.
    pub(crate) fn used(self) -> Option<PathBuf> {
        self.is_used.then_some(self.path)
    }

    /// Returns the outcome of an operation; the default instead of a failure that does not matter.
    pub(crate) fn filter<T: Default>(&self, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error) if !self.is_used => {
                debug!("ignore leases in {:?}: {error}", self.path);
                Ok(T::default())
            }
            outcome => outcome,
        }
    }
}

/// Where an address or a gateway comes from.
enum Source {
    /// A key of the configuration.
    Key(String),
    /// A variable in `CNI_ARGS`.
    Variable(&'static str),
}

impl Source {
    fn error(&self, why: impl fmt::Display, hint: &str) -> Error {
        let error = match self {
            Source::Key(key) => Error::from(Fault::value(why).under(key)),
            Source::Variable(name) => Error::new(Code::ENVIRONMENT, format!("{name} in CNI_ARGS: {why}")),
        };
        error.details(hint)
    }
}

/// An address as text, with the gateway that is configured for it.
struct Candidate<'a> {
    source: Source,
    text: &'a str,
    gateway: Option<IpAddr>,
    /// Whether the runtime passes the address, which it does without a gateway.
    is_of_runtime: bool,
}

impl<'a> Candidate<'a> {
    fn of_runtime(source: Source, text: &'a str) -> Candidate<'a> {
        Candidate { source, text, gateway: None, is_of_runtime: true }
    }

    fn invalid(&self, why: impl fmt::Display) -> Error {
        self.source.error(why, "write an address with the prefix length of its subnet, such as 10.1.0.5/24")
    }

    /// Returns the address. Unlike the reference, refuses those that no interface can have.
    fn parse(&self) -> Result<Cidr> {
        let Ok(cidr) = self.text.parse::<Cidr>().map(Cidr::canonical) else {
            return Err(self.invalid(match (&self.source, self.is_of_runtime) {
                (_, false) => format!("the 'address' field is expected to be in CIDR notation, got: '{}'", self.text),
                (Source::Variable(_), _) => {
                    format!("the 'ip' field is expected to be in CIDR notation, got: '{}'", self.text)
                }
                (Source::Key(_), _) => {
                    format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{}'", self.text)
                }
            }));
        };
        match cidr.not_of_an_interface() {
            Some(kind) => Err(self.invalid(format!("{cidr} is {kind}"))),
            None => Ok(cidr),
        }
    }
}

/// Returns the addresses of the attachment. As in the reference, those of `runtimeConfig` replace all others, those of
/// `args` replace those of `ipam`, and those of `CNI_ARGS` are added to them. Addresses that are replaced are not
/// validated.
fn choose(call: &Call<'_>, ipam: &Ipam, args: &[String], runtime: &[String]) -> Result<Vec<IpConfig>> {
    let [ip, gateway] = Args::parse(call.args, ["IP", "GATEWAY"])?.values();
    let of_variable: Vec<Candidate<'_>> =
        split(ip).map(|text| Candidate::of_runtime(Source::Variable("IP"), text)).collect();
    let gateways = split(gateway).map(|text| {
        let why = |_| format!("invalid gateway address: {text}");
        let error = |why| Source::Variable("GATEWAY").error(why, "write an address without a prefix, such as 10.1.0.1");
        ip::parse_ip(text).map_err(why).map_err(error)
    });
    let gateways: Vec<IpAddr> = gateways.collect::<Result<_>>()?;
    let lists = [("runtimeConfig.ips", runtime), ("args.cni.ips", args)];
    let candidates: Vec<Candidate<'_>> = match lists.into_iter().find(|(_, texts)| !texts.is_empty()) {
        Some((key, texts)) => {
            let source = |i| Source::Key(format!("{key}[{i}]"));
            texts.iter().enumerate().map(|(i, text)| Candidate::of_runtime(source(i), text)).collect()
        }
        None => {
            let configured = ipam.addresses.iter().enumerate().map(|(i, entry)| Candidate {
                source: Source::Key(format!("ipam.addresses[{i}].address")),
                text: &entry.address,
                gateway: entry.gateway,
                is_of_runtime: false,
            });
            configured.chain(of_variable).collect()
        }
    };
    // Unlike the reference, which leaves the addresses of the runtime without a gateway that the network has.
    let of_network = ipam.addresses.iter().filter_map(|entry| entry.gateway);
    let of_network = of_network.chain(ipam.routes.iter().filter(|route| route.dst.is_default()).filter_map(|to| to.gw));
    let of_network: Vec<IpAddr> = of_network.collect();

    let mut ips: Vec<IpConfig> = Vec::new();
    for candidate in &candidates {
        let address = candidate.parse()?;
        if ips.iter().any(|other| other.address.ip() == address.ip()) {
            return Err(candidate.invalid(format!("the address {} occurs twice", address.ip())));
        }
        if let Some(gateway) = candidate.gateway.filter(|gateway| gateway.is_ipv4() != address.ip().is_ipv4()) {
            return Err(candidate.invalid(format!("gateway {gateway} is of another family than {address}")));
        }
        let of_network = if candidate.is_of_runtime { of_network.as_slice() } else { &[] };
        let serves = |gateway: &&IpAddr| is_on_link(address, **gateway) && **gateway != address.ip();
        let gateway = candidate.gateway.or_else(|| gateways.iter().chain(of_network).find(serves).copied());
        if let Some(gateway) = gateway.filter(|gateway| !is_on_link(address, *gateway)) {
            warn!("gateway {gateway} is not in the network of {address}");
        }
        ips.push(IpConfig { address, gateway, interface: None });
    }
    if let Some(unused) = gateways.iter().find(|gateway| !ips.iter().any(|ip| ip.gateway == Some(**gateway))) {
        warn!(
            "GATEWAY in CNI_ARGS: {unused} is not used, because it is in the network of no address without a gateway"
        );
    }
    Ok(ips)
}

/// Returns the elements of a list in a variable.
fn split(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.filter(|list| !list.is_empty()).into_iter().flat_map(|list| list.split(','))
}

/// Returns whether a container with this address reaches the gateway without another one.
fn is_on_link(address: Cidr, gateway: IpAddr) -> bool {
    let is_link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
    address.contains(gateway) || (is_link_local && address.ip().is_ipv6())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("static", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let ipam = json!({"addresses": [{"address": "10.22.0.5/16"}], "routes": [{"dst": "10.9.0.0/16"}]});
        let bare = json!({"cniVersion": "1.1.0", "name": "pods", "ipam": ipam});
        document::defaults("static", &bare, |text| {
            Config::read(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
