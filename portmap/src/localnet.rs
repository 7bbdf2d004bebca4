//! Access to published ports from this host's loopback addresses, which the kernel otherwise never routes.

use std::net::IpAddr;

use cni::{AddResult, Code, Context, Error, Result};
use linux::netlink::{Address, Netlink};
use linux::sysctl::{self, Setting};

use crate::publication::Publication;

/// Enables `route_localnet` on the link that leads to a container.
///
/// The chain `guard` must exist: without it, the setting opens the loopback services of this host to the container.
pub(crate) fn enable(host: &mut Netlink, publication: &Publication<'_>, container: IpAddr) -> Result<()> {
    let Some(link) = own_link_to(host, publication, container)? else { return Ok(()) };
    let setting = sysctl::set(&key(&link), "1").context(|| "enable connections from loopback addresses")?;
    match setting {
        Setting::Kept | Setting::Changed | Setting::Missing => Ok(()),
        Setting::ReadOnly => Err(Error::new(Code::INTERNAL, format!("net.ipv4.conf.{link}.route_localnet is not 1"))
            .details("/proc/sys is read-only: mount it writable, or set the sysctl before")),
    }
}

/// CHECK: returns an error if `route_localnet` is disabled on the link that leads to a container.
pub(crate) fn check(host: &mut Netlink, publication: &Publication<'_>, container: IpAddr) -> Result<()> {
    let Some(link) = own_link_to(host, publication, container)? else { return Ok(()) };
    match sysctl::read(&key(&link))?.as_deref() {
        None | Some("1") => Ok(()),
        Some(value) => {
            let what =
                format!("net.ipv4.conf.{link}.route_localnet is {value}, so loopback addresses cannot reach ports");
            Err(Error::new(Code::INTERNAL, what).details(format!("run `sysctl net.ipv4.conf.{link}.route_localnet=1`")))
        }
    }
}

/// Returns the link that leads to a container if the kernel accepts packets with loopback addresses there; `None` for an
/// IPv6 address, for which there is no such setting.
pub(crate) fn is_enabled(host: &mut Netlink, container: IpAddr) -> Result<Option<String>> {
    let Some(link) = link_to(host, container)?.filter(|_| container.is_ipv4()) else { return Ok(None) };
    // The kernel combines both values.
    let is_set = |name: &str| Ok::<_, Error>(sysctl::read(&key(name))?.as_deref() == Some("1"));
    Ok((is_set("all")? || is_set(&link)?).then_some(link))
}

/// Returns the link by which this host reaches a container; `None` without a route, or if the route leads elsewhere: the setting
/// would open the loopback services of this host to the network outside. The previous result names the link, or the address
/// of the container's gateway, which the link has.
fn own_link_to(host: &mut Netlink, publication: &Publication<'_>, container: IpAddr) -> Result<Option<String>> {
    let Some(index) = host.route_to(container)? else { return Ok(None) };
    let Some(link) = host.link_name(index)? else { return Ok(None) };
    let AddResult { interfaces, ips, .. } = publication.result;
    let is_named = interfaces.iter().any(|named| named.sandbox.is_empty() && named.name == link);
    let is_gateway = |address: &Address| ips.iter().any(|ip| ip.gateway == Some(address.cidr.ip()));
    Ok((is_named || host.addresses(index)?.iter().any(is_gateway)).then_some(link))
}

/// Returns the link by which this host reaches an address; `None` without a route.
fn link_to(host: &mut Netlink, ip: IpAddr) -> Result<Option<String>> {
    Ok(match host.route_to(ip)? {
        Some(link) => host.link_name(link)?,
        None => None,
    })
}

fn key(link: &str) -> [&str; 5] {
    ["net", "ipv4", "conf", link, "route_localnet"]
}
