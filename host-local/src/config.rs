//! Reads and validates the configuration of `host-local`, and assigns requested addresses to range sets.

use std::net::IpAddr;
use std::path::PathBuf;

use cni::inspect::Shape;
use cni::json::Fault;
use cni::lease;
use cni::{Args, Call, Code, Error, Result, Route, Version};
use linux::ip::{self, Cidr};
use serde::Deserialize;

use crate::range::{Range, RangeError, RangeSet, RangeSpec};

/// The validated configuration for ADD, CHECK and STATUS.
#[derive(Debug)]
pub(crate) struct Config {
    /// The lease directory.
    pub(crate) dir: PathBuf,
    pub(crate) sets: Vec<RangeSet>,
    /// The address requested from each range set, if any.
    pub(crate) requested: Vec<Option<IpAddr>>,
    pub(crate) routes: Vec<Route>,
    pub(crate) resolv_conf: Option<PathBuf>,
    /// Whether an ADD that would fail otherwise releases leases of earlier boots.
    pub(crate) reclaim: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    ipam: Option<Ipam>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default)]
    args: CustomArgs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    ranges: Vec<Vec<RangeConfig>>,
    subnet: Option<Cidr>,
    #[serde(deserialize_with = "ip::optional")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "ip::optional")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "ip::optional")]
    gateway: Option<IpAddr>,
    routes: Vec<Route>,
    resolv_conf: String,
    data_dir: String,
    reclaim_after_reboot: Option<bool>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RangeConfig {
    subnet: Option<Cidr>,
    #[serde(deserialize_with = "ip::optional")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "ip::optional")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "ip::optional")]
    gateway: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeConfig>>,
    ips: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CustomArgs {
    cni: CniArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArgs {
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
            let error = Error::new(Code::CONFIG, format!("network {:?} has no \"ipam\"", call.network.as_str()));
            return Err(error.details("add \"ipam\" with \"type\": \"host-local\" and \"ranges\""));
        };
        let dir = lease::directory(call, &ipam.data_dir)?;
        let requested_ips = requested_ips(call, &network.args.cni.ips, &network.runtime_config.ips)?;
        let sets = range_sets(call.version, &network.runtime_config.ip_ranges, &ipam)?;
        let requested = assign_requests(&requested_ips, &sets)?;
        Ok(Config {
            dir,
            sets,
            requested,
            routes: ipam.routes,
            resolv_conf: lease::path("ipam.resolvConf", &ipam.resolv_conf)?,
            reclaim: ipam.reclaim_after_reboot.unwrap_or(true),
        })
    }
}

/// Returns the lease directory, which is all that DEL and GC need. Unlike the reference, which refuses to release
/// leases if the configuration has become invalid.
pub(crate) fn directory(call: &Call<'_>) -> Result<PathBuf> {
    lease::directory(call, &lease::data_dir(call)?)
}

/// Validates the range sets and returns them in the order of the reference, which determines the numbers in
/// `last_reserved_ip.N`: the sets of the runtime, the range directly in `ipam`, then `ipam.ranges`.
fn range_sets(version: Version, runtime: &[Vec<RangeConfig>], ipam: &Ipam) -> Result<Vec<RangeSet>> {
    let legacy = RangeConfig {
        subnet: ipam.subnet,
        range_start: ipam.range_start,
        range_end: ipam.range_end,
        gateway: ipam.gateway,
    };
    let listed = |key: &'static str, sets: &[Vec<RangeConfig>]| -> Vec<(String, Vec<RangeConfig>)> {
        sets.iter().enumerate().map(|(i, set)| (format!("{key}[{i}]"), set.clone())).collect()
    };
    let mut configured = listed("runtimeConfig.ipRanges", runtime);
    configured.extend(legacy.subnet.map(|_| ("ipam".to_owned(), vec![legacy])));
    configured.extend(listed("ipam.ranges", &ipam.ranges));

    let mut sets: Vec<(String, RangeSet)> = Vec::new();
    for (key, ranges) in configured {
        let ranges = ranges.iter().enumerate().map(|(i, range)| {
            let key = if key == "ipam" { key.clone() } else { format!("{key}[{i}]") };
            let spec = RangeSpec {
                subnet: range.subnet,
                start: range.range_start,
                end: range.range_end,
                gateway: range.gateway,
            };
            Range::new(spec).map_err(|error| with_key(&key, error))
        });
        let set = RangeSet::new(ranges.collect::<Result<_>>()?).map_err(|error| with_key(&key, error))?;
        if let Some((other, _)) = sets.iter().find(|(_, other)| set.overlaps(other)) {
            let what = format!("the range sets {other:?} and {key:?} overlap: {set}");
            return Err(Error::new(Code::CONFIG, what).details("each address may be in one range set only"));
        }
        sets.push((key, set));
    }
    if sets.is_empty() {
        let error = Error::new(Code::CONFIG, "\"ipam\" has no ranges");
        return Err(error.details("add \"ranges\", such as [[{\"subnet\": \"10.1.0.0/16\"}]]"));
    }
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        let count = sets.iter().filter(|(_, set)| set.is_ipv4() == v4).count();
        if version < Version::V0_3_0 && count > 1 {
            let what = format!("cniVersion {version} allows one {family} address, and there are {count} range sets");
            return Err(Error::new(Code::CONFIG, what).details("set \"cniVersion\" to 0.3.0 or later"));
        }
    }
    Ok(sets.into_iter().map(|(_, set)| set).collect())
}

