//! Links: making, changing and deleting them.

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, Rtm};

use super::super::Change;
use super::super::wire::{self, Attrs, CREATE, attr, message, nest};
use super::{LinkIndex, LinkRef, Port, body, header, name_of};
use crate::error::Result;
use crate::ip::MacAddr;
use crate::netns::Netns;

/// A bridge to be made. Its hardware address is set for good: it will not follow that of its ports.
#[derive(Clone, Debug)]
pub struct BridgeSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Its MTU, if not the kernel's choice.
    pub mtu: Option<u32>,
    /// Should it filter VLANs? If not, nothing is said about it: the kernel may not know them.
    pub vlan_filtering: bool,
}

/// One end of a veth pair to be made.
#[derive(Clone, Debug)]
pub struct VethEnd<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address, if not the kernel's choice.
    pub mac: Option<MacAddr>,
}

/// A veth pair to be made, in its final place.
#[derive(Debug)]
pub struct VethSpec<'a> {
    /// The end in the namespace of the socket. It is born up.
    pub host: VethEnd<'a>,
    /// The other end. It is born down: the kernel refuses anything else.
    pub guest: VethEnd<'a>,
    /// Where the other end is born.
    pub netns: &'a Netns,
    /// The bridge that the host's end is a port of.
    pub bridge: Option<LinkIndex>,
    /// MTU of both ends, if not the kernel's choice.
    pub mtu: Option<u32>,
}

/// What should change about a link; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkChange<'a> {
    /// Set it up or down.
    pub up: Option<bool>,
    /// Set or clear its promiscuous mode.
    pub promiscuous: Option<bool>,
    /// Give it this MTU.
    pub mtu: Option<u32>,
    /// Give it this hardware address.
    pub mac: Option<MacAddr>,
    /// Make it a port of this bridge.
    pub bridge: Option<LinkIndex>,
    /// Give it this alias.
    pub alias: Option<&'a str>,
    /// Announce IPv4 addresses when they or the link come up (`arp_notify`).
    pub arp_notify: Option<bool>,
}

impl Change {
    /// Makes a bridge. It is down: `accept_ra` must be off before it is up.
    pub fn create_bridge(spec: &BridgeSpec<'_>) -> Change {
        let encode = || {
            let mut attrs = vec![attr(Ifla::Address, spec.mac.0)?];
            if let Some(mtu) = spec.mtu {
                attrs.push(attr(Ifla::Mtu, mtu)?);
            }
            attrs.push(attr(Ifla::Ifname, spec.name)?);
            let mut info = vec![attr(IflaInfo::Kind, "bridge".as_bytes())?];
            if spec.vlan_filtering {
                info.push(nest(IflaInfo::Data, vec![attr(wire::IFLA_BR_VLAN_FILTERING, 1_u8)?])?);
            }
            attrs.push(nest(Ifla::Linkinfo, info)?);
            message(Rtm::Newlink, CREATE | NlmF::ECHO, body(header(None), attrs)?)
        };
        Change::new(format!("create bridge {:?}", spec.name), encode()).making(spec.name)
    }

    /// Makes a veth pair with both ends in their final places, in one message.
    pub fn create_veth(spec: &VethSpec<'_>) -> Change {
        let VethSpec { host, guest, netns, bridge, mtu } = spec;
        let encode = || {
            let mut peer = traits(guest.mac, *mtu)?;
            peer.extend(one_queue()?);
            peer.push(attr(Ifla::NetNsFd, netns.fd())?);
            peer.push(attr(Ifla::Ifname, guest.name)?);
            let mut attrs = traits(host.mac, *mtu)?;
            attrs.extend(one_queue()?);
            if let Some(bridge) = bridge {
                attrs.push(attr(Ifla::Master, bridge.unsigned())?);
            }
            attrs.push(attr(Ifla::Ifname, host.name)?);
            let peer = attr(wire::VETH_INFO_PEER, body(header(None), peer)?)?;
            let info = vec![attr(IflaInfo::Kind, "veth".as_bytes())?, nest(IflaInfo::Data, vec![peer])?];
            attrs.push(nest(Ifla::Linkinfo, info)?);
            message(Rtm::Newlink, CREATE | NlmF::ECHO, body(header(None).up(), attrs)?)
        };
        let what = format!("create veth {:?} with {:?} in {:?}", host.name, guest.name, netns.path());
        Change::new(what, encode()).making(host.name)
    }

