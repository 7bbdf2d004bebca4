//! VLANs of a port, and the gateway of a VLAN.

use cni::{Code, Context, Error, Home, Result};
use interface::name;
use linux::netlink::{Change, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, VethPeer, Vlan, VlanRange};
use linux::sysctl::ignore_router_advertisements;

use crate::attach::TIMEOUT;

/// The highest valid VLAN ID.
pub(crate) const MAX_ID: u16 = 4094;
/// The error detail for a kernel that cannot filter VLANs.
pub(crate) const NEEDS_FILTERING: &str =
    "keys \"vlan\" and \"vlanTrunk\" need a kernel with VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)";
/// The VLAN of untagged frames unless another one is configured.
const DEFAULT: u16 = 1;

/// The VLANs that a port should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vlans {
    /// The VLAN of the container's untagged frames.
    pub(crate) own: Option<u16>,
    /// The VLANs of tagged frames, in ascending order.
    pub(crate) trunk: Vec<VlanRange>,
    /// Whether to keep the VLANs that the kernel adds to every port.
    pub(crate) keep_default: bool,
}

impl Vlans {
    /// Returns the VLANs to add to the port.
    pub(crate) fn wanted(&self) -> Vec<Vlan> {
        let untagged = match self.own {
            None if self.trunk.is_empty() => None,
            own => Some(own.unwrap_or(DEFAULT)),
        };
        // Unlike the reference, which drops the container's untagged frames if their VLAN is also in the trunk.
        let trunk = self.trunk.iter().flat_map(|range| without(*range, untagged));
        let tagged = trunk.map(|range| Vlan { range, pvid: false, untagged: false });
        let own = untagged.map(|id| Vlan { range: VlanRange { first: id, last: id }, pvid: true, untagged: true });
        own.into_iter().chain(tagged).collect()
    }

    /// Adds the VLANs to a new port, and removes those of the kernel unless `keep_default` is set.
    pub(crate) fn apply(&self, host: &mut Netlink, port: LinkIndex) -> Result<()> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let defaults = if self.keep_default { Vec::new() } else { host.vlans(port)? };
        let mut changes = Vec::with_capacity(2);
        if !defaults.is_empty() {
            changes.push(Change::delete_vlans(port, &defaults));
        }
        changes.push(Change::add_vlans(port, &wanted));
        host.apply(&changes)?;
        Ok(())
    }

    /// CHECK: returns an error if a port lacks one of the VLANs.
    pub(crate) fn check(&self, host: &mut Netlink, port: LinkIndex, name: &str) -> Result<()> {
        let got = host.vlans(port)?;
        let covers = |vlan: &Vlan, id: u16| {
            got.iter().any(|have| {
                (have.range.first..=have.range.last).contains(&id)
                    && (have.pvid, have.untagged) == (vlan.pvid, vlan.untagged)
            })
        };
        for vlan in self.wanted() {
            let missing = (vlan.range.first..=vlan.range.last).find(|id| !covers(&vlan, *id));
            if let Some(id) = missing {
                let kind = if vlan.pvid { "untagged" } else { "tagged" };
                let have: Vec<_> = got.iter().map(|vlan| vlan.range.to_string()).collect();
                let what = format!("port {name:?} should have VLAN {id} {kind}, but has VLANs [{}]", have.join(" "));
                return Err(Error::new(Code::INTERNAL, what));
            }
        }
        Ok(())
    }
}

/// STATUS: returns an error if the kernel cannot filter VLANs. `bridge` is the bridge called `name`, if it exists.
pub(crate) fn refuse_unsupported(host: &mut Netlink, name: &str, bridge: Option<&Link>) -> Result<()> {
    let filters = bridge.is_some_and(|bridge| bridge.vlan_filtering == Some(true));
    if filters || host.can_filter_vlans()? {
        return Ok(());
    }
    Err(Error::new(Code::UNSUPPORTED, format!("bridge {name:?} cannot filter VLANs")).details(NEEDS_FILTERING))
}

/// Returns `range` without `id`, as up to two ranges.
fn without(range: VlanRange, id: Option<u16>) -> Vec<VlanRange> {
    match id {
        Some(id) if (range.first..=range.last).contains(&id) => {
            let before = (range.first < id).then(|| VlanRange { first: range.first, last: id - 1 });
            let after = (id < range.last).then(|| VlanRange { first: id + 1, last: range.last });
            before.into_iter().chain(after).collect()
        }
        _ => vec![range],
    }
}

