//! Trace events: the way of marked packets through the rules, as the kernel reports it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use neli::consts::socket::NlFamily;

use super::expression::{Comparison, Field, Register};
use super::message::{HEADER, SUBSYSTEM, TABLE, TRACE};
use super::spec::RuleSpec;
use super::table::Family;
use crate::error::{Context, Result};
use crate::ip::Cidr;
use crate::netlink::LinkIndex;
use crate::netlink::watch::Notifications;
use crate::netlink::wire;

// linux/netfilter/nf_tables.h: NFTA_TRACE_*
const CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const ID: u16 = 6;
const INPUT: u16 = 10;
const OUTPUT: u16 = 12;
const POLICY: u16 = 16;
const VERDICT_CODE: u16 = 1;
/// linux/netfilter.h
const DROP: u32 = 0;
/// linux/netfilter/nf_tables.h: the event is about the policy of a base chain.
const TYPE_POLICY: u32 = 1;
/// linux/netfilter/nfnetlink.h: NFNLGRP_NFTRACE
const GROUP: u32 = 9;
/// linux/netfilter/nf_tables.h: NFT_META_NFTRACE
const META_TRACE: u32 = 12;

/// A decision about a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The same number for all events of one packet in one hook.
    pub packet: u32,
    /// The family; `None` for one that [`Family`] lacks.
    pub family: Option<Family>,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The handle of the rule; `None` if the policy of the chain decides.
    pub rule: Option<u64>,
    /// Whether the packet is dropped here. A rule that rejects it drops it, too.
    pub drops: bool,
    /// The link on which the packet arrived.
    pub input: Option<LinkIndex>,
    /// The link on which the packet leaves.
    pub output: Option<LinkIndex>,
}

impl TraceEvent {
    /// Parses the payload of an event.
    pub(in crate::netlink) fn read(payload: &[u8]) -> Result<TraceEvent> {
        let mut event = TraceEvent {
            packet: 0,
            family: Family::numbered(wire::byte(payload, 0)?),
            table: String::new(),
            chain: String::new(),
            rule: None,
            drops: false,
            input: None,
            output: None,
        };
        let mut is_policy = false;
        for attribute in wire::attributes(payload, HEADER) {
            match attribute? {
                (TABLE, value) => event.table = wire::text(value),
                (CHAIN, value) => event.chain = wire::text(value),
                (RULE_HANDLE, value) => event.rule = value.try_into().ok().map(u64::from_be_bytes),
                (TYPE, value) => is_policy = u32::from_be(wire::number(value, 0)?) == TYPE_POLICY,
                (VERDICT, verdict) => {
                    for attribute in wire::attributes(verdict, 0) {
                        if let (VERDICT_CODE, value) = attribute? {
                            event.drops |= u32::from_be(wire::number(value, 0)?) == DROP;
                        }
                    }
                }
                (POLICY, value) => event.drops |= is_policy && u32::from_be(wire::number(value, 0)?) == DROP,
                (ID, value) => event.packet = u32::from_be(wire::number(value, 0)?),
                (INPUT, value) => event.input = LinkIndex::optional(u32::from_be(wire::number(value, 0)?)),
                (OUTPUT, value) => event.output = LinkIndex::optional(u32::from_be(wire::number(value, 0)?)),
                _ => {}
            }
        }
        Ok(event)
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(family) = self.family {
            write!(f, "{family} ")?;
        }
        write!(f, "{} {}", self.table, self.chain)?;
        match self.rule {
            Some(handle) => write!(f, " handle {handle}"),
            None => f.write_str(" (policy)"),
        }
    }
}

impl RuleSpec<'_> {
    /// Traces the packets from `source`, and to `destination` if there is one.
    pub fn trace(self, source: Cidr, destination: Option<Cidr>) -> Self {
        let from = self.source_in(source);
        let selected = match destination {
            Some(destination) => from.destination_in(destination),
            None => from,
        };
        selected.set_trace()
    }

    fn set_trace(self) -> Self {
        self.immediate(Register::FIRST, &[1]).expression("meta", |data| {
            data.number(2, META_TRACE);
            data.register(3, Register::FIRST);
        })
    }

    /// Matches frames that carry packets of this family, in a table of bridges.
    pub fn frames_of(self, family: Family) -> Self {
        let ether_type: u16 = if family == Family::Ipv6 { 0x86dd } else { 0x0800 };
        self.matches(Field::ETHER_TYPE, Comparison::Equal, &ether_type.to_be_bytes())
    }
}

/// Receives the trace events of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Trace {
    notifications: Notifications,
}

impl Trace {
    /// Subscribes in the namespace of the calling thread.
    pub fn open() -> Result<Trace> {
        let notifications = Notifications::open(NlFamily::Netfilter, GROUP);
        Ok(Trace { notifications: notifications.context(|| "subscribe to trace events of nf_tables")? })
    }

    /// Returns the events that have arrived, without waiting. Lost events are missing.
    pub fn events(&mut self) -> Result<Vec<TraceEvent>> {
        let mut events = Vec::new();
        while self
            .notifications
            .read(|message| {
                if message.kind == SUBSYSTEM << 8 | TRACE {
                    events.push(TraceEvent::read(message.payload)?);
                }
                Ok(())
            })
            .context(|| "receive trace events of nf_tables")?
            .is_some()
        {}
        Ok(events)
    }
}

impl AsFd for Trace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.fd()
    }
}