/// Converts the error of a range into one that names its key.
fn with_key(key: &str, error: RangeError) -> Error {
    Error::from(Fault::value(error.what).under(key)).details(error.hint)
}

const REQUEST_HINT: &str = "request an address such as 10.1.0.5 or 10.1.0.5/24";

/// Returns the requested addresses without duplicates, in the order of the reference.
fn requested_ips(call: &Call<'_>, args: &[String], runtime: &[String]) -> Result<Vec<IpAddr>> {
    let [variable] = Args::parse(call.args, ["IP"])?.values();
    let mut requested_ips: Vec<IpAddr> = Vec::new();
    let mut add = |ip| {
        if !requested_ips.contains(&ip) {
            requested_ips.push(ip)
        }
    };
    if let Some(text) = variable.filter(|text| !text.is_empty()) {
        let error = |why| Error::new(Code::ENVIRONMENT, format!("IP in CNI_ARGS: {why}"));
        add(parse_requested_ip(text).map_err(|why| error(why).details(REQUEST_HINT))?);
    }
    for (key, texts) in [("args.cni.ips", args), ("runtimeConfig.ips", runtime)] {
        for (i, text) in texts.iter().enumerate() {
            let error = |why: Fault| Error::from(why.under(format!("{key}[{i}]")));
            add(parse_requested_ip(text).map_err(|why| error(why).details(REQUEST_HINT))?);
        }
    }
    Ok(requested_ips)
}

/// Parses a requested address. A prefix is allowed and ignored.
fn parse_requested_ip(text: &str) -> Result<IpAddr, Fault> {
    let ip =
        if text.contains('/') { text.parse().map(|cidr: Cidr| cidr.ip().to_canonical()) } else { ip::parse_ip(text) };
    ip.map_err(Fault::value)
}

/// Assigns to each range set the first requested address that it contains. Unlike the reference, reports requests
/// without a range set before it leases anything, and the choice among several requests does not depend on chance.
fn assign_requests(requested_ips: &[IpAddr], sets: &[RangeSet]) -> Result<Vec<Option<IpAddr>>> {
    let mut left = requested_ips.to_vec();
    let mut requested = Vec::new();
    for set in sets {
        let at = left.iter().position(|ip| set.contains(*ip));
        requested.push(at.map(|at| left.remove(at)));
    }
    if let Some(ip) = left.first() {
        return Err(match sets.iter().find(|set| set.contains(*ip)) {
            Some(set) => {
                Error::new(Code::CONFIG, format!("the requested address {ip} is a second one for range set {set}"))
                    .details("request at most one address for each range set")
            }
            None => Error::new(Code::CONFIG, format!("the requested address {ip} is in none of the ranges"))
                .details("request an address of the ranges, or add a range for it"),
        });
    }
    for ip in requested.iter().flatten() {
        if sets.iter().filter_map(|set| set.range_of(*ip)).any(|range| range.gateway() == *ip) {
            let error = Error::new(Code::CONFIG, format!("the requested address {ip} is the gateway of its range"));
            return Err(error.details("request another address, or give the range another \"gateway\""));
        }
    }
    Ok(requested)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("host-local", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let ipam = json!({"subnet": "10.22.0.0/16", "routes": [{"dst": "10.9.0.0/16"}]});
        let bare = json!({"cniVersion": "1.1.0", "name": "pods", "ipam": ipam});
        document::defaults("host-local", &bare, |text| {
            Config::read(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }
}
