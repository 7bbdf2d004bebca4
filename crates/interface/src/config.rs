//! The keys that several plugins have.

use std::ops::RangeInclusive;

use cni::json::invalid;
use cni::{Args, Attachment, Call, Code, Delegate, Dns, Error, Result};
use linux::ip::{Cidr, IPV6_MIN_MTU, MacAddr};
use serde::Deserialize;

use crate::name;

/// Valid MTUs: from the minimum of IPv4 to the kernel's maximum.
const MTU: RangeInclusive<i64> = 68..=65535;

/// The keys that all plugins with a link of their own have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Keys {
    mtu: i64,
    ipam: IpamKeys,
    dns: DnsKeys,
}

/// What the common keys say, validated.
#[derive(Debug)]
pub struct Common {
    /// The MTU; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// Name of the IPAM plugin; `None` for a layer-2 network.
    pub ipam: Option<String>,
    /// DNS settings that replace those of the IPAM plugin.
    pub dns: Option<Dns>,
}

impl Keys {
    /// Reads and validates the keys.
    pub fn parse(call: &Call<'_>) -> Result<Common> {
        let keys: Keys = call.parse()?;
        Ok(Common { mtu: mtu(keys.mtu)?, ipam: keys.ipam.name(), dns: keys.dns.if_set() })
    }
}

/// The keys by which a container gets a MAC address.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressKeys {
    mac: String,
    stable_mac: bool,
    args: ArgsKeys,
    runtime_config: MacKeys,
}

/// Where the MAC address of a link comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacSource {
    /// It is requested.
    Requested(MacAddr),
    /// It is derived from the names of network, pod and interface, so that a new container of the pod has it too.
    Names,
    /// It is random.
    Random,
    /// It is that of the link on top of which the new one is created.
    Master,
}

impl MacSource {
    /// Reads and validates the keys and `CNI_ARGS`.
    pub fn parse(call: &Call<'_>) -> Result<MacSource> {
        let keys: AddressKeys = call.parse()?;
        let configured = || cni::requested_mac(&[("key \"mac\"", Code::CONFIG, &keys.mac)]);
        let requested = mac(&keys.runtime_config, &keys.args, call)?.map_or_else(configured, |mac| Ok(Some(mac)))?;
        Ok(MacSource::new(requested, keys.stable_mac))
    }

    /// Returns the source if an address may be requested, or is to be stable.
    pub fn new(requested: Option<MacAddr>, stable: bool) -> MacSource {
        match requested {
            Some(mac) => MacSource::Requested(mac),
            None if stable => MacSource::Names,
            None => MacSource::Random,
        }
    }

    /// Returns the address of an attachment; `None` if it is random, or that of the master.
    pub fn address(self, call: &Call<'_>, at: &Attachment) -> Result<Option<MacAddr>> {
        match self {
            MacSource::Requested(mac) => Ok(Some(mac)),
            MacSource::Names => stable_mac(call, at).map(Some),
            MacSource::Random | MacSource::Master => Ok(None),
        }
    }
}

/// Returns the MAC address of a container that keeps it when it is created again. A runtime that passes no name of a
/// pod or container identifies it by the container ID alone.
fn stable_mac(call: &Call<'_>, at: &Attachment) -> Result<MacAddr> {
    let [namespace, pod, _] = Args::parse(call.args, ["K8S_POD_NAMESPACE", "K8S_POD_NAME", "MAC"])?.values();
    let pod = pod.filter(|pod| !pod.is_empty());
    let container = pod.unwrap_or(at.container.as_str());
    let names = [call.network.as_str(), namespace.unwrap_or_default(), container, at.ifname.as_str()];
    Ok(name::mac_of(&names))
}

/// The key `ipam`, whose other members only the IPAM plugin reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct IpamKeys {
    #[serde(rename = "type")]
    kind: String,
}

impl IpamKeys {
    /// Returns the name of the IPAM plugin, if there is one.
    pub fn name(self) -> Option<String> {
        Some(self.kind).filter(|kind| !kind.is_empty())
    }
}

/// Like [`Dns`], but distinguishes an empty list from a missing one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DnsKeys {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsKeys {
    /// Returns the settings if any key is set, even to an empty list. They replace all DNS settings of the IPAM plugin.
    pub fn if_set(self) -> Option<Dns> {
        let DnsKeys { nameservers, domain, search, options } = self;
        let lists = [&nameservers, &search, &options];
        let is_set = !domain.is_empty() || lists.into_iter().any(Option::is_some);
        is_set.then(|| Dns {
            nameservers: nameservers.unwrap_or_default(),
            domain,
            search: search.unwrap_or_default(),
            options: options.unwrap_or_default(),
        })
    }
}

/// The key `args`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ArgsKeys {
    cni: MacKeys,
}

/// The key `mac` in `runtimeConfig` and `args.cni`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MacKeys {
    mac: String,
}

/// Validates `mtu`. Values up to 0 mean the kernel's default, as in the reference.
pub fn mtu(mtu: i64) -> Result<Option<u32>> {
    match u32::try_from(mtu) {
        _ if mtu <= 0 => Ok(None),
        Ok(fits) if MTU.contains(&mtu) => Ok(Some(fits)),
        _ => {
            Err(invalid("mtu", format_args!("{mtu} is out of range"), "use 68 to 65535, or 0 for the kernel's default"))
        }
    }
}

/// Returns the error for an MTU that is too small for an IPv6 address.
pub fn mtu_too_small(mtu: u32, address: Cidr, remedy: &str) -> Error {
    let what = format_args!("{mtu} is too small for the IPv6 address {address}");
    invalid("mtu", what, format!("use at least {IPV6_MIN_MTU}, {remedy}"))
}

/// Returns the requested MAC address, from the first of three sources that has one.
pub fn mac(runtime_config: &MacKeys, args: &ArgsKeys, call: &Call<'_>) -> Result<Option<MacAddr>> {
    let [from_args] = Args::parse(call.args, ["MAC"])?.values();
    let sources = [
        ("key \"runtimeConfig.mac\"", Code::CONFIG, runtime_config.mac.as_str()),
        ("key \"args.cni.mac\"", Code::CONFIG, args.cni.mac.as_str()),
        ("MAC in CNI_ARGS", Code::ENVIRONMENT, from_args.unwrap_or_default()),
    ];
    cni::requested_mac(&sources)
}

/// Finds the IPAM plugin for DEL and GC. `name` is its name according to the whole configuration. Mistakes elsewhere in
/// the configuration are only reported: they matter to the next ADD, and must not prevent the removal.
pub fn ipam_to_clean_up<'a>(call: &'a Call<'a>, name: Result<Option<String>>) -> Result<Option<Delegate<'a>>> {
    let name = match name {
        Ok(name) => name,
        Err(mistake) => {
            let name = ipam_name(call)?;
            cni::report(&mistake);
            name
        }
    };
    name.map(|name| Delegate::find(call, &name)).transpose()
}

/// Reads the name of the IPAM plugin, and ignores all other keys.
pub(crate) fn ipam_name(call: &Call<'_>) -> Result<Option<String>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Only {
        ipam: IpamKeys,
    }
    let only: Only = call.parse()?;
    Ok(only.ipam.name())
}
