//! Links on top of another one, by which they send and receive: macvlan, ipvlan and VLAN interfaces.

use std::fmt;

use super::super::wire::{self, Request};
use crate::error::Result;
use crate::ip::MacAddr;

// linux/if_link.h
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_MACADDR_MODE: u16 = 3;
const IFLA_MACVLAN_MACADDR: u16 = 4;
const IFLA_MACVLAN_MACADDR_DATA: u16 = 5;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IFLA_MACVLAN_BC_CUTOFF: u16 = 9;
const MACVLAN_MACADDR_SET: u32 = 3;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_FLAGS: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_FLAGS: u16 = 2;
const IFLA_VLAN_EGRESS_QOS: u16 = 3;
const IFLA_VLAN_INGRESS_QOS: u16 = 4;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFLA_VLAN_QOS_MAPPING: u16 = 1;
const VLAN_FLAG_REORDER_HDR: u32 = 1;

/// What distinguishes a link on top of another one from the others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// A macvlan interface: it has its own MAC address.
    Macvlan {
        /// How it exchanges frames with the others.
        mode: MacvlanMode,
        /// How many broadcast frames may wait; 0 for the kernel's default.
        broadcast_queue: u32,
    },
    /// An ipvlan interface: it shares the MAC address, and has its own IP addresses. All on one link have the same
    /// properties.
    Ipvlan {
        /// How it exchanges packets with the others.
        mode: IpvlanMode,
        /// Which of them it reaches.
        isolation: IpvlanIsolation,
    },
    /// A VLAN interface: it sends and receives the frames with this tag.
    Vlan(VlanTag),
}

impl Upper {
    /// Returns the kernel's name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Upper::Macvlan { .. } => "macvlan",
            Upper::Ipvlan { .. } => "ipvlan",
            Upper::Vlan(_) => "vlan",
        }
    }

    /// Returns whether a link has the properties that `wanted` has, whatever the length of its queue.
    pub fn is_like(self, wanted: Upper) -> bool {
        match (self, wanted) {
            (Upper::Macvlan { mode, .. }, Upper::Macvlan { mode: wanted, .. }) => mode == wanted,
            (have, wanted) => have == wanted,
        }
    }

    /// Adds the attributes of a link to create.
    pub(super) fn add_data(self, data: &mut Request) {
        match self {
            Upper::Macvlan { mode, broadcast_queue } => {
                if broadcast_queue > 0 {
                    data.number(IFLA_MACVLAN_BC_QUEUE_LEN, broadcast_queue);
                }
                data.number(IFLA_MACVLAN_MODE, mode.number());
            }
            Upper::Ipvlan { mode, isolation } => {
                data.attr(IFLA_IPVLAN_MODE, &mode.number().to_ne_bytes());
                // Kernels before 4.15 have no flags.
                if isolation != IpvlanIsolation::Bridge {
                    data.attr(IFLA_IPVLAN_FLAGS, &isolation.number().to_ne_bytes());
                }
            }
            Upper::Vlan(VlanTag { id, protocol }) => {
                if protocol != VlanProtocol::Dot1q {
                    data.attr(IFLA_VLAN_PROTOCOL, &protocol.number().to_be_bytes());
                }
                data.attr(IFLA_VLAN_ID, &id.to_ne_bytes());
            }
        }
    }

    /// Parses the attributes of a link of a kind; `None` for other kinds, or modes that this program does not know.
    pub(super) fn read(kind: &str, data: &[u8]) -> Result<Option<Upper>> {
        match kind {
            "macvlan" => read_macvlan(data),
            "ipvlan" => read_ipvlan(data),
            "vlan" => read_vlan(data),
            _ => Ok(None),
        }
    }
}

/// How a link on top of another one treats its frames. `None` and an empty list keep what the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRules<'a> {
    /// Those of a macvlan interface.
    Macvlan {
        /// The MAC addresses from which it receives, in mode [`Source`](MacvlanMode::Source).
        sources: &'a [MacAddr],
        /// From how many recipients on a broadcast frame waits in the queue (Linux 6.4).
        broadcast_cutoff: Option<i32>,
    },
    /// Those of a VLAN interface.
    Vlan {
        /// Whether frames that it receives lose their tag.
        reorders_headers: Option<bool>,
        /// The priority of a packet for that of a received frame.
        ingress: &'a [(u32, u32)],
        /// The priority of a frame for that of a packet to send.
        egress: &'a [(u32, u32)],
    },
}

impl FrameRules<'_> {
    /// Returns the kernel's name of the kind of link.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            FrameRules::Macvlan { .. } => "macvlan",
            FrameRules::Vlan { .. } => "vlan",
        }
    }

    /// Adds the attributes of a link to change.
    pub(super) fn add_data(&self, data: &mut Request) {
        match *self {
            FrameRules::Macvlan { sources, broadcast_cutoff } => {
                if !sources.is_empty() {
                    data.number(IFLA_MACVLAN_MACADDR_MODE, MACVLAN_MACADDR_SET);
                    data.nest(IFLA_MACVLAN_MACADDR_DATA, |list| {
                        sources.iter().for_each(|source| list.attr(IFLA_MACVLAN_MACADDR, &source.0));
                    });
                }
                if let Some(cutoff) = broadcast_cutoff {
                    data.attr(IFLA_MACVLAN_BC_CUTOFF, &cutoff.to_ne_bytes());
                }
            }
            FrameRules::Vlan { reorders_headers, ingress, egress } => {
                if let Some(on) = reorders_headers {
                    let flags = if on { VLAN_FLAG_REORDER_HDR } else { 0 };
                    data.attr(IFLA_VLAN_FLAGS, &pair(flags, VLAN_FLAG_REORDER_HDR));
                }
                for (kind, map) in [(IFLA_VLAN_INGRESS_QOS, ingress), (IFLA_VLAN_EGRESS_QOS, egress)] {
                    if !map.is_empty() {
                        data.nest(kind, |list| {
                            map.iter().for_each(|(from, to)| list.attr(IFLA_VLAN_QOS_MAPPING, &pair(*from, *to)));
                        });
                    }
                }
            }
        }
    }
}

