//! Links: their properties, and queries for them.

mod change;
mod identity;
mod tap;
mod upper;

use std::fmt;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, IflaInfo, Rtm};

use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Error, Result};
use crate::ip::MacAddr;
use crate::netns::Netns;

pub use change::{LinkChange, LinkKind, NewLink, VethPeer};
pub use identity::{LinkIndex, LinkRef, NetnsId};
pub use tap::TapDevice;
pub use upper::{FrameRules, IpvlanIsolation, IpvlanMode, MacvlanMode, Upper, VlanProtocol, VlanTag};

/// struct ifinfomsg
const HEADER: usize = 16;
/// The flags of a link that is running and has a carrier.
const RUNNING: u32 = (libc::IFF_RUNNING | libc::IFF_LOWER_UP).cast_unsigned();
/// The queueing discipline of a link that has not had a queue yet.
const NO_QUEUE: &str = "noop";
/// A MAC address that no link can have.
const MULTICAST: MacAddr = MacAddr([1, 0, 0, 0, 0, 0]);
/// The index of no link: the kernel counts up from 1.
const NOWHERE: u32 = 0x7fff_ffff;
/// struct rtgenmsg, padded
const RTGENMSG: usize = 4;

/// Whether a link can carry traffic (RFC 2863).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperState {
    /// It can.
    Up,
    /// It cannot.
    Down,
    /// The driver does not report it, as for `lo`.
    Unknown,
    /// Any other state, by the kernel's number.
    Other(u8),
}

impl fmt::Display for OperState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperState::Up => f.write_str("up"),
            OperState::Down => f.write_str("down"),
            OperState::Unknown => f.write_str("unknown"),
            OperState::Other(state) => write!(f, "state {state}"),
        }
    }
}

/// Settings of a link as a port of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Whether a frame may leave by the port on which it arrived.
    pub hairpin: bool,
    /// Whether the port cannot exchange frames with other isolated ports.
    pub isolated: bool,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The index.
    pub index: LinkIndex,
    /// The name.
    pub name: String,
    /// `bridge`, `veth`, …; empty for hardware and `lo`.
    pub kind: String,
    /// The MAC address.
    pub mac: Option<MacAddr>,
    /// The MTU.
    pub mtu: u32,
    /// The least MTU that the driver accepts; 0 if the kernel does not report it.
    pub min_mtu: u32,
    /// The greatest MTU that the driver accepts; 0 if it has no limit, or the kernel does not report it.
    pub max_mtu: u32,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the link asks for the MAC addresses of neighbours, and answers such questions: by ARP, and by the
    /// neighbour discovery of IPv6.
    pub arp: bool,
    /// Whether the link can carry traffic.
    pub state: OperState,
    /// Whether the link is up, has a carrier, and sends packets. `state` may be unknown then, because the kernel
    /// updates it only when the carrier changes. A new link has no queue and drops all packets until a worker of the
    /// kernel has noticed its carrier.
    pub running: bool,
    /// The bridge of which the link is a port, or the VRF of which it is a member.
    pub master: Option<LinkIndex>,
    /// The link by which it sends and receives: the other end of a veth, the parent of a macvlan, ipvlan or VLAN
    /// interface.
    pub lower: Option<LinkIndex>,
    /// The namespace of that link, if it is a different one.
    pub lower_netns: Option<NetnsId>,
    /// What distinguishes the link from others on the same lower link.
    pub upper: Option<Upper>,
    /// What distinguishes the link from others, if it is a TAP device.
    pub tap: Option<TapDevice>,
    /// The alias, which `ip link` shows.
    pub alias: String,
    /// The names beside its own one.
    pub alternative_names: Vec<String>,
    /// The name of the hardware on its bus, such as `0000:3d:00.1` or `virtio3`. Empty for a virtual link, and before
    /// Linux 5.14.
    pub hardware: String,
    /// The port of the hardware, such as `p0`, or `pf0vf1` for a link that represents a function of the card; may be
    /// empty.
    pub port_name: String,
    /// The MAC address that the hardware came with, which no user changes; `None` if it has none, and before Linux 5.6.
    pub permanent_mac: Option<MacAddr>,
    /// Whether the link was set promiscuous. Packet captures make it promiscuous too, but only while they run.
    pub promiscuous: bool,
    /// Whether the link was set to receive all multicast packets. A multicast router makes it receive them too, but
    /// only while it runs.
    pub all_multicast: bool,
    /// The length of the transmit queue.
    pub tx_queue: u32,
    /// The routing table, if the link is a VRF.
    pub vrf_table: Option<u32>,
    /// The settings as a port of a bridge, if the link is a port.
    pub port: Option<Port>,
    /// The spanning tree state as a port of a bridge: 3 is forwarding.
    pub port_state: Option<u8>,
    /// Whether the link filters VLANs, if it is a bridge.
    pub vlan_filtering: Option<bool>,
    /// Whether the kernel derives the IPv6 link-local address from the MAC address, which is the default.
    pub eui64: bool,
    /// Whether the link is a bridge with a spanning tree. Then a new port may need half a minute until it forwards.
    pub spanning_tree: bool,
}

