//! The ports of a bridge, and the networks that they belong to.

use cni::Result;
use cni::key::AliasOwner;
use linux::log::debug;
use linux::netlink::{Link, Netlink};

/// Returns whether all `ports` of a bridge belong to `network`, apart from those of VLAN gateways.
pub(crate) fn all_belong_to(host: &mut Netlink, bridge: &Link, ports: &[Link], network: &str) -> Result<bool> {
    for port in ports {
        let owner = AliasOwner::parse(&port.alias).map(|owner| owner.network);
        if owner.as_deref() == Some(network) || is_gateway_port(host, bridge, port)? {
            continue;
        }
        debug!("keep the settings of {:?}: port {:?} belongs to {owner:?}", bridge.name, port.name);
        return Ok(false);
    }
    Ok(true)
}

/// Returns whether a port leads to the gateway of a VLAN, such as `br0.100`.
pub fn is_gateway_port(host: &mut Netlink, bridge: &Link, port: &Link) -> Result<bool> {
    let peer = port.lower.filter(|_| port.lower_netns.is_none());
    let peer = peer.map(|peer| host.link(peer)).transpose()?.flatten();
    Ok(peer.is_some_and(|peer| peer.name.strip_prefix(&bridge.name).is_some_and(|rest| rest.starts_with('.'))))
}
