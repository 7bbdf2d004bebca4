//! Links: making, changing and deleting them.

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, Rtm};

use super::super::Change;
use super::super::wire::{self, CREATE, Request};
use super::{Flags, LinkIndex, LinkRef, Port, about, by_name, ifinfomsg};
use crate::ip::MacAddr;
use crate::netns::Netns;

/// Index of the loopback interface in every network namespace (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;

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
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address, if not the kernel's choice.
    pub mac: Option<MacAddr>,
}

/// A veth pair to be made, in its final place. Both ends are born down: what a link is given before it is up costs less,
/// because nobody is told of it; and the kernel does not let the other end be born up.
#[derive(Clone, Copy, Debug)]
pub struct VethSpec<'a> {
    /// The end in the namespace of the socket.
    pub host: VethEnd<'a>,
    /// The other end.
    pub guest: VethEnd<'a>,
    /// Where the other end is born.
    pub netns: &'a Netns,
    /// The bridge that the host's end is a port of.
    pub bridge: Option<LinkIndex>,
    /// MTU of both ends, if not the kernel's choice.
    pub mtu: Option<u32>,
}

/// What should change about a link; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl<'a> Change<'a> {
    /// Makes a bridge. It is down: `accept_ra` must be off before it is up.
    pub fn create_bridge(spec: &BridgeSpec<'a>) -> Change<'a> {
        let mut request = about(Rtm::Newlink, CREATE | NlmF::ECHO, None, Flags::default());
        traits(&mut request, Some(spec.mac), spec.mtu);
        request.text(Ifla::Ifname, spec.name);
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            if spec.vlan_filtering {
                info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_FILTERING, &[1]));
            }
        });
        let name = spec.name;
        Change::new(request, move || format!("create bridge {name:?}")).making(name)
    }

    /// Makes a veth pair with both ends in their final places, in one message.
    pub fn create_veth(spec: &VethSpec<'a>) -> Change<'a> {
        let VethSpec { host, guest, netns, bridge, mtu } = *spec;
        let mut request = about(Rtm::Newlink, CREATE | NlmF::ECHO, None, Flags::default());
        traits(&mut request, host.mac, mtu);
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
                    traits(peer, guest.mac, mtu);
                    one_queue(peer);
                    peer.attr(Ifla::NetNsFd, &netns.fd().to_ne_bytes());
                    peer.text(Ifla::Ifname, guest.name);
                });
            });
        });
        let what = move || format!("create veth {:?} with {:?} in {:?}", host.name, guest.name, netns.path());
        Change::new(request, what).making(host.name)
    }

    /// Changes a link.
    pub fn set_link(link: impl Into<LinkRef<'a>>, change: &LinkChange<'a>) -> Change<'a> {
        let (link, change) = (link.into(), *change);
        let mut state = Flags::default();
        for (wish, flag) in [(change.up, Iff::UP), (change.promiscuous, Iff::PROMISC)] {
            if let Some(on) = wish {
                state.on.set(flag, on);
                state.meant.insert(flag);
            }
        }
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(link), state);
        by_name(&mut request, link);
        traits(&mut request, change.mac, change.mtu);
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

    /// Sets all of a link's settings as a port of a bridge.
    pub fn set_port(link: impl Into<LinkRef<'a>>, port: Port) -> Change<'a> {
        let (link, Port { hairpin, isolated }) = (link.into(), port);
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(link), Flags::default());
        by_name(&mut request, link);
        request.nest(Ifla::Linkinfo, |info| {
            // iproute2 names the kind of the link here, "bridge_slave", for which recent kernels go looking for a module.
            info.attr(IflaInfo::SlaveKind, b"bridge");
            info.nest(IflaInfo::SlaveData, |data| {
                data.attr(wire::IFLA_BRPORT_MODE, &[hairpin.into()]);
                data.attr(wire::IFLA_BRPORT_ISOLATED, &[isolated.into()]);
            });
        });
        Change::new(request, move || format!("set port {link}: hairpin {hairpin}, isolated {isolated}"))
    }

    /// Makes a bridge filter VLANs.
    pub fn filter_vlans(bridge: LinkIndex) -> Change<'a> {
        let mut request = about(Rtm::Newlink, NlmF::empty(), Some(bridge.into()), Flags::default());
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_FILTERING, &[1]));
        });
        Change::new(request, move || format!("make bridge {bridge} filter VLANs"))
    }

    /// Returns a change that no kernel makes, and whose refusal tells whether bridges can filter VLANs.
    ///
    /// A kernel that can refuses the VLAN protocol (EPROTONOSUPPORT) before it looks for a link of that index. Any other
    /// finds the loopback interface there (EEXIST).
    pub(in super::super) fn try_vlan_filtering() -> Change<'a> {
        let mut request = Request::new(Rtm::Newlink, CREATE);
        ifinfomsg(&mut request, 0, LinkIndex::optional(LOOPBACK).map(LinkRef::Index), Flags::default());
        request.nest(Ifla::Linkinfo, |info| {
            info.attr(IflaInfo::Kind, b"bridge");
            info.nest(IflaInfo::Data, |data| data.attr(wire::IFLA_BR_VLAN_PROTOCOL, &[0, 0]));
        });
        Change::new(request, || "find out whether bridges can filter VLANs".to_owned())
    }

    /// Deletes a link, and the other end of a veth with it.
    pub fn delete_link(link: impl Into<LinkRef<'a>>) -> Change<'a> {
        let link = link.into();
        let mut request = about(Rtm::Dellink, NlmF::empty(), Some(link), Flags::default());
        by_name(&mut request, link);
        Change::new(request, move || format!("delete link {link}"))
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
fn one_queue(request: &mut Request) {
    request.number(Ifla::NumTxQueues, 1);
    request.number(Ifla::NumRxQueues, 1);
}

/// What every kind of link can be given.
fn traits(request: &mut Request, mac: Option<MacAddr>, mtu: Option<u32>) {
    if let Some(mac) = mac {
        request.attr(Ifla::Address, &mac.0);
    }
    if let Some(mtu) = mtu {
        request.number(Ifla::Mtu, mtu);
    }
}