impl Link {
    pub(super) fn read(payload: &[u8]) -> Result<Link> {
        let flags = wire::number(payload, 8)?;
        let mut link = Link {
            index: LinkIndex::read(wire::number(payload, 4)?)?,
            name: String::new(),
            kind: String::new(),
            mac: None,
            mtu: 0,
            min_mtu: 0,
            max_mtu: 0,
            up: flags & libc::IFF_UP.cast_unsigned() != 0,
            arp: flags & libc::IFF_NOARP.cast_unsigned() == 0,
            state: OperState::Unknown,
            running: flags & RUNNING == RUNNING,
            master: None,
            lower: None,
            lower_netns: None,
            upper: None,
            tap: None,
            alias: String::new(),
            alternative_names: Vec::new(),
            hardware: String::new(),
            port_name: String::new(),
            permanent_mac: None,
            promiscuous: flags & libc::IFF_PROMISC.cast_unsigned() != 0,
            all_multicast: flags & libc::IFF_ALLMULTI.cast_unsigned() != 0,
            tx_queue: 0,
            vrf_table: None,
            port: None,
            port_state: None,
            vlan_filtering: None,
            eui64: false,
            spanning_tree: false,
        };
        for attribute in wire::attributes(payload, HEADER) {
            let (kind, value) = attribute?;
            match kind {
                libc::IFLA_IFNAME => link.name = wire::text(value),
                libc::IFLA_ADDRESS => link.mac = wire::mac(value),
                libc::IFLA_MTU => link.mtu = wire::number(value, 0)?,
                libc::IFLA_MIN_MTU => link.min_mtu = wire::number(value, 0)?,
                libc::IFLA_MAX_MTU => link.max_mtu = wire::number(value, 0)?,
                libc::IFLA_LINK => link.lower = LinkIndex::optional(wire::number(value, 0)?),
                libc::IFLA_LINK_NETNSID => link.lower_netns = NetnsId::optional(wire::number(value, 0)?),
                libc::IFLA_MASTER => link.master = LinkIndex::optional(wire::number(value, 0)?),
                libc::IFLA_IFALIAS => link.alias = wire::text(value),
                wire::IFLA_PARENT_DEV_NAME => link.hardware = wire::text(value),
                wire::IFLA_PHYS_PORT_NAME => link.port_name = wire::text(value),
                wire::IFLA_PERM_ADDRESS => link.permanent_mac = wire::mac(value),
                wire::IFLA_PROP_LIST => {
                    for property in wire::attributes(value, 0) {
                        if let (wire::IFLA_ALT_IFNAME, name) = property? {
                            link.alternative_names.push(wire::text(name));
                        }
                    }
                }
                libc::IFLA_TXQLEN => link.tx_queue = wire::number(value, 0)?,
                libc::IFLA_QDISC => link.running &= wire::text(value) != NO_QUEUE,
                libc::IFLA_OPERSTATE => {
                    // linux/if.h: IF_OPER_*
                    link.state = match wire::byte(value, 0)? {
                        0 => OperState::Unknown,
                        2 => OperState::Down,
                        6 => OperState::Up,
                        state => OperState::Other(state),
                    }
                }
                libc::IFLA_LINKINFO => link.read_info(value)?,
                libc::IFLA_AF_SPEC => link.eui64 = derives_link_local(value)?,
                _ => {}
            }
        }
        Ok(link)
    }

