//! Links: what they are, and looking for them.

mod change;

use std::fmt;
use std::num::NonZeroU32;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, Rtm};

use super::Netlink;
use super::wire::{self, Request};
use crate::error::{Context, Result};
use crate::ip::MacAddr;
use crate::netns::Netns;

pub use change::{BridgeSpec, LinkChange, VethEnd, VethSpec};

/// struct ifinfomsg
const HEADER: usize = 16;
/// The flags of a link that has a carrier and is not thought to be without.
const RUNNING: u32 = (libc::IFF_RUNNING | libc::IFF_LOWER_UP).cast_unsigned();
/// struct rtgenmsg, filled up
const RTGENMSG: usize = 4;

/// The kernel's number for a link, unique in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkIndex(NonZeroU32);

impl LinkIndex {
    pub(super) fn read(index: u32) -> Result<LinkIndex> {
        NonZeroU32::new(index).map(LinkIndex).ok_or_else(|| wire::malformed("a link without an index"))
    }

    /// Zero is none.
    pub(super) fn optional(index: u32) -> Option<LinkIndex> {
        NonZeroU32::new(index).map(LinkIndex)
    }

    /// As messages want it.
    pub(super) fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for LinkIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The kernel's number for another namespace, as seen from the one that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId(u32);

impl NetnsId {
    /// Negative is none.
    fn optional(id: u32) -> Option<NetnsId> {
        (id.cast_signed() >= 0).then_some(NetnsId(id))
    }

    /// As messages want it.
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// A link by its number, or by its name where the number is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRef<'a> {
    /// By number.
    Index(LinkIndex),
    /// By name.
    Name(&'a str),
}

impl From<LinkIndex> for LinkRef<'_> {
    fn from(index: LinkIndex) -> Self {
        LinkRef::Index(index)
    }
}

impl<'a> From<&'a str> for LinkRef<'a> {
    fn from(name: &'a str) -> Self {
        LinkRef::Name(name)
    }
}

impl fmt::Display for LinkRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkRef::Index(index) => write!(f, "{index}"),
            LinkRef::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// Whether a link can carry traffic (RFC 2863).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperState {
    /// It can.
    Up,
    /// It cannot.
    Down,
    /// The driver does not tell, as with `lo`.
    Unknown,
    /// Anything between, by the kernel's number.
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

/// A link's settings as a port of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// May a frame go out where it came in?
    pub hairpin: bool,
    /// Is the port kept from talking to other isolated ones?
    pub isolated: bool,
}

/// A link as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: LinkIndex,
    /// Its name.
    pub name: String,
    /// `bridge`, `veth`, …; empty for hardware and `lo`.
    pub kind: String,
    /// Its Ethernet address.
    pub mac: Option<MacAddr>,
    /// Its MTU.
    pub mtu: u32,
    /// Was it set up?
    pub up: bool,
    /// Can it carry traffic?
    pub state: OperState,
    /// Is it up with a carrier? Its state may be unknown then, because the kernel looks at it when the carrier changes.
    pub running: bool,
    /// The bridge it is a port of.
    pub master: Option<LinkIndex>,
    /// The other end, for a veth.
    pub peer: Option<LinkIndex>,
    /// The namespace of the other end, if it is another one.
    pub peer_netns: Option<NetnsId>,
    /// The text that people see in `ip link`.
    pub alias: String,
    /// Was it set promiscuous? Whoever listens on it makes it so too, and only as long as he does.
    pub promiscuous: bool,
    /// Length of the transmit queue.
    pub tx_queue: u32,
    /// Its settings as a port of a bridge, if it is one.
    pub port: Option<Port>,
    /// Its spanning tree state as a port of a bridge: 3 is forwarding.
    pub port_state: Option<u8>,
    /// Does it filter VLANs, if it is a bridge?
    pub vlan_filtering: Option<bool>,
    /// Whether the kernel derives its IPv6 link-local address from the hardware address, as it does unless told otherwise.
    pub eui64: bool,
    /// Is it a bridge with a spanning tree? Then a port may take half a minute until it forwards.
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
            up: flags & libc::IFF_UP.cast_unsigned() != 0,
            state: OperState::Unknown,
            running: flags & RUNNING == RUNNING,
            master: None,
            peer: None,
            peer_netns: None,
            alias: String::new(),
            promiscuous: flags & libc::IFF_PROMISC.cast_unsigned() != 0,
            tx_queue: 0,
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
                libc::IFLA_LINK => link.peer = LinkIndex::optional(wire::number(value, 0)?),
                libc::IFLA_LINK_NETNSID => link.peer_netns = NetnsId::optional(wire::number(value, 0)?),
                libc::IFLA_MASTER => link.master = LinkIndex::optional(wire::number(value, 0)?),
                libc::IFLA_IFALIAS => link.alias = wire::text(value),
                libc::IFLA_TXQLEN => link.tx_queue = wire::number(value, 0)?,
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

