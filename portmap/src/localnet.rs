//! Access to published ports from this host's loopback addresses, which the kernel otherwise never routes.
//!
//! The setting `route_localnet` of the link that leads to a container also lets the container send packets to services
//! on loopback addresses. A filter of traffic control, the guard, drops these packets where they arrive. It exists
//! before the setting is enabled, and it stays until the link is deleted: unlike the rules of nf_tables that do the
//! same for all links, no reload of a firewall removes it.
//!
//! The setting is disabled with the last port that needs it, if this plugin has enabled it: then the guard has another
//! handle.

use std::net::IpAddr;

use cni::{AddResult, Attachment, Code, Context, Error, Result};
use linux::log::{debug, warn};
use linux::netlink::nft::Nftables;
use linux::netlink::{Address, Change, LinkIndex, Netlink};
use linux::sysctl::{self, Setting};

use crate::host::Host;
use crate::mapping::container_addresses;
use crate::publication::difference;
use crate::table::{self, ATTACHMENTS};
use crate::{inventory, other_forms};

/// The handle of a guard on a link where another program had enabled `route_localnet`.
const GUARD: u32 = 0x636e_6930;
/// The handle of a guard on a link where this plugin enabled it.
const OWN: u32 = 0x636e_6931;

/// Returns the link by which this host reaches a container; `None` without a route, for IPv6, which has no such
/// setting, or if the route leads elsewhere: the setting would open the loopback services of this host to the network
/// outside. The previous result names the link, or the address of the container's gateway, which the link has.
pub(crate) fn link_to(host: &mut Netlink, result: &AddResult, container: IpAddr) -> Result<Option<LinkIndex>> {
    let Some(index) = host.route_to(container)?.filter(|_| container.is_ipv4()) else { return Ok(None) };
    let Some(link) = host.link_name(index)? else { return Ok(None) };
    let is_named = result.interfaces.iter().any(|named| named.sandbox.is_empty() && named.name == link);
    let is_gateway = |address: &Address| result.ips.iter().any(|ip| ip.gateway == Some(address.cidr.ip()));
    Ok((is_named || host.addresses(index)?.iter().any(is_gateway)).then_some(index))
}

/// Does the same for all addresses of a container.
pub(crate) fn links_to(host: &mut Netlink, result: &AddResult, at: &Attachment) -> Result<Vec<LinkIndex>> {
    let mut links = Vec::new();
    for address in container_addresses(result, at) {
        links.extend(link_to(host, result, address.ip())?);
    }
    Ok(links)
}

/// Enables `route_localnet` on a link that leads to a container, after its guard was added. Without a guard, the
/// setting stays as it is, and the log has a warning.
pub(crate) fn enable(host: &mut Netlink, link: LinkIndex) -> Result<()> {
    let Some(name) = host.link_name(link)? else { return Ok(()) };
    let what = || "enable connections from loopback addresses";
    let Some(value) = sysctl::read(&key(&name)).context(what)? else { return Ok(()) };
    let is_enabled = value == "1";
    if !is_enabled {
        match sysctl::check_writable(&key(&name)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
                return Err(read_only(&name));
            }
            outcome => outcome.context(what)?,
        }
    }
    match add_guard(host, link, if is_enabled { GUARD } else { OWN }).context(what)? {
        true if is_enabled => Ok(()),
        true => match sysctl::set(&key(&name), "1").context(what)? {
            Setting::ReadOnly => Err(read_only(&name)),
            Setting::Kept | Setting::Changed | Setting::Missing => Ok(()),
        },
        false if is_enabled => {
            warn!("{}", exposure(&name));
            Ok(())
        }
        false => {
            warn!(
                "ports are not reachable from loopback addresses: without a guard, it would expose loopback services"
            );
            Ok(())
        }
    }
}

fn read_only(link: &str) -> Error {
    Error::new(Code::INTERNAL, format!("net.ipv4.conf.{link}.route_localnet is not 1"))
        .details("/proc/sys is read-only: mount it writable, or set the sysctl before")
}

/// Adds the guard of a link unless it has one: with this handle, or any if it is [`GUARD`]. Returns `false` if the
/// kernel does not support such filters, or another program uses their place.
fn add_guard(host: &mut Netlink, link: LinkIndex, handle: u32) -> Result<bool> {
    let is_guarded = |handles: Vec<u32>| handles.contains(&handle) || (handle == GUARD && !handles.is_empty());
    if is_guarded(host.loopback_filters(link)?) {
        return Ok(true);
    }
    // Another program may have added `ingress`, which serves as well.
    for change in [Change::add_clsact(link), Change::drop_loopback(link, handle)] {
        match host.apply(&[change]) {
            Err(error)
                if matches!(error.errno(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::EEXIST)) =>
            {
                debug!("{error}");
            }
            outcome => outcome?,
        }
    }
    Ok(is_guarded(host.loopback_filters(link)?))
}

