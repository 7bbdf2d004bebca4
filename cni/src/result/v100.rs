//! Results of 1.0.0 and 1.1.0: keys in alphabetical order at every level; `dns` is omitted if empty.

use std::net::IpAddr;

use linux::ip::Cidr;
use serde::Serialize;

use super::{AddResult, IpConfig, is_zero};
use crate::version::Version;

/// A result. Fields are in the order in which they are printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: Dns,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<IpConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

#[derive(Default, PartialEq, Serialize)]
struct Dns {
    #[serde(skip_serializing_if = "String::is_empty")]
    domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
}

impl Dns {
    fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    name: String,
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pci_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    sandbox: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    socket_path: String,
}

#[derive(Serialize)]
struct Route {
    #[serde(skip_serializing_if = "is_zero")]
    advmss: u32,
    dst: Cidr,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "is_zero")]
    priority: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
}

impl Answer {
    pub(super) fn new(result: &AddResult, version: Version) -> Answer {
        let super::Dns { nameservers, domain, search, options } = result.dns.clone();
        let interface = |link: &super::Interface| {
            let super::Interface { name, mac, mtu, sandbox, socket_path, pci_id } = link.clone();
            Interface { mac, mtu, name, pci_id, sandbox, socket_path }
        };
        let route = |route: &super::Route| {
            let super::Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
            Route { advmss, dst, gw, mtu, priority, scope, table }
        };
        Answer {
            cni_version: version.as_str(),
            dns: Dns { domain, nameservers, options, search },
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: result.ips.clone(),
            routes: result.routes.iter().map(route).collect(),
        }
    }
}

impl From<Answer> for AddResult {
    fn from(answer: Answer) -> AddResult {
        let Dns { domain, nameservers, options, search } = answer.dns;
        let interface = |link: Interface| {
            let Interface { mac, mtu, name, pci_id, sandbox, socket_path } = link;
            super::Interface { name, mac, mtu, sandbox, socket_path, pci_id }
        };
        let route = |route: Route| {
            let Route { advmss, dst, gw, mtu, priority, scope, table } = route;
            super::Route { dst, gw, mtu, advmss, priority, table, scope }
        };
        AddResult {
            interfaces: answer.interfaces.into_iter().map(interface).collect(),
            ips: answer.ips,
            routes: answer.routes.into_iter().map(route).collect(),
            dns: super::Dns { nameservers, domain, search, options },
        }
    }
}
