//! VLANs of a bridge port.

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, Rtm};

use super::link::{LinkIndex, about_port};
use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Error, Result};

// linux/if_bridge.h: flags of a VLAN
const PVID: u16 = 1 << 1;
const UNTAGGED: u16 = 1 << 2;
const RANGE_BEGIN: u16 = 1 << 3;
const RANGE_END: u16 = 1 << 4;

/// VLANs `first` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanRange {
    /// The first VLAN.
    pub first: u16,
    /// The last VLAN.
    pub last: u16,
}

/// VLANs of a port and their flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// The VLANs.
    pub range: VlanRange,
    /// Whether untagged incoming frames belong to this VLAN.
    pub pvid: bool,
    /// Whether frames leave without a tag.
    pub untagged: bool,
}

impl VlanRange {
    /// Returns the ranges that cover `ids`, which must be in ascending order.
    pub fn covering(ids: impl IntoIterator<Item = u16>) -> Vec<VlanRange> {
        let mut ranges: Vec<VlanRange> = Vec::new();
        for id in ids {
            match ranges.last_mut() {
                Some(range) if u32::from(id) <= u32::from(range.last) + 1 => range.last = id,
                _ => ranges.push(VlanRange { first: id, last: id }),
            }
        }
        ranges
    }
}

impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl<'a> Change<'a> {
    /// Adds VLANs to a port, all in one message.
    pub fn add_vlans(port: LinkIndex, vlans: &'a [Vlan]) -> Change<'a> {
        Change::new(encode(Rtm::Setlink, port, vlans), move || format!("add VLANs {} to port {port}", names(vlans)))
    }

    /// Removes VLANs from a port, all in one message.
    pub fn delete_vlans(port: LinkIndex, vlans: &'a [Vlan]) -> Change<'a> {
        let request = encode(Rtm::Dellink, port, vlans);
        Change::new(request, move || format!("delete VLANs {} from port {port}", names(vlans)))
    }
}

fn names(vlans: &[Vlan]) -> String {
    vlans.iter().map(|vlan| vlan.range.to_string()).collect::<Vec<_>>().join(",")
}

fn encode(kind: Rtm, port: LinkIndex, vlans: &[Vlan]) -> Request {
    let mut request = about_port(kind, port);
    request.nest(Ifla::AfSpec, |list| {
        // struct bridge_vlan_info
        let mut info = |flags: u16, id: u16| {
            list.nest(wire::IFLA_BRIDGE_VLAN_INFO, |info| {
                info.raw(&flags.to_ne_bytes());
                info.raw(&id.to_ne_bytes());
            });
        };
        for vlan in vlans {
            let flags = if vlan.pvid { PVID } else { 0 } | if vlan.untagged { UNTAGGED } else { 0 };
            if vlan.range.first == vlan.range.last {
                info(flags, vlan.range.first);
            } else {
                info(flags | RANGE_BEGIN, vlan.range.first);
                info(flags | RANGE_END, vlan.range.last);
            }
        }
    });
    request
}

impl Netlink {
    /// Returns whether bridges of this kernel can filter VLANs (CONFIG_BRIDGE_VLAN_FILTERING). Changes nothing, but
    /// needs permission to create a bridge.
    pub fn can_filter_vlans(&mut self) -> Result<bool> {
        match self.apply(&[Change::try_vlan_filtering()]) {
            Err(error) if error.errno() == Some(libc::EPROTONOSUPPORT) => Ok(true),
            Err(error) if error.errno() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Err(Error::bug("the kernel accepted a bridge with an invalid VLAN protocol")),
        }
    }

    /// Returns the VLANs of one port (Linux 5.6; the older request would list those of all ports of the host).
    pub fn vlans(&mut self, port: LinkIndex) -> Result<Vec<Vlan>> {
        let request = list_vlans(port);
        let lists = self.socket.list(&request, wire::RTM_NEWVLAN, |payload| read(payload, port).map(Some));
        Ok(lists.context(|| format!("list the VLANs of port {port}"))?.into_iter().flatten().collect())
    }
}

pub(super) fn list_vlans(port: LinkIndex) -> Vec<u8> {
    let mut request = Request::new(wire::RTM_GETVLAN, NlmF::empty());
    // struct br_vlan_msg: family, padding, link
    request.raw(&[u8::try_from(libc::AF_BRIDGE).unwrap_or_default(), 0, 0, 0]);
    request.raw(&port.number().to_ne_bytes());
    request.finish()
}

pub(super) fn read(payload: &[u8], port: LinkIndex) -> Result<Vec<Vlan>> {
    let mut vlans = Vec::new();
    if wire::number(payload, 4)? != port.number() {
        return Ok(vlans);
    }
    for entry in wire::attributes(payload, 8) {
        let (wire::BRIDGE_VLANDB_ENTRY, entry) = entry? else { continue };
        let (mut flags, mut first, mut last) = (0, 0, 0);
        for attribute in wire::attributes(entry, 0) {
            match attribute? {
                (wire::BRIDGE_VLANDB_ENTRY_INFO, value) => {
                    (flags, first) = (wire::number16(value, 0)?, wire::number16(value, 2)?);
                }
                (wire::BRIDGE_VLANDB_ENTRY_RANGE, value) => last = wire::number16(value, 0)?,
                _ => {}
            }
        }
        let range = VlanRange { first, last: last.max(first) };
        vlans.push(Vlan { range, pvid: flags & PVID != 0, untagged: flags & UNTAGGED != 0 });
    }
    Ok(vlans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_ranges() {
        let ranges =
            |ids: &[u16]| VlanRange::covering(ids.iter().copied()).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ranges(&[]), [""; 0]);
        assert_eq!(ranges(&[5]), ["5"]);
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8, 4094]), ["1-3", "5", "7-8", "4094"]);
        assert_eq!(ranges(&[1, 1, 2]), ["1-2"]);
    }
}