/// Disables `route_localnet` on a link if this plugin has enabled it, and no published port needs it any more.
///
/// An ADD publishes its ports before it enables the setting. So if one has appeared, the setting is enabled again.
pub(crate) fn release(host: &mut Host, nft: &mut Nftables, link: LinkIndex) -> Result<()> {
    if is_needed(host, nft, link)? {
        return Ok(());
    }
    let socket = host.socket()?;
    let Some(name) = socket.link_name(link)? else { return Ok(()) };
    if !socket.loopback_filters(link)?.contains(&OWN) {
        return Ok(());
    }
    if sysctl::set(&key(&name), "0")? == Setting::Changed && is_needed(host, nft, link)? {
        sysctl::set(&key(&name), "1")?;
    }
    Ok(())
}

/// Returns whether a port is published that loopback addresses reach through a link.
fn is_needed(host: &mut Host, nft: &mut Nftables, link: LinkIndex) -> Result<bool> {
    if table::others_attached(nft, &table::attached(Some(link)), 0)?.is_some_and(|attached| attached > 0) {
        return Ok(true);
    }
    // Earlier versions did not record the link.
    if nft.elements(table::set(ATTACHMENTS))?.iter().any(|element| !inventory::is_recorded(element)) {
        return Ok(true);
    }
    for other in other_forms::list(nft)? {
        if other.mapping.is_reachable_from_loopback()
            && host.socket()?.route_to(other.mapping.target.ip())? == Some(link)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The link that leads to a container, as far as connections from loopback addresses are concerned.
#[derive(Debug)]
pub(crate) struct ContainerLink {
    index: LinkIndex,
    pub(crate) name: String,
    /// The value of `route_localnet`.
    value: String,
    /// Whether it has a guard.
    is_guarded: bool,
    /// Whether rules drop the same packets on all links.
    has_rules: bool,
    /// Whether the rules that such a link should have are missing, although the kernel supports them.
    lacks_rules: bool,
}

impl ContainerLink {
    /// Reads the state of a link; `None` if it has been deleted.
    pub(crate) fn read(host: &mut Netlink, nft: &mut Nftables, index: LinkIndex) -> Result<Option<ContainerLink>> {
        let Some(name) = host.link_name(index)? else { return Ok(None) };
        let Some(value) = sysctl::read(&key(&name))? else { return Ok(None) };
        let is_guarded = !host.loopback_filters(index)?.is_empty();
        let (has_rules, marks_replies) = table::has_guard(nft)?;
        // Those of earlier versions needed no mark, because they had no guard.
        let is_complete = has_rules && (marks_replies || !is_guarded);
        let lacks_rules = !is_complete && nft.is_available()?;
        Ok(Some(ContainerLink { index, name, value, is_guarded, has_rules, lacks_rules }))
    }

    /// Returns whether containers can reach services on loopback addresses of this host through the link.
    pub(crate) fn is_exposed(&self) -> bool {
        self.value == "1" && !self.is_guarded && !self.has_rules
    }

    /// Adds the guard of the link. Returns `false` if the kernel does not support it.
    pub(crate) fn protect(&self, host: &mut Netlink) -> Result<bool> {
        add_guard(host, self.index, GUARD)
    }

    /// CHECK: returns an error if ports that `are_ours` are not reachable from loopback addresses, or if the link is
    /// exposed. The reference always exposes it.
    pub(crate) fn check(&self, are_ours: bool) -> Result<()> {
        let ContainerLink { name, value, is_guarded, lacks_rules, .. } = self;
        if are_ours && self.is_exposed() {
            return Err(difference(exposure(name)));
        }
        if are_ours && *lacks_rules {
            return Err(difference(
                "the guard of loopback services in table inet cni_hostport does not exist".to_owned(),
            ));
        }
        // On a kernel without such filters, ADD does not enable the setting.
        if value == "1" || (are_ours && !is_guarded) {
            return Ok(());
        }
        let what = format!("net.ipv4.conf.{name}.route_localnet is {value}, so loopback addresses cannot reach ports");
        Err(Error::new(Code::INTERNAL, what).details(format!("run `sysctl net.ipv4.conf.{name}.route_localnet=1`")))
    }
}

/// Returns what is wrong with links that have `route_localnet` and no guard.
pub(crate) fn exposure(link: &str) -> String {
    format!(
        "containers can reach services of this host that listen only on 127.0.0.1: route_localnet is 1 on {link}, without \
         a guard"
    )
}

fn key(link: &str) -> [&str; 5] {
    ["net", "ipv4", "conf", link, "route_localnet"]
}
