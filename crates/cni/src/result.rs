//! The result of ADD in one internal form, with conversions to and from the layouts of all versions.

mod v010;
mod v030;
mod v100;

use std::net::IpAddr;

use linux::ip::{self, Cidr, MacAddr};
use serde::{Deserialize, Serialize};

use crate::error::{Code, Context, Error, Result};
use crate::json::{self, Raw};
use crate::name::IfName;
use crate::plugin::Attachment;
use crate::version::Version;

/// The result of an ADD, as the newest version describes it. Older versions contain less of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The interfaces that the plugin created or parsed.
    pub interfaces: Vec<Interface>,
    /// The addresses of the container.
    pub ips: Vec<IpConfig>,
    /// The routes of the container.
    pub routes: Vec<Route>,
    /// The resolver settings of the container.
    pub dns: Dns,
}

/// An interface in a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// The name.
    pub name: String,
    /// The MAC address as text, or empty.
    pub mac: String,
    /// The MTU, or 0.
    pub mtu: u32,
    /// The namespace of the interface: `CNI_NETNS` as given, or empty for the host.
    pub sandbox: String,
    /// The socket of a vhost-user interface, or empty.
    pub socket_path: String,
    /// The PCI address of a device, or empty.
    #[serde(rename = "pciID")]
    pub pci_id: String,
}

impl Interface {
    /// Creates an interface. `sandbox` is the namespace, or empty for the host.
    pub fn new(name: impl Into<String>, mac: Option<MacAddr>, sandbox: impl Into<String>) -> Interface {
        let mac = mac.map_or_else(String::new, |mac| mac.to_string());
        Interface { name: name.into(), mac, sandbox: sandbox.into(), ..Interface::default() }
    }
}

/// An address in a result. Fields are in the order in which 1.x prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// The address with the prefix length of its subnet.
    pub address: Cidr,
    /// The gateway of the subnet.
    #[serde(default, deserialize_with = "ip::optional", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The index of the interface in the result that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
}

/// A route in a result or in an IPAM configuration. Fields are in the order in which 0.3 and 0.4 print them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    pub dst: Cidr,
    /// The next hop; `None` means the gateway of the family, or the link itself.
    #[serde(default, deserialize_with = "ip::optional", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The MTU of the route, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The maximum segment size to advertise, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub advmss: u32,
    /// The metric, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// The routing table; `None` means the main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope; `None` means universe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// Creates a route with default attributes.
    pub fn new(dst: Cidr, gw: Option<IpAddr>) -> Route {
        Route { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

impl From<&Route> for linux::netlink::Route {
    fn from(route: &Route) -> linux::netlink::Route {
        let Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
        linux::netlink::Route { dst, gw, mtu, advmss, priority, table, scope, src: None }
    }
}

/// Resolver settings in a result or a configuration. Fields are in the order in which versions before 1.0 print them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The addresses of name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The domains to search for short names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Returns whether there are no settings.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

/// The three layouts of results in the history of CNI.
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
    /// Returns the name of the attachment's [`AddResult::host_interface`].
    pub fn host_link(&self, at: &Attachment) -> Option<&str> {
        self.host_interface(at).map(|found| found.name.as_str())
    }

    /// Returns the attachment's link on this host, as far as the result names it: the last one without a namespace
    /// before the container's own interface, or else the first.
    pub fn host_interface(&self, at: &Attachment) -> Option<&Interface> {
        let guest =
            self.interfaces.iter().position(|found| found.name == at.ifname.as_str() && !found.sandbox.is_empty());
        let on_host = |found: &&Interface| found.sandbox.is_empty() && IfName::from_config(&found.name).is_ok();
        let before = self.interfaces.iter().take(guest.unwrap_or_default()).rfind(on_host);
        before.or_else(|| self.interfaces.iter().find(on_host))
    }

    /// Prints the result in the layout of `version`.
    pub fn print(&self, version: Version) -> Result<Vec<u8>> {
        match Family::of(version) {
            Family::V010 => json::print(&v010::Answer::new(self, version)?),
            Family::V030 => json::print(&v030::Answer::new(self, version)),
            Family::V100 => json::print(&v100::Answer::new(self, version)),
        }
    }

    /// Returns the result as a reader of its text in `version` sees it, without the parts that the version cannot
    /// express.
    ///
    /// Fails where printing would fail, so that a plugin can check before its work becomes final.
    pub fn to_version(&self, version: Version) -> Result<AddResult> {
        let seen: AddResult = match Family::of(version) {
            Family::V010 => v010::Answer::new(self, version)?.into(),
            Family::V030 => v030::Answer::new(self, version).into(),
            Family::V100 => self.clone(),
        };
        Ok(seen.canonical())
    }

    /// Converts IPv4-mapped addresses to IPv4 addresses.
    fn canonical(mut self) -> AddResult {
        for ip in &mut self.ips {
            ip.address = ip.address.canonical();
        }
        for route in &mut self.routes {
            route.dst = route.dst.canonical();
        }
        self
    }

    /// Parses `prevResult` of a configuration in `version`, which has the layout of that version.
    pub(crate) fn read_previous(raw: Raw<'_>, version: Version) -> Result<AddResult> {
        // Fails here, before any change, if the result cannot be passed on.
        let read = Parsed::read(raw).and_then(|parsed| parsed.into_result(version, version)?.to_version(version));
        read.context(|| "read \"prevResult\"")
    }

    /// Parses the result of a plugin for a configuration in `version`. The result's own `cniVersion` determines the
    /// layout.
    pub fn read_answer(text: &str, version: Version) -> Result<AddResult> {
        let parsed = Parsed::read(json::parse(text)?)?;
        let own = match parsed.cni_version.as_str() {
            "" => version,
            text => Version::exact(text)
                .ok_or_else(|| Error::new(Code::DECODE, format!("the result has the unknown cniVersion {text:?}")))?,
        };
        parsed.into_result(own, version)
    }
}

/// A result of any version as parsed; its version determines which fields are used.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Parsed {
    /// The version, or empty.
    cni_version: String,
    ip4: Option<ParsedIp>,
    ip6: Option<ParsedIp>,
    interfaces: Vec<Interface>,
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

/// `ip4` or `ip6` in 0.1.0 and 0.2.0.
#[derive(Deserialize)]
struct ParsedIp {
    ip: Cidr,
    #[serde(default, deserialize_with = "ip::optional")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
}

impl Parsed {
    fn read(raw: Raw<'_>) -> Result<Parsed> {
        Ok(if raw.text() == "null" { Parsed::default() } else { raw.parse()? })
    }

    /// Returns the result, whose layout is that of `layout`. The version of the configuration is for an error.
    fn into_result(self, layout: Version, config: Version) -> Result<AddResult> {
        let own = &self.cni_version;
        let family = Family::of(layout);
        let fits = own.is_empty() || Version::exact(own).is_some_and(|own| Family::of(own) == family);
        if !fits {
            let what = format!("the result has cniVersion {own:?}, the configuration {config}");
            return Err(Error::new(Code::INTERNAL, what).details("the layouts differ; use the same cniVersion in both"));
        }
        let result = match family {
            Family::V010 => self.by_family(),
            Family::V030 => self.lists().to_version(layout)?,
            Family::V100 => self.lists(),
        };
        Ok(result.canonical())
    }

    fn lists(self) -> AddResult {
        let Parsed { interfaces, ips, routes, dns, .. } = self;
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

/// For serde's `skip_serializing_if`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests;
