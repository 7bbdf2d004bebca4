//! Links: creating, changing and deleting them.

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, Rtm};

use super::super::Change;
use super::super::wire::{self, CREATE, Request};
use super::{Flags, FrameRules, LinkIndex, LinkRef, Port, TapDevice, Upper, about, by_name, ifinfomsg};
use crate::ip::MacAddr;
use crate::netns::Netns;

/// A link to create. It is created down: changes to a link that is down cost less because no notifications are sent,
/// and settings such as `accept_ra` must be written before it is set up.
#[derive(Clone, Copy, Debug)]
pub struct NewLink<'a> {
    /// The name; `None` for the kernel's choice. Older kernels, such as 6.12, refuse a name that a link in the
    /// namespace of the socket has, even if the new link is created in another one.
    pub name: Option<&'a str>,
    /// The MAC address; `None` for the kernel's choice. That of a bridge then follows its ports.
    pub mac: Option<MacAddr>,
    /// The MTU, for both ends of a veth pair; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// The namespace of the link; `None` for that of the socket.
    pub netns: Option<&'a Netns>,
    /// The bridge of which the link becomes a port.
    pub bridge: Option<LinkIndex>,
    /// The link, in the namespace of the socket, by which the new one sends and receives.
    pub lower: Option<LinkIndex>,
    /// The index; `None` for the kernel's choice.
    pub index: Option<LinkIndex>,
    /// The kind.
    pub kind: LinkKind<'a>,
}

/// The kind of a link to create, with the properties that only this kind has.
#[derive(Clone, Copy, Debug)]
pub enum LinkKind<'a> {
    /// A bridge.
    Bridge {
        /// Whether it filters VLANs. If `false`, the attribute is omitted because the kernel may not support it.
        vlan_filtering: bool,
    },
    /// A link that drops what it sends.
    Dummy,
    /// The kernel sends what is redirected to such a link back to where it came from, through its queueing discipline.
    /// Its queue length is 0: its queueing discipline decides how many packets wait.
    Ifb,
    /// A TAP device, which [`TapDevice::create`] creates: the kernel refuses a message.
    Tap {
        /// What distinguishes it.
        tap: TapDevice,
        /// The SELinux label of its socket; `None` for the default.
        label: Option<&'a str>,
    },
    /// A link on top of another one, which `lower` names.
    Upper(Upper),
    /// A pair of links, with both ends in their final places.
    Veth(VethPeer<'a>),
    /// A link that stands for a routing table, which the packets of its members use (virtual routing and forwarding).
    Vrf {
        /// The table.
        table: u32,
    },
}

/// The other end of a veth pair to create, which is down as well: the kernel cannot create it up.
#[derive(Clone, Copy, Debug)]
pub struct VethPeer<'a> {
    /// The name.
    pub name: &'a str,
    /// The MAC address; `None` for the kernel's choice.
    pub mac: Option<MacAddr>,
    /// The namespace.
    pub netns: &'a Netns,
    /// The index, if the new link has one as well; `None` for the kernel's choice.
    pub index: Option<LinkIndex>,
}

impl<'a> NewLink<'a> {
    /// Returns a link of a kind with the kernel's defaults, in the namespace of the socket.
    pub fn of(kind: LinkKind<'a>) -> NewLink<'a> {
        NewLink { name: None, mac: None, mtu: None, netns: None, bridge: None, lower: None, index: None, kind }
    }
}

impl LinkKind<'_> {
    /// Returns the kernel's name of the kind, as in [`Link::kind`](super::Link::kind).
    pub fn name(&self) -> &'static str {
        match self {
            LinkKind::Bridge { .. } => "bridge",
            LinkKind::Dummy => "dummy",
            LinkKind::Ifb => "ifb",
            LinkKind::Tap { .. } => "tun",
            LinkKind::Upper(upper) => upper.kind(),
            LinkKind::Veth(_) => "veth",
            LinkKind::Vrf { .. } => "vrf",
        }
    }

    /// Adds the properties that only this kind has.
    fn add_data(&self, info: &mut Request, mtu: Option<u32>) {
        match *self {
            LinkKind::Bridge { vlan_filtering: true } => {
                info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_FILTERING, &[1]));
            }
            LinkKind::Veth(VethPeer { name, mac, netns, index }) => info.nest(IflaInfo::Data, |data| {
                data.nest(wire::VETH_INFO_PEER, |peer| {
                    ifinfomsg(peer, 0, index.map(LinkRef::Index), Flags::default());
                    common_attributes(peer, mac, mtu);
                    one_queue(peer);
                    peer.attr(Ifla::NetNsFd, &netns.fd().to_ne_bytes());
                    peer.text(Ifla::Ifname, name);
                });
            }),
            LinkKind::Upper(upper) => info.nest(IflaInfo::Data, |data| upper.add_data(data)),
            LinkKind::Vrf { table } => info.nest(IflaInfo::Data, |data| data.number(wire::IFLA_VRF_TABLE, table)),
            LinkKind::Bridge { vlan_filtering: false } | LinkKind::Dummy | LinkKind::Ifb | LinkKind::Tap { .. } => {}
        }
    }
}

impl fmt::Display for NewLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(name) = self.name {
            write!(f, " {name:?}")?;
        }
        if let LinkKind::Veth(VethPeer { name, netns, .. }) = &self.kind {
            write!(f, " with {name:?} in {:?}", netns.path())?;
        }
        match self.netns {
            Some(netns) => write!(f, " in {:?}", netns.path()),
            None => Ok(()),
        }
    }
}