    /// Changes a link.
    pub fn set_link<'a>(link: impl Into<LinkRef<'a>>, change: &LinkChange<'_>) -> Change {
        let link = link.into();
        let encode = || {
            let mut attrs = name_of(link)?;
            attrs.extend(traits(change.mac, change.mtu)?);
            if let Some(bridge) = change.bridge {
                attrs.push(attr(Ifla::Master, bridge.unsigned())?);
            }
            if let Some(alias) = change.alias {
                attrs.push(attr(Ifla::Ifalias, alias.as_bytes())?);
            }
            if let Some(notify) = change.arp_notify {
                let conf = vec![attr(wire::IPV4_DEVCONF_ARP_NOTIFY, u32::from(notify))?];
                let inet = vec![nest(wire::IFLA_INET_CONF, conf)?];
                let spec = vec![nest(u16::try_from(libc::AF_INET).unwrap_or_default(), inet)?];
                attrs.push(nest(Ifla::AfSpec, spec)?);
            }
            let (mut flags, mut mask) = (Iff::empty(), Iff::empty());
            for (wish, flag) in [(change.up, Iff::UP), (change.promiscuous, Iff::PROMISC)] {
                if let Some(on) = wish {
                    flags.set(flag, on);
                    mask.insert(flag);
                }
            }
            let header = header(Some(link)).ifi_flags(flags).ifi_change(mask);
            message(Rtm::Newlink, NlmF::empty(), body(header, attrs)?)
        };
        Change::new(format!("set link {link}{change}"), encode())
    }

    /// Sets all of a link's settings as a port of a bridge.
    pub fn set_port<'a>(link: impl Into<LinkRef<'a>>, port: Port) -> Change {
        let link = link.into();
        let encode = || {
            // iproute2 names the kind of the link here, "bridge_slave", for which recent kernels go looking for a module.
            let data = vec![
                attr(wire::IFLA_BRPORT_MODE, u8::from(port.hairpin))?,
                attr(wire::IFLA_BRPORT_ISOLATED, u8::from(port.isolated))?,
            ];
            let info = vec![attr(IflaInfo::SlaveKind, "bridge".as_bytes())?, nest(IflaInfo::SlaveData, data)?];
            let mut attrs = name_of(link)?;
            attrs.push(nest(Ifla::Linkinfo, info)?);
            message(Rtm::Newlink, NlmF::empty(), body(header(Some(link)), attrs)?)
        };
        let Port { hairpin, isolated } = port;
        Change::new(format!("set port {link}: hairpin {hairpin}, isolated {isolated}"), encode())
    }

    /// Makes a bridge filter VLANs.
    pub fn filter_vlans(bridge: LinkIndex) -> Change {
        let encode = || {
            let info = vec![
                attr(IflaInfo::Kind, "bridge".as_bytes())?,
                nest(IflaInfo::Data, vec![attr(wire::IFLA_BR_VLAN_FILTERING, 1_u8)?])?,
            ];
            message(Rtm::Newlink, NlmF::empty(), body(header(Some(bridge.into())), vec![nest(Ifla::Linkinfo, info)?])?)
        };
        Change::new(format!("make bridge {bridge} filter VLANs"), encode())
    }

    /// Deletes a link, and the other end of a veth with it.
    pub fn delete_link<'a>(link: impl Into<LinkRef<'a>>) -> Change {
        let link = link.into();
        let encode = || message(Rtm::Dellink, NlmF::empty(), body(header(Some(link)), name_of(link)?)?);
        Change::new(format!("delete link {link}"), encode())
    }
}

impl fmt::Display for LinkChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(up) = self.up {
            f.write_str(if up { " up" } else { " down" })?;
        }
        if let Some(on) = self.promiscuous {
            write!(f, " promiscuous {on}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        if let Some(mac) = self.mac {
            write!(f, " address {mac}")?;
        }
        if let Some(bridge) = self.bridge {
            write!(f, " master {bridge}")?;
        }
        if let Some(alias) = self.alias {
            write!(f, " alias {alias:?}")?;
        }
        if let Some(on) = self.arp_notify {
            write!(f, " arp_notify {on}")?;
        }
        Ok(())
    }
}

/// Unlike upstream: a veth uses one queue of each kind. Asked for nothing it is given one for each processor, waits for
/// all of them to notice that the others are not used (a tenth of an ADD), and keeps their memory.
fn one_queue() -> Result<Attrs<Ifla>> {
    Ok(vec![attr(Ifla::NumTxQueues, 1_u32)?, attr(Ifla::NumRxQueues, 1_u32)?])
}

/// What every kind of link can be given.
fn traits(mac: Option<MacAddr>, mtu: Option<u32>) -> Result<Attrs<Ifla>> {
    let mut attrs = Vec::new();
    if let Some(mac) = mac {
        attrs.push(attr(Ifla::Address, mac.0)?);
    }
    if let Some(mtu) = mtu {
        attrs.push(attr(Ifla::Mtu, mtu)?);
    }
    Ok(attrs)
}
