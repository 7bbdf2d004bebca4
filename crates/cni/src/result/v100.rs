//! Results of 1.0.0 and 1.1.0: keys in alphabetical order at every level; `dns` is omitted if empty.

use std::net::IpAddr;

use linux::ip::Cidr;
use serde::Serialize;

use super::{AddResult, IpConfig, is_zero};
use crate::version::Version;

/// A result. Fields are in the order in which they are printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: Dns<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ips: &'a [IpConfig],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

#[derive(Default, PartialEq, Serialize)]
struct Dns<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    domain: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    nameservers: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    options: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    search: &'a [String],
}

impl Dns<'_> {
    fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    name: &'a str,
    #[serde(rename = "pciID", skip_serializing_if = "str::is_empty")]
    pci_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    socket_path: &'a str,
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

impl<'a> Answer<'a> {
    pub(super) fn new(result: &'a AddResult, version: Version) -> Answer<'a> {
        let super::Dns { nameservers, domain, search, options } = &result.dns;
        let interface = |link: &'a super::Interface| {
            let super::Interface { name, mac, mtu, sandbox, socket_path, pci_id } = link;
            Interface { mac, mtu: *mtu, name, pci_id, sandbox, socket_path }
        };
        let route = |route: &super::Route| {
            let super::Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
            Route { advmss, dst, gw, mtu, priority, scope, table }
        };
        Answer {
            cni_version: version.as_str(),
            dns: Dns { domain, nameservers, options, search },
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: &result.ips,
            routes: result.routes.iter().map(route).collect(),
        }
    }
}