/// Returns two numbers, as in a structure of the kernel.
fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn read_macvlan(data: &[u8]) -> Result<Option<Upper>> {
    let (mut mode, mut broadcast_queue) = (None, 0);
    for attribute in wire::attributes(data, 0) {
        match attribute? {
            (IFLA_MACVLAN_MODE, value) => mode = MacvlanMode::numbered(wire::number(value, 0)?),
            (IFLA_MACVLAN_BC_QUEUE_LEN, value) => broadcast_queue = wire::number(value, 0)?,
            _ => {}
        }
    }
    Ok(mode.map(|mode| Upper::Macvlan { mode, broadcast_queue }))
}

fn read_ipvlan(data: &[u8]) -> Result<Option<Upper>> {
    let (mut mode, mut isolation) = (None, Some(IpvlanIsolation::Bridge));
    for attribute in wire::attributes(data, 0) {
        match attribute? {
            (IFLA_IPVLAN_MODE, value) => mode = IpvlanMode::numbered(wire::number16(value, 0)?),
            (IFLA_IPVLAN_FLAGS, value) => {
                isolation = IpvlanIsolation::numbered(wire::number16(value, 0)?);
            }
            _ => {}
        }
    }
    Ok(mode.zip(isolation).map(|(mode, isolation)| Upper::Ipvlan { mode, isolation }))
}

fn read_vlan(data: &[u8]) -> Result<Option<Upper>> {
    let (mut id, mut protocol) = (None, Some(VlanProtocol::Dot1q));
    for attribute in wire::attributes(data, 0) {
        match attribute? {
            (IFLA_VLAN_ID, value) => id = Some(wire::number16(value, 0)?),
            (IFLA_VLAN_PROTOCOL, value) => {
                protocol = VlanProtocol::numbered(wire::number16(value, 0)?.to_be());
            }
            _ => {}
        }
    }
    Ok(id.zip(protocol).map(|(id, protocol)| Upper::Vlan(VlanTag { id, protocol })))
}

impl fmt::Display for Upper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upper::Macvlan { mode, .. } => write!(f, "mode {mode}"),
            Upper::Ipvlan { mode, isolation: IpvlanIsolation::Bridge } => write!(f, "mode {mode}"),
            Upper::Ipvlan { mode, isolation } => write!(f, "mode {mode} {isolation}"),
            Upper::Vlan(tag) => write!(f, "VLAN {tag}"),
        }
    }
}

/// Defines an enumeration with the words of iproute2 and the numbers of the kernel.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $number:ty { $($(#[$variant_doc:meta])* $variant:ident = $word:literal, $value:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($value),+].len()] = [$($name::$variant),+];

            /// Returns the one that iproute2 calls so.
            pub fn named(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.word() == word)
            }

            /// Returns iproute2's word.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }

            fn numbered(number: $number) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.number() == number)
            }

            fn number(self) -> $number {
                match self {
                    $($name::$variant => $value,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

numbered! {
    /// How a macvlan interface exchanges frames with the others on its link.
    MacvlanMode: u32 {
        /// Directly.
        Bridge = "bridge", 4;
        /// Not at all.
        Private = "private", 1;
        /// By a switch that sends frames back to where they came from.
        Vepa = "vepa", 2;
        /// There are no others: it has the whole link, with its MAC address.
        Passthru = "passthru", 8;
        /// It receives only what certain MAC addresses send.
        Source = "source", 16;
    }
}

numbered! {
    /// How an ipvlan interface exchanges packets with the others on its link.
    IpvlanMode: u16 {
        /// As on one Ethernet.
        L2 = "l2", 0;
        /// By routes alone: without broadcast, multicast and neighbour discovery.
        L3 = "l3", 1;
        /// As `L3`, and the packets pass the host's firewall.
        L3s = "l3s", 2;
    }
}

numbered! {
    /// Which of the others on its link an ipvlan interface reaches.
    IpvlanIsolation: u16 {
        /// All.
        Bridge = "bridge", 0;
        /// None.
        Private = "private", 1;
        /// Those that a switch sends its frames back to.
        Vepa = "vepa", 2;
    }
}

numbered! {
    /// The kind of a VLAN tag.
    VlanProtocol: u16 {
        /// The tag of a customer's network.
        Dot1q = "802.1Q", 0x8100;
        /// The tag of a provider's network, around that of a customer's.
        Dot1ad = "802.1ad", 0x88a8;
    }
}

/// The tag that distinguishes the frames of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The number of the VLAN.
    pub id: u16,
    /// The kind of the tag.
    pub protocol: VlanProtocol,
}

impl fmt::Display for VlanTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            VlanProtocol::Dot1q => write!(f, "{}", self.id),
            protocol => write!(f, "{} ({protocol})", self.id),
        }
    }
}
