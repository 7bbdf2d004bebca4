//! Results of 0.3.0, 0.3.1 and 0.4.0: lists, with the family of each address.

use std::net::IpAddr;

use linux::ip::Cidr;
use serde::Serialize;

use super::{AddResult, Dns, Route};
use crate::version::Version;

/// A result. Fields are in the order in which they are printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Serialize)]
struct Interface {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    sandbox: String,
}

#[derive(Serialize)]
struct Ip {
    /// "4" or "6".
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<u32>,
    address: Cidr,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl Answer {
    pub(super) fn new(result: &AddResult, version: Version) -> Answer {
        let interface = |link: &super::Interface| Interface {
            name: link.name.clone(),
            mac: link.mac.clone(),
            sandbox: link.sandbox.clone(),
        };
        let ip = |ip: &super::IpConfig| Ip {
            version: if ip.address.ip().is_ipv4() { "4" } else { "6" },
            interface: ip.interface,
            address: ip.address,
            gateway: ip.gateway,
        };
        Answer {
            cni_version: version.as_str(),
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: result.ips.iter().map(ip).collect(),
            routes: result.routes.clone(),
            dns: result.dns.clone(),
        }
    }
}

impl From<Answer> for AddResult {
    fn from(answer: Answer) -> AddResult {
        let interface = |link: Interface| super::Interface {
            name: link.name,
            mac: link.mac,
            sandbox: link.sandbox,
            ..super::Interface::default()
        };
        let ip = |ip: Ip| super::IpConfig { address: ip.address, gateway: ip.gateway, interface: ip.interface };
        AddResult {
            interfaces: answer.interfaces.into_iter().map(interface).collect(),
            ips: answer.ips.into_iter().map(ip).collect(),
            routes: answer.routes,
            dns: answer.dns,
        }
    }
}
