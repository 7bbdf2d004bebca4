//! CHECK: compares the state of the kernel with the result of ADD and with the current configuration.

use std::net::IpAddr;

use cni::{Attachment, AttachmentKey, Call, Code, Error, IpConfig, Result};
use interface::check::{Checker, same};
use linux::ip::{Cidr, MacAddr};
use linux::netlink::Link;

use crate::config::Config;
use crate::hops;

/// Compares everything. Returns an error for the first difference.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    let mut checker = Checker::open(call, at)?;
    let container = checker.interface("veth", true)?;
    let port = checker.host_veth(&container)?;
    same(&port.name, "up", true, port.up)?;
    if config.ipam.is_none() {
        return Ok(());
    }
    let ips = checker.addresses(&container)?;
    checker.routes(&container)?;
    check_host(&mut checker, &port, &ips)?;
    check_hops(&mut checker, &container, &port, &ips)?;
    match &config.masquerade {
        Some(masquerade) => {
            let masqueraded = hops::masqueraded(&ips, &checker.prev_result.routes);
            masquerade.check(AttachmentKey::new(call, at), &masqueraded)
        }
        None => Ok(()),
    }
}

/// Returns the masqueraded addresses of an attachment whose container veth is as ADD configured it. Does not check the
/// host.
pub(crate) fn masqueraded(call: &Call<'_>, at: &Attachment) -> Result<Vec<Cidr>> {
    let mut checker = Checker::open(call, at)?;
    let container = checker.interface("veth", true)?;
    let ips = checker.addresses(&container)?;
    Ok(hops::masqueraded(&ips, &checker.prev_result.routes))
}

/// Checks that the host veth has the gateway addresses, and the routes to the container.
fn check_host(checker: &mut Checker<'_>, port: &Link, ips: &[IpConfig]) -> Result<()> {
    let have: Vec<IpAddr> = checker.host.addresses(port.index)?.iter().map(|have| have.cidr.ip()).collect();
    if let Some(gateway) = hops::gateways(ips).find(|gateway| !have.contains(gateway)) {
        let what = format!("host veth {:?} should have the gateway's address {gateway}", port.name);
        return Err(Error::new(Code::INTERNAL, what));
    }
    let routes = checker.host.routes(port.index)?;
    match ips.iter().find(|ip| !routes.iter().any(|have| have.leads_to(Cidr::host(ip.address.ip())))) {
        Some(ip) => {
            let what = format!("the host should have a route to {} by {:?}", ip.address.ip(), port.name);
            Err(Error::new(Code::INTERNAL, what))
        }
        None => Ok(()),
    }
}

/// Checks that the container reaches its next hops.
fn check_hops(checker: &mut Checker<'_>, container: &Link, port: &Link, ips: &[IpConfig]) -> Result<()> {
    let guest = &mut checker.guest.netlink;
    let have = guest.neighbours(container.index)?;
    let mac = port.mac.unwrap_or(MacAddr::ZERO);
    if let Some(hop) = hops::neighbours(ips)
        .find(|hop| !have.iter().any(|have| have.ip == *hop && have.permanent && have.mac == Some(mac)))
    {
        let what = format!("{:?} should have the permanent neighbour {hop} with the address {mac}", container.name);
        return Err(Error::new(Code::INTERNAL, what));
    }
    let routes = guest.routes(container.index)?;
    match hops::gateways(ips).find(|gateway| !routes.iter().any(|have| have.leads_to(Cidr::host(*gateway)))) {
        Some(gateway) => {
            let what = format!("{:?} should have a route to the gateway {gateway}", container.name);
            Err(Error::new(Code::INTERNAL, what))
        }
        None => Ok(()),
    }
}
