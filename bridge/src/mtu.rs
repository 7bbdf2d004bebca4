//! The MTU of the bridge. The container of one network must not change it for the host, or for containers of others.

use cni::Result;
use interface::config::mtu_too_small;
use linux::ip::IPV6_MIN_MTU;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, Netlink};

use crate::attach::not_a_bridge;
use crate::config::Config;
use crate::ports;

/// The greatest MTU of a bridge.
const MAX: u32 = 65535;

/// Returns the MTU that the bridge should get; `None` if it should keep its own. Runs before the port is created.
///
/// Unlike the reference, which never changes it, the bridge gets the MTU of the network if all of its ports belong to
/// the network. With a larger one, the port would drop the largest packets of the gateway. Other ports need the present
/// one: so that the kernel does not lower it to that of the new port, it is [pinned](pin).
pub(crate) fn prepare(host: &mut Netlink, config: &Config, network: &str, bridge: LinkIndex) -> Result<Option<u32>> {
    let Some(mtu) = config.mtu.filter(|mtu| host.mtu_of(config.bridge.as_str()).is_some_and(|own| own != *mtu)) else {
        return Ok(None);
    };
    // It has been deleted meanwhile. Adding a port will detect that.
    let Some(bridge) = host.link(bridge)? else { return Ok(None) };
    if bridge.kind != "bridge" {
        return Err(not_a_bridge(&bridge));
    }
    let its_ports = host.links(Some(bridge.index))?;
    if ports::all_belong_to(host, &bridge, &its_ports, network)? {
        refuse_to_remove_ipv6(host, mtu, &bridge)?;
        return Ok(Some(mtu));
    }
    // The kernel never lets a bridge that follows its ports exceed one.
    let is_pinned = its_ports.iter().any(|port| port.mtu < bridge.mtu);
    if mtu < bridge.mtu && !is_pinned {
        host.apply(&pin(bridge.index, bridge.mtu))?;
    }
    Ok(None)
}

/// Returns the changes that set the MTU of a bridge for good.
///
/// The kernel keeps the MTU of a bridge equal to the smallest of its ports, until a message has changed it. An MTU that
/// is given when the bridge is created, or that it already has, does not count. So the first change sets another one.
pub(crate) fn pin<'a>(bridge: LinkIndex, mtu: u32) -> [Change<'a>; 2] {
    // Not a smaller one: below 1280, IPv6 would be removed.
    let other = if mtu < MAX { mtu + 1 } else { mtu - 1 };
    [other, mtu].map(|mtu| Change::set_link(bridge, &LinkChange { mtu: Some(mtu), ..LinkChange::default() }))
}

/// Returns an error if the kernel would remove IPv6 addresses from the bridge because of a small MTU.
fn refuse_to_remove_ipv6(host: &mut Netlink, mtu: u32, bridge: &Link) -> Result<()> {
    if mtu >= IPV6_MIN_MTU {
        return Ok(());
    }
    match host.ipv6_addresses(bridge.index)?.iter().find(|address| address.global) {
        Some(address) => {
            Err(mtu_too_small(mtu, address.cidr, &format!("or remove the address from {:?}", bridge.name)))
        }
        None => Ok(()),
    }
}
