//! The answer to ADD, in one shape, and its way to and from the layouts of all versions.

mod v010;
mod v030;
mod v100;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Context, Error, Result};
use crate::ip::{self, Cidr};
use crate::json::{self, Raw};
use crate::version::Version;

/// What an ADD made, as the newest version describes it. Older versions show less of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The interfaces that the plugin made or found.
    pub interfaces: Vec<Interface>,
    /// Addresses given to the container.
    pub ips: Vec<IpConfig>,
    /// Routes made in the container.
    pub routes: Vec<Route>,
    /// What the container's resolver should know.
    pub dns: Dns,
}

/// An interface in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address as text, or empty.
    pub mac: String,
    /// Its MTU, or 0.
    pub mtu: u32,
    /// The namespace it is in: `CNI_NETNS` as it was given; empty for the host's.
    pub sandbox: String,
    /// The socket of a vhost-user interface, or empty.
    pub socket_path: String,
    /// The PCI address of a device, or empty.
    #[serde(rename = "pciID")]
    pub pci_id: String,
}

/// An address in an answer. Fields stand in the order in which 1.x prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// The address with the prefix of its subnet.
    pub address: Cidr,
    /// The way out of the subnet.
    #[serde(default, deserialize_with = "ip::optional", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Which of the answer's interfaces has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
}

/// A route in an answer, and in an IPAM configuration. Fields stand in the order in which 0.3 and 0.4 print them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where to.
    pub dst: Cidr,
    /// The next hop; `None` means the gateway of the family, or the link itself.
    #[serde(default, deserialize_with = "ip::optional", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the route, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Maximal segment size to advertise, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub advmss: u32,
    /// Metric, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Routing table; `None` is the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope; `None` is universe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A plain route.
    pub fn new(dst: Cidr, gw: Option<IpAddr>) -> Route {
        Route { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Resolver settings in an answer and in configurations. Fields stand in the order in which versions before 1.0 print
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search for short names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Does it say nothing?
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

/// The three layouts that results had over the years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V010,
    V030,
    V100,
}

impl Family {
    fn of(version: Version) -> Family {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => Family::V010,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Family::V030,
            Version::V1_0_0 | Version::V1_1_0 => Family::V100,
        }
    }
}

impl AddResult {
    /// The answer's text in `version`.
    pub fn print(&self, version: Version) -> Result<Vec<u8>> {
        match Family::of(version) {
            Family::V010 => json::print(&v010::Answer::new(self, version)?),
            Family::V030 => json::print(&v030::Answer::new(self, version)),
            Family::V100 => json::print(&v100::Answer::new(self, version)),
        }
    }

    /// What a reader of the answer in `version` would get: the same less what that version cannot express.
    ///
    /// Fails where printing would fail, so a plugin can ask before it makes its work final.
    pub fn as_seen_in(&self, version: Version) -> Result<AddResult> {
        let seen: AddResult = match Family::of(version) {
            Family::V010 => v010::Answer::new(self, version)?.into(),
            Family::V030 => v030::Answer::new(self, version).into(),
            Family::V100 => v100::Answer::new(self, version).into(),
        };
        Ok(seen.canonical())
    }

    /// IPv4-mapped addresses as the IPv4 addresses that they mean.
    fn canonical(mut self) -> AddResult {
        for ip in &mut self.ips {
            ip.address = ip.address.canonical();
        }
        for route in &mut self.routes {
            route.dst = route.dst.canonical();
        }
        self
    }

    /// Reads `prevResult` of a configuration in `version`: an answer of that version's layout.
    pub(crate) fn read_previous(raw: Raw<'_>, version: Version) -> Result<AddResult> {
        AddResult::read(raw, version, version).trying(|| "read \"prevResult\"")
    }

    /// Reads what a plugin answered to a configuration in `version`. Its own `cniVersion` decides the layout.
    pub fn read_answer(text: &str, version: Version) -> Result<AddResult> {
        let raw: Raw<'_> = json::parse(text)?;
        let own = match own_version(raw)?.as_str() {
            "" => version,
            text => Version::exact(text)
                .ok_or_else(|| Error::new(Code::DECODE, format!("the result has the unknown cniVersion {text:?}")))?,
        };
        AddResult::read(raw, own, version)
    }

    fn read(raw: Raw<'_>, layout: Version, config: Version) -> Result<AddResult> {
        if raw.text() == "null" {
            return Ok(AddResult::default());
        }
        let own = own_version(raw)?;
        let family = Family::of(layout);
        let fits = own.is_empty() || Version::exact(&own).is_some_and(|own| Family::of(own) == family);
        if !fits {
            let what = format!("the result has cniVersion {own:?}, the configuration {config}");
            return Err(Error::new(Code::INTERNAL, what).details("their layouts differ; give both the same cniVersion"));
        }
        let found: Found = raw.parse()?;
        let result = match family {
            Family::V010 => found.by_family(),
            Family::V030 => found.lists().as_seen_in(layout)?,
            Family::V100 => found.lists(),
        };
        Ok(result.canonical())
    }
}

/// A result of any version as it is read; its version decides what of it counts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Found {
    ip4: Option<FoundIp>,
    ip6: Option<FoundIp>,
    interfaces: Vec<Interface>,
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

/// `ip4` or `ip6` of the oldest versions.
#[derive(Deserialize)]
struct FoundIp {
    ip: Cidr,
    #[serde(default, deserialize_with = "ip::optional")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
}

impl Found {
    fn lists(self) -> AddResult {
        let Found { interfaces, ips, routes, dns, .. } = self;
        AddResult { interfaces, ips, routes, dns }
    }

    fn by_family(self) -> AddResult {
        let mut result = AddResult { dns: self.dns, ..AddResult::default() };
        for ip in [self.ip4, self.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { address: ip.ip, gateway: ip.gateway, interface: None });
            result.routes.extend(ip.routes.into_iter().map(|route| Route::new(route.dst, route.gw)));
        }
        result
    }
}

/// `cniVersion` of a result, empty if it has none.
fn own_version(raw: Raw<'_>) -> Result<String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Head {
        cni_version: String,
    }
    if raw.text() == "null" { Ok(String::new()) } else { Ok(raw.parse::<Head>()?.cni_version) }
}

/// For serde's `skip_serializing_if`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests;