    fn read_info(&mut self, info: &[u8]) -> Result<()> {
        let (mut data, mut port_kind, mut port_data) = (None, String::new(), None);
        for attribute in wire::attributes(info, 0) {
            let (kind, value) = attribute?;
            match kind {
                libc::IFLA_INFO_KIND => self.kind = wire::text(value),
                libc::IFLA_INFO_DATA => data = Some(value),
                libc::IFLA_INFO_SLAVE_KIND => port_kind = wire::text(value),
                libc::IFLA_INFO_SLAVE_DATA => port_data = Some(value),
                _ => {}
            }
        }
        if let Some(data) = data {
            self.upper = Upper::read(&self.kind, data)?;
        }
        self.tap = data.filter(|_| self.kind == "tun").map(TapDevice::read).transpose()?;
        if let Some(data) = data.filter(|_| self.kind == "vrf") {
            for attribute in wire::attributes(data, 0) {
                if let (wire::IFLA_VRF_TABLE, value) = attribute? {
                    self.vrf_table = Some(wire::number(value, 0)?);
                }
            }
        }
        if let Some(data) = data.filter(|_| self.kind == "bridge") {
            for attribute in wire::attributes(data, 0) {
                match attribute? {
                    (wire::IFLA_BR_STP_STATE, value) => self.spanning_tree = wire::number(value, 0)? != 0,
                    (wire::IFLA_BR_VLAN_FILTERING, value) => self.vlan_filtering = Some(wire::byte(value, 0)? != 0),
                    _ => {}
                }
            }
        }
        if let Some(data) = port_data.filter(|_| port_kind == "bridge") {
            let mut port = Port::default();
            for attribute in wire::attributes(data, 0) {
                match attribute? {
                    (wire::IFLA_BRPORT_STATE, value) => self.port_state = Some(wire::byte(value, 0)?),
                    (wire::IFLA_BRPORT_MODE, value) => port.hairpin = wire::byte(value, 0)? != 0,
                    (wire::IFLA_BRPORT_ISOLATED, value) => port.isolated = wire::byte(value, 0)? != 0,
                    _ => {}
                }
            }
            self.port = Some(port);
        }
        Ok(())
    }
}

/// Returns whether the link-local address of a link is derived from its MAC address, according to its IFLA_AF_SPEC
/// settings.
fn derives_link_local(families: &[u8]) -> Result<bool> {
    for family in wire::attributes(families, 0) {
        let (wire::AF_INET6, settings) = family? else { continue };
        for setting in wire::attributes(settings, 0) {
            if let (wire::IFLA_INET6_ADDR_GEN_MODE, mode) = setting? {
                return Ok(wire::byte(mode, 0)? == wire::IN6_ADDR_GEN_MODE_EUI64);
            }
        }
    }
    Ok(false)
}

impl Netlink {
    /// Returns a link, by index or name; `None` if there is none.
    pub fn link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<Option<Link>> {
        let link = link.into();
        let request = get_link(link);
        self.socket
            .get(&request, libc::RTM_NEWLINK, &[libc::ENODEV, libc::ENXIO], Link::read)
            .context(|| format!("look for link {link}"))
    }

    /// Returns the ID of a namespace as in [`Link::lower_netns`]; `None` if it has no ID here, as no link leads to it.
    pub fn netns_id(&mut self, netns: &Netns) -> Result<Option<NetnsId>> {
        let read = |payload: &[u8]| {
            for attribute in wire::attributes(payload, RTGENMSG) {
                if let (wire::NETNSA_NSID, value) = attribute? {
                    return Ok(NetnsId::optional(wire::number(value, 0)?));
                }
            }
            Ok(None)
        };
        let found = self.socket.get(&get_netns_id(netns), wire::RTM_NEWNSID, &[], read);
        Ok(found.context(|| format!("query the ID of the network namespace {:?}", netns.path()))?.flatten())
    }

