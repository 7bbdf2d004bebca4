//! The configuration of a network as `host-local` sees it: read, checked, and the wishes shared out.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::ip::{self, Cidr};
use cni::json::{Fault, Raw};
use cni::{Args, Call, Code, Error, Result, Route, Version};
use serde::Deserialize;

use crate::range::{Draft, Flaw, Range, RangeSet};

/// Where the directories of networks are unless `dataDir` says otherwise.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// All that ADD, CHECK and STATUS need to know.
#[derive(Debug)]
pub(crate) struct Config {
    /// The directory of the network's leases.
    pub(crate) dir: PathBuf,
    pub(crate) sets: Vec<RangeSet>,
    /// The address that is wanted out of each set.
    pub(crate) wanted: Vec<Option<IpAddr>>,
    pub(crate) routes: Vec<Route>,
    pub(crate) resolv_conf: Option<PathBuf>,
    /// Leases of earlier boots are released when an ADD would fail otherwise.
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

impl Config {
    /// Reads and checks everything, before anything is touched.
    pub(crate) fn read(call: &Call<'_>) -> Result<Config> {
        let network: Network = call.parse()?;
        let Some(ipam) = network.ipam else {
            let error = Error::new(Code::CONFIG, format!("network {:?} has no \"ipam\"", call.network.as_str()));
            return Err(error.details("give it an \"ipam\" with \"type\": \"host-local\" and \"ranges\""));
        };
        let dir = place(call, &ipam.data_dir)?;
        let wishes = wishes(call, &network.args.cni.ips, &network.runtime_config.ips)?;
        let sets = range_sets(call.version, &network.runtime_config.ip_ranges, &ipam)?;
        let wanted = share_out(&wishes, &sets)?;
        Ok(Config {
            dir,
            sets,
            wanted,
            routes: ipam.routes,
            resolv_conf: path("ipam.resolvConf", &ipam.resolv_conf)?,
            reclaim: ipam.reclaim_after_reboot.unwrap_or(true),
        })
    }
}

/// Where the network's leases are: all that DEL and GC need to know. Unlike upstream, which refuses to release what a
/// configuration that has become invalid once gave.
pub(crate) fn directory(call: &Call<'_>) -> Result<PathBuf> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Network<'a> {
        #[serde(borrow)]
        ipam: Option<Raw<'a>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Ipam {
        data_dir: String,
    }
    let network: Network<'_> = call.parse()?;
    let ipam: Ipam = match network.ipam {
        Some(raw) if raw.text().starts_with('{') => raw.parse().map_err(|fault: Fault| fault.under("ipam"))?,
        _ => Ipam::default(),
    };
    place(call, &ipam.data_dir)
}

fn place(call: &Call<'_>, data_dir: &str) -> Result<PathBuf> {
    let data_dir = path("ipam.dataDir", data_dir)?;
    Ok(data_dir.as_deref().unwrap_or_else(|| Path::new(DATA_DIR)).join(call.network.as_str()))
}

/// A path that is given by `key`; empty means none.
fn path(key: &str, text: &str) -> Result<Option<PathBuf>> {
    if text.contains('\0') {
        let error = Error::from(Fault::value(format!("{text:?} is no path")).under(key));
        return Err(error.details("a path holds no NUL"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()).map(PathBuf::from))
}

/// The order decides about the numbers in `last_reserved_ip.N`: those of the runtime, the one without a list, the rest.
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
    let mut written = listed("runtimeConfig.ipRanges", runtime);
    written.extend(legacy.subnet.map(|_| ("ipam".to_owned(), vec![legacy])));
    written.extend(listed("ipam.ranges", &ipam.ranges));

    let mut sets: Vec<(String, RangeSet)> = Vec::new();
    for (key, ranges) in written {
        let ranges = ranges.iter().enumerate().map(|(i, range)| {
            let key = if key == "ipam" { key.clone() } else { format!("{key}[{i}]") };
            let draft =
                Draft { subnet: range.subnet, start: range.range_start, end: range.range_end, gateway: range.gateway };
            Range::new(draft).map_err(|flaw| faulty(&key, flaw))
        });
        let set = RangeSet::new(ranges.collect::<Result<_>>()?).map_err(|flaw| faulty(&key, flaw))?;
        if let Some((other, _)) = sets.iter().find(|(_, other)| set.overlaps(other)) {
            let what = format!("the range sets {other:?} and {key:?} overlap: {set}");
            return Err(Error::new(Code::CONFIG, what).details("an address must be in one range set only"));
        }
        sets.push((key, set));
    }
    if sets.is_empty() {
        let error = Error::new(Code::CONFIG, "\"ipam\" has no ranges");
        return Err(error.details("give it \"ranges\", such as [[{\"subnet\": \"10.1.0.0/16\"}]]"));
    }
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        let count = sets.iter().filter(|(_, set)| set.is_ipv4() == v4).count();
        if version < Version::V0_3_0 && count > 1 {
            let what = format!("{count} {family} range sets, and cniVersion {version} can express one address");
            return Err(Error::new(Code::CONFIG, what).details("set \"cniVersion\" to 0.3.0 or later"));
        }
    }
    Ok(sets.into_iter().map(|(_, set)| set).collect())
}

