//! Rules, which select the routing table of a packet.

use std::net::IpAddr;

use neli::consts::nl::NlmF;

use super::route::Rejection;
use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};
use crate::ip::Cidr;

/// struct `fib_rule_hdr`
const HEADER: usize = 12;

// linux/fib_rules.h
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_BLACKHOLE: u8 = 6;
const FR_ACT_UNREACHABLE: u8 = 7;
const FR_ACT_PROHIBIT: u8 = 8;
const FIB_RULE_INVERT: u32 = 2;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
/// The value of `FRA_SUPPRESS_PREFIXLEN` that means "none".
const NO_LENGTH: u32 = u32::MAX;

/// A rule that selects the table of the packets from an address. The kernel chooses its priority: before all other
/// rules but the first, which selects the local table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRule {
    /// The address.
    pub src: IpAddr,
    /// The table.
    pub table: u32,
    /// The program that added the rule, as a number. Kernels before 4.17 ignore it.
    pub protocol: u8,
    /// A number that says whose the rule is; 0 for none. It is stored as the packet mark to compare with, of which no
    /// bit is compared: a rule has no other place for it.
    pub mark: u32,
}

/// A rule of the kernel, which can be deleted and added again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The table; 0 if the rule selects none.
    pub table: u32,
    /// The rule, if it selects packets by an address as their source alone.
    pub source: Option<SourceRule>,
    /// What happens to the packets if the rule lets none pass. They may have to meet other conditions too.
    pub rejection: Option<Rejection>,
    message: Vec<u8>,
}

impl Rule {
    /// Parses a rule; `None` for other families.
    pub(super) fn read(payload: &[u8]) -> Result<Option<Rule>> {
        let family = i32::from(wire::byte(payload, 0)?);
        let bits = match family {
            libc::AF_INET => 32,
            libc::AF_INET6 => 128,
            _ => return Ok(None),
        };
        let (src_bits, mut table) = (wire::byte(payload, 2)?, u32::from(wire::byte(payload, 4)?));
        // Neither a destination, a type of service, another action nor a flag, such as one that inverts the rule.
        let mut is_plain = wire::byte(payload, 1)? == 0
            && src_bits == bits
            && wire::byte(payload, 3)? == 0
            && wire::byte(payload, 7)? == FR_ACT_TO_TBL
            && wire::number(payload, 8)? == 0;
        let (mut src, mut dst, mut protocol, mut mark, mut mask) = (None, None, 0, 0, 0);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (FRA_SRC, value) => src = Some(wire::ip(value)?),
                (FRA_TABLE, value) => table = wire::number(value, 0)?,
                (FRA_PROTOCOL, value) => protocol = wire::byte(value, 0)?,
                (FRA_FWMARK, value) => mark = wire::number(value, 0)?,
                (FRA_FWMASK, value) => mask = wire::number(value, 0)?,
                (FRA_PRIORITY | FRA_PAD, _) => {}
                (FRA_DST, value) => dst = Some(wire::ip(value)?),
                (FRA_SUPPRESS_PREFIXLEN, value) => is_plain &= wire::number(value, 0)? == NO_LENGTH,
                _ => is_plain = false,
            }
        }
        let source = src
            .filter(|src| is_plain && mask == 0 && wire::cidr(*src, src_bits).is_ok())
            .map(|src| SourceRule { src, table, protocol, mark });
        let kind = match wire::byte(payload, 7)? {
            FR_ACT_BLACKHOLE => Some("blackhole"),
            FR_ACT_UNREACHABLE => Some("unreachable"),
            FR_ACT_PROHIBIT => Some("prohibit"),
            _ => None,
        };
        // A flag inverts the rule.
        let kind = kind.filter(|_| wire::number(payload, 8).is_ok_and(|flags| flags & FIB_RULE_INVERT == 0));
        let net = |ip: Option<IpAddr>, bits| ip.map(|ip| wire::cidr(ip, bits)).transpose();
        let (source_net, destination) = (net(src, src_bits)?, net(dst, wire::byte(payload, 1)?)?);
        let rejection = kind.map(|kind| Rejection { kind, source: source_net, destination });
        Ok(Some(Rule { table, source, rejection, message: payload.to_vec() }))
    }
}

impl SourceRule {
    fn message(&self, kind: u16, how: NlmF) -> Request {
        let SourceRule { src, table, protocol, mark } = *self;
        let mut request = Request::new(kind, how);
        // struct fib_rule_hdr: family, prefix lengths of destination and source, type of service
        request.raw(&[wire::family(src), 0, Cidr::host(src).prefix(), 0]);
        // … table, two reserved bytes, action, flags
        request.raw(&[u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC), 0, 0, FR_ACT_TO_TBL]);
        request.raw(&[0; 4]);
        request.ip(FRA_SRC, src);
        if mark != 0 {
            request.number(FRA_FWMARK, mark);
            request.number(FRA_FWMASK, 0);
        }
        // The field in the header has one byte.
        if table > 255 {
            request.number(FRA_TABLE, table);
        }
        request.attr(FRA_PROTOCOL, &[protocol]);
        request
    }
}

impl Change<'_> {
    /// Adds a rule. The kernel accepts an identical one, with another priority.
    pub fn add_rule(rule: &SourceRule) -> Self {
        let SourceRule { src, table, .. } = *rule;
        let request = rule.message(libc::RTM_NEWRULE, wire::CREATE);
        Change::new(request, move || format!("add a rule from {src} to table {table}"))
    }

    /// Deletes a rule, whatever its priority is.
    pub fn delete_rule(rule: &SourceRule) -> Self {
        let SourceRule { src, table, .. } = *rule;
        let request = rule.message(libc::RTM_DELRULE, NlmF::empty());
        Change::new(request, move || format!("delete the rule from {src} to table {table}"))
    }

    /// Deletes exactly this rule. The kernel finds it by its priority as well.
    pub fn delete_listed_rule(rule: &Rule) -> Self {
        let table = rule.table;
        let mut request = Request::new(libc::RTM_DELRULE, NlmF::empty());
        request.raw(&rule.message);
        Change::new(request, move || format!("delete a rule to table {table}"))
    }

    /// Adds a rule again that was deleted, with its priority.
    pub fn restore_rule(rule: &Rule) -> Self {
        let table = rule.table;
        let mut request = Request::new(libc::RTM_NEWRULE, wire::CREATE);
        request.raw(&rule.message);
        Change::new(request, move || format!("restore a rule to table {table}"))
    }
}

impl Netlink {
    /// Returns all rules for IPv4 and IPv6.
    pub fn rules(&mut self) -> Result<Vec<Rule>> {
        let listed = self.socket.list(&list_rules(), libc::RTM_NEWRULE, Rule::read);
        listed.context(|| "list the rules that select routing tables")
    }
}

pub(super) fn list_rules() -> Vec<u8> {
    let mut request = Request::new(libc::RTM_GETRULE, NlmF::empty());
    request.raw(&[0; HEADER]);
    request.finish()
}
