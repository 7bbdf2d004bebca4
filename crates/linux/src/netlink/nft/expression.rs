//! The expressions of a rule, encoded as `nft` and `iptables-nft` encode them.
//!
//! A packet passes the expressions of a rule in order. Some load a [`Field`] of the packet into a [`Register`], others
//! compare a register and end the rule if the comparison fails, others act.
//! [`RuleSpec::expression`](super::RuleSpec::expression) adds any expression that has no method of its own.

use std::net::IpAddr;

use super::table::Family;
use crate::error::Result;
use crate::netlink::wire::{self, NESTED, Request};

// linux/netfilter/nf_tables.h
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// A register, which has a value between two expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// The register of a verdict, which decides about the packet.
    pub const VERDICT: Register = Register(0);
    /// The first register for data.
    pub const FIRST: Register = Register(1);
    /// The second register for data, if the first one has at most 16 bytes.
    pub const SECOND: Register = Register(2);

    /// Returns the register that starts at the given word of four bytes. A concatenation occupies consecutive words.
    pub const fn at_word(word: u32) -> Register {
        // Each word has a number, and four words together have another one, which `nft` prefers.
        Register(if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word })
    }

    /// Parses the content of an attribute with a register. The kernel prefers the same numbers as `nft`.
    pub(super) fn read(value: &[u8]) -> Result<Register> {
        Ok(Register(u32::from_be(wire::number(value, 0)?)))
    }
}

/// The part of a packet in which a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The Ethernet header.
    Link,
    /// The IP header.
    Network,
    /// The header of TCP, UDP or SCTP.
    Transport,
}

impl Header {
    /// Returns the header with the number of the kernel.
    pub(super) fn numbered(number: u32) -> Option<Header> {
        [Header::Link, Header::Network, Header::Transport].into_iter().find(|header| *header as u32 == number)
    }
}

/// A property of a packet or its connection that a rule can load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub(super) origin: Origin,
    pub(super) len: u32,
    /// The protocol whose header has the field.
    pub(super) protocol: Option<Family>,
}

/// Where a field comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Meta(u32),
    Payload(Header, u32),
    Connection { key: u32, is_original: bool },
    Fib { flags: u32, result: u32 },
}

impl Field {
    /// The packet mark, in the byte order of the host.
    pub const PACKET_MARK: Field = Field::meta(3, 4);
    /// The name of the link on which the packet arrived, padded with NULs.
    pub const INPUT_LINK: Field = Field::meta(6, 16);
    /// The name of the link on which the packet leaves, padded with NULs.
    pub const OUTPUT_LINK: Field = Field::meta(7, 16);
    /// The number of the transport protocol: see [`TCP`](Self::TCP).
    pub const PROTOCOL: Field = Field::meta(16, 1);
    /// To whom a frame is addressed: see [`TO_HOST`](Self::TO_HOST).
    pub const PACKET_TYPE: Field = Field::meta(19, 1);
    pub(super) const ETHER_TYPE: Field = Field::meta(1, 2);
    pub(super) const NETWORK_PROTOCOL: Field = Field::meta(15, 1);
    /// The destination MAC address.
    pub const DESTINATION_MAC: Field = Field::payload(Header::Link, 0, 6);
    /// The source MAC address.
    pub const SOURCE_MAC: Field = Field::payload(Header::Link, 6, 6);
    /// The IPv4 source address.
    pub const SOURCE_V4: Field = Field::of(Family::Ipv4, 12, 4);
    /// The IPv4 destination address.
    pub const DESTINATION_V4: Field = Field::of(Family::Ipv4, 16, 4);
    /// The IPv6 source address.
    pub const SOURCE_V6: Field = Field::of(Family::Ipv6, 8, 16);
    /// The IPv6 destination address.
    pub const DESTINATION_V6: Field = Field::of(Family::Ipv6, 24, 16);
    /// The destination port. The rule must know that the protocol has ports.
    pub const DESTINATION_PORT: Field = Field::payload(Header::Transport, 2, 2);
    /// The state of the connection, as bits in the byte order of the host.
    pub const CONNECTION_STATE: Field = Field::connection(0, 4);
    /// The status of the connection, as bits in the byte order of the host.
    pub const CONNECTION_STATUS: Field = Field::connection(2, 4);
    /// The direction of the packet in its connection: see [`REPLY`](Self::REPLY).
    pub const CONNECTION_DIRECTION: Field = Field::connection(1, 1);
    /// The IPv4 destination of the first packet of the connection, before any translation.
    pub const ORIGINAL_DESTINATION_V4: Field = Field::original(20, 4);
    /// The IPv6 destination of the first packet of the connection, before any translation.
    pub const ORIGINAL_DESTINATION_V6: Field = Field::original(22, 16);
    /// The type of the destination address in the routing tables, in the byte order of the host.
    pub const DESTINATION_TYPE: Field = Field::fib(1 << 1, 3, 4);

    /// [`PROTOCOL`](Self::PROTOCOL) of TCP.
    pub const TCP: u8 = 6;
    /// [`PACKET_TYPE`](Self::PACKET_TYPE) of a frame to this host.
    pub const TO_HOST: u8 = 0;
    /// Bits of [`CONNECTION_STATE`](Self::CONNECTION_STATE): packets were seen in both directions, or the connection
    /// belongs to such a connection.
    pub const ESTABLISHED: u32 = 1 << 1 | 1 << 2;
    /// Bit of [`CONNECTION_STATUS`](Self::CONNECTION_STATUS): the destination was translated.
    pub const TRANSLATED: u32 = 1 << 5;
    /// [`CONNECTION_DIRECTION`](Self::CONNECTION_DIRECTION) of a packet to the client that began the connection.
    pub const REPLY: u8 = 1;
    /// Value of [`DESTINATION_TYPE`](Self::DESTINATION_TYPE): an address of this host.
    pub const LOCAL: u32 = 2;

