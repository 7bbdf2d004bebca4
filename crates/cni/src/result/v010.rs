//! Results of 0.1.0 and 0.2.0: one address per family, with its gateway and routes.

use std::net::IpAddr;

use linux::ip::Cidr;
use serde::Serialize;

use super::{AddResult, Dns, IpConfig};
use crate::error::{Code, Error, Result};
use crate::version::Version;

/// A result. Fields are in the order in which they are printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Ip>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Ip>,
    dns: Dns,
}

#[derive(Serialize)]
struct Ip {
    ip: Cidr,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

#[derive(Serialize)]
struct Route {
    dst: Cidr,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
}

impl Answer {
    /// Fails without an address: these versions cannot express such a result.
    pub(super) fn new(result: &AddResult, version: Version) -> Result<Answer> {
        let family = |v4: bool| {
            let first = result.ips.iter().find(|ip| ip.address.ip().is_ipv4() == v4)?;
            let routes = result.routes.iter().filter(|route| route.dst.ip().is_ipv4() == v4);
            let routes = routes.map(|route| Route { dst: route.dst, gw: route.gw }).collect();
            Some(Ip { ip: first.address, gateway: first.gateway, routes })
        };
        let (ip4, ip6) = (family(true), family(false));
        if ip4.is_none() && ip6.is_none() {
            let what = format!("cniVersion {version} cannot express a result without an address");
            let error = Error::new(Code::VERSION, what);
            return Err(error.details("use cniVersion 0.3.0 or newer, or configure an IPAM plugin"));
        }
        Ok(Answer { cni_version: version.as_str(), ip4, ip6, dns: result.dns.clone() })
    }
}

impl From<Answer> for AddResult {
    fn from(answer: Answer) -> AddResult {
        let mut result = AddResult { dns: answer.dns, ..AddResult::default() };
        for ip in [answer.ip4, answer.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { address: ip.ip, gateway: ip.gateway, interface: None });
            result.routes.extend(ip.routes.into_iter().map(|route| super::Route::new(route.dst, route.gw)));
        }
        result
    }
}