    /// Returns a link of another namespace without entering it (Linux 4.20). Needs CAP_NET_ADMIN in that namespace.
    pub fn link_in_netns(&mut self, netns: NetnsId, link: LinkIndex) -> Result<Option<Link>> {
        let request = get_link_in_netns(netns, link);
        let read = |payload: &[u8]| {
            wire::is_from(netns.number(), payload, HEADER, wire::IFLA_TARGET_NETNSID)?;
            Link::read(payload)
        };
        self.socket
            .get(&request, libc::RTM_NEWLINK, &[libc::ENODEV, libc::ENXIO], read)
            .context(|| format!("look for link {link} in another namespace"))
    }

    /// Returns the index of the link called `name`. Uses an ioctl instead of a message.
    pub fn link_index(&mut self, name: &str) -> Result<Option<LinkIndex>> {
        let index = self.socket.link_index(name).context(|| format!("look for link {name:?}"))?;
        Ok(index.and_then(LinkIndex::optional))
    }

    /// Returns the name of a link; `None` if there is none. Uses an ioctl instead of a message.
    pub fn link_name(&self, link: LinkIndex) -> Result<Option<String>> {
        self.socket.link_name(link.number()).context(|| format!("look for link {link}"))
    }

    /// Returns the MAC address of the link called `name`, if it has one. Uses an ioctl instead of a message.
    pub fn mac_of(&self, name: &str) -> Option<MacAddr> {
        self.socket.mac_of(name)
    }

    /// Returns the MTU of the link called `name`; `None` if there is none. Uses an ioctl instead of a message.
    pub fn mtu_of(&self, name: &str) -> Option<u32> {
        self.socket.mtu_of(name)
    }

    /// Returns all links, or all ports of one bridge.
    pub fn links(&mut self, ports_of: Option<LinkIndex>) -> Result<Vec<Link>> {
        let request = list_links(ports_of);
        let wanted = |link: Link| Some(link).filter(|link| ports_of.is_none() || link.master == ports_of);
        self.socket
            .list(&request, libc::RTM_NEWLINK, |payload| Link::read(payload).map(wanted))
            .context(|| "list links")
    }

    /// Returns the links of a kind, such as `ifb`. The kernel selects them, unless it does not know the kind.
    pub fn links_of_kind(&mut self, kind: &str) -> Result<Vec<Link>> {
        let wanted = |link: Link| Some(link).filter(|link| link.kind == kind);
        self.socket
            .list(&list_links_of_kind(kind), libc::RTM_NEWLINK, |payload| Link::read(payload).map(wanted))
            .context(|| format!("list links of kind {kind:?}"))
    }