fn faulty(key: &str, flaw: Flaw) -> Error {
    Error::from(Fault::value(flaw.what).under(key)).details(flaw.remedy)
}

const WISH: &str = "request an address such as 10.1.0.5 or 10.1.0.5/24";

/// The addresses that are asked for, in the order of the reference, each once.
fn wishes(call: &Call<'_>, args: &[String], runtime: &[String]) -> Result<Vec<IpAddr>> {
    let [variable] = Args::parse(call.args, ["IP"])?.values();
    let mut wishes: Vec<IpAddr> = Vec::new();
    let mut add = |ip| {
        if !wishes.contains(&ip) {
            wishes.push(ip)
        }
    };
    if let Some(text) = variable.filter(|text| !text.is_empty()) {
        let error = |why| Error::new(Code::ENVIRONMENT, format!("IP in CNI_ARGS: {why}"));
        add(wish(text).map_err(|why| error(why).details(WISH))?);
    }
    for (key, texts) in [("args.cni.ips", args), ("runtimeConfig.ips", runtime)] {
        for (i, text) in texts.iter().enumerate() {
            let error = |why: Fault| Error::from(why.under(format!("{key}[{i}]")));
            add(wish(text).map_err(|why| error(why).details(WISH))?);
        }
    }
    Ok(wishes)
}

/// An address, or an address with a prefix that says nothing.
fn wish(text: &str) -> Result<IpAddr, Fault> {
    let ip =
        if text.contains('/') { text.parse().map(|cidr: Cidr| cidr.ip().to_canonical()) } else { ip::parse_ip(text) };
    ip.map_err(Fault::value)
}

/// Gives each set the first wish that lies in it. Unlike upstream, wishes that are left over are found before anything
/// is reserved, and which one is taken is not left to chance.
fn share_out(wishes: &[IpAddr], sets: &[RangeSet]) -> Result<Vec<Option<IpAddr>>> {
    let mut left = wishes.to_vec();
    let mut wanted = Vec::new();
    for set in sets {
        let at = left.iter().position(|ip| set.contains(*ip));
        wanted.push(at.map(|at| left.remove(at)));
    }
    if let Some(ip) = left.first() {
        return Err(match sets.iter().find(|set| set.contains(*ip)) {
            Some(set) => {
                Error::new(Code::CONFIG, format!("the requested address {ip} is one too many for the range set {set}"))
                    .details("request one address for each range set")
            }
            None => Error::new(Code::CONFIG, format!("the requested address {ip} is in none of the ranges"))
                .details("request an address of the ranges, or add a range for it"),
        });
    }
    for ip in wanted.iter().flatten() {
        if sets.iter().filter_map(|set| set.range_of(*ip)).any(|range| range.gateway() == *ip) {
            let error = Error::new(Code::CONFIG, format!("the requested address {ip} is the gateway of its range"));
            return Err(error.details("request another address, or give the range another \"gateway\""));
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use cni::testing::document;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes_type::<Network>("host-local");
    }

    #[test]
    fn defaults_are_as_described() {
        let bare = json!({"ipam": {"subnet": "10.22.0.0/16", "routes": [{"dst": "10.9.0.0/16"}]}});
        document::defaults("host-local", &bare, |call| Config::read(call).map(|config| format!("{config:?}")));
    }
}