    /// Returns a property that the kernel keeps beside the packet; `key` is a number NFT_META_*.
    pub const fn meta(key: u32, len: u32) -> Field {
        Field { origin: Origin::Meta(key), len, protocol: None }
    }

    /// Returns `len` bytes of a header.
    pub const fn payload(header: Header, offset: u32, len: u32) -> Field {
        Field { origin: Origin::Payload(header, offset), len, protocol: None }
    }

    /// Returns a property of the connection; `key` is a number NFT_CT_*.
    pub const fn connection(key: u32, len: u32) -> Field {
        Field { origin: Origin::Connection { key, is_original: false }, len, protocol: None }
    }

    /// Needs no check of the protocol: the kernel does not match connections of the other family.
    const fn original(key: u32, len: u32) -> Field {
        Field { origin: Origin::Connection { key, is_original: true }, len, protocol: None }
    }

    /// Returns a property of the route; the numbers are NFTA_FIB_F_* and NFT_FIB_RESULT_*.
    pub const fn fib(flags: u32, result: u32, len: u32) -> Field {
        Field { origin: Origin::Fib { flags, result }, len, protocol: None }
    }

    const fn of(protocol: Family, offset: u32, len: u32) -> Field {
        Field { protocol: Some(protocol), ..Field::payload(Header::Network, offset, len) }
    }

    /// Returns the source address of the family of `ip`.
    pub(super) fn source(ip: IpAddr) -> Field {
        if ip.is_ipv4() { Field::SOURCE_V4 } else { Field::SOURCE_V6 }
    }

    /// Returns the destination address of the family of `ip`.
    pub(super) fn destination(ip: IpAddr) -> Field {
        if ip.is_ipv4() { Field::DESTINATION_V4 } else { Field::DESTINATION_V6 }
    }
}

/// How a register is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The rule continues if they are equal.
    Equal,
    /// The rule continues if they differ.
    NotEqual,
}

/// A decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends this base chain; the packet passes it.
    Accept,
    /// Drops the packet.
    Drop,
    /// Leaves the chain.
    Return,
    /// Continues in another chain, then returns.
    Jump(String),
    /// Continues in another chain without returning.
    Goto(String),
}

impl Verdict {
    const DROP: i32 = 0;
    const ACCEPT: i32 = 1;
    const JUMP: i32 = -3;
    const GOTO: i32 = -4;
    const RETURN: i32 = -5;

    /// Returns the chain in which the packet continues.
    pub fn target(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    fn code(&self) -> i32 {
        match self {
            Verdict::Accept => Verdict::ACCEPT,
            Verdict::Drop => Verdict::DROP,
            Verdict::Return => Verdict::RETURN,
            Verdict::Jump(_) => Verdict::JUMP,
            Verdict::Goto(_) => Verdict::GOTO,
        }
    }

    /// Parses the content of an attribute with a verdict; `None` for verdicts that no rule of ours has.
    fn read(data: &[u8]) -> Result<Option<Verdict>> {
        let (mut code, mut chain) = (None, String::new());
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (VERDICT_CODE, value) => code = Some(u32::from_be(wire::number(value, 0)?).cast_signed()),
                (VERDICT_CHAIN, value) => chain = wire::text(value),
                _ => {}
            }
        }
        Ok(match code {
            Some(Verdict::ACCEPT) => Some(Verdict::Accept),
            Some(Verdict::DROP) => Some(Verdict::Drop),
            Some(Verdict::RETURN) => Some(Verdict::Return),
            Some(Verdict::JUMP) => Some(Verdict::Jump(chain)),
            Some(Verdict::GOTO) => Some(Verdict::Goto(chain)),
            _ => None,
        })
    }
}

/// The value or verdict in a register or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A value.
    Value(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

impl Data {
    /// Parses the content of an attribute with data; `None` if it has neither a value nor a known verdict.
    pub(super) fn read(data: &[u8]) -> Result<Option<Data>> {
        let mut found = None;
        for attribute in wire::attributes(data, 0) {
            match attribute? {
                (DATA_VALUE, value) => found = Some(Data::Value(value.to_vec())),
                (DATA_VERDICT, verdict) => found = Verdict::read(verdict)?.map(Data::Verdict),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Returns the value; `None` if this is a verdict.
    pub fn into_value(self) -> Option<Vec<u8>> {
        match self {
            Data::Value(value) => Some(value),
            Data::Verdict(_) => None,
        }
    }
}

/// Writes the attributes of an expression or an element.
#[derive(Debug)]
pub struct Attributes<'a>(pub(super) &'a mut Request);

impl Attributes<'_> {
    /// Adds a number.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Adds a register.
    pub fn register(&mut self, kind: u16, register: Register) {
        self.number(kind, register.0);
    }

    /// Adds bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.attr(kind, value);
    }

    /// Adds a text with a final NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.0.text(kind, value);
    }

    /// Adds an attribute with the attributes that `inside` writes.
    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
        self.0.nest(NESTED | kind, |request| inside(&mut Attributes(request)));
    }

    /// Adds a value, which is nested in an attribute of its own.
    pub fn value(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |data| data.bytes(DATA_VALUE, value));
    }

    /// Adds a verdict.
    pub fn verdict(&mut self, kind: u16, verdict: &Verdict) {
        self.nest(kind, |data| {
            data.nest(DATA_VERDICT, |data| {
                data.bytes(VERDICT_CODE, &verdict.code().to_be_bytes());
                if let Some(chain) = verdict.target() {
                    data.text(VERDICT_CHAIN, chain);
                }
            });
        });
    }
}
