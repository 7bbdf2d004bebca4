//! Links: creating, changing and deleting them.

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, Rtm};

use super::super::Change;
use super::super::wire::{self, CREATE, Request};
use super::{Flags, LinkIndex, LinkRef, Port, about, by_name, ifinfomsg};
use crate::ip::MacAddr;
use crate::netns::Netns;

/// The index of the loopback interface in every network namespace (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;

/// A bridge to create. Its MAC address is fixed: it does not follow those of its ports.
#[derive(Clone, Debug)]
pub struct BridgeSpec<'a> {
    /// The name.
    pub name: &'a str,
    /// The MAC address.
    pub mac: MacAddr,
    /// The MTU; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// Whether it filters VLANs. If `false`, the attribute is omitted because the kernel may not support it.
    pub vlan_filtering: bool,
}

/// An ifb link to create: the kernel sends what is redirected to it back to where it came from, through its queueing
/// discipline.
#[derive(Clone, Copy, Debug)]
pub struct IfbSpec<'a> {
    /// The name.
    pub name: &'a str,
    /// The MTU.
    pub mtu: u32,
}

/// One end of a veth pair to create.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// The name.
    pub name: &'a str,
    /// The MAC address; `None` for the kernel's choice.
    pub mac: Option<MacAddr>,
}

/// A veth pair to create, with both ends in their final places. Both ends are created down: changes to a link that is
/// down cost less because no notifications are sent, and the kernel cannot create the peer up.
#[derive(Clone, Copy, Debug)]
pub struct VethSpec<'a> {
    /// The host veth, in the namespace of the socket.
    pub host: VethEnd<'a>,
    /// The container veth.
    pub guest: VethEnd<'a>,
    /// The namespace of the container veth.
    pub netns: &'a Netns,
    /// The bridge of which the host veth becomes a port.
    pub bridge: Option<LinkIndex>,
    /// The MTU of both ends; `None` for the kernel's default.
    pub mtu: Option<u32>,
}

/// Changes of a link; `None` keeps a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// Sets the link up or down.
    pub up: Option<bool>,
    /// Sets or clears promiscuous mode.
    pub promiscuous: Option<bool>,
    /// Sets whether the link receives all multicast packets.
    pub all_multicast: Option<bool>,
    /// Sets the MTU.
    pub mtu: Option<u32>,
    /// Sets the MAC address.
    pub mac: Option<MacAddr>,
    /// Sets the length of the transmit queue.
    pub tx_queue: Option<u32>,
    /// Makes the link a port of this bridge.
    pub bridge: Option<LinkIndex>,
    /// Sets the alias.
    pub alias: Option<&'a str>,
    /// Whether the kernel announces IPv4 addresses when they are added or the link comes up (`arp_notify`).
    pub arp_notify: Option<bool>,
}

