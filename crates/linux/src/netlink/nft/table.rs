//! Tables, chains and their hooks.

use std::fmt;
use std::net::IpAddr;

use neli::consts::nl::NlmF;

use super::message::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, HEADER, HOOK_PLACE, HOOK_PRIORITY, RULE_CHAIN, TABLE, begin,
};
use crate::error::Result;
use crate::netlink::wire::{self, Request};

/// The packets that a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Frames on a bridge.
    Bridge,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// Returns the family with this number; `None` for families of other programs.
    pub(super) fn numbered(number: u8) -> Option<Family> {
        let known = [Family::Inet, Family::Ipv4, Family::Ipv6, Family::Bridge];
        known.into_iter().find(|family| family.number() == number)
    }

    pub(super) fn number(self) -> u8 {
        // linux/netfilter.h: NFPROTO_*
        match self {
            Family::Inet => 1,
            Family::Ipv4 => 2,
            Family::Bridge => 7,
            Family::Ipv6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// The family.
    pub family: Family,
    /// The name.
    pub name: &'a str,
}

/// A chain of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The table.
    pub table: Table<'a>,
    /// The name.
    pub name: &'a str,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

impl<'a> Table<'a> {
    /// Returns a chain of this table.
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }
}

/// The hook at which packets enter a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The kernel's number of the hook.
    pub place: u32,
    /// Chains with lower numbers run first.
    pub priority: i32,
}

impl Hook {
    /// The hook for source NAT.
    pub const SOURCE_NAT: Hook = Hook { kind: "nat", place: 4, priority: 100 };
    /// The hook for destination NAT of packets that arrive.
    pub const DESTINATION_NAT: Hook = Hook { kind: "nat", place: 0, priority: -100 };
    /// The hook for destination NAT of packets that this host sends.
    pub const LOCAL_DESTINATION_NAT: Hook = Hook { kind: "nat", place: 3, priority: -100 };
    /// The hook for destination NAT of packets that arrive, after the chains of other programs at [`DESTINATION_NAT`],
    /// where `iptables` has its chain PREROUTING: the first translation of a connection counts, so that theirs win.
    ///
    /// [`DESTINATION_NAT`]: Hook::DESTINATION_NAT
    pub const LATE_DESTINATION_NAT: Hook = Hook { priority: -99, ..Hook::DESTINATION_NAT };
    /// The hook for destination NAT of packets that this host sends, after the chains of other programs at
    /// [`LOCAL_DESTINATION_NAT`](Hook::LOCAL_DESTINATION_NAT).
    pub const LATE_LOCAL_DESTINATION_NAT: Hook = Hook { priority: -99, ..Hook::LOCAL_DESTINATION_NAT };
    /// The hook that filters packets that arrive, before connection tracking (-200) and NAT change them, where
    /// `iptables` has the chain PREROUTING of its table `raw`. The rules see the destination that the sender used.
    pub const RAW_INPUT: Hook = Hook { kind: "filter", place: 0, priority: -300 };
    /// The hook that filters packets that arrive, after connection tracking and NAT have translated them.
    pub const TRANSLATED_INPUT: Hook = Hook { kind: "filter", place: 0, priority: -90 };
    /// The hook that filters packets that are not addressed to this host, where `iptables` has its chain FORWARD.
    pub const FORWARD: Hook = Hook { kind: "filter", place: BaseChain::FORWARD, priority: 0 };
    /// The hook just before [`FORWARD`](Hook::FORWARD).
    pub const BEFORE_FORWARD: Hook = Hook { priority: -1, ..Hook::FORWARD };
    /// The hook just after [`FORWARD`](Hook::FORWARD).
    pub const AFTER_FORWARD: Hook = Hook { priority: 1, ..Hook::FORWARD };
    /// The first hook for frames that a bridge receives on its ports.
    pub const BRIDGE_INPUT: Hook = Hook { kind: "filter", place: 0, priority: -300 };
}

/// A base chain, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The kernel's number of the family: other programs use families that [`Family`] lacks.
    family: u8,
    /// The table.
    pub table: String,
    /// The name.
    pub name: String,
    /// The kernel's number of the hook.
    pub place: u32,
    /// Chains with lower numbers run first.
    pub priority: i32,
    /// Whether the policy is to drop packets that no rule matches.
    pub drops: bool,
}

impl BaseChain {
    /// The hook for packets that are not addressed to this host.
    pub const FORWARD: u32 = 2;

    /// Returns the family; `None` for families of other programs.
    pub fn family(&self) -> Option<Family> {
        Family::numbered(self.family)
    }

    /// Returns whether the chain sees packets of this family: it has the same family, or `inet`.
    pub fn sees(&self, family: Family) -> bool {
        self.family == family.number() || (self.family == Family::Inet.number() && family != Family::Bridge)
    }

    /// Parses a chain; `None` if it is not a base chain.
    pub(in crate::netlink) fn read(payload: &[u8]) -> Result<Option<BaseChain>> {
        let mut chain = BaseChain {
            family: wire::byte(payload, 0)?,
            table: String::new(),
            name: String::new(),
            place: 0,
            priority: 0,
            drops: false,
        };
        let mut is_base = false;
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (TABLE, value) => chain.table = wire::text(value),
                (CHAIN_NAME, value) => chain.name = wire::text(value),
                (CHAIN_HOOK, hook) => {
                    is_base = true;
                    for attribute in wire::attributes(hook, 0) {
                        match attribute? {
                            (HOOK_PLACE, value) => chain.place = u32::from_be(wire::number(value, 0)?),
                            (HOOK_PRIORITY, value) => {
                                chain.priority = u32::from_be(wire::number(value, 0)?).cast_signed();
                            }
                            _ => {}
                        }
                    }
                }
                (CHAIN_POLICY, value) => chain.drops = wire::number(value, 0)? == 0,
                _ => {}
            }
        }
        Ok(is_base.then_some(chain))
    }
}

impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family() {
            Some(family) => write!(f, "{family} {} {}", self.table, self.name),
            None => write!(f, "{} {}", self.table, self.name),
        }
    }
}

/// Starts a message about a table, or about an object in it.
pub(super) fn about(kind: u16, flags: NlmF, table: Table<'_>) -> Request {
    let mut request = begin(kind, flags, table.family.number());
    request.text(TABLE, table.name);
    request
}

pub(super) fn about_chain(kind: u16, flags: NlmF, chain: Chain<'_>) -> Request {
    let mut request = about(kind, flags, chain.table);
    request.text(CHAIN_NAME, chain.name);
    request
}

/// Starts a message about the rules of a chain.
pub(super) fn about_rule(kind: u16, flags: NlmF, chain: Chain<'_>) -> Request {
    let mut request = about(kind, flags, chain.table);
    request.text(RULE_CHAIN, chain.name);
    request
}