    /// Returns whether the kernel can create links of a kind. Nothing is created: the drivers of Ethernet links refuse
    /// a multicast address as the MAC address, and those of links on top of another one a link that does not exist.
    pub fn can_create(&mut self, kind: LinkKind<'_>) -> Result<bool> {
        let lower = match kind {
            LinkKind::Upper(_) => LinkIndex::optional(NOWHERE),
            _ => None,
        };
        let invalid = NewLink { mac: Some(MULTICAST), lower, ..NewLink::of(kind) };
        match self.apply(&[Change::create_link(&invalid)]) {
            Err(error) if matches!(error.errno(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Ok(true),
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Err(Error::bug("the kernel accepted a multicast address as the MAC address of a link")),
        }
    }

    /// Returns the veths whose alias is `wanted`, even if other links come and go meanwhile. If several match, some may
    /// be missing then. Other links are not parsed, because there may be a thousand.
    pub fn find_veths_by_alias(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Link>> {
        let read = |payload: &[u8]| {
            for attribute in wire::attributes(payload, HEADER) {
                if let (libc::IFLA_IFALIAS, alias) = attribute? {
                    let link = wanted(&wire::text(alias)).then(|| Link::read(payload)).transpose()?;
                    return Ok(link.filter(|link| link.kind == "veth"));
                }
            }
            Ok(None)
        };
        self.socket.find(&list_links(None), libc::RTM_NEWLINK, read).context(|| "search the links")
    }
}

pub(super) fn get_link(link: LinkRef<'_>) -> Vec<u8> {
    let mut request = about(Rtm::Getlink, NlmF::empty(), Some(link), Flags::default());
    request.number(Ifla::ExtMask, wire::RTEXT_FILTER_SKIP_STATS);
    by_name(&mut request, link);
    request.finish()
}

pub(super) fn get_netns_id(netns: &Netns) -> Vec<u8> {
    let mut request = Request::new(wire::RTM_GETNSID, NlmF::empty());
    request.raw(&[0; RTGENMSG]);
    request.attr(wire::NETNSA_FD, &netns.fd().to_ne_bytes());
    request.finish()
}

pub(super) fn get_link_in_netns(netns: NetnsId, link: LinkIndex) -> Vec<u8> {
    let mut request = about(Rtm::Getlink, NlmF::empty(), Some(link.into()), Flags::default());
    request.number(Ifla::ExtMask, wire::RTEXT_FILTER_SKIP_STATS);
    request.number(wire::IFLA_TARGET_NETNSID, netns.number());
    request.finish()
}

pub(super) fn list_links(ports_of: Option<LinkIndex>) -> Vec<u8> {
    let mut request = about(Rtm::Getlink, NlmF::empty(), None, Flags::default());
    request.number(Ifla::ExtMask, wire::RTEXT_FILTER_SKIP_STATS);
    if let Some(bridge) = ports_of {
        request.number(Ifla::Master, bridge.number());
    }
    request.finish()
}

pub(super) fn list_links_of_kind(kind: &str) -> Vec<u8> {
    let mut request = about(Rtm::Getlink, NlmF::empty(), None, Flags::default());
    request.number(Ifla::ExtMask, wire::RTEXT_FILTER_SKIP_STATS);
    request.nest(Ifla::Linkinfo, |info| info.attr(IflaInfo::Kind, kind.as_bytes()));
    request.finish()
}

/// Flags of a link that a message sets or clears.
#[derive(Clone, Copy, Debug)]
struct Flags {
    on: Iff,
    mask: Iff,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags { on: Iff::empty(), mask: Iff::empty() }
    }
}

/// Starts a message about a link. A link identified by name needs [`by_name`] as well.
fn about(kind: Rtm, flags: NlmF, link: Option<LinkRef<'_>>, state: Flags) -> Request {
    let mut request = Request::new(kind, flags);
    ifinfomsg(&mut request, 0, link, state);
    request
}

/// Starts a message about a port in the bridge's address family.
pub(super) fn about_port(kind: Rtm, port: LinkIndex) -> Request {
    let mut request = Request::new(kind, NlmF::empty());
    ifinfomsg(&mut request, libc::AF_BRIDGE, Some(port.into()), Flags::default());
    request
}

/// Adds a struct ifinfomsg: family, type, index, flags, and the mask of flags to change.
fn ifinfomsg(request: &mut Request, family: i32, link: Option<LinkRef<'_>>, state: Flags) {
    let index = match link {
        Some(LinkRef::Index(index)) => index.number(),
        _ => 0,
    };
    request.raw(&[u8::try_from(family).unwrap_or_default(), 0, 0, 0]);
    for number in [index, state.on.bits(), state.mask.bits()] {
        request.raw(&number.to_ne_bytes());
    }
}

/// Adds the name of a link that is identified by name.
fn by_name(request: &mut Request, link: LinkRef<'_>) {
    match link {
        LinkRef::Index(_) => {}
        LinkRef::Name(name) => request.text(Ifla::Ifname, name),
        LinkRef::AlternativeName(name) => request.text(wire::IFLA_ALT_IFNAME, name),
    }
}
