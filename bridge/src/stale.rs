//! Gateway addresses that a network no longer needs, because its subnets changed.
//!
//! An address is removed only under these conditions: its mark shows that ADD added it for this network, it is in no
//! subnet of the configuration, the IPAM plugin has no lease in its subnet, and all ports of the bridge belong to the
//! network.

use cni::key::{self, AliasOwner};
use cni::{AddResult, Call, Delegate, Result};
use linux::ip::Cidr;
use linux::netlink::{Address, Change, Link, Netlink};
use log::{debug, warn};

use crate::config::{self, Config};

/// DEL: removes the gateway addresses of subnets that are no longer configured, if the container had one of them.
pub(crate) fn after_del(call: &Call<'_>, ipam: &Delegate<'_>, previous: &AddResult) {
    let mut gateways = previous.ips.iter().filter_map(|ip| ip.gateway);
    let subnets = config::subnets(call);
    if gateways.any(|gateway| !subnets.iter().any(|subnet| subnet.contains(gateway))) {
        remove(call, ipam, &subnets);
    }
}

/// GC: removes the gateway addresses of subnets that are no longer configured.
pub(crate) fn after_gc(call: &Call<'_>, ipam: &Delegate<'_>) {
    remove(call, ipam, &config::subnets(call));
}

/// Removes outdated addresses. Only logs errors: the container is already detached, and an extra address does little
/// harm.
fn remove(call: &Call<'_>, ipam: &Delegate<'_>, subnets: &[Cidr]) {
    // Without subnets, the plugin cannot know which addresses the network needs.
    if subnets.is_empty() {
        return;
    }
    if let Err(error) = try_remove(call, ipam, subnets) {
        warn!("remove outdated gateway addresses: {error:?}");
    }
}

/// Removes the marked addresses of the bridge, or of the VLAN's interface, that are in none of `subnets`.
fn try_remove(call: &Call<'_>, ipam: &Delegate<'_>, subnets: &[Cidr]) -> Result<()> {
    let config = Config::parse(call)?;
    let mut host = Netlink::open()?;
    let Some(bridge) = host.link(config.bridge.as_str())?.filter(|link| link.kind == "bridge") else { return Ok(()) };
    let gateway = match config.vlan_gateway() {
        Some(name) => host.link(name.as_str())?,
        None => Some(bridge.clone()),
    };
    let Some(gateway) = gateway else { return Ok(()) };
    let mark = key::address_mark(call.network.as_str());
    let all = host.addresses(gateway.index)?;
    let is_outdated =
        |address: &&Address| address.mark == Some(mark) && !subnets.iter().any(|subnet| subnet.overlaps(&address.cidr));
    // With the first IPv4 address of a subnet the kernel removes all others, which may be the administrator's.
    let has_company = |address: &&Address| {
        all.iter().any(|other| other.mark != Some(mark) && other.cidr.network() == address.cidr.network())
    };
    let outdated: Vec<_> = all.iter().filter(is_outdated).filter(|address| !has_company(address)).collect();
    if outdated.is_empty() || !owns_all_ports(&mut host, &bridge, call.network.as_str())? {
        return Ok(());
    }
    for address in outdated {
        match ipam.uses_subnet(address.cidr.network())? {
            Some(false) => host.apply(&[Change::delete_address(gateway.index, address.cidr)])?,
            used => debug!("keep {} on {:?}: leases in its subnet: {used:?}", address.cidr, gateway.name),
        }
    }
    Ok(())
}

/// Returns whether all ports of a bridge belong to `network`, apart from those of VLAN gateways.
fn owns_all_ports(host: &mut Netlink, bridge: &Link, network: &str) -> Result<bool> {
    for port in host.links(Some(bridge.index))? {
        let owner = AliasOwner::parse(&port.alias).map(|owner| owner.network);
        if owner.as_deref() == Some(network) || is_gateway_port(host, bridge, &port)? {
            continue;
        }
        debug!("keep the addresses of {:?}: port {:?} belongs to {owner:?}", bridge.name, port.name);
        return Ok(false);
    }
    Ok(true)
}

/// Returns whether a port leads to the gateway of a VLAN, such as `br0.100`.
fn is_gateway_port(host: &mut Netlink, bridge: &Link, port: &Link) -> Result<bool> {
    let peer = port.peer.filter(|_| port.peer_netns.is_none());
    let peer = peer.map(|peer| host.link(peer)).transpose()?.flatten();
    Ok(peer.is_some_and(|peer| peer.name.strip_prefix(&bridge.name).is_some_and(|rest| rest.starts_with('.'))))
}