impl<'a> Change<'a> {
    /// Creates a bridge. It is down because `accept_ra` must be disabled before it is set up.
    pub fn create_bridge(spec: &BridgeSpec<'a>) -> Change<'a> {
        let mut request = about(Rtm::Newlink, CREATE | NlmF::ECHO, None, Flags::default());
        common_attributes(&mut request, Some(spec.mac), spec.mtu);
        request.text(Ifla::Ifname, spec.name);
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            if spec.vlan_filtering {
                info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_FILTERING, &[1]));
            }
        });
        let name = spec.name;
        Change::new(request, move || format!("create bridge {name:?}")).creating(name)
    }

    /// Creates an ifb link. It is down, because changes to a link that is down cost less. Its queue length is 0: its queueing
    /// discipline decides how many packets wait.
    pub fn create_ifb(spec: IfbSpec<'a>) -> Change<'a> {
        let mut request = about(Rtm::Newlink, CREATE | NlmF::ECHO, None, Flags::default());
        common_attributes(&mut request, None, Some(spec.mtu));
        request.number(Ifla::Txqlen, 0);
        request.text(Ifla::Ifname, spec.name);
        request.nest(Ifla::Linkinfo, |info| info.attr(IflaInfo::Kind, b"ifb"));
        Change::new(request, move || format!("create ifb {:?}", spec.name)).creating(spec.name)
    }

    /// Creates a veth pair with both ends in their final places, in one message.
    pub fn create_veth(spec: &VethSpec<'a>) -> Change<'a> {
        let VethSpec { host, guest, netns, bridge, mtu } = *spec;
        let mut request = about(Rtm::Newlink, CREATE | NlmF::ECHO, None, Flags::default());
        common_attributes(&mut request, host.mac, mtu);
        one_queue(&mut request);
        if let Some(bridge) = bridge {
            request.number(Ifla::Master, bridge.number());
        }
        request.text(Ifla::Ifname, host.name);
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"veth");
            info.nest(IflaInfo::Data, |data| {
                data.nest(wire::VETH_INFO_PEER, |peer| {
                    ifinfomsg(peer, 0, None, Flags::default());
                    common_attributes(peer, guest.mac, mtu);
                    one_queue(peer);
                    peer.attr(Ifla::NetNsFd, &netns.fd().to_ne_bytes());
                    peer.text(Ifla::Ifname, guest.name);
                });
            });
        });
        let what = move || format!("create veth {:?} with {:?} in {:?}", host.name, guest.name, netns.path());
        Change::new(request, what).creating(host.name)
    }

    /// Changes a link.
    pub fn set_link(link: impl Into<LinkRef<'a>>, change: &LinkChange<'a>) -> Change<'a> {
        change.of(link.into())
    }

    /// Sets all settings of a link as a port of a bridge.
    pub fn set_port(link: impl Into<LinkRef<'a>>, port: Port) -> Change<'a> {
        let (link, Port { hairpin, isolated }) = (link.into(), port);
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(link), Flags::default());
        by_name(&mut request, link);
        request.nest(Ifla::Linkinfo, |info| {
            // iproute2 sends the kind of the link here, "bridge_slave", for which recent kernels try to load a module.
            info.attr(IflaInfo::SlaveKind, b"bridge");
            info.nest(IflaInfo::SlaveData, |data| {
                data.attr(wire::IFLA_BRPORT_MODE, &[hairpin.into()]);
                data.attr(wire::IFLA_BRPORT_ISOLATED, &[isolated.into()]);
            });
        });
        Change::new(request, move || format!("set port {link}: hairpin {hairpin}, isolated {isolated}"))
    }

    /// Enables VLAN filtering on a bridge.
    pub fn filter_vlans(bridge: LinkIndex) -> Change<'a> {
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(bridge.into()), Flags::default());
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_FILTERING, &[1]));
        });
        Change::new(request, move || format!("enable VLAN filtering on bridge {bridge}"))
    }

    /// Returns a change that every kernel rejects, and whose error shows whether bridges can filter VLANs.
    ///
    /// A kernel with VLAN filtering rejects the VLAN protocol (EPROTONOSUPPORT) before it looks up the link. Any other
    /// kernel finds the loopback interface at that index (EEXIST).
    pub(in super::super) fn try_vlan_filtering() -> Change<'a> {
        let mut request = Request::new(Rtm::Newlink, CREATE);
        ifinfomsg(&mut request, 0, LinkIndex::optional(LOOPBACK).map(LinkRef::Index), Flags::default());
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_PROTOCOL, &[0, 0]));
        });
        Change::new(request, || "test whether bridges can filter VLANs".to_owned())
    }

    /// Deletes a link. For a veth, the kernel deletes the other end as well.
    pub fn delete_link(link: impl Into<LinkRef<'a>>) -> Change<'a> {
        let link = link.into();
        let mut request = about(Rtm::Dellink, NlmF::empty(), Some(link), Flags::default());
        by_name(&mut request, link);
        Change::new(request, move || format!("delete link {link}"))
    }
}

impl<'a> LinkChange<'a> {
    /// Returns the request for a link. Not generic, because it is large.
    fn of(&self, link: LinkRef<'a>) -> Change<'a> {
        let change = *self;
        let mut state = Flags::default();
        let flags = [(change.up, Iff::UP), (change.promiscuous, Iff::PROMISC), (change.all_multicast, Iff::ALLMULTI)];
        for (value, flag) in flags {
            if let Some(on) = value {
                state.on.set(flag, on);
                state.mask.insert(flag);
            }
        }
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(link), state);
        by_name(&mut request, link);
        common_attributes(&mut request, change.mac, change.mtu);
        if let Some(length) = change.tx_queue {
            request.number(Ifla::Txqlen, length);
        }
        if let Some(bridge) = change.bridge {
            request.number(Ifla::Master, bridge.number());
        }
        if let Some(alias) = change.alias {
            request.attr(Ifla::Ifalias, alias.as_bytes());
        }
        if let Some(notify) = change.arp_notify {
            request.nest(Ifla::AfSpec, |spec| {
                spec.nest(u16::try_from(libc::AF_INET).unwrap_or_default(), |inet| {
                    inet.nest(wire::IFLA_INET_CONF, |conf| {
                        conf.number(wire::IPV4_DEVCONF_ARP_NOTIFY, u32::from(notify));
                    });
                });
            });
        }
        Change::new(request, move || format!("set link {link}{change}"))
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
        if let Some(on) = self.all_multicast {
            write!(f, " allmulticast {on}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        if let Some(mac) = self.mac {
            write!(f, " address {mac}")?;
        }
        if let Some(length) = self.tx_queue {
            write!(f, " txqueuelen {length}")?;
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

/// Unlike the reference: a veth has one queue of each kind. By default the kernel allocates one for each processor, waits
/// until all processors have noticed that the others are unused (a tenth of an ADD), and keeps their memory.
fn one_queue(request: &mut Request) {
    request.number(Ifla::NumTxQueues, 1);
    request.number(Ifla::NumRxQueues, 1);
}

/// Adds attributes that every kind of link supports.
fn common_attributes(request: &mut Request, mac: Option<MacAddr>, mtu: Option<u32>) {
    if let Some(mac) = mac {
        request.attr(Ifla::Address, &mac.0);
    }
    if let Some(mtu) = mtu {
        request.number(Ifla::Mtu, mtu);
    }
}