/// Returns the interface for the gateway address of a VLAN, and creates it if it does not exist. It is one end of a
/// veth pair; the other end is a port of the bridge in that VLAN. Like the bridge, the plugins never delete it.
pub(crate) fn ensure_gateway(host: &mut Home, bridge: &Link, name: &str, vlans: &Vlans) -> Result<Link> {
    let (link, created) = match host.netlink.link(name)? {
        Some(link) => (Some(link), false),
        None => {
            let created = create_gateway(host, bridge, name);
            let created = created.context(|| format!("create the VLAN's gateway {name:?}"))?;
            (host.netlink.link(name)?, created)
        }
    };
    let host = &mut host.netlink;
    let gone = || Error::new(Code::TRY_LATER, format!("the VLAN's gateway {name:?} has just been deleted"));
    let link = link.ok_or_else(gone)?;
    ignore_router_advertisements(name);
    // With a carrier, it is complete. Otherwise the ADD that created it may have been killed before it was complete.
    if !link.running {
        complete_gateway(host, &link, vlans).inspect_err(|_| {
            if created {
                let _ = host.apply(&[Change::delete_link(link.index)]);
            }
        })?;
    }
    Ok(link)
}

/// Creates the veth pair of a VLAN's gateway. Returns `false` if another ADD has created it meanwhile.
fn create_gateway(host: &mut Home, bridge: &Link, name: &str) -> Result<bool> {
    let (port_name, port_mac, mac) = name::random_pair()?;
    let new = NewLink {
        name: Some(&port_name),
        mac: Some(port_mac),
        bridge: Some(bridge.index),
        mtu: Some(bridge.mtu),
        ..NewLink::of(LinkKind::Veth(VethPeer { name, mac: Some(mac), netns: &host.netns, index: None }))
    };
    match host.netlink.apply(&[Change::create_link(&new)]) {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

/// Returns the peer of a VLAN's gateway, which is a port of the bridge, if it is on this host.
pub(crate) fn gateway_port(host: &mut Netlink, gateway: &Link) -> Result<Option<Link>> {
    let port = gateway.lower.filter(|_| gateway.lower_netns.is_none());
    Ok(port.map(|port| host.link(port)).transpose()?.flatten())
}

/// Sets both ends up, and waits until they are. The port gets its VLAN first: without it, it would connect the gateway
/// to another VLAN.
fn complete_gateway(host: &mut Netlink, gateway: &Link, vlans: &Vlans) -> Result<()> {
    let port = gateway_port(host, gateway)?;
    if let Some(port) = port.as_ref().filter(|port| !port.up) {
        match (Vlans { trunk: Vec::new(), ..vlans.clone() }).apply(host, port.index) {
            // Another ADD has just deleted the default VLANs.
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            outcome => outcome?,
        }
        ignore_router_advertisements(&port.name);
    }
    let ends = || port.iter().chain([gateway]);
    for link in ends().filter(|link| !link.up) {
        host.apply(&[Change::set_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })])?;
    }
    for Link { index, name, .. } in ends() {
        host.await_running(*index, name, TIMEOUT, || format!("{name:?} of the VLAN's gateway to come up"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(own: Option<u16>, trunk: &[(u16, u16)]) -> String {
        let trunk = trunk.iter().map(|&(first, last)| VlanRange { first, last }).collect();
        let vlans = Vlans { own, trunk, keep_default: false };
        let show = |vlan: &Vlan| format!("{}{}", vlan.range, if vlan.pvid { "*" } else { "" });
        vlans.wanted().iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_port_has_one_untagged_vlan_and_its_trunk() {
        assert_eq!(wanted(None, &[]), "");
        assert_eq!(wanted(Some(100), &[]), "100*");
        assert_eq!(wanted(None, &[(10, 12), (20, 20)]), "1* 10-12 20");
        assert_eq!(wanted(Some(100), &[(10, 12)]), "100* 10-12");
    }

    #[test]
    fn the_untagged_vlan_is_never_part_of_the_trunk() {
        assert_eq!(wanted(Some(11), &[(10, 12)]), "11* 10 12");
        assert_eq!(wanted(Some(10), &[(10, 12)]), "10* 11-12");
        assert_eq!(wanted(Some(10), &[(10, 10)]), "10*");
        assert_eq!(wanted(None, &[(1, 3)]), "1* 2-3");
    }
}