/// Reads from the settings of a link, one list for each family, whether its link-local address is derived from its
/// hardware address.
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
    /// A link, by its number or its name.
    pub fn link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<Option<Link>> {
        let link = link.into();
        let request = get_link(link);
        self.socket
            .get(&request, libc::RTM_NEWLINK, &[libc::ENODEV, libc::ENXIO], Link::read)
            .trying(|| format!("look for link {link}"))
    }

    /// The number of a namespace as [`Link::peer_netns`] tells it; `None` if it has none here, as nothing leads to it.
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
        Ok(found.trying(|| format!("look for the number of the namespace {:?}", netns.path()))?.flatten())
    }

    /// A link of another namespace, which is not entered for it (Linux 4.20). That takes the right to administer it.
    pub fn link_elsewhere(&mut self, netns: NetnsId, link: LinkIndex) -> Result<Option<Link>> {
        let request = get_link_elsewhere(netns, link);
        let read = |payload: &[u8]| {
            wire::is_from(netns, payload, HEADER, wire::IFLA_TARGET_NETNSID)?;
            Link::read(payload)
        };
        self.socket
            .get(&request, libc::RTM_NEWLINK, &[libc::ENODEV, libc::ENXIO], read)
            .trying(|| format!("look for link {link} in another namespace"))
    }

    /// The number of the link called `name`. Asked for without a message.
    pub fn link_index(&mut self, name: &str) -> Result<Option<LinkIndex>> {
        let index = self.socket.link_index(name).trying(|| format!("look for link {name:?}"))?;
        Ok(index.and_then(LinkIndex::optional))
    }

    /// The Ethernet address of the link called `name`, if there is one. Asked for without a message.
    pub fn mac_of(&self, name: &str) -> Option<MacAddr> {
        self.socket.mac_of(name)
    }

    /// All links, or all ports of one bridge.
    pub fn links(&mut self, ports_of: Option<LinkIndex>) -> Result<Vec<Link>> {
        let request = list_links(ports_of);
        let wanted = |link: Link| Some(link).filter(|link| ports_of.is_none() || link.master == ports_of);
        self.socket.list(&request, libc::RTM_NEWLINK, |payload| Link::read(payload).map(wanted)).trying(|| "list links")
    }

    /// The links whose alias is `wanted`, however many others come and go meanwhile. It may be one of several then. Of the
    /// others nothing is read: there may be a thousand.
    pub fn find_links(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Link>> {
        let read = |payload: &[u8]| {
            for attribute in wire::attributes(payload, HEADER) {
                if let (libc::IFLA_IFALIAS, alias) = attribute? {
                    return if wanted(&wire::text(alias)) { Link::read(payload).map(Some) } else { Ok(None) };
                }
            }
            Ok(None)
        };
        self.socket.find(&list_links(None), libc::RTM_NEWLINK, read).trying(|| "look through the links")
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

pub(super) fn get_link_elsewhere(netns: NetnsId, link: LinkIndex) -> Vec<u8> {
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

/// Flags of a link that a message sets or clears.
#[derive(Clone, Copy, Debug)]
struct Flags {
    on: Iff,
    meant: Iff,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags { on: Iff::empty(), meant: Iff::empty() }
    }
}

/// Begins a message about a link. One that is meant by its name has it among the attributes.
fn about(kind: Rtm, flags: NlmF, link: Option<LinkRef<'_>>, state: Flags) -> Request {
    let mut request = Request::new(kind, flags);
    ifinfomsg(&mut request, 0, link, state);
    request
}

/// Begins a message about a port that is of the bridge's family.
pub(super) fn about_port(kind: Rtm, port: LinkIndex) -> Request {
    let mut request = Request::new(kind, NlmF::empty());
    ifinfomsg(&mut request, libc::AF_BRIDGE, Some(port.into()), Flags::default());
    request
}

/// struct ifinfomsg: family, type, number, flags, and which of them are meant.
fn ifinfomsg(request: &mut Request, family: i32, link: Option<LinkRef<'_>>, state: Flags) {
    let index = match link {
        Some(LinkRef::Index(index)) => index.number(),
        _ => 0,
    };
    request.raw(&[u8::try_from(family).unwrap_or_default(), 0, 0, 0]);
    for number in [index, state.on.bits(), state.meant.bits()] {
        request.raw(&number.to_ne_bytes());
    }
}

/// The name of a link that is meant by it.
fn by_name(request: &mut Request, link: LinkRef<'_>) {
    if let LinkRef::Name(name) = link {
        request.text(Ifla::Ifname, name);
    }
}