/// Changes of a link; `None` keeps a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// Renames the link, which must be given by its index.
    pub name: Option<&'a str>,
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
    /// Sets how a link on top of another one treats its frames.
    pub frames: Option<FrameRules<'a>>,
}

impl<'a> Change<'a> {
    /// Creates a link.
    pub fn create_link(new: &NewLink<'a>) -> Change<'a> {
        let new = *new;
        // The kernel would send the echo to a socket in the namespace of the link.
        let echo = if new.netns.is_none() { NlmF::ECHO } else { NlmF::empty() };
        let mut request = about(Rtm::Newlink, CREATE | echo, new.index.map(LinkRef::Index), Flags::default());
        common_attributes(&mut request, new.mac, new.mtu);
        match new.kind {
            LinkKind::Ifb => request.number(Ifla::Txqlen, 0),
            LinkKind::Veth(_) => one_queue(&mut request),
            LinkKind::Bridge { .. }
            | LinkKind::Dummy
            | LinkKind::Tap { .. }
            | LinkKind::Upper(_)
            | LinkKind::Vrf { .. } => {}
        }
        for (attribute, link) in [(Ifla::Master, new.bridge), (Ifla::Link, new.lower)] {
            if let Some(link) = link {
                request.number(attribute, link.number());
            }
        }
        if let Some(netns) = new.netns {
            request.attr(Ifla::NetNsFd, &netns.fd().to_ne_bytes());
        }
        if let Some(name) = new.name {
            request.text(Ifla::Ifname, name);
        }
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, new.kind.name().as_bytes());
            new.kind.add_data(info, new.mtu);
        });
        let change = Change::new(request, move || format!("create {new}"));
        match new.name {
            Some(name) => change.creating(name),
            None => change,
        }
    }

    /// Changes a link.
    pub fn set_link(link: impl Into<LinkRef<'a>>, change: &LinkChange<'a>) -> Change<'a> {
        change.of(link.into())
    }

    /// Moves a link to another namespace, and changes it there. The kernel sets the link down, and it loses its
    /// addresses, its routes and its bridge. If it cannot have the name of `change` there, it is there with its former
    /// name, and down.
    pub fn move_link(link: impl Into<LinkRef<'a>>, netns: &'a Netns, change: &LinkChange<'a>) -> Change<'a> {
        let (link, change) = (link.into(), *change);
        let mut request = change.request(link);
        request.attr(Ifla::NetNsFd, &netns.fd().to_ne_bytes());
        Change::new(request, move || format!("move link {link} to {:?}, and set it{change}", netns.path()))
    }

    /// Gives a link another name beside its own one, of up to 127 bytes (Linux 5.5).
    pub fn add_alternative_name(link: LinkIndex, name: &'a str) -> Change<'a> {
        let flags = CREATE | NlmF::APPEND;
        Change::alternative_name(wire::RTM_NEWLINKPROP, flags, link.into(), name)
    }

    /// Removes such a name from the link that has it.
    pub fn delete_alternative_name(name: &'a str) -> Change<'a> {
        Change::alternative_name(wire::RTM_DELLINKPROP, NlmF::empty(), LinkRef::AlternativeName(name), name)
    }

    fn alternative_name(kind: u16, flags: NlmF, link: LinkRef<'a>, name: &'a str) -> Change<'a> {
        let mut request = Request::new(kind, flags);
        let index = if let LinkRef::Index(_) = link { Some(link) } else { None };
        ifinfomsg(&mut request, 0, index, Flags::default());
        by_name(&mut request, link);
        request.nest(wire::IFLA_PROP_LIST | wire::NESTED, |list| list.text(wire::IFLA_ALT_IFNAME, name));
        let verb = if kind == wire::RTM_NEWLINKPROP { "add" } else { "delete" };
        Change::new(request, move || format!("{verb} the alternative name {name:?} of link {link}"))
    }

    /// Makes a link a member of another one, such as a VRF, or of none. If it is up, the kernel sets it down and up
    /// again.
    pub fn set_master(link: LinkIndex, master: Option<LinkIndex>) -> Change<'a> {
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(link.into()), Flags::default());
        request.number(Ifla::Master, master.map_or(0, LinkIndex::number));
        Change::new(request, move || match master {
            Some(master) => format!("make link {link} a member of {master}"),
            None => format!("make link {link} a member of none"),
        })
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
        ifinfomsg(&mut request, 0, Some(LinkIndex::LOOPBACK.into()), Flags::default());
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
    fn of(&self, link: LinkRef<'a>) -> Change<'a> {
        let change = *self;
        Change::new(change.request(link), move || format!("set link {link}{change}"))
    }

    /// Returns the request for a link. Not generic, because it is large.
    fn request(&self, link: LinkRef<'_>) -> Request {
        let change = self;
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
        if let Some(name) = change.name {
            request.text(Ifla::Ifname, name);
        }
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
        if let Some(rules) = change.frames {
            request.nest(Ifla::Linkinfo, |info| {
                info.attr(IflaInfo::Kind, rules.kind().as_bytes());
                info.nest(IflaInfo::Data, |data| rules.add_data(data));
            });
        }
        request
    }
}

impl fmt::Display for LinkChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name {
            write!(f, " name {name:?}")?;
        }
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
        if let Some(rules) = self.frames {
            write!(f, " {rules:?}")?;
        }
        Ok(())
    }
}

/// Unlike the reference: a veth has one queue of each kind. By default the kernel allocates one for each processor,
/// waits until all processors have noticed that the others are unused (a tenth of an ADD), and keeps their memory.
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
